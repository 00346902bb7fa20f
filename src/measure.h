// SPDX-License-Identifier: Apache-2.0
// Clocks, and samples taken with them.
#pragma once

#include <cstdint>
#include <string_view>

#include <ejk/tuner.h>

namespace ejk::detail {

enum class Clock { thread_cpu, wall };
std::string_view clock_name(Clock clock);
double seconds_now(Clock clock);

// What some executions cost, by every clock, while nothing is known of the kernel yet.
struct Footprint {
  double wall = 0, thread_cpu = 0, process_cpu = 0;  // seconds
  double resets = 0;                                 // wall seconds beside the executions
  long voluntary_switches = 0;
  int64_t executions = 0;

  Footprint& operator+=(const Footprint& other);
  // True if the time of the calling thread does not tell the whole cost: it waited for something,
  // or other threads worked meanwhile.
  bool needs_wall() const;
  double seconds_per_execution(Clock clock) const;
};

// One sample: the config runs `repeats` times under the clock, from a reset trial; where a run
// would change what the next one reads, or caches shall be cold, every run starts from a reset one,
// and the clock stands still meanwhile. Seconds per execution; `waited`: whether the thread's time
// did not tell the whole cost. Throws what the kernel throws.
struct Sampling {
  Clock clock = Clock::wall;
  CacheState cache = CacheState::warm;
};
double sample_seconds(Trial& trial, const AnyConfig& config, int64_t repeats,
                      const Sampling& sampling, bool* waited = nullptr);
// The same under all clocks.
Footprint observe(Trial& trial, const AnyConfig& config, int64_t repeats);
// Runs the config at least `least_executions` times and for long enough to see what it does.
Footprint warm_up(Trial& trial, const AnyConfig& config, int least_executions);
// How often to execute this one within a sample: as repeats_for says, if resets allow it.
int64_t repeats_of(const Footprint& seen, const Trial& trial, const Sampling& sampling);
// How often to execute within one sample, so that clock reads and interrupts do not dominate it.
int64_t repeats_for(double seconds_per_execution);

}  // namespace ejk::detail
