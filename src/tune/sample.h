// SPDX-License-Identifier: Apache-2.0
// Samples of a trial: how a config is warmed up and timed.
#pragma once

#include <cstdint>

#include <ejk/stopwatch.h>
#include <ejk/tuner.h>

namespace ejk::detail {

// What some executions cost, by every clock, while nothing is known of the kernel yet.
struct Footprint {
  Elapsed elapsed;
  double resets = 0;  // wall seconds beside the executions
  int64_t executions = 0;

  Footprint& operator+=(const Footprint& other);
  double seconds_per_execution(Clock clock) const;
};

// What to begin with, before it is known whether this clock tells the whole cost.
Clock first_clock(const Trial& trial);

// True if the time of the calling thread does not tell the whole cost: it waited for something, or
// other threads worked meanwhile.
bool needs_wall(const Elapsed& elapsed);

// How samples are taken. Samples are compared only if all of this is the same for them: a sample
// has costs of its own, and these weigh more where it has fewer executions.
struct Sampling {
  Clock clock = Clock::wall;
  CacheState cache = CacheState::warm;
  int64_t repeats = 1;  // executions per sample
};

// Times as long as the other one: too slow to be executed as often within a sample.
inline constexpr int64_t far_slower = 4;

struct Sample {
  double seconds = 0;    // per execution
  bool misled = false;   // the clock did not tell the whole cost
  bool starved = false;  // by the wall, and for half of the time it may have waited for a core
};

// Runs a trial's configs by a stopwatch. Throws what the kernel throws.
class Sampler {
 public:
  Sampler(Stopwatch& stopwatch, Trial& trial) : stopwatch_(stopwatch), trial_(trial) {}

  // One sample, from a reset trial. Where it has several executions in a row, one that is not timed
  // comes first: what the reset left in the caches is not the config's cost. Where a run would
  // change what the next one reads, or caches shall be cold, every run starts from a reset trial
  // and the clocks stand still meanwhile.
  Sample take(const AnyConfig& config, const Sampling& sampling);
  // `executions` of them, by all clocks.
  Footprint observe(const AnyConfig& config, int64_t executions);
  // At least `min_executions`, and for long enough to see what the config does.
  Footprint warm_up(const AnyConfig& config, int min_executions);
  // That clock, or the wall if what was seen shows that it does not tell the whole cost.
  Clock clock_after(const Elapsed& seen, Clock clock) const;
  // How often to execute one that took this long within a sample, as far as resets allow it.
  int64_t repeats(const Footprint& seen, const Sampling& sampling) const;

 private:
  Elapsed timed(const AnyConfig& config, const Sampling& sampling);
  Elapsed time_runs(const AnyConfig& config, int64_t runs, Clock clock);

  Stopwatch& stopwatch_;
  Trial& trial_;
};

}  // namespace ejk::detail
