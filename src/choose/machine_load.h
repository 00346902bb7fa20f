// SPDX-License-Identifier: Apache-2.0
// How much of the machine is idle.
#pragma once

#include <sched.h>

#include <functional>
#include <optional>
#include <string_view>

namespace ejk::detail {

// Seconds that these processors were idle since the machine was started, of the text of /proc/stat;
// nullopt: it does not say.
std::optional<double> idle_seconds(std::string_view stat, const cpu_set_t& processors,
                                   double ticks_per_second);

// For one thread.
class MachineLoad {
 public:
  MachineLoad();
  // Another clock, and what idle_seconds says at that time.
  MachineLoad(std::function<double()> clock, std::function<std::optional<double>()> idle);

  // Whether less than half a core was free since the last look; a look that comes too soon after it
  // gives the same answer. Times before the last `seconds` do not count: if the last
  // look is longer ago, nothing is known and the machine counts as busy, as at first. Idle where
  // the machine does not tell.
  bool is_busy(double seconds = recently);

  static constexpr double recently = 2;  // less than that counts as that

 private:
  std::function<double()> clock_;
  std::function<std::optional<double>()> idle_;
  std::optional<double> looked_;
  double idle_then_ = 0;
  bool busy_ = true;
};

// Asks `given`, which counts as busy if it throws; a MachineLoad if it is empty.
std::function<bool(double seconds)> busy_question(std::function<bool()> given);

}  // namespace ejk::detail
