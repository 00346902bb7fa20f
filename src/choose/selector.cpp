// SPDX-License-Identifier: Apache-2.0
// The public face of the chain: its options, and the table of warm calls.
#include <ejk/detail/warm_table.h>
#include <ejk/record.h>
#include <ejk/selector.h>

#include "base/warn.h"
#include "choose/chain.h"
#include "store/snapshot.h"

namespace ejk {

ConfigSelectorChain::ConfigSelectorChain(SelectorOptions options)
    : options_(std::move(options)),
      warm_(std::make_unique<detail::WarmTable>(options_.most_shapes)) {
  if (!options_.cache) options_.cache = std::make_shared<ConfigCache>(options_.most_shapes);
  if (!options_.policy) options_.policy = policy_from_environment();
  if (!options_.tuner) options_.tuner = std::make_shared<Tuner>();
  options_.on_warning = base::warnings_to(std::move(options_.on_warning));
  if (!options_.on_progress) options_.on_progress = progress_from_environment();
  if (!options_.recording) options_.recording = recording_from_environment();
  salt_ = detail::salt_of(*options_.policy);
  const auto snapshot = detail::snapshot_of_launch();
  detail::Chain::Launch launch{.snapshot = snapshot != nullptr,
                               .pins = detail::pin_mode_of_launch(),
                               .store = options_.persistent};
  if (snapshot)
    options_.persistent =
        std::make_shared<PersistentCache>(std::vector<std::shared_ptr<Store>>{snapshot});
  if (launch.must_agree()) {
    options_.persist_autotune = false;
    options_.policy->allow_autotune = false;
  }
  chain_ = std::make_unique<detail::Chain>(*this, options_, *warm_, std::move(launch));
}

ConfigSelectorChain::~ConfigSelectorChain() = default;

Choice ConfigSelectorChain::choose(const Invocation& inv, const AnyKernel& kernel) {
  return chain_->choose(inv, kernel);
}

std::pair<Choice, Entry> ConfigSelectorChain::tune(const Invocation& inv, const AnyKernel& kernel,
                                                   std::shared_ptr<const CandidateSet> candidates) {
  return chain_->tune(inv, kernel, std::move(candidates));
}

std::pair<Choice, Entry> ConfigSelectorChain::resume(const Invocation& inv,
                                                     const AnyKernel& kernel) {
  return chain_->resume(inv, kernel);
}

std::optional<Entry> ConfigSelectorChain::tuned(const Invocation& inv, const AnyKernel& kernel) {
  return chain_->tuned(inv, kernel);
}

Explanation ConfigSelectorChain::explain(const Invocation& inv, const AnyKernel& kernel) {
  return chain_->explain(inv, kernel);
}

size_t ConfigSelectorChain::idle(double seconds) { return chain_->idle(seconds); }

uint64_t ConfigSelectorChain::scoped_salt() const { return detail::salt_of(policy()); }

std::optional<Choice> ConfigSelectorChain::reuse(const detail::WarmEntry& entry) {
  return chain_->reuse(entry);
}

double ConfigSelectorChain::watch_seconds() const {
  const auto& own = tuner().options().stopwatch;
  return own ? own->now() : system_stopwatch()->now();
}

bool ConfigSelectorChain::saw_run(detail::WatchedCall& call, double seconds) {
  return chain_->saw_run(call, seconds);
}

void ConfigSelectorChain::tune_again(const Invocation& inv, const AnyKernel& kernel) {
  chain_->tune_again(inv, kernel);
}

}  // namespace ejk
