// SPDX-License-Identifier: Apache-2.0
// The call that does not wait: its heuristic now, its tuning later, and the change to what it
// found.
#include <ejk/detail/call_counts.h>
#include <ejk/record.h>

#include "base/thrown.h"
#include "choose/chain.h"

namespace ejk::detail {

bool Chain::tunes_later(const AutotunePolicy& policy) const {
  return policy.cache_miss_fallback == Fallback::background && policy.allow_autotune &&
         !launch_.must_agree();
}

// Whether a call under this policy that takes a heuristic which is kept is still to be queued.
bool Chain::is_new_to_background(const AutotunePolicy& policy, const EntryId& id) const {
  if (!tunes_later(policy)) return false;
  const std::string text = text_of(id);
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->tried_in_vain.contains(text)) return false;
  }
  return !background_.knows(text);
}

auto Chain::from_heuristics_for_now(Call& call) -> std::optional<Found> {
  if (tunes_later(call.policy))
    if (auto found = from_earlier_tuning(call)) return found;
  auto found = from_heuristics(call);
  if (!found || !tunes_later(call.policy)) return found;
  tune_later(call);
  found->detail = "has a config; the call is tuned in the background";
  return found;
}

// The call with its arrays, which may be gone when it is tuned; nullptr: there is no room for them.
std::shared_ptr<const KeptCall> Chain::copies_of(const Call& call) {
  try {
    const auto room = background_.room(call.policy);
    return room ? call.kernel.keep(call.inv, *room) : nullptr;
  } catch (...) {
    warn_of(call, "keep", "a call cannot be tuned later: " + base::what_was_thrown());
    return nullptr;
  }
}

// Once for each key.
void Chain::tune_later(const Call& call) {
  if (call.dry || !is_new_to_background(call.policy, call.id)) return;
  if (auto kept = copies_of(call))
    return background_.add(
        {.id = call.id, .inv = call.inv, .policy = call.policy, .kept = std::move(kept)});
  background_.note(text_of(call.id));
  try {
    if (!call.candidates()) return;
  } catch (...) {  // the call itself runs with its heuristic
    return warn_of(call, "keep", "a call cannot be tuned later: " + base::what_was_thrown());
  }
  record_for_later(call.inv, call.kernel);
}

// For `ejk tune`: beside the store, unless calls are recorded anyway. Without a store nothing is
// written.
void Chain::record_for_later(const Invocation& inv, const AnyKernel& kernel) {
  const WhileOthersMayFork free;  // recordings have a lock of their own for forks
  const std::string place = local_directory();
  std::shared_ptr<Recording> recording = options_.recording;
  if (!recording && !place.empty()) {
    const std::lock_guard lock(state_->recording_mutex);
    if (!state_->for_later)
      state_->for_later = std::make_shared<Recording>(
          place == default_store_path() ? default_recording_path() : place + "/recorded",
          Recording::Options{.on_warning = options_.on_warning});
    recording = state_->for_later;
  }
  if (!recording) return;
  Invocation forward = inv;
  forward.backward = false;
  forward.numerics = {};
  forward.words.clear();
  if (const uint32_t record = recording->record(forward, kernel)) count_call(call_count(record));
}

// ---- when its turn has come ---------------------------------------------------------------------

size_t Chain::idle(double seconds) {
  size_t left = 0;
  // Scopes of the calling thread are for its own calls.
  ScopeSnapshot().run([&] { left = background_.idle(seconds); });
  return left;
}

Background::End Chain::tune_kept(LaterCall& later, const Background::Turn& turn) {
  Background::End end = Background::End::done;
  std::optional<WhileNobodyForks> gate;
  if (turn.place == Background::Place::process) gate.emplace();
  later.kept->with_kernel([&](const AnyKernel& kernel) {
    Call call(*this, later, kernel);
    call.turn = &turn;
    end = tune_kept(call, later, turn);
  });
  return end;
}

// Without a lease: calls that wait for their tuning must not wait for this one. Two processes may
// tune the same call in the background, and the better evidence stays.
Background::End Chain::tune_kept(Call& call, LaterCall& later, const Background::Turn& turn) {
  const auto present = options_.cache->find(call.id);
  if (present && present->origin == Origin::memory) return Background::End::done;  // put by hand
  const Value before = present ? present->config.to_value() : Value();
  if (later.so_far) {
    call.unfinished_config = call.check(later.so_far->config).value();
    if (call.unfinished_config) call.unfinished = call.stored = later.so_far;
  } else if (!later.replaces && (!options_.persistent || !recall_unfinished(call))) {
    // A call that waited for its own tuning, a selector with the same cache, or another process may
    // have been faster.
    if (present && present->origin != Origin::heuristics) {
      ask_again(call);
      return Background::End::done;
    }
    if (const auto found = from_persistent(call)) {
      take_over(call, found->config, Origin::persistent, before);
      return Background::End::done;
    }
  }
  // A short turn is for calls of which nothing is measured yet: a tuning that goes on may end in it
  // as if it were whole.
  if (call.unfinished && !later.so_far && turn.seconds < later.policy.budget_seconds) {
    take_over(call, *call.unfinished_config, Origin::persistent, before);
    later.so_far = call.unfinished;
    return Background::End::later;
  }
  auto entry = run_tuner(call);
  if (call.gave_way || (!entry && is_stopped())) return Background::End::gave_way;
  if (!entry && call.in_background()) record_for_later(call.inv, call.kernel);
  if (!entry || entry->outcome == Outcome::failed) return Background::End::done;
  const double spent = entry->evidence.tuning_seconds;
  call.add_unfinished(*entry);
  // Only a whole tuning may replace what was chosen before.
  const bool counts = !later.replaces || entry->evidence.complete;
  if (counts) store(*entry, replace_if(later.replaces || (call.unfinished && may_replace(call))));
  if (const auto config = call.check(call.winner); config && counts) {
    watch(call, *entry, *config, TunedBy::this_process);
    take_over(call, *config, Origin::autotune, before);
  }
  const bool turn_ended = spent >= turn.seconds && turn.seconds < later.policy.budget_seconds;
  if (entry->evidence.complete || !(turn_ended || is_stopped())) return Background::End::done;
  later.so_far = std::move(entry);
  return Background::End::later;
}

// Calls that are under way keep what they have; later ones ask memory, each with its own check.
void Chain::take_over(Call& call, const Checked& config, Origin origin, const Value& before) {
  call.generation = generation();  // of before the look: a put after it makes this void
  const auto present = options_.cache->find(call.id);
  if (present && present->origin == Origin::memory) return;  // put by hand meanwhile
  keep(call, config, origin);
  const Value now = config.config().to_value();
  if (options_.on_event && now != before)
    emit(call.event(EventKind::takeover, now, "was " + stable_json(before)));
}

}  // namespace ejk::detail
