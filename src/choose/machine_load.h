// SPDX-License-Identifier: Apache-2.0
// How much of the machine nobody uses.
#pragma once

#include <sched.h>

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
  // Whether less than half a core was free since the last look; a look that comes too soon after it
  // gives the same answer. Busy at first, idle where the machine does not tell.
  bool is_busy();

 private:
  double looked_ = 0, idle_ = 0;
  bool busy_ = true;
};

}  // namespace ejk::detail
