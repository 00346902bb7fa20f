// SPDX-License-Identifier: Apache-2.0
// XXH3: it costs nothing beside reading the bytes.
#include "base/digest.h"

#include <xxhash.h>

#include "base/format.h"

namespace ejk::base {

std::string digest_of(std::string_view bytes) {
  return fmt::format("xxh3:{:016x}", XXH3_64bits(bytes.data(), bytes.size()));
}

}  // namespace ejk::base
