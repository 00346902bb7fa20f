// SPDX-License-Identifier: Apache-2.0
// Warm-ups and samples, and how caches are made cold before one.
#include "tune/sample.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "platform/backend.h"
#include "platform/device_clock.h"

namespace ejk::detail {
namespace {

// Reading clocks costs about 1 us; 20 us keeps that and the jitter of one interrupt small, and a
// round of many candidates short.
constexpr double min_sample_seconds = 20e-6;
// To launch and to wait takes 10 to 30 us, and that time changes more than a kernel's.
constexpr double min_sample_on_device = 0.5e-3;
constexpr double min_warm_up_seconds = 0.2e-3;
// Threads that have come to rest are accounted at once; those that spin on only at a timer tick,
// every 1 to 4 ms.
constexpr double min_warm_up_beside_threads = 2e-3;
constexpr int64_t max_repeats = 1'000'000;

#if defined(__x86_64__)
constexpr size_t cache_line = 64;

void flush(std::span<std::byte> array) {
  for (size_t i = 0; i < array.size(); i += cache_line) __builtin_ia32_clflush(&array[i]);
}
// Does not wait for one line before it goes on to the next.
[[gnu::target("clflushopt")]] void flush_out_of_order(std::span<std::byte> array) {
  for (size_t i = 0; i < array.size(); i += cache_line) __builtin_ia32_clflushopt(&array[i]);
}
bool can_flush_out_of_order() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & bit_CLFLUSHOPT) != 0;
}
#endif

// Drives the arrays out of the caches; where that cannot be said to the processor, or the arrays
// are not known, by reading more than any cache holds.
void evict(const std::vector<std::span<std::byte>>& arrays) {
#if defined(__x86_64__)
  static const bool out_of_order = can_flush_out_of_order();
  for (const std::span<std::byte> array : arrays)
    out_of_order ? flush_out_of_order(array) : flush(array);
  if (!arrays.empty()) return __builtin_ia32_mfence();
#endif
  static std::vector<std::byte> large(size_t{128} << 20, std::byte{1});
  unsigned sum = 0;
  for (size_t i = 0; i < large.size(); i += 64) sum += std::to_integer<unsigned>(large[i]);
  asm volatile("" : : "r"(sum));
}

Elapsed& operator+=(Elapsed& sum, const Elapsed& other) {
  sum.wall += other.wall;
  sum.thread_cpu += other.thread_cpu;
  sum.process_cpu += other.process_cpu;
  sum.waits += other.waits;
  sum.preemptions += other.preemptions;
  sum.device += other.device;
  return sum;
}

// All threads together computed for less than half of the time, or lost a core to another program:
// what that one takes until it gives the core back is about 10 ms. Threads that spin compute too.
bool may_have_starved(const Elapsed& e) {
  constexpr double others_turn = 10e-3;
  return e.process_cpu < e.wall / 2 ||
         others_turn * static_cast<double>(e.preemptions) > e.wall / 2;
}

}  // namespace

Footprint& Footprint::operator+=(const Footprint& other) {
  elapsed += other.elapsed;
  resets += other.resets;
  executions += other.executions;
  return *this;
}

double Footprint::seconds_per_execution(Clock clock) const {
  return executions == 0 ? 0 : elapsed.seconds(clock) / static_cast<double>(executions);
}

Clock first_clock(const Trial& trial) {
  if (trial.device() == nullptr) return Clock::thread_cpu;
  const Backend* const backend = trial.device()->backend;
  return backend == nullptr || backend->clock_lies ? Clock::wall : Clock::device;
}

bool needs_wall(const Elapsed& e) {
  constexpr double share = 0.05;           // of its CPU time: less would not change a ranking
  constexpr double reading_cost = 100e-6;  // seconds; of the clocks themselves, with a margin
  const bool threads = e.process_cpu - e.thread_cpu > share * e.thread_cpu + reading_cost;
  // Time off the CPU alone says nothing, it may have been preempted: that is not its own cost.
  const bool waits = e.waits > 0 && e.wall - e.thread_cpu > share * e.thread_cpu;
  return threads || waits;
}

Elapsed Sampler::timed(const AnyConfig& config, const Sampling& sampling) {
  const bool cold = sampling.cache == CacheState::cold;
  const bool at_once = trial_.repeatable() && !cold;
  Elapsed total;
  for (int64_t done = 0; done < sampling.repeats; done += at_once ? sampling.repeats : 1) {
    const int64_t runs = at_once ? sampling.repeats : 1;
    trial_.reset();
    if (cold) evict(trial_.memory());
    if (runs > 1) trial_.run(config);
    total += time_runs(config, runs, sampling.clock);
  }
  return total;
}

Elapsed Sampler::time_runs(const AnyConfig& config, int64_t runs, Clock clock) {
  trial_.wait();
  const auto run_all = [&] {
    for (int64_t i = 0; i < runs; ++i) trial_.run(config);
  };
  if (clock == Clock::device) return device_time(*trial_.device()->backend, stopwatch_, run_all);
  return stopwatch_.time([&] { run_all(), trial_.wait(); }, clock);
}

Clock Sampler::clock_after(const Elapsed& seen, Clock clock) const {
  const bool tells = clock == Clock::thread_cpu ? !needs_wall(seen) : clock == first_clock(trial_);
  return tells ? clock : Clock::wall;
}

Sample Sampler::take(const AnyConfig& config, const Sampling& sampling) {
  // What a hypervisor took is subtracted from a thread's time later, at times from another run's:
  // then its clock stands still.
  constexpr int max_attempts = 10;
  constexpr double min_seconds = 1e-9;
  Sample sample;
  for (int i = 0; i < max_attempts && !(sample.seconds > 0); ++i) {
    const Elapsed elapsed = timed(config, sampling);
    sample.seconds = elapsed.seconds(sampling.clock);
    sample.misled = sample.misled || clock_after(elapsed, sampling.clock) != sampling.clock;
    // Beside a device this process has nothing to compute.
    sample.starved =
        sampling.clock == Clock::wall && trial_.device() == nullptr && may_have_starved(elapsed);
  }
  sample.seconds = std::max(sample.seconds, min_seconds) / static_cast<double>(sampling.repeats);
  return sample;
}

Footprint Sampler::observe(const AnyConfig& config, int64_t executions) {
  Footprint seen;
  const double begin = stopwatch_.now();
  trial_.reset();
  seen.resets = stopwatch_.now() - begin;
  seen.elapsed = time_runs(config, executions, first_clock(trial_));
  seen.executions = executions;
  return seen;
}

Footprint Sampler::warm_up(const AnyConfig& config, int min_executions) {
  Footprint total = observe(config, 1);
  const double min_seconds =
      stopwatch_.beside_other_threads() ? min_warm_up_beside_threads : min_warm_up_seconds;
  // Where every execution needs a reset, and that costs more than the kernel, little must do.
  constexpr double max_with_resets = 5;
  const auto long_enough = [&] {
    return total.executions >= max_repeats || total.elapsed.wall >= min_seconds ||
           total.elapsed.wall + total.resets >= max_with_resets * min_seconds;
  };
  // Doubling keeps the resets few where they cost more than the kernel.
  for (int64_t next = 1; total.executions < min_executions || !long_enough();
       next = std::min(2 * next, max_repeats)) {
    const int64_t wanted = min_executions - total.executions;
    const int64_t executions = long_enough() ? std::min(next, wanted) : next;
    total += observe(config, trial_.repeatable() ? executions : 1);
  }
  return total;
}

int64_t Sampler::repeats(const Footprint& seen, const Sampling& sampling) const {
  if (sampling.cache == CacheState::cold || seen.executions == 0) return 1;
  // A clock that stood still says nothing: then by the other one, which may be too long, not too
  // short.
  const double seconds = std::max(seen.seconds_per_execution(sampling.clock),
                                  seen.seconds_per_execution(Clock::wall) / 10);
  const double least = trial_.device() == nullptr ? min_sample_seconds : min_sample_on_device;
  if (!(seconds > least / max_repeats)) return max_repeats;
  const auto enough = static_cast<int64_t>(std::ceil(least / seconds));
  if (trial_.repeatable()) return enough;
  constexpr double max_resetting = 1e-3;  // seconds per sample
  const double reset = seen.resets / static_cast<double>(seen.executions);
  const double affordable = max_resetting / std::max(reset, 1e-9);
  return std::max<int64_t>(1, std::min(enough, static_cast<int64_t>(affordable)));
}

}  // namespace ejk::detail
