// SPDX-License-Identifier: Apache-2.0
// What recording adds to a warm call.
//
// The same call through three executors in turn: one that records, two that do not. Times are CPU
// time of the thread; the ratio of the two that do not is what the machine's noise is.
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <time.h>

#include <ejk/ejk.h>

#include "harness.h"

namespace {

using In = ejk::View<const float, 2>;
using InOut = ejk::View<float, 2>;

// Almost no work: what is left is the call itself.
struct Touch {
  static constexpr std::string_view op_id = "bench.touch";
  struct Config {
    int block = 1;
  };
  [[gnu::noinline]] void run(const Config& c, const In& a, const InOut& b, float alpha) const {
    b.data[0] = a.data[0] * alpha + static_cast<float>(c.block);
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }
};

// A small kernel: 1024 multiply-adds.
struct Small {
  static constexpr std::string_view op_id = "bench.small";
  struct Config {
    int block = 1;
  };
  [[gnu::noinline]] void run(const Config&, const In& a, const InOut& b, float alpha) const {
    for (int i = 0; i < 1024; ++i) b.data[i] += alpha * a.data[i];
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }
};

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Ratios {
  double recording_over_not, not_over_not, nanoseconds;
};

template <class Kernel>
Ratios measure(const std::array<const ejk::Executor*, 3>& executors, int calls) {
  std::vector<float> x(1024, 0.5f), y(1024);
  const In a{x.data(), {32, 32}};
  const InOut b{y.data(), {32, 32}};
  constexpr int rounds = 301;
  std::array<std::vector<double>, 3> seconds;
  for (int r = -3; r < rounds; ++r)
    for (size_t i = 0; i < 3; ++i) {
      const size_t which = (i + static_cast<size_t>(r + 3)) % 3;
      const ejk::Executor& executor = *executors[which];
      const double start = cpu_seconds();
      for (int n = 0; n < calls; ++n) {
        executor(Kernel{}, a, b, 1e-6f);
        bench::clobber(y.data());
      }
      if (r >= 0) seconds[which].push_back(cpu_seconds() - start);
    }
  std::vector<double> recording, same;
  for (size_t r = 0; r < rounds; ++r) {
    recording.push_back(seconds[0][r] / seconds[1][r]);
    same.push_back(seconds[2][r] / seconds[1][r]);
  }
  return {bench::median(recording), bench::median(same), 1e9 * bench::median(seconds[1]) / calls};
}

}  // namespace

int main() {
  namespace fs = std::filesystem;
  std::string folder = (fs::temp_directory_path() / "ejk_record_XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) return std::perror("mkdtemp"), 1;
  unsetenv("EJKERNEL_OPS_RECORD");
  {
    ejk::SelectorOptions options;
    options.policy = ejk::AutotunePolicy{.allow_autotune = false};
    const ejk::Executor one(options), two(options);
    options.recording = std::make_shared<ejk::Recording>(folder);
    const ejk::Executor recording(options);
    const std::array<const ejk::Executor*, 3> executors{&recording, &one, &two};
    bench::pin_to_core(0);
    const Ratios touch = measure<Touch>(executors, 5000), small = measure<Small>(executors, 1000);
    std::printf(
        "almost no work (%.1f ns per call): recording takes %.3f of not recording, "
        "control %.3f\n",
        touch.nanoseconds, touch.recording_over_not, touch.not_over_not);
    std::printf("1024 multiply-adds (%.1f ns per call): %.3f, control %.3f\n", small.nanoseconds,
                small.recording_over_not, small.not_over_not);
    bench::print_json({{"warm_call_recording_over_not", small.recording_over_not},
                       {"empty_call_recording_over_not", touch.recording_over_not},
                       {"not_over_not", small.not_over_not},
                       {"empty_not_over_not", touch.not_over_not}});
  }
  fs::remove_all(folder);
}
