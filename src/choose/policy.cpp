// SPDX-License-Identifier: Apache-2.0
// The policy in force: the selector's own, changed by the scopes of the thread.
#include <ejk/error.h>
#include <ejk/selector.h>

#include "base/env.h"
#include "choose/scope.h"

namespace ejk {

AutotunePolicy policy_from_environment() {
  const std::string word = base::env("EJKERNEL_AUTOTUNE_POLICY").value_or("autotune");
  AutotunePolicy policy;
  if (word == "autotune" || word.empty()) return policy;
  policy.allow_autotune = false;
  if (word == "heuristics") return policy;
  policy.allow_heuristics = false;
  if (word == "frozen") return policy;
  throw Error(ErrorKind::invalid_argument,
              "EJKERNEL_AUTOTUNE_POLICY is \"" + word +
                  "\"; it must be \"autotune\", \"heuristics\" or \"frozen\"");
}

namespace {

void apply(const PolicyUpdates& updates, AutotunePolicy& policy) {
  if (updates.allow_autotune) policy.allow_autotune = *updates.allow_autotune;
  if (updates.allow_heuristics) policy.allow_heuristics = *updates.allow_heuristics;
  if (updates.cache_miss_fallback) policy.cache_miss_fallback = *updates.cache_miss_fallback;
  if (updates.validate_backward) policy.validate_backward = *updates.validate_backward;
  if (updates.budget_seconds) policy.budget_seconds = *updates.budget_seconds;
  if (updates.budget_evaluations) policy.budget_evaluations = *updates.budget_evaluations;
  if (updates.target_seconds) policy.target_seconds = *updates.target_seconds;
  if (updates.guard) policy.guard = *updates.guard;
  if (updates.resume) policy.resume = *updates.resume;
  if (updates.resume_share) policy.resume_share = *updates.resume_share;
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
  return policy;
}

}  // namespace ejk
