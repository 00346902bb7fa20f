// SPDX-License-Identifier: Apache-2.0
// Warnings that are said once per problem.
#pragma once

#include <mutex>
#include <set>
#include <string>

#include <ejk/store.h>

namespace ejk::base {

// Passes a message on the first time its problem is met. Thread-safe.
class OnceWarnings {
 public:
  explicit OnceWarnings(WarningSink sink) : sink_(std::move(sink)) {}

  // `problem` names what is wrong, e.g. "unwritable" or a path; `message` is for people.
  void operator()(const std::string& problem, const std::string& message);

 private:
  WarningSink sink_;
  std::mutex mutex_;
  std::set<std::string> seen_;
};

}  // namespace ejk::base
