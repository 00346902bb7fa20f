// SPDX-License-Identifier: Apache-2.0
// Which waits are allowed, and the words for long ones.
#include "choose/long_wait.h"

#include <algorithm>
#include <atomic>

#include "base/format.h"

namespace ejk::detail {

double seconds_to_resume(const AutotunePolicy& policy, const Evidence& stored) {
  // First runs, warm-ups and a few rounds of two configs: fewer runs would change nothing.
  constexpr double min_runs = 10;
  const double left = policy.resume_share * policy.budget_seconds - stored.resumed_seconds;
  const double allowed = std::min(policy.budget_seconds, left);
  const double needed = min_runs * std::max(stored.seconds, stored.heuristic_seconds);
  return allowed > 0 && allowed >= needed ? allowed : 0;
}

void announce_wait(double seconds, std::string_view op, const WarningSink& warn) {
  constexpr double long_wait = 1;
  static std::atomic<bool> announced = false;
  if (!(seconds > long_wait) || announced.exchange(true)) return;
  warn(fmt::format(
      "[{}] a call waits for its tuning, {:.1f} s so far. To keep calls from waiting, tune them "
      "before (record the program with EJKERNEL_OPS_RECORD=1, then run `ejk tune`), set a smaller "
      "AutotunePolicy::budget_seconds, or set EJKERNEL_AUTOTUNE_POLICY=background (they are tuned "
      "later) or EJKERNEL_AUTOTUNE_POLICY=heuristics (never). This is said once.",
      op, seconds));
}

}  // namespace ejk::detail
