// SPDX-License-Identifier: Apache-2.0
// Which config of a stored entry may run a call: one that the kernel itself offers, one that was
// measured and is valid, or one that has passed in a child process.
#include <algorithm>
#include <functional>

#include "base/thrown.h"
#include "base/time.h"
#include "candidates/thread_fields.h"
#include "choose/chain.h"
#include "guard/guard.h"
#include "tune/output_check.h"

namespace ejk::detail {
namespace {

// By what a store says of an entry. Where the guard is off nothing can be tried, and what this user
// measured or put there is believed.
bool entry_vouches(const Entry& entry, const AnyKernel& kernel, const AutotunePolicy& policy) {
  const bool own = is_measured(entry) || is(entry.provenance, Provenance::put);
  return entry.trusted && own && (kernel.has_is_valid() || !policy.guard);
}

// What is known to run: a failure beside it is the config's own, and its outputs are right.
std::optional<AnyConfig> control_of(const AnyKernel& kernel, const Invocation& inv) {
  constexpr uint64_t most = 100;
  const auto valid = [&](const AnyConfig& config) { return kernel.is_valid(config, inv); };
  try {
    if (auto guess = kernel.heuristic_cfg(inv); guess && valid(*guess)) return guess;
    const auto offered = kernel.candidate_cfgs(inv);
    for (uint64_t i = 0; offered && i < std::min(offered->size(), most); ++i)
      if (AnyConfig config = offered->config(i); valid(config)) return config;
  } catch (...) {  // then there is none
  }
  return std::nullopt;
}

// Why the config does not pass in a child process; nullopt if it does. `waited`: it only waits
// there, perhaps for a thread of this process, which says nothing about it.
std::optional<std::string> failure_in_child(const AnyKernel& kernel, const Invocation& inv,
                                            const AnyConfig& config,
                                            const std::function<bool()>& enough, bool& waited) {
  const auto trial = kernel.trial(inv);
  trial->reset();
  std::vector<OutputBytes> untouched = trial->outputs();
  Guard guard(*trial, {}, enough);
  if (trial->device() != nullptr)
    if (std::string why = guard.start_worker(); !why.empty()) return why;
  std::optional<Finding> right;
  if (const auto control = control_of(kernel, inv)) right = guard.prove(*control);
  else right = guard.reference();
  Finding finding;
  guard.run({&config, 1}, [&](size_t, Finding found) {
    finding = std::move(found);
    return true;
  });
  waited = finding.waited;
  if (!finding.passed()) return finding.sentence();
  if (!right || !right->passed()) return std::nullopt;
  return Expected(std::move(untouched), std::move(right->outputs),
                  [&](DType dtype) { return trial->tolerance(dtype); })
      .difference(finding.outputs);
}

}  // namespace

bool kernel_vouches(const AnyKernel& kernel, const Invocation& inv, const AnyConfig& config) {
  try {
    if (kernel.heuristic_cfg(inv) == config) return true;
  } catch (...) {  // says nothing about the candidates
  }
  try {
    return kernel.offers(config, inv);
  } catch (...) {
    return false;
  }
}

auto Chain::check_stored(const Call& call, const Entry& entry, std::string& remark)
    -> std::optional<Checked> {
  const auto stored = config_for_these_cores(entry);
  if (!stored) {
    remark = "asks for more threads than run here";
    return std::nullopt;
  }
  const auto checked = call.check(*stored);
  remark = checked.why();
  const auto& config = checked.value();
  if (!config || entry_vouches(entry, call.kernel, call.policy) ||
      kernel_vouches(call.kernel, call.inv, config->config()))
    return config;
  const std::string unknown = "is not among the kernel's candidates, and ";
  if (launch_.must_agree()) {
    remark =
        unknown + "is not tried " + (launch_.snapshot ? "beside a snapshot" : "beside pins") +
        "; its entry was imported, or the kernel has no is_valid. Let candidate_cfgs offer it, or "
        "take what was tuned";
    return std::nullopt;
  }
  if (!call.policy.guard) {
    remark = unknown +
             "cannot be tried in a child process, for the policy has no guard; its entry was "
             "imported or edited, or belongs to another user. Let candidate_cfgs offer it, or tune "
             "this call";
    return std::nullopt;
  }
  if (call.dry) {
    remark = "has a config that is not known to be safe: its first run happens in a child process";
    return config;
  }
  const auto failure = failure_of_first_run(call, entry, *config);
  if (!failure) return config;
  remark = unknown + "did not pass in a child process: " + *failure;
  return std::nullopt;
}

// Once for all threads, of which that of the background waits for none and tries nothing itself:
// it tunes. What only waits in a child is believed if it was measured, as it is in a tuning.
std::optional<std::string> Chain::failure_of_first_run(const Call& call, const Entry& entry,
                                                       const Checked& config) {
  const std::string subject = text_of(call.id) + '\n' + stable_json(config.config().to_value());
  std::unique_lock lock(state_->mutex);
  while (state_->flights.is_on(subject) && !call.in_background()) {
    if (state_->flights.waits_for_itself(subject))
      return "this thread is at it (a hook calls the kernel)";
    state_->flights.wait_for(subject, lock);
  }
  if (const auto* known = state_->first_runs.find(subject)) return *known;
  if (call.in_background()) return "only a call tries it";
  const SingleFlight::Flight flight(state_->flights, subject, lock);
  const double end = base::seconds_now() + std::max(1., call.policy.budget_seconds);
  const auto enough = [&] { return base::seconds_now() > end || is_stopped(); };
  std::optional<std::string> failure;
  bool waited = false;
  try {
    failure = failure_in_child(call.kernel, call.inv, config.config(), enough, waited);
  } catch (...) {
    failure = base::what_was_thrown();
  }
  if (waited && entry.trusted && is_measured(entry)) failure.reset();
  lock.lock();
  state_->first_runs.insert_or_assign(subject, failure);
  lock.unlock();
  return failure;
}

}  // namespace ejk::detail
