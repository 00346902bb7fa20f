// SPDX-License-Identifier: Apache-2.0
// Where warnings go by default, and how often each one is said.
#include "base/warn.h"

#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace ejk {
namespace base {

void OnceWarnings::operator()(const std::string& problem, const std::string& message) {
  constexpr size_t most = 1000;  // a store full of damage must not fill the memory or the terminal
  {
    const std::lock_guard lock(mutex_);
    if (seen_.size() >= most || !seen_.insert(problem).second) return;
  }
  if (sink_) sink_(message);
}

}  // namespace base

WarningSink stderr_warnings() {
  static const bool silent = [] {
    const char* log = std::getenv("EJKERNEL_LOG");
    return log != nullptr && std::string_view(log) == "0";
  }();
  if (silent) return [](const std::string&) {};
  return [](const std::string& message) {
    const std::string line = "ejk: " + message + "\n";  // one write: lines of threads stay whole
    std::fputs(line.c_str(), stderr);
  };
}

}  // namespace ejk
