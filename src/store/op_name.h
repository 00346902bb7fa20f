// SPDX-License-Identifier: Apache-2.0
// Ops as users name them: "name@vVERSION", or "name" for all versions.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace ejk::detail {

inline std::string_view without_version(std::string_view op) {
  return op.substr(0, op.rfind("@v"));
}

inline bool op_matches(std::string_view op, std::string_view wanted) {
  return op == wanted || without_version(op) == wanted;
}

// One of these, or any if there are none.
inline bool op_matches(std::string_view op, const std::vector<std::string>& wanted) {
  return wanted.empty() ||
         std::ranges::any_of(wanted, [&](const auto& one) { return op_matches(op, one); });
}

}  // namespace ejk::detail
