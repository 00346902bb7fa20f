// SPDX-License-Identifier: Apache-2.0
// The persistent tier: whether a stored entry answers a call, stands for a failure or must go on.
#include <set>

#include "base/digest.h"
#include "candidates/thread_fields.h"
#include "choose/chain.h"
#include "choose/long_wait.h"
#include "store/strategy.h"
#include "tune/limits.h"

namespace ejk::detail {
namespace {

constexpr uint64_t max_compared = 1000;  // candidates, with those that an entry knows

// Whether a candidate can run this call that the entry knows nothing of. Of large sets only the
// first are looked at, if at all: an entry of a search lists all candidates of small sets only.
bool has_new_candidates(const Entry& entry, const Invocation& inv, const AnyKernel& kernel) {
  const bool searched = strategy_of(entry.evidence).may_have_searched();
  std::set<std::string> known;
  for (const Measurement& m : entry.candidates) known.insert(stable_json(m.config));
  try {
    const auto offered = kernel.candidate_cfgs(inv);
    if (!offered || (searched && too_large_to_list(*offered))) return false;
    const uint64_t count = std::min(offered->size(), max_compared);
    for (uint64_t i = 0; i < count; ++i) {
      const AnyConfig c = offered->config(i);
      if (!known.contains(stable_json(c.to_value())) && kernel.is_valid(c, inv)) return true;
    }
  } catch (...) {
    return true;  // the tuning will say what was thrown
  }
  return false;
}

// Whether a tuning in which every candidate was rejected would end so again: it was done here, and
// no candidate has come since.
bool still_hopeless(const Entry& failed, const Invocation& inv, const AnyKernel& kernel) {
  if (!is_measured(failed)) return false;  // no tuning of this store saw it fail
  const Strategy strategy = strategy_of(failed.evidence);
  if (strategy.given_list) return false;  // not the kernel's own
  if (failed.environment != inv.device->environment || !failed.evidence.complete) return false;
  const bool may_pass = std::ranges::any_of(failed.candidates, [](const Measurement& m) {
    if (is(m.status, CandidateStatus::untried)) return true;
    return is(m.status, CandidateStatus::rejected) && !is_rejected_for_good(m) &&
           !is(m.kind, Rejection::invalid);  // is_valid would say no again
  });
  if (may_pass) return false;
  return strategy.may_have_searched() || !has_new_candidates(failed, inv, kernel);
}

// Whether it offers the candidates that the tuning knew, as far as the choice alone tells.
bool offers_the_same(const Entry& choice, const Invocation& inv, const AnyKernel& kernel) {
  try {
    const auto offered = kernel.candidate_cfgs(inv);
    if (!offered) return true;
    if (strategy_of(choice.evidence).may_have_searched() && too_large_to_list(*offered))
      return true;
    return !choice.evidence.offered.empty() &&
           choice.evidence.offered == digest_of_candidates(*offered);
  } catch (...) {
    return false;  // the tuning will say what was thrown
  }
}

// Whether the candidates of an entry do not matter: a hit that reads them reads thirty times as
// much. `may_go_on`: the tuning, if there is something left to do.
bool choice_suffices(const Entry& choice, const Invocation& inv, const AnyKernel& kernel,
                     bool may_go_on) {
  if (choice.outcome == Outcome::failed || !fits_these_cores(choice.config)) return false;
  if (!may_go_on || !is_measured(choice) || strategy_of(choice.evidence).given_list) return true;
  if (tuned_with_fewer_cores(choice)) return false;
  if (choice.environment != inv.device->environment) return true;
  return choice.evidence.complete && offers_the_same(choice, inv, kernel);
}

// One that was stored without its outputs serves calls with others.
bool serves_any_outputs(const EntryId& call, const Entry& entry) {
  return entry.id.key != call.key;
}

}  // namespace

std::string digest_of_candidates(const CandidateSet& offered) {
  if (offered.size() > max_compared) return {};
  std::string text;
  for (uint64_t i = 0; i < offered.size(); ++i)
    text += stable_json(offered.config(i).to_value()) + '\n';
  return base::digest_of(text);
}

std::string left_to_do(const Entry& entry, const Invocation& inv, const AnyKernel& kernel) {
  if (!is_measured(entry)) return {};
  if (strategy_of(entry.evidence).given_list) return {};  // the kernel's own list is another
  if (tuned_with_fewer_cores(entry)) return "it was done with fewer cores than there are here";
  if (entry.environment != inv.device->environment) return {};
  if (!entry.evidence.complete) return "it was cut short";
  if (entry.candidates.empty() || !has_new_candidates(entry, inv, kernel)) return {};
  return "there are new candidates";
}

// ---- the tier -----------------------------------------------------------------------------------

// Whether calls have no time left for a tuning that is not complete.
bool Chain::was_cut_for_good(const Call& call, const Entry& entry) {
  return !entry.evidence.complete && entry.environment == call.inv.device->environment &&
         entry.id.key == call.id.key && seconds_to_resume(call.policy, entry.evidence) == 0;
}

// With its candidates only if they matter.
auto Chain::read_stored(const Call& call) const -> std::optional<Stored> {
  // Asked before the entry is read: a tuning that ends in between has another one.
  bool may_go_on = may_resume(call) && (!is_tuned(call.id) || is_in_flight(call.id));
  const Value* const here = &call.inv.device->environment;
  auto found = options_.persistent->get(call.id, Detail::choice, here);
  if (found && was_cut_for_good(call, found->entry) && !is_in_flight(call.id)) may_go_on = false;
  if (found && !choice_suffices(found->entry, call.inv, call.kernel, may_go_on))
    found = options_.persistent->get(call.id, Detail::all, here);
  if (!found) return std::nullopt;
  return Stored{std::move(found->entry), std::move(found->where), may_go_on};
}

std::nullopt_t Chain::pass_nothing_stored(Call& call) const {
  const std::string place =
      launch_.snapshot ? options_.persistent->layers().front()->where() + " has " : "";
  return call.pass(Origin::persistent, place + "nothing for this key");
}

// A tuning of this call will replace it.
std::nullopt_t Chain::pass_unusable(Call& call, const Stored& stored, const std::string& why) {
  call.stored_is_unusable = true, call.stored = stored.entry;
  if (!call.dry)
    warn_once("persistent" + text_of(call.id),
              "[" + call.id.op + "] the entry for key " + call.id.key + " in " + stored.where +
                  " is not used: " + why +
                  (launch_.snapshot ? "; the snapshot has nothing else for this call"
                                    : "; it will be replaced when this call is tuned again"));
  return call.pass(Origin::persistent, stored.where + ": " + why, stored.entry.config);
}

// One that stands for a tuning in which every candidate was rejected.
std::nullopt_t Chain::pass_failure(Call& call, const Stored& stored) {
  const std::string rejected = "an earlier tuning rejected every candidate";
  if (!still_hopeless(stored.entry, call.inv, call.kernel))
    return call.pass(Origin::persistent,
                     stored.where + ": " + rejected +
                         ", but there are new ones, or it was in another environment");
  if (!call.dry) {
    std::lock_guard lock(state_->mutex);
    if (const std::string text = text_of(call.id); !state_->tried_in_vain.contains(text))
      state_->tried_in_vain.insert_or_assign(
          text, "an earlier tuning, kept in " + stored.where + ", rejected every candidate");
  }
  return call.pass(Origin::persistent, stored.where + ": " + rejected);
}

// Why this call goes on with the tuning; "" if it does not.
std::string Chain::go_on_with(Call& call, const Stored& stored, const Checked& config) {
  if (!stored.may_go_on) return {};
  const bool same = stored.entry.environment == call.inv.device->environment &&
                    !serves_any_outputs(call.id, stored.entry);
  const double seconds = same ? seconds_to_resume(call.policy, stored.entry.evidence) : 0;
  std::string why = left_to_do(stored.entry, call.inv, call.kernel);
  // What another thread goes on with, or just did, is waited for: its seconds are counted already.
  if (why.empty() || (same && seconds <= 0 && !is_in_flight(call.id) && !is_tuned(call.id)))
    return {};
  call.stored = call.unfinished = stored.entry, call.unfinished_config = config;
  call.resume_seconds = seconds;
  // Timings with another number of cores, or for other outputs, do not apply to this call.
  if (!same) {
    call.unfinished->candidates.clear();
    call.unfinished->evidence = {};
    call.unfinished->evidence.complete = false;
  }
  return why;
}

auto Chain::serve_stored(Call& call, const Stored& stored, const Checked& config,
                         std::string remark) -> Found {
  const Entry& entry = stored.entry;
  watch(call, entry, config, TunedBy::another);
  keep(call, config, Origin::persistent);
  if (call.policy.resume && is_measured(entry) && !entry.evidence.complete &&
      !serves_any_outputs(call.id, entry) && entry.environment == call.inv.device->environment)
    tune_later(call);
  Found answer{config, Origin::persistent, EventKind::cache_hit, Origin::persistent};
  if (launch_.snapshot) answer.detail = stored.where + " has a config";
  if (!remark.empty()) answer.detail = std::move(remark);
  return answer;
}

auto Chain::from_persistent(Call& call) -> std::optional<Found> {
  call.stored_is_unusable = false, call.resume_seconds = 0;
  call.stored.reset(), call.unfinished.reset(), call.unfinished_config.reset();
  if (!options_.persistent) return call.pass(Origin::persistent, "no persistent cache is set");
  const auto stored = read_stored(call);
  if (!stored) return pass_nothing_stored(call);
  const Entry& entry = stored->entry;
  if (entry.outcome == Outcome::failed) return pass_failure(call, *stored);
  if (options_.strict_environment && entry.environment != call.inv.device->environment)
    return pass_unusable(call, *stored,
                         "it was measured in another environment and the selector is strict");
  std::string remark;
  const auto config = check_stored(call, entry, remark);
  // In the background it may only be that nothing has tried it.
  if (!config && (serves_any_outputs(call.id, entry) || call.in_background()))
    return call.pass(Origin::persistent, stored->where + ": its config " + remark, entry.config);
  if (!config) return pass_unusable(call, *stored, "its config " + remark);
  if (const std::string why = go_on_with(call, *stored, *config); !why.empty())
    return call.pass(Origin::persistent, stored->where + ": the tuning goes on, " + why,
                     entry.config);
  return serve_stored(call, *stored, *config, std::move(remark));
}

bool Chain::may_resume(const Call& call) const {
  if (!call.policy.resume || !options_.persist_autotune) return false;
  if (!may_still_tune(call.policy, call.id)) return false;
  return options_.persistent->writable_layer() != nullptr;  // else it would never get ahead
}

bool Chain::is_tuned(const EntryId& id) const {
  std::lock_guard lock(state_->mutex);
  return state_->tuned.contains(text_of(id));
}

bool Chain::is_in_flight(const EntryId& id) const {
  std::lock_guard lock(state_->mutex);
  return state_->flights.is_on_elsewhere(text_of(id));
}

// What is stored is not lost if the tuning cannot go on, unless it was rejected on the way.
auto Chain::from_unfinished(Call& call) -> std::optional<Found> {
  if (!call.unfinished) return std::nullopt;
  if (auto found = from_autotune(call)) return found;
  if (!call.unfinished || (call.dry && call.would_tune)) return std::nullopt;
  keep(call, *call.unfinished_config, Origin::persistent);
  return Found{*call.unfinished_config, Origin::persistent, EventKind::cache_hit,
               Origin::persistent};
}

}  // namespace ejk::detail
