// SPDX-License-Identifier: Apache-2.0
// Ops as users name them: "name@vVERSION", or "name" for all versions.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace ejk::detail {

struct OpName {
  explicit OpName(std::string_view op)
      : name(op.substr(0, op.rfind("@v"))), version(op.substr(name.size())) {
    if (!version.empty()) version.remove_prefix(2);
  }
  std::string_view name, version;  // "": it has none
};

inline bool op_matches(std::string_view op, std::string_view wanted) {
  return op == wanted || OpName(op).name == wanted;
}

// One of these, or any if there are none.
inline bool op_matches(std::string_view op, const std::vector<std::string>& wanted) {
  return wanted.empty() ||
         std::ranges::any_of(wanted, [&](const auto& one) { return op_matches(op, one); });
}

}  // namespace ejk::detail
