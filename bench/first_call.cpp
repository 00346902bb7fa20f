// SPDX-License-Identifier: Apache-2.0
// What the first calls of a program cost and reach if they are tuned in the background, and what
// that does to a program that needs all cores.
// Options: --seconds N of the program (60), --load-seconds N of each part under load (4).
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <ejk/ejk.h>

#include "../examples/kernels.h"
#include "harness.h"

namespace {

using namespace examples;

ejk::Tensor matrix(int64_t rows, int64_t columns) {
  std::mt19937 generator(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(rows * columns));
  for (float& v : values) v = normal(generator);
  return ejk::Tensor::of<float>({rows, columns}, std::span<const float>(values));
}

std::unique_ptr<ejk::Executor> executor_with(ejk::Fallback fallback, bool tunes) {
  ejk::SelectorOptions options;  // without a store: nothing is known at first
  options.policy = ejk::AutotunePolicy{.allow_autotune = tunes, .cache_miss_fallback = fallback};
  options.on_warning = [](const std::string&) {};
  return std::make_unique<ejk::Executor>(std::move(options));
}

// One call of the program, made by whichever executor, and what its choice came to.
struct Call {
  std::string name;
  std::function<void(const ejk::Executor&)> run;
  // Seconds with what `chosen` chose over seconds with what `other` did, one after the other in
  // each round; 1 if that is the same.
  std::function<double(const ejk::Executor& chosen, const ejk::Executor& other)> ratio;
};

template <class K, class... Args>
Call call_of(std::string name, const K& kernel, Args... args) {
  const auto held = std::make_shared<std::tuple<Args...>>(std::move(args)...);
  Call call;
  call.name = std::move(name);
  call.run = [=](const ejk::Executor& executor) {
    std::apply([&](auto&... a) { executor(kernel, a...); }, *held);
  };
  call.ratio = [=](const ejk::Executor& chosen, const ejk::Executor& other) {
    return std::apply(
        [&](auto&... a) {
          const auto one = chosen.choose_config(kernel, a...).config;
          const auto two = other.choose_config(kernel, a...).config;
          if (ejk::to_value(one) == ejk::to_value(two)) return 1.;
          const auto seconds = bench::interleave(
              {[&] { chosen(kernel, one, a...); }, [&] { other(kernel, two, a...); }}, 201);
          return bench::median(seconds[0]) / bench::median(seconds[1]);
        },
        *held);
  };
  return call;
}

std::vector<Call> calls_of_program() {
  std::vector<Call> calls;
  const std::vector<float> x(500'000, 1.f), weight(1024, 1.f);
  calls.push_back(call_of("saxpy 500000", Saxpy{}, 0.f, x, x));
  calls.push_back(call_of("matmul 160", Matmul{}, matrix(160, 160), matrix(160, 160),
                          ejk::Tensor::of<float>({160, 160})));
  calls.push_back(call_of("rms_norm 256x1024", RmsNorm{}, matrix(256, 1024), weight,
                          ejk::Tensor::of<float>({256, 1024}), 1e-5f));
  calls.push_back(
      call_of("transpose 512", Transpose{}, matrix(512, 512), ejk::Tensor::of<float>({512, 512})));
  return calls;
}

// ---- the first minute --------------------------------------------------------------------------

struct FirstMinute {
  double slowest = 0, slowest_autotune = 0;  // step over the slowest with heuristics
  double over_median = 0;                    // slowest step over the usual one with heuristics
  double gain_reached = 0;                   // share of what full tuning gains
};

// The program makes all its calls in each step. Steps with heuristics and with tuning in the
// background take turns, so that whatever else the machine does meets both.
FirstMinute first_minute(double seconds) {
  const std::vector<Call> calls = calls_of_program();
  const auto guess = executor_with(ejk::Fallback::heuristics, false);
  const auto later = executor_with(ejk::Fallback::background, true);
  const auto now = executor_with(ejk::Fallback::autotune, true);
  for (const Call& call : calls) call.run(*guess);  // pages and caches of the arguments
  const auto fresh = executor_with(ejk::Fallback::heuristics, false);
  const auto step = [&](const ejk::Executor& executor) {
    const double begin = bench::seconds();
    for (const Call& call : calls) call.run(executor);
    return bench::seconds() - begin;
  };
  FirstMinute found;
  std::vector<double> with_guess, in_background;
  size_t waiting = 0;
  for (const double end = bench::seconds() + seconds; bench::seconds() < end;) {
    with_guess.push_back(step(*fresh));
    in_background.push_back(step(*later));
    usleep(1000);  // a program that waits for its next input
  }
  waiting = later->chain().idle(0);
  const double slowest_autotune = step(*now);
  const double slowest_guess = std::ranges::max(with_guess);
  found.slowest = std::ranges::max(in_background) / slowest_guess;
  found.slowest_autotune = slowest_autotune / slowest_guess;
  found.over_median = std::ranges::max(in_background) / bench::median(with_guess);
  std::printf(
      "steps: %zu of each, usual %.2f ms; slowest with heuristics %.2f ms, in the background %.2f "
      "ms, "
      "first step with autotune %.0f ms; %zu calls still wait\n",
      with_guess.size(), 1e3 * bench::median(with_guess), 1e3 * slowest_guess,
      1e3 * std::ranges::max(in_background), 1e3 * slowest_autotune, waiting);

  std::printf("%-20s %18s %18s\n", "gain over heuristic", "after a minute", "full tuning");
  double reached = 0, possible = 0;
  for (const Call& call : calls) {
    const double full = -std::log(call.ratio(*now, *guess));
    const double here = -std::log(call.ratio(*later, *guess));
    std::printf("%-20s %17.2fx %17.2fx\n", call.name.c_str(), std::exp(here), std::exp(full));
    if (full <= 0) continue;  // there is nothing to gain
    reached += std::min(here, full), possible += full;
  }
  found.gain_reached = possible > 0 ? reached / possible : 1;
  return found;
}

// ---- a program that needs all cores ------------------------------------------------------------

// Steps of one thread per core in so many seconds, with calls that wait for their tuning or none.
double steps_under_load(double seconds, bool with_background) {
  const auto executor = executor_with(ejk::Fallback::background, with_background);
  const auto cores = std::max(1U, std::thread::hardware_concurrency());
  std::atomic<uint64_t> steps{0};
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < cores; ++i)
    threads.emplace_back([&, calls = calls_of_program()] {
      while (!stop) {
        for (const Call& call : calls) call.run(*executor);
        ++steps;
      }
    });
  const double begin = bench::seconds();
  usleep(static_cast<useconds_t>(1e6 * seconds));
  stop = true;
  for (auto& t : threads) t.join();
  return static_cast<double>(steps) / (bench::seconds() - begin);
}

double harm(double seconds) {
  std::vector<double> ratios;
  for (int round = 0; round < 5; ++round) {
    const bool first = round % 2 == 0;
    const double one = steps_under_load(seconds, first), other = steps_under_load(seconds, !first);
    ratios.push_back(first ? one / other : other / one);
  }
  return bench::median(ratios);
}

double option(int argc, char** argv, const std::string& name, double otherwise) {
  for (int i = 1; i + 1 < argc; ++i)
    if (argv[i] == name) return std::atof(argv[i + 1]);
  return otherwise;
}

}  // namespace

int main(int argc, char** argv) {
  const FirstMinute found = first_minute(option(argc, argv, "--seconds", 60));
  const double throughput = harm(option(argc, argv, "--load-seconds", 4));
  std::printf("a program on all cores keeps %.3f of its throughput\n", throughput);
  bench::print_json({{"slowest_over_heuristic", found.slowest},
                     {"slowest_over_usual_heuristic", found.over_median},
                     {"slowest_autotune_over_heuristic", found.slowest_autotune},
                     {"gain_reached_share", found.gain_reached},
                     {"harm", throughput}});
}
