// SPDX-License-Identifier: Apache-2.0
// Tuning by hand: one call, some calls, and what came out as a scope.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <ejk/detail/export.h>
#include <ejk/executor.h>

namespace EJK_EXPORT ejk {

// What the tuning of one call found.
template <class Config>
struct AutotuneData {
  Config fastest_config;  // the winner
  Entry entry;            // with the evidence
  // Every candidate's, in their order.
  const std::vector<Measurement>& measurements() const noexcept { return entry.candidates; }
};

// The entries of some tunings. As a scope they come before memory and disk:
//   const auto scope = result.apply();
struct AutotuningResult {
  std::string device;          // fingerprint
  std::vector<Entry> entries;  // one for each call that was tuned
  // While the returned scope lives, calls of this thread use these configs. The scope holds copies:
  // this object may go away first.
  Scope apply() const;
};

// Tunes calls through an executor's own chain and tuner, and collects what they gave. It refers to
// the executor, which must outlive it. For one thread at a time.
class Autotuner {
 public:
  explicit Autotuner(const Executor& executor = default_executor()) : executor_(executor) {}

  // Tunes this call now, whatever is stored, and keeps the result. Throws Error(no_configuration)
  // if no candidate survives.
  template <class K, class... Args>
  AutotuneData<detail::CallConfig<K, Context::plain, Args...>> autotune(const K& kernel,
                                                                        Args&&... args) {
    auto tuned = executor_.tune(kernel, std::forward<Args>(args)...);
    result_.device = tuned.entry.id.device;
    result_.entries.push_back(tuned.entry);
    return {std::move(tuned.config), std::move(tuned.entry)};
  }

  // What was tuned so far. Lives as long as the autotuner.
  const AutotuningResult& result() const noexcept { return result_; }

 private:
  const Executor& executor_;
  AutotuningResult result_;
};

// How `autotune` measures, and what.
template <class Config>
struct AutotuneOptions {
  std::vector<Config> configs = {};  // default: the kernel's candidate_cfgs
  // Minimum numbers of warm-up runs and of rounds for each config.
  int num_warmup = 1;
  int num_iters = 3;
  std::shared_ptr<Stopwatch> stopwatch = {};  // empty: system_stopwatch()
};

// The fastest config of one call, measured now: ejk::autotune(kernel, {.num_iters = 10}, a, b).
// Nothing is read from or written to a store. Throws Error(no_configuration) if none survives.
template <class K, class... Args>
auto autotune(const K& kernel,
              AutotuneOptions<detail::CallConfig<K, Context::plain, Args...>> options,
              Args&&... args) {
  const Executor executor(SelectorOptions{
      .policy = AutotunePolicy{},
      .tuner = std::make_shared<Tuner>(TunerOptions{.warmup = options.num_warmup,
                                                    .iters = options.num_iters,
                                                    .stopwatch = options.stopwatch})});
  if (options.configs.empty()) return executor.tune(kernel, std::forward<Args>(args)...).config;
  return executor.tune_among(std::move(options.configs), kernel, std::forward<Args>(args)...)
      .config;
}

}  // namespace ejk
