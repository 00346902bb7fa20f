// SPDX-License-Identifier: Apache-2.0
// Clocks, samples and the paired statistics that a race is decided on.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <string_view>
#include <vector>

#include <ejk/tuner.h>

namespace ejk::detail {

enum class Clock { thread_cpu, wall };
std::string_view clock_name(Clock clock);
double seconds_now(Clock clock);

// What some executions cost, by every clock, while nothing is known of the kernel yet.
struct Footprint {
  double wall = 0, thread_cpu = 0, process_cpu = 0;  // seconds
  long voluntary_switches = 0;
  int64_t executions = 0;

  Footprint& operator+=(const Footprint& other);
  // True if the time of the calling thread does not tell the whole cost: it waited for something,
  // or other threads worked meanwhile.
  bool needs_wall() const;
  double seconds_per_execution(Clock clock) const;
};

// One sample: resets the trial, then runs the config `repeats` times under the clock. Seconds per
// execution. Throws what the kernel throws.
double sample_seconds(Trial& trial, const AnyConfig& config, int64_t repeats, Clock clock);
// The same under all clocks.
Footprint observe(Trial& trial, const AnyConfig& config, int64_t repeats);
// Runs the config at least `least_executions` times and for long enough to see what it does.
Footprint warm_up(Trial& trial, const AnyConfig& config, int least_executions);
// How often to execute within one sample, so that clock reads and interrupts do not dominate it.
int64_t repeats_for(double seconds_per_execution);

// 0 .. count-1 in random order. The same order for the same state of `random` everywhere.
std::vector<size_t> shuffled(size_t count, std::mt19937_64& random);

struct Interval {
  double low = 0, median = 0, high = 0;
};
// The median and its distribution-free confidence interval, between order statistics. With too few
// values for that confidence: from the smallest to the largest. All 0 if there are none.
Interval median_interval(std::vector<double> values, double confidence);
// Round by round over/under, of the rounds in which both took part (the others are NaN).
std::vector<double> paired_ratios(std::span<const double> over, std::span<const double> under);

}  // namespace ejk::detail
