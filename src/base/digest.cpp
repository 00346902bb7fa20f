// SPDX-License-Identifier: Apache-2.0
// XXH3: it costs nothing beside reading the bytes.
#include "base/digest.h"

#include <xxhash.h>

#include "base/format.h"

namespace ejk::base {

std::string digest_of(std::string_view bytes) {
  return fmt::format("xxh3:{:016x}", XXH3_64bits(bytes.data(), bytes.size()));
}

std::string name_by_digest_of(std::string_view bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace ejk::base
