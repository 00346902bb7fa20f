// SPDX-License-Identifier: Apache-2.0
// SHA-256 (FIPS 180-4), from which text keys and file names are made.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace ejk::base {

std::array<uint8_t, 32> sha256(std::string_view text);

// The first `digits` (at most 64) lower-case hex digits of it.
std::string sha256_hex(std::string_view text, size_t digits = 64);

}  // namespace ejk::base
