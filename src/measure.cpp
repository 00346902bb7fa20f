// SPDX-License-Identifier: Apache-2.0
// Clocks, samples and the paired statistics that a race is decided on.
#include "measure.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <sys/resource.h>
#include <time.h>

namespace ejk::detail {
namespace {

// Reading clocks costs under 1 us; 20 us keeps that and the jitter of one interrupt small, and a
// round of many candidates short.
constexpr double least_sample_seconds = 20e-6;
// Threads that have come to rest are accounted at once; those that spin on only at a timer tick,
// every 1 to 4 ms.
constexpr double least_warm_up_seconds = 2e-3;
constexpr int64_t most_repeats = 1'000'000;

double read(clockid_t id) {
  timespec t{};
  clock_gettime(id, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

long voluntary_switches() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nvcsw;
}

// How many of n sorted values may be left out on either side so that the rest still spans the
// median with that confidence: each value lies below it with chance 1/2, so the number of those
// that do is binomial. Logarithms, because 2^-n underflows for large n.
int values_outside(int n, double confidence) {
  double log_chance = -n * std::log(2.), tail = 0;
  for (int k = 0; k < n; ++k) {
    tail += std::exp(log_chance);
    if (tail > (1 - confidence) / 2) return std::max(0, k - 1);
    log_chance += std::log(static_cast<double>(n - k) / (k + 1));
  }
  return 0;
}

}  // namespace

std::string_view clock_name(Clock clock) {
  return clock == Clock::thread_cpu ? "thread_cpu" : "wall";
}

double seconds_now(Clock clock) {
  return read(clock == Clock::thread_cpu ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC);
}

Footprint& Footprint::operator+=(const Footprint& other) {
  wall += other.wall;
  thread_cpu += other.thread_cpu;
  process_cpu += other.process_cpu;
  voluntary_switches += other.voluntary_switches;
  executions += other.executions;
  return *this;
}

bool Footprint::needs_wall() const {
  constexpr double share = 0.05;           // of its CPU time: less would not change a ranking
  constexpr double reading_cost = 100e-6;  // seconds; of the clocks themselves, with a margin
  const bool threads = process_cpu - thread_cpu > share * thread_cpu + reading_cost;
  // Time off the CPU alone says nothing, it may have been preempted: that is not its own cost.
  const bool waits = voluntary_switches > 0 && wall - thread_cpu > share * thread_cpu;
  return threads || waits;
}

double Footprint::seconds_per_execution(Clock clock) const {
  const double seconds = clock == Clock::thread_cpu ? thread_cpu : wall;
  return executions == 0 ? 0 : seconds / static_cast<double>(executions);
}

double sample_seconds(Trial& trial, const AnyConfig& config, int64_t repeats, Clock clock) {
  trial.reset();
  const double begin = seconds_now(clock);
  for (int64_t i = 0; i < repeats; ++i) trial.run(config);
  return (seconds_now(clock) - begin) / static_cast<double>(repeats);
}

Footprint observe(Trial& trial, const AnyConfig& config, int64_t repeats) {
  trial.reset();
  const long switches = voluntary_switches();
  const double process = read(CLOCK_PROCESS_CPUTIME_ID), wall = seconds_now(Clock::wall),
               thread = seconds_now(Clock::thread_cpu);
  for (int64_t i = 0; i < repeats; ++i) trial.run(config);
  Footprint seen;
  seen.thread_cpu = seconds_now(Clock::thread_cpu) - thread;
  seen.wall = seconds_now(Clock::wall) - wall;
  seen.process_cpu = read(CLOCK_PROCESS_CPUTIME_ID) - process;
  seen.voluntary_switches = voluntary_switches() - switches;
  seen.executions = repeats;
  return seen;
}

Footprint warm_up(Trial& trial, const AnyConfig& config, int least_executions) {
  Footprint total;
  // Doubling keeps the resets few where they cost more than the kernel.
  for (int64_t repeats = 1;
       total.executions < least_executions || total.wall < least_warm_up_seconds; repeats *= 2) {
    const int64_t wanted = least_executions - total.executions;
    const bool long_enough = total.wall >= least_warm_up_seconds;
    total += observe(trial, config, long_enough ? std::min(repeats, wanted) : repeats);
  }
  return total;
}

int64_t repeats_for(double seconds_per_execution) {
  if (!(seconds_per_execution > least_sample_seconds / most_repeats)) return most_repeats;
  return std::max<int64_t>(1, std::llround(least_sample_seconds / seconds_per_execution));
}

// Written out because std::shuffle may draw differently in another standard library.
std::vector<size_t> shuffled(size_t count, std::mt19937_64& random) {
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  for (size_t left = count; left > 1; --left) std::swap(order[left - 1], order[random() % left]);
  return order;
}

Interval median_interval(std::vector<double> values, double confidence) {
  if (values.empty()) return {};
  std::ranges::sort(values);
  const size_t n = values.size();
  const auto outside = static_cast<size_t>(values_outside(static_cast<int>(n), confidence));
  return {values[outside], (values[(n - 1) / 2] + values[n / 2]) / 2, values[n - 1 - outside]};
}

std::vector<double> paired_ratios(std::span<const double> over, std::span<const double> under) {
  std::vector<double> ratios;
  for (size_t i = 0; i < std::min(over.size(), under.size()); ++i)
    if (const double ratio = over[i] / under[i]; std::isfinite(ratio)) ratios.push_back(ratio);
  return ratios;
}

}  // namespace ejk::detail
