// SPDX-License-Identifier: Apache-2.0
// What the first calls of a program cost and reach if they are tuned in the background, what that
// does to a program that needs all cores, and what it costs to watch whether choices stay right.
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

#include <time.h>

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

// ---- calls that are watched -------------------------------------------------------------------

// A chain of dependent additions: 4 cycles each.
template <int steps>
struct Additions {
  static constexpr std::string_view op_id = steps == 1 ? "bench.empty" : "bench.additions";
  struct Config {
    int name = 0;
  };
  [[gnu::noinline]] void run(const Config&, const float& x, ejk::Out<std::span<float>> y) const {
    float sum = x;
    for (int i = 0; i < steps; ++i) sum += x;
    (*y)[0] = sum;
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const { return {{0}, {1}}; }
};

class CountingStopwatch final : public ejk::Stopwatch {
 public:
  double now() override { return ++reads, system_->now(); }
  ejk::Elapsed time(const std::function<void()>& work, ejk::Clock finest) override {
    return system_->time(work, finest);
  }
  bool beside_other_threads() override { return system_->beside_other_threads(); }
  int64_t reads = 0;

 private:
  std::shared_ptr<ejk::Stopwatch> system_ = ejk::system_stopwatch();
};

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct WatchCost {
  double over_not;     // a warm call that is watched
  double control;      // one that is not, over another that is not
  double timed;        // share of calls
  double nanoseconds;  // of a call
};

// Tuned once by each of three executors, then called in turn, by CPU time. In each sample as many
// calls are timed as in a long run.
template <class K>
WatchCost watch_cost(int rounds, int turns) {
  const auto clock = std::make_shared<CountingStopwatch>();
  std::vector<std::unique_ptr<ejk::Executor>> executors;
  for (const bool watched : {true, false, false}) {
    ejk::SelectorOptions options;
    options.policy = ejk::AutotunePolicy{.budget_seconds = 1, .drift_watch = watched};
    options.on_warning = [](const std::string&) {};
    if (watched)
      options.tuner = std::make_shared<ejk::Tuner>(ejk::TunerOptions{.stopwatch = clock});
    executors.push_back(std::make_unique<ejk::Executor>(std::move(options)));
  }
  const float x = 1;
  std::vector<float> y(1);
  const auto run = [&](const ejk::Executor& executor, int calls) {
    for (int i = 0; i < calls; ++i) executor(K{}, x, y), bench::clobber(y.data());
  };
  for (const auto& executor : executors) run(*executor, 2);
  clock->reads = 0;
  const int calls = turns * static_cast<int>(ejk::detail::WarmReader::watch_interval);
  std::vector<std::vector<double>> seconds(executors.size());
  for (size_t r = 0; r < static_cast<size_t>(rounds); ++r)
    for (size_t i = 0; i < executors.size(); ++i) {
      const size_t which = (i + r) % executors.size();
      const double start = cpu_seconds();
      run(*executors[which], calls);
      seconds[which].push_back(cpu_seconds() - start);
    }
  std::vector<double> over, control;
  for (size_t r = 0; r < seconds[0].size(); ++r) {
    over.push_back(seconds[0][r] / seconds[1][r]);
    control.push_back(seconds[2][r] / seconds[1][r]);
  }
  return {bench::median(over), bench::median(control),
          static_cast<double>(clock->reads) / 2 / rounds / calls,
          1e9 * bench::median(seconds[1]) / calls};
}

}  // namespace

int main(int argc, char** argv) {
  const FirstMinute found = first_minute(bench::option(argc, argv, "--seconds", 60));
  const double throughput = harm(bench::option(argc, argv, "--load-seconds", 4));
  std::printf("a program on all cores keeps %.3f of its throughput\n", throughput);
  // 20 us where a cycle is 0.25 ns: long enough to be watched on any machine.
  const WatchCost watched = watch_cost<Additions<20'000>>(101, 2);
  const WatchCost empty = watch_cost<Additions<1>>(301, 20);
  const auto print = [](const char* what, const WatchCost& cost) {
    std::printf(
        "%s (%.0f ns): drift watch takes %.4f of a warm call, control %.4f; timed: 1 in %.0f\n",
        what, cost.nanoseconds, cost.over_not, cost.control, cost.timed > 0 ? 1 / cost.timed : 0.);
  };
  print("20000 additions", watched);
  print("almost no work", empty);
  if (!(watched.timed > 0)) {
    std::fprintf(stderr, "no call was timed: drift_overhead would say nothing\n");
    return EXIT_FAILURE;
  }
  bench::print_json({{"slowest_over_heuristic", found.slowest},
                     {"slowest_over_usual_heuristic", found.over_median},
                     {"slowest_autotune_over_heuristic", found.slowest_autotune},
                     {"gain_reached_share", found.gain_reached},
                     {"harm", throughput},
                     {"drift_overhead", watched.over_not},
                     {"drift_overhead_empty", empty.over_not},
                     {"drift_calls_per_timed_call", 1 / watched.timed},
                     {"drift_control", watched.control},
                     {"drift_control_empty", empty.control}});
}
