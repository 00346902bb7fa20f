// SPDX-License-Identifier: Apache-2.0
// How warnings are said: in one printable line, and once per problem.
#pragma once

#include <mutex>
#include <set>
#include <string>

#include <ejk/warning.h>

namespace ejk::base {

// The sink behind one_line(), because messages quote what others wrote; stderr_warnings() if there
// is none. Every sink that a user gives is called through it.
WarningSink warnings_to(WarningSink sink);

// Passes a message on the first time its problem is met. Thread-safe.
class OnceWarnings {
 public:
  explicit OnceWarnings(WarningSink sink);

  // `problem` names what is wrong, e.g. "unwritable" or a path; `message` is for people.
  void operator()(const std::string& problem, const std::string& message);

 private:
  WarningSink sink_;
  std::mutex mutex_;
  std::set<std::string> seen_;
};

}  // namespace ejk::base
