// SPDX-License-Identifier: Apache-2.0
// The digest of all bytes before the member.
#include "store/checksum.h"

#include <algorithm>

#include "base/digest.h"

namespace ejk::detail {
namespace {

std::string end_for(std::string_view begin) {
  return ",\n \"checksum\": \"" + base::digest_of(begin) + "\"\n}\n";
}

}  // namespace

std::string with_checksum(std::string text) {
  text.resize(text.size() - std::string_view("\n}\n").size());
  return text + end_for(text);
}

Checksum checksum_of(std::string_view text, const Value& document) {
  static const size_t length = end_for("").size();
  const size_t begin = text.size() - std::min(text.size(), length);
  if (text.substr(begin) == end_for(text.substr(0, begin))) return Checksum::right;
  // Two signs of one: a flipped bit hides one of them only. Digests elsewhere are not meant: what
  // an entry was offered may be its last text.
  const bool named = document.find("checksum") != nullptr;
  static const size_t value = end_for("").find("\"xxh3:");
  return named || text.substr(begin).find("\"xxh3:") == value ? Checksum::wrong : Checksum::absent;
}

}  // namespace ejk::detail
