// SPDX-License-Identifier: Apache-2.0
// The autotune tier: one thread of one process tunes a key, the others wait for its result.
#include <algorithm>
#include <functional>

#include "base/format.h"
#include "base/thrown.h"
#include "base/time.h"
#include "choose/chain.h"
#include "choose/long_wait.h"
#include "choose/tuning_process.h"
#include "guard/guard.h"
#include "store/crash_journal.h"
#include "store/snapshot.h"
#include "store/strategy.h"
#include "tune/limits.h"

namespace ejk::detail {

namespace {

// Long enough for another process to finish the same tuning; after that it counts as stuck. One
// that is silent is not waited for (Store::lease).
double patience_for(const AutotunePolicy& policy) {
  return 20 + 3 * std::max(0., policy.budget_seconds);
}

}  // namespace

// What a call would do here, without doing it.
std::nullopt_t Chain::would_tune(Call& call) {
  try {
    const auto candidates = call.offered();
    if (!candidates) return call.pass(Origin::autotune, "the kernel has no candidate_cfgs");
    call.would_tune = candidates->size() > 0;
    return call.pass(Origin::autotune, "would measure " + std::to_string(candidates->size()) +
                                           " candidates" + call.what_is_excluded());
  } catch (...) {
    return call.pass(Origin::autotune, "candidate_cfgs threw: " + base::what_was_thrown());
  }
}

auto Chain::from_autotune(Call& call) -> std::optional<Found> {
  if (launch_.must_agree())
    return call.pass(Origin::autotune, launch_.snapshot ? "nothing is tuned beside a snapshot"
                                                        : "nothing is tuned in a run with pins");
  if (!call.policy.allow_autotune)
    return call.pass(Origin::autotune, "the policy does not allow it");
  const std::string flight = text_of(call.id);
  std::unique_lock lock(state_->mutex);
  // Another thread may be at it: wait for its result.
  while (state_->flights.is_on(flight) && !call.dry) {
    if (state_->flights.waits_for_itself(flight))
      return call.pass(Origin::autotune,
                       "this thread is already tuning this very call (the kernel calls itself)");
    state_->flights.wait_for(flight, lock);
    lock.unlock();
    if (auto found = from_memory(call)) return found;
    // That thread may have rejected what is to go on here.
    if (call.unfinished)
      if (auto found = from_persistent(call)) return found;
    lock.lock();
  }
  if (const std::string* why = state_->tried_in_vain.find(flight))
    return call.pass(Origin::autotune, "not tried again: " + *why);
  if (options_.forbid_reautotune && state_->tuned.contains(flight)) {
    lock.unlock();
    if (auto found = from_earlier_tuning(call)) return found;
    lock.lock();
  }
  if (call.dry) {
    lock.unlock();
    return would_tune(call);
  }
  const SingleFlight::Flight alone(state_->flights, flight, lock);
  // Another thread may have tuned it since this call asked.
  if (auto found = from_memory(call)) return found;
  return tune_alone(call);
}

// What this process tuned, even if it was cleared since.
auto Chain::from_earlier_tuning(Call& call) -> std::optional<Found> {
  if (!options_.forbid_reautotune) return std::nullopt;
  AnyConfig tuned;
  {
    const std::lock_guard lock(state_->mutex);
    if (const AnyConfig* earlier = state_->tuned.find(text_of(call.id))) tuned = *earlier;
  }
  if (!tuned) return std::nullopt;
  const auto config = call.check(tuned);
  if (!config) return std::nullopt;
  keep(call, *config, Origin::autotune);
  return Found{*config, Origin::autotune, EventKind::cache_hit, Origin::memory};
}

void Chain::store(const Entry& entry, IfPresent if_present) const {
  if (options_.persistent && options_.persist_autotune) options_.persistent->put(entry, if_present);
}

// Without the lease another process may have stored a better entry meanwhile.
bool Chain::may_replace(const Call& call) const {
  if (call.lease != nullptr || !call.stored || !options_.persistent) return true;
  const auto now =
      options_.persistent->get(call.stored->id, Detail::choice, &call.inv.device->environment);
  const auto choice = [](const Entry& entry) {
    Value document = entry_to_document(entry);
    document.erase("candidates");
    return document;
  };
  return !now || choice(now->entry) == choice(*call.stored);
}

// This thread is the only one in this process that tunes this key.
auto Chain::tune_alone(Call& call) -> std::optional<Found> {
  std::unique_ptr<TuningLease> lease;
  if (options_.persistent && options_.persist_autotune) {
    const double asked = base::seconds_now();
    lease = options_.persistent->lease(call.id, patience_for(call.policy));
    call.lease = lease.get();
    announce_wait(base::seconds_now() - asked, call.id.op, options_.on_warning);
    // Another process may have finished it while this one waited.
    if (auto found = from_persistent(call)) return found;
    if (std::lock_guard lock(state_->mutex); state_->tried_in_vain.contains(text_of(call.id)))
      return call.pass(Origin::autotune, "an earlier tuning rejected every candidate");
  }
  if (call.resume_seconds > 0 && may_replace(call)) {
    // Counted before it is spent: a process that is killed meanwhile must not be followed by
    // others.
    Entry charged = *call.unfinished;
    charged.evidence.resumed_seconds += call.resume_seconds;
    options_.persistent->put(charged, IfPresent::replace);
    call.stored = charged;
  }
  auto entry = run_tuner(call);
  if (!entry || entry->outcome == Outcome::failed) return std::nullopt;
  call.add_unfinished(*entry);
  store(*entry, replace_if((call.stored_is_unusable || call.unfinished) && may_replace(call)));
  const auto config = call.check(call.winner);
  if (!config) return call.pass(Origin::autotune, "its winner " + config.why(), entry->config);
  watch(call, *entry, *config, TunedBy::this_process);
  keep(call, *config, Origin::autotune);
  return Found{*config, Origin::autotune};
}

// ---- what goes into a race and what comes out ---------------------------------------------------

std::shared_ptr<const CandidateSet> Chain::Call::offered() const {
  if (!given) return kernel.candidate_cfgs(inv);
  return same ? same->of_the_class(given) : given;
}

std::string Chain::Call::what_is_excluded() const {
  return same && !same->excluded().empty() ? "; " + same->excluded() : "";
}

auto Chain::Call::candidates() const -> base::OrWhy<std::shared_ptr<const CandidateSet>> {
  constexpr uint64_t most = 100'000;  // of a larger set one may be taken for granted
  const std::shared_ptr<const CandidateSet> found = offered();
  if (!found) return base::Why{"the kernel has no candidate_cfgs"};
  if (found->size() == 0)
    return base::Why{same && !same->excluded().empty() ? same->excluded()
                                                       : "candidate_cfgs returned no candidate"};
  for (uint64_t i = 0; i < std::min(found->size(), most); ++i)
    if (!problem_with(found->config(i))) return found;
  if (found->size() > most) return found;
  return base::Why{"is_valid rejected all " + std::to_string(found->size()) + " candidates"};
}

auto Chain::Call::control() const -> base::OrWhy<std::optional<AnyConfig>> {
  try {
    auto heuristic = kernel.heuristic_cfg(inv);
    if (heuristic && problem_with(*heuristic)) heuristic.reset();
    return heuristic;
  } catch (...) {
    return base::Why{base::what_was_thrown()};
  }
}

Entry Chain::Call::entry_of(const TuneResult& result) const {
  Entry entry;
  entry.id = id;
  entry.outcome = result.winner ? result.outcome : Outcome::failed;
  if (result.winner) {
    entry.config = result.config.to_value();
    try {
      entry.numerics = kernel.numerics(result.config, inv);
    } catch (...) {  // then it is not known
      static_cast<void>(base::what_was_thrown());
    }
  }
  entry.device = inv.device->identity;
  entry.environment = inv.device->environment;
  entry.evidence = result.evidence;
  if (given) mark_given_list(entry.evidence);
  if (!inv.data.empty()) entry.evidence.data = inv.data;
  entry.candidates = result.candidates;
  return entry;
}

void Chain::Call::add_unfinished(Entry& entry) const {
  if (!unfinished) return;
  const Evidence& before = unfinished->evidence;
  const double spent = entry.evidence.tuning_seconds;
  if (unfinished->config == entry.config && !entry.evidence.complete &&
      entry.evidence.samples < before.samples) {
    entry.outcome = unfinished->outcome, entry.evidence = before;
    entry.evidence.complete = false;
  }
  entry.evidence.tuning_seconds = before.tuning_seconds + spent;
  entry.evidence.resumed_seconds =
      entry.evidence.complete ? 0 : before.resumed_seconds + (by_hand ? 0 : spent);
}

namespace {

std::string rejections(const TuneResult& result) {
  std::string text = "every candidate was rejected";
  for (const Measurement& m : result.candidates)
    text += "; " + stable_json(m.config) + ": " + (m.kind.empty() ? m.why : m.kind + ": " + m.why);
  return text;
}

// If not even the heuristic runs, it is the call or the kernel that is wrong, not the candidates;
// without one, if all of them refuse it: what makes it wrong need not be part of the key.
bool call_itself_fails(const TuneResult& result, bool has_heuristic) {
  if (result.winner) return false;
  const auto tells_of_call = [](std::optional<Rejection> kind) {
    return kind && (is_its_own_doing(*kind) || kind == Rejection::out_of_bounds);
  };
  if (has_heuristic) return tells_of_call(result.heuristic_rejection);
  return std::ranges::all_of(result.candidates, [&](const Measurement& m) {
    const auto kind = named<Rejection>(m.kind);
    return tells_of_call(kind) || kind == Rejection::invalid;
  });
}

// Of one that fails.
bool only_changes_its_process(const TuneResult& result) {
  if (result.heuristic_rejection) return result.heuristic_rejection == Rejection::changed_host;
  return std::ranges::any_of(
      result.candidates, [](const Measurement& m) { return is(m.kind, Rejection::changed_host); });
}

bool ended_as(const TuneResult& result, const Value& config, CandidateStatus status) {
  return std::ranges::any_of(result.candidates, [&](const Measurement& m) {
    return is(m.status, status) && m.config == config;
  });
}

// The other tunings of the op that know most, other calls and devices alike.
std::vector<std::vector<Measurement>> other_tunings(PersistentCache& store, const EntryId& id,
                                                    double budget_seconds) {
  constexpr size_t most = 8;
  constexpr double share = 0.05;  // of the budget: a store may have thousands of them
  const double enough = base::seconds_now() + share * budget_seconds;
  std::vector<std::vector<Measurement>> found;
  store.for_each(id.op, [&](const Entry& entry) {
    if (text_of(entry.id) != text_of(id) && entry.candidates.size() > 1) {
      found.push_back(entry.candidates);
      std::ranges::stable_sort(found, std::greater{}, &std::vector<Measurement>::size);
      if (found.size() > most) found.pop_back();
    }
    return base::seconds_now() < enough;
  });
  return found;
}

// What ended other processes is kept from one without a journal by is_valid, and that is no verdict
// of the kernel's. A suspect stays open for a tuning that can try it, but does not keep a second
// one from being complete.
void tell_what_was_kept_away(TuneResult& result, const TuneTask& task, const Journal& journal) {
  const auto deaths = journal.suspects();
  for (Measurement& m : result.candidates) {
    if (!is(m.kind, Rejection::invalid)) continue;
    const auto suspect = deaths.find(stable_json(m.config));
    if (const auto why = journal.condemned(m.config)) {
      m.kind = name_of(Rejection::quarantined), m.why = *why;
    } else if (suspect != deaths.end()) {
      m.status = name_of(CandidateStatus::untried), m.kind.clear();
      m.why =
          fmt::format("processes that died while they ran it: {}; the background does not try it",
                      suspect->second);
      const bool again = std::ranges::any_of(task.known, [&](const Measurement& known) {
        return known.config == m.config && is(known.status, CandidateStatus::untried);
      });
      if (!again) result.evidence.complete = false;
    }
  }
}

}  // namespace

// ---- the tuning ---------------------------------------------------------------------------------

TuneTask Chain::task_of(const Call& call, Trial& trial,
                        std::shared_ptr<const CandidateSet> candidates,
                        std::optional<AnyConfig> heuristic, Journal* journal) {
  TuneTask task;
  task.op = call.id.op, task.key = call.id.key;
  task.trial = &trial;
  task.candidates = std::move(candidates);
  task.is_valid = [&call](const AnyConfig& config) { return !call.problem_with(config); };
  task.heuristic = std::move(heuristic);
  task.heuristic_may_win = call.given == nullptr;  // a list that was given is what was meant
  const double seconds = call.resume_seconds > 0 ? call.resume_seconds : call.policy.budget_seconds;
  task.budget = {seconds, call.policy.budget_evaluations, call.policy.target_seconds};
  task.guard = call.policy.guard;
  task.journal = journal;
  if (call.turn != nullptr) {
    task.budget.seconds = std::min(task.budget.seconds, call.turn->seconds);
    if (call.turn->place == Background::Place::here) task.on_progress = options_.on_progress;
  } else if (call.by_hand) task.on_progress = options_.on_progress;
  else
    task.on_progress = [this, op = call.id.op](const TuneProgress& p) {
      announce_wait(p.elapsed, op, options_.on_warning);
      if (options_.on_progress) options_.on_progress(p);
    };
  task.stop = options_.stop;
  task.lease = call.lease;
  if (call.unfinished) {
    task.known = call.unfinished->candidates;
    task.known_winner = call.unfinished->config;
    task.known_complete = call.unfinished->evidence.complete;
  }
  if (options_.persistent && too_large_to_race(*task.candidates))  // only a search asks
    task.histories = other_tunings(*options_.persistent, call.id, task.budget.seconds);
  return task;
}

// Ends it with nothing to keep.
std::nullopt_t Chain::end_tuning(Call& call, const std::string& why) {
  if (options_.on_event) emit(call.event(EventKind::autotune_finish, {}, why));
  return call.pass(Origin::autotune, why);
}

// The same, and calls with this key do not try again.
std::nullopt_t Chain::end_in_vain(Call& call, const std::string& why) {
  // A list that was given says nothing about the kernel's own.
  if (std::lock_guard lock(state_->mutex); !call.given)
    state_->tried_in_vain.insert_or_assign(text_of(call.id), why);
  return end_tuning(call, why);
}

// What the tuner finds; nullopt if it threw.
std::optional<TuneResult> Chain::measure(Call& call,
                                         const std::shared_ptr<const CandidateSet>& candidates,
                                         const std::optional<AnyConfig>& heuristic) {
  std::unique_ptr<Journal> journal;
  if (const std::string place = local_directory(); !place.empty())
    journal = std::make_unique<Journal>(place, call.id, call.inv.device->environment,
                                        options_.on_warning);
  TuneResult result;
  try {
    const auto trial = call.kernel.trial(call.inv);
    if (trial->leaves_backward_out())
      warn_of(call, "backward",
              "validate_backward measures forward only: let the kernel's gradient take as dy what "
              "the kernel returns or, if that is nothing, the view of its Out parameter (several: "
              "a std::tuple of them)");
    TuneTask task = task_of(call, *trial, candidates, heuristic, journal.get());
    if (!call.in_background()) result = options_.tuner->tune(task);
    else {
      // The process writes no journal, but what ended others must not be chosen there either.
      if (journal)
        task.is_valid = [inner = task.is_valid, deadly = journal->suspects(),
                         quarantine = journal.get()](const AnyConfig& config) {
          const Value value = config.to_value();
          return (!inner || inner(config)) && !deadly.contains(stable_json(value)) &&
                 !quarantine->condemned(value);
        };
      auto told = tune_in_process(*options_.tuner, task, *call.turn);
      call.gave_way = !told && told.why().empty();
      if (call.gave_way) return end_tuning(call, "it was broken off, and begins again later");
      if (!told) return end_tuning(call, told.why());
      result = std::move(*told);
      if (journal) tell_what_was_kept_away(result, task, *journal);
    }
  } catch (...) {
    return end_in_vain(call, "the tuner threw: " + base::what_was_thrown());
  }
  if (!call.by_hand) announce_wait(result.evidence.tuning_seconds, call.id.op, options_.on_warning);
  if (result.winner && !result.config) result.config = candidates->config(*result.winner);
  if (!result.note.empty()) warn_of(call, "note", "tuning: " + result.note);
  return result;
}

// Every candidate was rejected.
void Chain::keep_failure(Call& call, const TuneResult& result, const Entry& entry) {
  warn_of_failure(call, rejections(result));
  // What is stored would stay, and be run, although it is among the rejected.
  const bool refuted =
      call.unfinished && ended_as(result, call.unfinished->config, CandidateStatus::rejected);
  store(entry, replace_if(refuted));
  if (refuted) call.unfinished.reset();
  end_in_vain(call, rejections(result));
}

void Chain::keep_winner(Call& call, const TuneResult& result, const Entry& entry) {
  {
    std::lock_guard lock(state_->mutex);
    state_->tuned.insert_or_assign(text_of(call.id), call.winner = result.config);
    state_->tried_in_vain.erase(text_of(call.id));
  }
  if (options_.on_event)
    emit(call.event(EventKind::autotune_finish, entry.config, outcome_name(entry.outcome)));
}

// nullptr: there are none, which ends the tuning.
std::shared_ptr<const CandidateSet> Chain::candidates_to_tune(Call& call) {
  std::string why;
  try {
    auto found = call.candidates();
    if (found) return std::move(*found);
    why = found.why();
  } catch (...) {
    why = "candidate_cfgs threw: " + base::what_was_thrown();
    warn_of(call, "candidates", "key " + call.id.key + " is not tuned: " + why);
  }
  end_in_vain(call, why);
  return nullptr;
}

// Tunes and remembers how it ended. Empty if there was nothing to race.
std::optional<Entry> Chain::run_tuner(Call& call) {
  if (options_.on_event) emit(call.event(EventKind::autotune_start));
  const auto candidates = candidates_to_tune(call);
  if (!candidates) return std::nullopt;
  const auto control = call.control();
  if (!control)
    warn_of(call, "heuristic",
            "heuristic_cfg threw for key " + call.id.key + ": " + control.why() +
                "; tuning goes on without it");
  const std::optional<AnyConfig> heuristic = control ? *control : std::nullopt;
  const auto result = measure(call, candidates, heuristic);
  if (!result) return std::nullopt;
  if (call.unfinished && ended_as(*result, call.unfinished->config, CandidateStatus::untried))
    return end_tuning(call,
                      "the budget was spent before the turn of the earlier winner, which stays");
  if (!result->winner && is_stopped())
    return end_tuning(call, "it was stopped before a candidate was found");
  if (call_itself_fails(*result, heuristic.has_value())) {
    const std::string reasons = rejections(*result);
    if (!only_changes_its_process(*result))
      return end_tuning(call, reasons);  // the next may be a right one
    warn_of_failure(call, reasons);
    return end_in_vain(call, reasons);  // the call is right: each would be tuned again
  }
  Entry entry = call.entry_of(*result);
  if (!call.given) entry.evidence.offered = digest_of_candidates(*candidates);
  if (entry.outcome == Outcome::failed) keep_failure(call, *result, entry);
  else keep_winner(call, *result, entry);
  return entry;
}

void Chain::refuse_to_tune(const Call& call) const {
  if (!launch_.must_agree()) return;
  throw Error(ErrorKind::invalid_argument,
              "[" + call.id.op + "] got a call to tune in a run that has " +
                  (launch_.snapshot ? "a snapshot; expected " : "pins; expected ") +
                  (launch_.snapshot ? snapshot_variable : pin_variable) +
                  " to be unset, since its choices stay as they are");
}

std::pair<Choice, Entry> Chain::tune(const Invocation& inv, const AnyKernel& kernel,
                                     std::shared_ptr<const CandidateSet> candidates) {
  Call call(*this, inv, kernel, Call::Purpose::choice);
  refuse_to_tune(call);
  call.given = std::move(candidates);
  // One that was cut short adds to what is stored, at most.
  return tune_by_hand(call, [](const Entry& entry) { return entry.evidence.complete; });
}

std::pair<Choice, Entry> Chain::resume(const Invocation& inv, const AnyKernel& kernel) {
  Call call(*this, inv, kernel, Call::Purpose::choice);
  refuse_to_tune(call);
  recall_unfinished(call);
  // Only what was there when it began: what came meanwhile is as good as this one, or better.
  return tune_by_hand(call, [&](const Entry& entry) {
    return call.stored && (entry.evidence.complete || call.unfinished) && may_replace(call);
  });
}

std::optional<Entry> Chain::tuned(const Invocation& inv, const AnyKernel& kernel) {
  Call call(*this, inv, kernel, Call::Purpose::explanation);
  if (recall_unfinished(call) || !call.stored) return std::nullopt;
  const bool is_whole = call.stored->evidence.complete && call.stored->outcome != Outcome::failed;
  return is_whole && call.check(call.stored->config) ? std::move(call.stored) : std::nullopt;
}

// Whether there is a stored tuning of the call to go on with.
bool Chain::recall_unfinished(Call& call) {
  const auto stored = options_.persistent ? options_.persistent->get(call.id, Detail::all,
                                                                     &call.inv.device->environment)
                                          : std::nullopt;
  // Timings of another environment, or for other outputs, do not apply to this call.
  const bool here = stored && stored->entry.environment == call.inv.device->environment &&
                    stored->entry.id.key == call.id.key;
  if (here) call.stored = stored->entry;
  if (here && stored->entry.outcome != Outcome::failed &&
      !left_to_do(stored->entry, call.inv, call.kernel).empty()) {
    std::string why;
    call.unfinished_config = check_stored(call, stored->entry, why);
    if (call.unfinished_config) call.unfinished = stored->entry;
  }
  return call.unfinished.has_value();
}

std::pair<Choice, Entry> Chain::tune_by_hand(Call& call,
                                             const std::function<bool(const Entry&)>& replaces) {
  call.by_hand = true;
  {
    std::lock_guard lock(state_->mutex);
    state_->tried_in_vain.erase(text_of(call.id));
  }
  auto entry = run_tuner(call);
  std::optional<Checked> config;
  if (!entry && call.unfinished) {  // it is not lost if it cannot go on
    entry = call.unfinished, config = call.unfinished_config;
  } else if (entry && entry->outcome != Outcome::failed) {
    call.add_unfinished(*entry);
    const auto checked = call.check(call.winner);
    config = checked.value();
    if (!config) call.pass(Origin::autotune, "its winner " + checked.why(), entry->config);
  }
  if (!config) fail(call);
  store(*entry, replace_if(replaces(*entry)));
  call.generation = generation();  // asked for by name: whatever was put meanwhile does not stop it
  watch(call, *entry, *config, TunedBy::this_process);
  keep(call, *config, Origin::autotune);
  return {Choice{config->config(), Origin::autotune}, std::move(*entry)};
}

}  // namespace ejk::detail
