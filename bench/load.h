// SPDX-License-Identifier: Apache-2.0
// What the benchmarks of tuning share: a machine under load, long paired comparisons.
#pragma once

#include <random>
#include <stdexcept>
#include <vector>

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ejk/tuner.h>

#include "base/shuffle.h"
#include "harness.h"
#include "tune/sample.h"
#include "tune/statistics.h"

namespace bench {

// Two other programs, one on each core, that compute, go through memory and pause at random.
class BusyProcesses {
 public:
  explicit BusyProcesses(bool wanted = true) {
    for (size_t core = 0; wanted && core < 2; ++core) children_.push_back(start(core));
  }
  BusyProcesses(const BusyProcesses&) = delete;
  BusyProcesses& operator=(const BusyProcesses&) = delete;
  ~BusyProcesses() {
    for (const pid_t child : children_) kill(child, SIGKILL), waitpid(child, nullptr, 0);
  }

 private:
  static pid_t start(size_t core) {
    const pid_t parent = getpid(), child = fork();
    if (child < 0) throw std::runtime_error("fork failed");
    if (child > 0) return child;
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // a benchmark that is stopped leaves no process behind
    if (getppid() != parent) _exit(1);
    pin_to_core(core);
    work(core);
  }

  [[noreturn]] static void work(size_t seed) {
    std::mt19937 random(static_cast<unsigned>(seed));
    std::vector<uint64_t> memory(4 << 20);  // 32 MiB: more than the caches of a core
    const auto up_to = [&](unsigned most) { return static_cast<unsigned>(random() % most); };
    for (uint64_t sum = 1;; clobber(&sum)) {
      const double stop = seconds() + 1e-3 * (2 + up_to(20));
      for (const bool in_memory = up_to(2) == 0; seconds() < stop;)
        for (uint64_t i = 0; i < 10000; ++i)
          if (in_memory) memory[(sum += 4001 * i) % memory.size()] += i;
          else sum = sum * 6364136223846793005U + i;
      usleep(200 + up_to(5000));
    }
  }

  std::vector<pid_t> children_;
};

inline ejk::detail::Sampler sampler_of(ejk::Trial& trial) {
  return {*ejk::system_stopwatch(), trial};
}

// As a race would measure these: one way for all, by wall time if any of them needs it, and as
// often as the fastest needs.
inline ejk::detail::Sampling sampling_of(ejk::Trial& trial,
                                         const std::vector<ejk::AnyConfig>& configs) {
  using namespace ejk::detail;
  Sampler sampler = sampler_of(trial);
  Sampling sampling{.clock = ejk::Clock::thread_cpu};
  std::vector<Footprint> warm;
  for (const ejk::AnyConfig& c : configs) {
    warm.push_back(sampler.warm_up(c, 1));
    if (needs_wall(warm.back().elapsed)) sampling.clock = ejk::Clock::wall;
  }
  for (const Footprint& f : warm)
    sampling.repeats = std::max(sampling.repeats, sampler.repeats(f, sampling));
  return sampling;
}

struct Comparison {
  ejk::detail::Interval ratio;  // of the first over the second
  double band;                  // how far either seems to be from itself (A/A)

  double beyond_band() const { return ratio.median - 1 - band; }
  // By more than `least`, and not by chance.
  bool worse_by(double least) const { return ratio.low > 1 && beyond_band() > least; }
};

// Both twice in every shuffled round, for some seconds.
inline Comparison compare(ejk::Trial& trial, const ejk::AnyConfig& first,
                          const ejk::AnyConfig& second, double budget_seconds = 2) {
  using namespace ejk::detail;
  constexpr int min_rounds = 60, max_rounds = 1000;
  constexpr double confidence = 0.99;  // some fifty comparisons are made and none may be a mistake
  const Sampling sampling = sampling_of(trial, {first, second});
  Sampler sampler = sampler_of(trial);
  const std::vector<const ejk::AnyConfig*> turns = {&first, &first, &second, &second};
  std::vector<std::vector<double>> taken(turns.size());
  std::mt19937_64 random(1);
  const double stop = seconds() + budget_seconds;
  for (int r = 0; r < min_rounds || (r < max_rounds && seconds() < stop); ++r)
    for (size_t i : ejk::base::shuffled(turns.size(), random))
      taken[i].push_back(sampler.take(*turns[i], sampling).seconds);
  const auto over = [&](size_t a, size_t b) {
    return median_interval(paired_ratios(taken[a], taken[b]), confidence);
  };
  const Interval first_aa = over(1, 0), second_aa = over(3, 2);
  return {over(0, 2),
          std::max({1 - first_aa.low, first_aa.high - 1, 1 - second_aa.low, second_aa.high - 1})};
}

}  // namespace bench
