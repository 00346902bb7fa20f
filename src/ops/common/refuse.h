// SPDX-License-Identifier: Apache-2.0
// How the built-in operations refuse what they cannot work with.
#pragma once

#include <string>
#include <string_view>

#include <ejk/error.h>
#include <ejk/tensor.h>

#include "base/format.h"

namespace ejk::ops {

// "[matmul] given a[2, 3], b[4, 5]; needed: a[m, k], b[k, n]"
[[noreturn]] inline void refuse(std::string_view op, std::string_view given,
                                std::string_view needed) {
  throw Error(ErrorKind::invalid_argument,
              fmt::format("[{}] given {}; needed: {}", op, given, needed));
}

// "q float32[1, 2, 3, 4]"
inline std::string described(std::string_view name, const AnyView& v) {
  return fmt::format("{} {}{}", name, dtype_name(v.dtype), shape_text(v.shape));
}
inline std::string described(std::string_view name, const Tensor& t) {
  return described(name, t.any());
}

// A config that is passed with a call can hold anything.
inline void check_positive(std::string_view op, std::string_view field, int value) {
  if (value <= 0) refuse(op, fmt::format("config.{} = {}", field, value), "a positive number");
}

}  // namespace ejk::ops
