// SPDX-License-Identifier: Apache-2.0
// Notices a scalar or a size that makes a new key with every value.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include <ejk/invocation.h>

namespace ejk {

// Every new key of an op is shown to it. After 16 keys that differ in one scalar only or in one
// size only, and after 64 that differ in their shapes only, it has something to say, once per op
// and place: each such key is tuned on its own.
class KeyWatch {
 public:
  std::optional<std::string> saw(const Invocation& inv);

 private:
  std::optional<std::string> saw_scalars(const Invocation& inv);
  std::optional<std::string> saw_shapes(const Invocation& inv);
  bool are_many(const std::string& place, const std::string& rest, int many);

  std::mutex mutex_;
  std::map<std::string, int> keys_;  // by op, place, and the rest of the arguments
  std::set<std::string> said_;
};

}  // namespace ejk
