// SPDX-License-Identifier: Apache-2.0
// Where warnings go by default, and how often each one is said.
#include "base/warn.h"

#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "base/text.h"

namespace ejk {
namespace base {

WarningSink warnings_to(WarningSink sink) {
  if (!sink) return stderr_warnings();
  return [sink = std::move(sink)](const std::string& message) { sink(one_line(message)); };
}

OnceWarnings::OnceWarnings(WarningSink sink) : sink_(warnings_to(std::move(sink))) {}

void OnceWarnings::operator()(const std::string& problem, const std::string& message) {
  constexpr size_t most = 1000;  // a store full of damage must not fill the memory or the terminal
  {
    const std::lock_guard lock(mutex_);
    if (seen_.size() >= most || !seen_.insert(problem).second) return;
  }
  sink_(message);
}

}  // namespace base

WarningSink stderr_warnings() {
  static const bool silent = [] {
    const char* log = std::getenv("EJKERNEL_LOG");
    return log != nullptr && std::string_view(log) == "0";
  }();
  if (silent) return [](const std::string&) {};
  return [](const std::string& message) {
    // One write: lines of threads stay whole.
    const std::string line = "ejk: " + base::one_line(message) + "\n";
    std::fputs(line.c_str(), stderr);
  };
}

}  // namespace ejk
