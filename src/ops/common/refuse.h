// SPDX-License-Identifier: Apache-2.0
// How the built-in operations refuse what they cannot work with.
#pragma once

#include <fmt/format.h>

#include <string_view>

#include <ejk/error.h>

namespace ejk::ops {

// "[matmul] given a[2, 3], b[4, 5]; needed: a[m, k], b[k, n]"
[[noreturn]] inline void refuse(std::string_view op, std::string_view given,
                                std::string_view needed) {
  throw Error(ErrorKind::invalid_argument,
              fmt::format("[{}] given {}; needed: {}", op, given, needed));
}

// A config that is passed with a call can hold anything.
inline void check_positive(std::string_view op, std::string_view field, int value) {
  if (value <= 0) refuse(op, fmt::format("config.{} = {}", field, value), "a positive number");
}

}  // namespace ejk::ops
