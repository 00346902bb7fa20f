// SPDX-License-Identifier: Apache-2.0
// The rule by which a call has become slow, and the calls that it is applied to.
#include "choose/drift.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <ejk/names.h>

#include "base/time.h"
#include "choose/machine_load.h"

namespace ejk::detail {

namespace {

constexpr double min_excess = 0.25;    // over what calls took: less is not worth a tuning
constexpr double max_cold_factor = 3;  // what cold caches may add to warm evidence
constexpr int slow_windows_of_drift = 2;

double tolerance_of(const Evidence& evidence) {
  return 1 + std::max(min_excess, 3 * evidence.noise);
}

double upper_bound_of(const Evidence& evidence) {
  return std::max(evidence.seconds, evidence.seconds_high);
}

double first_limit_of(const Evidence& evidence, TunedBy by) {
  if (by == TunedBy::this_process) return std::numeric_limits<double>::infinity();
  const double cold_factor = is(evidence.cache, CacheState::cold) ? 1 : max_cold_factor;
  return upper_bound_of(evidence) * tolerance_of(evidence) * cold_factor;
}

}  // namespace

DriftRule::DriftRule(const Evidence& evidence, TunedBy by)
    : upper_(upper_bound_of(evidence)),
      tolerance_(tolerance_of(evidence)),
      first_limit_(first_limit_of(evidence, by)) {}

double DriftRule::limit() const {
  return usual_ > 0 ? std::max(usual_, upper_) * tolerance_ : first_limit_;
}

std::optional<double> DriftRule::add(double seconds, const std::function<bool(double)>& is_busy) {
  if (filled_ == 0) began_ = base::seconds_now();
  window_[filled_] = seconds;
  if (++filled_ < window_.size()) return std::nullopt;
  filled_ = 0;
  std::ranges::nth_element(window_, window_.begin() + 1);
  const double now = window_[1];
  if (now <= limit()) {
    if (usual_ == 0) usual_ = now;
    slow_windows_ = 0;
    return std::nullopt;
  }
  slow_windows_ = is_busy(2 * (base::seconds_now() - began_)) ? 0 : slow_windows_ + 1;
  if (slow_windows_ < slow_windows_of_drift) return std::nullopt;
  slow_windows_ = 0;
  return now;
}

void DriftRule::accept(double seconds) { usual_ = seconds; }

WatchedCall::WatchedCall(const Entry& entry, AnyConfig checked, TunedBy by)
    : id(entry.id),
      environment(entry.environment),
      config(std::move(checked)),
      evidence_seconds(entry.evidence.seconds),
      tuned(entry.evidence.time),
      rule(entry.evidence, by) {}

Drift::Drift(std::function<bool()> is_busy, size_t max_calls)
    : calls_(max_calls), is_busy_(busy_question(std::move(is_busy))) {}

// The slow window of another call may be judged at the same time.
bool Drift::is_busy(double seconds) {
  const std::unique_lock lock(busy_mutex_, std::try_to_lock);
  return !lock.owns_lock() || is_busy_(seconds);
}

void Drift::expect(const std::string& id, std::shared_ptr<WatchedCall> call) {
  const std::lock_guard lock(mutex_);
  if (!call) return calls_.erase(id);
  // The same entry, read again: what was seen since counts.
  const auto* const before = calls_.find(id);
  if (before != nullptr && (*before)->config == call->config && (*before)->tuned == call->tuned &&
      (*before)->evidence_seconds == call->evidence_seconds)
    return;
  calls_.insert_or_assign(id, std::move(call));
}

std::shared_ptr<WatchedCall> Drift::find(const std::string& id, const AnyConfig& config) {
  const std::lock_guard lock(mutex_);
  const auto* const found = calls_.find(id);
  return found != nullptr && (*found)->config == config ? *found : nullptr;
}

std::optional<double> Drift::add_run(WatchedCall& call, double seconds) {
  const std::unique_lock lock(call.mutex, std::try_to_lock);
  if (!lock.owns_lock() || call.drifted) return std::nullopt;
  const auto now = call.rule.add(seconds, [this](double about) { return is_busy(about); });
  call.drifted = now.has_value();
  return now;
}

}  // namespace ejk::detail
