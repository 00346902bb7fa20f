// SPDX-License-Identifier: Apache-2.0
// Environment variables.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>

namespace ejk {

inline std::optional<std::string> env(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) return std::nullopt;
  return std::string(value);
}

}  // namespace ejk
