// SPDX-License-Identifier: Apache-2.0
// Notices a scalar that makes a new key with every value.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include <ejk/invocation.h>

namespace ejk {

// Every new key of an op is shown to it. After 16 keys that differ in one scalar only, it has
// something to say, once per op and scalar: each such key is tuned on its own.
class ScalarWatch {
 public:
  std::optional<std::string> saw(const Invocation& inv);

 private:
  std::mutex mutex_;
  std::map<std::string, int> keys_;  // by op, scalar, and the rest of the arguments
  std::set<std::string> said_;
};

}  // namespace ejk
