// SPDX-License-Identifier: Apache-2.0
// Clocks, and samples taken with them.
#include "measure.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>

namespace ejk::detail {
namespace {

// Reading clocks costs under 1 us; 20 us keeps that and the jitter of one interrupt small, and a
// round of many candidates short.
constexpr double least_sample_seconds = 20e-6;
constexpr double least_warm_up_seconds = 0.2e-3;
// Threads that have come to rest are accounted at once; those that spin on only at a timer tick,
// every 1 to 4 ms.
constexpr double least_warm_up_beside_threads = 2e-3;
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

bool has_other_threads() {
  struct stat tasks {};
  constexpr nlink_t dots_and_this_one = 3;
  return stat("/proc/self/task", &tasks) != 0 || tasks.st_nlink > dots_and_this_one;
}

#if defined(__x86_64__)
constexpr size_t cache_line = 64;

void flush(std::span<std::byte> array) {
  for (size_t i = 0; i < array.size(); i += cache_line) __builtin_ia32_clflush(&array[i]);
}
// Does not wait for one line before it goes on to the next.
[[gnu::target("clflushopt")]] void flush_out_of_order(std::span<std::byte> array) {
  for (size_t i = 0; i < array.size(); i += cache_line) __builtin_ia32_clflushopt(&array[i]);
}
#endif

// Drives the arrays out of the caches; where that cannot be said to the processor, or the arrays
// are not known, by reading more than any cache holds.
void evict(const std::vector<std::span<std::byte>>& arrays) {
#if defined(__x86_64__)
  const bool out_of_order = __builtin_cpu_supports("clflushopt");
  for (const std::span<std::byte> array : arrays)
    out_of_order ? flush_out_of_order(array) : flush(array);
  if (!arrays.empty()) return __builtin_ia32_mfence();
#endif
  static std::vector<std::byte> large(size_t{128} << 20, std::byte{1});
  unsigned sum = 0;
  for (size_t i = 0; i < large.size(); i += 64) sum += std::to_integer<unsigned>(large[i]);
  asm volatile("" : : "r"(sum));
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
  resets += other.resets;
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

namespace {

double total_seconds(Trial& trial, const AnyConfig& config, int64_t repeats,
                     const Sampling& sampling, bool* waited) {
  const bool cold = sampling.cache == CacheState::cold;
  const bool at_once = trial.repeatable() && !cold;
  double total = 0;
  for (int64_t done = 0; done < repeats; done += at_once ? repeats : 1) {
    trial.reset();
    if (cold) evict(trial.memory());
    const long switches = waited ? voluntary_switches() : 0;
    const double wall = waited ? seconds_now(Clock::wall) : 0;
    const double begin = seconds_now(sampling.clock);
    for (int64_t i = 0; i < (at_once ? repeats : 1); ++i) trial.run(config);
    const double taken = seconds_now(sampling.clock) - begin;
    total += taken;
    if (waited == nullptr) continue;
    Footprint seen;
    seen.wall = seconds_now(Clock::wall) - wall, seen.thread_cpu = seen.process_cpu = taken;
    seen.voluntary_switches = voluntary_switches() - switches;
    *waited = *waited || seen.needs_wall();
  }
  return total;
}

}  // namespace

double sample_seconds(Trial& trial, const AnyConfig& config, int64_t repeats,
                      const Sampling& sampling, bool* waited) {
  // What a hypervisor took is subtracted from a thread's time later, at times from another run's:
  // then its clock stands still.
  constexpr int most_attempts = 10;
  constexpr double least = 1e-9;
  double total = 0;
  for (int attempt = 0; attempt < most_attempts && !(total > 0); ++attempt)
    total = total_seconds(trial, config, repeats, sampling, waited);
  return std::max(total, least) / static_cast<double>(repeats);
}

Footprint observe(Trial& trial, const AnyConfig& config, int64_t repeats) {
  const double before = seconds_now(Clock::wall);
  trial.reset();
  const double reset_seconds = seconds_now(Clock::wall) - before;
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
  seen.resets = reset_seconds;
  return seen;
}

Footprint warm_up(Trial& trial, const AnyConfig& config, int least_executions) {
  Footprint total = observe(trial, config, 1);
  const double least_seconds =
      has_other_threads() ? least_warm_up_beside_threads : least_warm_up_seconds;
  // Where every execution needs a reset, and that costs more than the kernel, little must do.
  constexpr double most_over_least = 5;
  const auto long_enough_now = [&] {
    return total.wall >= least_seconds ||
           total.wall + total.resets >= most_over_least * least_seconds;
  };
  // Doubling keeps the resets few where they cost more than the kernel.
  for (int64_t repeats = 1; total.executions < least_executions || !long_enough_now();
       repeats = std::min(2 * repeats, most_repeats)) {
    const int64_t wanted = least_executions - total.executions;
    const bool long_enough = long_enough_now();
    const int64_t next = long_enough ? std::min(repeats, wanted) : repeats;
    total += observe(trial, config, trial.repeatable() ? next : 1);
  }
  return total;
}

int64_t repeats_of(const Footprint& seen, const Trial& trial, const Sampling& sampling) {
  if (sampling.cache == CacheState::cold || seen.executions == 0) return 1;
  // A clock that stood still says nothing: then by the other one, which may be too long, not too
  // short.
  const double seconds = std::max(seen.seconds_per_execution(sampling.clock),
                                  seen.seconds_per_execution(Clock::wall) / 10);
  const int64_t repeats = repeats_for(seconds);
  if (trial.repeatable()) return repeats;
  constexpr double most_resetting = 1e-3;  // seconds per sample
  const double reset = seen.resets / static_cast<double>(seen.executions);
  const double affordable = most_resetting / std::max(reset, 1e-9);
  return std::max<int64_t>(1, std::min(repeats, static_cast<int64_t>(affordable)));
}

int64_t repeats_for(double seconds_per_execution) {
  if (!(seconds_per_execution > least_sample_seconds / most_repeats)) return most_repeats;
  return std::max<int64_t>(1, std::llround(least_sample_seconds / seconds_per_execution));
}

}  // namespace ejk::detail
