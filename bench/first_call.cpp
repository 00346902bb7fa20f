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

// A call of the program, with whichever executor.
struct Call {
  std::string name;
  std::function<void(const ejk::Executor&)> run;
  // The config that the executor has for it, and a run with that config and no choice.
  struct Chosen {
    ejk::Value config;
    std::function<void()> run;
  };
  std::function<Chosen(const ejk::Executor&)> choose;
};

template <class K, class... Args>
Call call_of(std::string name, const K& kernel, Args... args) {
  const auto held = std::make_shared<std::tuple<Args...>>(std::move(args)...);
  Call call;
  call.name = std::move(name);
  call.run = [=](const ejk::Executor& executor) {
    std::apply([&](auto&... a) { executor(kernel, a...); }, *held);
  };
  call.choose = [=](const ejk::Executor& executor) {
    const auto config =
        std::apply([&](auto&... a) { return executor.choose_config(kernel, a...).config; }, *held);
    static const auto plain = executor_with(ejk::Fallback::heuristics, false);
    return Call::Chosen{ejk::to_value(config), [=] {
                          std::apply([&](auto&... a) { (*plain)(kernel, config, a...); }, *held);
                        }};
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

// Of the calls of one kernel.
struct CallTimes {
  std::vector<double> heuristic, background;  // seconds of each, the first one included
  double autotune = 0;                        // of the first one, which waits for its tuning
  double usual() const { return bench::median(heuristic); }
};

struct FirstMinute {
  // The slowest call over the usual time with the heuristic, of the kernel for which that is most.
  double slowest = 0, slowest_autotune = 0;
  double first = 0;              // the same of the first calls alone: what the library itself adds
  double slowest_heuristic = 0;  // with heuristics alone: what the machine adds
  double gain_reached = 0;       // share of what full tuning gains
};

double seconds_of(const Call& call, const ejk::Executor& executor) {
  const double begin = bench::seconds();
  call.run(executor);
  return bench::seconds() - begin;
}

// The program makes its calls in turn. Those with heuristics and with tuning in the background
// follow each other, so that whatever else the machine does meets both.
void make_calls(double seconds, const std::vector<Call>& calls, const ejk::Executor& background,
                std::vector<CallTimes>& times) {
  const auto guess = executor_with(ejk::Fallback::heuristics, false);
  bool first = true;
  for (const double end = bench::seconds() + seconds; bench::seconds() < end; first = !first) {
    for (size_t i = 0; i < calls.size(); ++i) {
      CallTimes& own = times[i];
      if (first) own.heuristic.push_back(seconds_of(calls[i], *guess));
      own.background.push_back(seconds_of(calls[i], background));
      if (!first) own.heuristic.push_back(seconds_of(calls[i], *guess));
    }
    usleep(1000);  // a program that waits for its next input
  }
}

// Of what the tuning of all calls gains, in logarithms of seconds.
double gain_reached(const std::vector<Call>& calls, const std::vector<Call::Chosen>& reached,
                    const ejk::Executor& tuned) {
  const auto guess = executor_with(ejk::Fallback::heuristics, false);
  double here = 0, possible = 0;
  std::printf("%-20s %18s %18s\n", "gain over heuristic", "after a minute", "full tuning");
  for (size_t i = 0; i < calls.size(); ++i) {
    const Call::Chosen usual = calls[i].choose(*guess), full = calls[i].choose(tuned);
    const auto seconds = bench::interleave({usual.run, reached[i].run, full.run}, 201);
    // Equal configs are equally fast, whatever the clock says.
    const auto gain = [&](const Call::Chosen& chosen, size_t which) {
      if (chosen.config == usual.config) return 0.;
      return std::log(bench::median(seconds[0]) / bench::median(seconds[which]));
    };
    const double of_full = gain(full, 2);
    const double of_reached = reached[i].config == full.config ? of_full : gain(reached[i], 1);
    std::printf("%-20s %17.2fx %17.2fx\n", calls[i].name.c_str(), std::exp(of_reached),
                std::exp(of_full));
    if (of_full <= 0) continue;  // there is nothing to gain
    here += std::min(of_reached, of_full), possible += of_full;
  }
  return possible > 0 ? here / possible : 1;
}

FirstMinute first_minute(double seconds) {
  const std::vector<Call> calls = calls_of_program();
  const auto warm = executor_with(ejk::Fallback::heuristics, false);
  for (const Call& call : calls) call.run(*warm);  // pages and caches of the arguments
  auto later = executor_with(ejk::Fallback::background, true);
  std::vector<CallTimes> times(calls.size());
  make_calls(seconds, calls, *later, times);
  const size_t waiting = later->chain().idle(0);
  std::vector<Call::Chosen> reached;
  for (const Call& call : calls) reached.push_back(call.choose(*later));
  later.reset();  // nothing is tuned from here on
  const auto now = executor_with(ejk::Fallback::autotune, true);
  for (size_t i = 0; i < calls.size(); ++i) times[i].autotune = seconds_of(calls[i], *now);

  FirstMinute found;
  std::printf("%-20s %12s | %s\n%-20s %12s | %10s %10s %10s %10s\n", "", "usual with",
              "over that:", "call", "heuristic", "heuristic", "background", "first", "autotune");
  for (size_t i = 0; i < calls.size(); ++i) {
    const CallTimes& own = times[i];
    const double usual = own.usual(), slowest = std::ranges::max(own.background) / usual,
                 first = own.background.front() / usual,
                 control = std::ranges::max(own.heuristic) / usual;
    std::printf("%-20s %9.3f ms | %9.2fx %9.2fx %9.2fx %9.0fx\n", calls[i].name.c_str(),
                1e3 * usual, control, slowest, first, own.autotune / usual);
    found.slowest = std::max(found.slowest, slowest);
    found.first = std::max(found.first, first);
    found.slowest_heuristic = std::max(found.slowest_heuristic, control);
    found.slowest_autotune = std::max(found.slowest_autotune, own.autotune / usual);
  }
  std::printf("%zu calls of each kernel; %zu kernels still wait for their tuning\n",
              times[0].background.size(), waiting);
  found.gain_reached = gain_reached(calls, reached, *now);
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
                     {"first_over_heuristic", found.first},
                     {"slowest_heuristic_over_heuristic", found.slowest_heuristic},
                     {"slowest_autotune_over_heuristic", found.slowest_autotune},
                     {"gain_reached_share", found.gain_reached},
                     {"harm", throughput},
                     {"drift_overhead", watched.over_not},
                     {"drift_overhead_empty", empty.over_not},
                     {"drift_calls_per_timed_call", 1 / watched.timed},
                     {"drift_control", watched.control},
                     {"drift_control_empty", empty.control}});
}
