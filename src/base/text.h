// SPDX-License-Identifier: Apache-2.0
// Characters of strings, and texts of others as they may be shown.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ejk::base {

// One code point of a string. A byte that is not part of valid UTF-8 counts as the lone surrogate
// 0xdc00 + byte (Python's "surrogateescape"), which valid UTF-8 never contains.
struct CodePoint {
  uint32_t code;
  size_t bytes;
  bool is_stray_byte() const { return code >= 0xdc80 && code <= 0xdcff; }
};

inline CodePoint code_point_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return uint32_t{static_cast<unsigned char>(text[i])}; };
  const uint32_t lead = byte(at);
  if (lead < 0x80) return {lead, 1};
  const CodePoint stray = {0xdc00 + lead, 1};
  const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() - at < length) return stray;
  uint32_t code = lead & (0x7fu >> length);
  for (size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xc0) != 0x80) return stray;
    code = code << 6 | (byte(at + i) & 0x3f);
  }
  const bool overlong = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
  const bool surrogate = code >= 0xd800 && code <= 0xdfff;
  return overlong || surrogate || code > 0x10ffff ? stray : CodePoint{code, length};
}

// Text from files as it may go to a terminal or a log: control characters, bytes that are not UTF-8
// and characters that are invisible or change the direction of writing become escapes. What is
// printable stays as it is.
std::string printable(std::string_view text);

// A message that quotes such texts, as one printable line of at most this many bytes: of a longer
// one the beginning and the end are kept.
inline constexpr size_t longest_line = 1000;
std::string one_line(std::string_view message);

}  // namespace ejk::base
