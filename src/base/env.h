// SPDX-License-Identifier: Apache-2.0
// Environment variables.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

namespace ejk::base {

inline std::optional<std::string> env(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) return std::nullopt;
  return std::string(value);
}

inline std::string env_or_empty(const char* name) { return env(name).value_or(""); }

// Paths with ':' between them.
inline std::vector<std::string> env_paths(const char* name) {
  const std::string text = env_or_empty(name);
  std::vector<std::string> out;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(':', begin), text.size());
    if (end > begin) out.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return out;
}

// A path as a shell reads it: "~/a" is below $HOME, if that is set.
inline std::string expand_home(const std::string& path) {
  const bool at_home = path == "~" || path.starts_with("~/");
  const std::string home = env_or_empty("HOME");
  return at_home && !home.empty() ? home + path.substr(1) : path;
}

}  // namespace ejk::base
