// SPDX-License-Identifier: Apache-2.0
// bench/opencl: what the processes cost in which candidates run first, and gain that compile ahead.
#pragma once

#include <csignal>
#include <cstdlib>
#include <memory>
#include <stdexcept>

#include "guard/child_process.h"
#include "guard/descendants.h"
#include "guard/guard.h"
#include "guard/parcel_file.h"
#include "platform/zygote.h"

#include "part.h"

namespace bench {

// Instead of tuning: what is done with a trial and its candidates.
class TrialUser final : public ejk::Tuner {
 public:
  using Use = std::function<void(const ejk::TuneTask&)>;
  explicit TrialUser(Use use) : use_(std::move(use)) {}
  ejk::TuneResult tune(const ejk::TuneTask& task) override {
    use_(task);
    ejk::TuneResult result;
    result.outcome = ejk::Outcome::tuned, result.winner = 0;
    return result;
  }

 private:
  Use use_;
};

inline void with_trial(TrialUser::Use use) {
  ejk::SelectorOptions options;
  options.policy = ejk::AutotunePolicy{};
  options.tuner = std::make_shared<TrialUser>(std::move(use));
  const Tensor x = random_there({512, 1024});
  ejk::Executor(std::move(options))
      .tune<Platform::opencl>(ejk::ops::Softmax<float>{}, x, 1.f, x.clone());
}

// From a worker's death to the next one that takes orders.
inline void restart_figures(const Options&, Figures& figures) {
  namespace d = ejk::detail;
  std::vector<double> taken;
  with_trial([&](const ejk::TuneTask& task) {
    const auto parcel = d::write_parcel(*task.trial);
    const d::GuardLimits limits;
    const std::function<bool()> enough;
    const auto start = [&] {
      auto worker = std::make_unique<d::GuardChild>(*task.trial, parcel,
                                                    d::GuardChild::Purpose::runs, limits, enough);
      if (!worker->alive()) throw std::runtime_error(worker->why_not_started());
      return worker;
    };
    auto worker = start();
    constexpr d::Patience patience{.deadline = 10};
    for (int i = 0; i < 15; ++i) {
      if (!worker->run(1, &*task.heuristic, patience).finding.passed())
        throw std::runtime_error("the guess does not run in a worker");
      const double begin = seconds();
      for (const pid_t one : d::children_of(d::zygote_pid())) kill(one, SIGKILL);
      worker.reset();
      worker = start();
      taken.push_back(1e3 * (seconds() - begin));
    }
  });
  std::printf("a worker after one that was killed: %.0f ms (%.0f to %.0f)\n", median(taken),
              quantile(taken, 0), quantile(taken, 0.99));
  figures.emplace_back("worker_restart_ms", median(taken));
}

// Seconds for the first runs of these configs, none of which was ever compiled.
inline double first_runs(const ejk::TuneTask& task, std::span<const ejk::AnyConfig> configs,
                         int compilers, const std::filesystem::path& fresh) {
  namespace d = ejk::detail;
  setenv("EJKERNEL_PERSISTENT_CACHE_DIR", (fresh / "store").c_str(), 1);
  setenv("POCL_CACHE_DIR", (fresh / "pocl").c_str(), 1);
  std::filesystem::create_directories(fresh / "pocl");
  d::GuardLimits limits;
  limits.compilers = compilers;
  d::Guard guard(*task.trial, limits);
  if (const std::string why = guard.start_worker(); !why.empty()) throw std::runtime_error(why);
  size_t passed = 0;
  const double begin = seconds();
  guard.run(configs,
            [&](size_t, const d::Finding& finding) { return passed += finding.passed(), true; });
  const double taken = seconds() - begin;
  if (passed != configs.size()) throw std::runtime_error("a config did not pass");
  return taken;
}

// One process that compiles beside the one that runs, and compiles what the other has not.
inline void compile_figures(const Options& options, Figures& figures) {
  const std::string store = getenv("EJKERNEL_PERSISTENT_CACHE_DIR");
  std::vector<double> alone, together;
  with_trial([&](const ejk::TuneTask& task) {
    std::vector<ejk::AnyConfig> configs;
    for (const uint64_t point : ejk::sample_points(*task.candidates, 16, 1))
      configs.push_back(task.candidates->config(point));
    for (const bool helped : {false, true, true, false}) {
      auto& taken = helped ? together : alone;
      const auto fresh =
          options.work / ("compile" + std::to_string(alone.size() + together.size()));
      taken.push_back(first_runs(task, configs, helped ? 1 : 0, fresh));
      std::printf("first runs of 16 configs%s: %.2f s\n",
                  helped ? ", with a process that compiles ahead" : "", taken.back());
    }
  });
  setenv("EJKERNEL_PERSISTENT_CACHE_DIR", store.c_str(), 1);
  unsetenv("POCL_CACHE_DIR");
  const double speedup = (alone[0] + alone[1]) / (together[0] + together[1]);
  std::printf("compiling ahead makes them %.2f times as fast (A/A %.3f)\n", speedup,
              alone[1] / alone[0]);
  figures.emplace_back("parallel_compile_speedup", speedup);
}

}  // namespace bench
