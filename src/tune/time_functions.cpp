// SPDX-License-Identifier: Apache-2.0
// Races of plain functions: the tuner for callers who have no kernel.

#include <ejk/config.h>
#include <ejk/error.h>
#include <ejk/tuner.h>

#include "base/format.h"

namespace ejk {
namespace {

// The configurations are indices.
class FunctionTrial final : public Trial {
 public:
  explicit FunctionTrial(std::span<const std::function<void()>> calls) : calls_(calls) {
    std::vector<AnyConfig> indices;
    for (size_t i = 0; i < calls.size(); ++i) indices.push_back(make_config(i));
    indices_ = candidate_list(std::move(indices));
  }
  TuneTask task(std::string op) {
    TuneTask task;
    task.op = std::move(op), task.trial = this, task.candidates = indices_;
    return task;
  }
  void reset() override {}
  void run(const AnyConfig& config) override { calls_[config.as<size_t>()](); }
  bool run_reference() override { return false; }
  std::vector<OutputBytes> outputs() override { return {}; }

 private:
  std::span<const std::function<void()>> calls_;
  std::shared_ptr<const CandidateSet> indices_;
};

}  // namespace

size_t Tuner::fastest(const std::vector<std::function<void()>>& calls) {
  FunctionTrial trial(calls);
  const TuneResult result = tune(trial.task("Tuner::autotune"));
  if (result.winner) return *result.winner;
  std::string reasons;
  for (size_t i = 0; i < result.candidates.size(); ++i)
    reasons += fmt::format("; candidate {}: {}", i, result.candidates[i].why);
  throw Error(ErrorKind::no_configuration,
              fmt::format("[Tuner::autotune] none of {} candidates could be run{}", calls.size(),
                          calls.empty() ? ": give at least one" : reasons));
}

Evidence Tuner::time(const std::function<void()>& call) {
  call();  // what it throws is the caller's to see
  FunctionTrial trial(std::span(&call, 1));
  TuneTask task = trial.task("Tuner::measure");
  task.guard = false;         // it came back above
  task.budget.seconds = 1e9;  // warm-up and samples were asked for
  const TuneResult result = tune(task);
  if (result.winner) return result.evidence;
  throw Error(ErrorKind::no_configuration,
              fmt::format("[Tuner::measure] the function failed: {}", result.candidates.at(0).why));
}

}  // namespace ejk
