// SPDX-License-Identifier: Apache-2.0
// The policy in force: the selector's own, changed by the scopes of the thread.
#include <ejk/detail/reflect.h>
#include <ejk/error.h>
#include <ejk/selector.h>

#include "base/env.h"
#include "choose/chain.h"
#include "choose/scope.h"

namespace ejk {

AutotunePolicy policy_from_environment() {
  const std::string word = base::env("EJKERNEL_AUTOTUNE_POLICY").value_or("autotune");
  AutotunePolicy policy;
  if (word == "autotune" || word.empty()) return policy;
  if (word == "background") {
    policy.cache_miss_fallback = Fallback::background;
    return policy;
  }
  policy.allow_autotune = false;
  if (word == "heuristics") return policy;
  policy.allow_heuristics = false;
  if (word == "frozen") return policy;
  throw Error(ErrorKind::invalid_argument,
              "EJKERNEL_AUTOTUNE_POLICY is \"" + word +
                  "\"; it must be \"autotune\", \"background\", \"heuristics\" or \"frozen\"");
}

namespace {

void apply(const PolicyUpdates& updates, AutotunePolicy& policy) {
  const auto given = detail::fields_of(updates);
  const auto fields = detail::fields_of(policy);
  const auto take = [](const auto& update, auto& field) {
    if (update) field = *update;
  };
  [&]<size_t... I>(std::index_sequence<I...>) {
    (take(std::get<I>(given), std::get<I>(fields)), ...);
  }
  (std::make_index_sequence<detail::field_count<AutotunePolicy>>{});
}

void apply_from_outermost(const detail::ScopeNode* scope, const ConfigSelectorChain* chain,
                          AutotunePolicy& policy) {
  if (!scope) return;
  apply_from_outermost(scope->outer.get(), chain, policy);
  if (!scope->active.load(std::memory_order_acquire)) return;
  if (scope->selector == nullptr || scope->selector == chain) apply(scope->updates, policy);
  if (scope->forward_only) policy.validate_backward = false;
}

}  // namespace

AutotunePolicy ConfigSelectorChain::policy() const {
  AutotunePolicy policy = *options_.policy;
  apply_from_outermost(detail::live_scopes(), this, policy);
  if (chain_->launch().must_agree()) policy.allow_autotune = false;
  return policy;
}

}  // namespace ejk
