// SPDX-License-Identifier: Apache-2.0
// Which calls are watched, and what happens if one has become slow.
#include <ejk/stopwatch.h>

#include "base/format.h"
#include "choose/chain.h"
#include "store/drift_notes.h"

namespace ejk::detail {

namespace {

// Whether the call was tuned again because of the earlier note, and that came to the same: then it
// is in programs that calls take so long, and not longer than they took then.
bool is_refuted(const DriftNote& earlier, const DriftNote& now, double tolerance) {
  return !is_same_evidence(earlier, now) && earlier.config == now.config &&
         earlier.evidence_seconds <= now.evidence_seconds * tolerance &&
         now.now_seconds <= earlier.now_seconds * tolerance;
}

}  // namespace

// Compares the call's warm runs with an entry, if that was measured as they run.
void Chain::watch(const Call& call, const Entry& entry, const Checked& config, TunedBy by) {
  if (!call.policy.drift_watch || !call.keeps) return;
  const bool comparable = is_measured(entry) && entry.evidence.seconds >= Drift::min_seconds &&
                          entry.environment == call.inv.device->environment &&
                          entry.id.key == call.id.key && !call.inv.backward &&
                          call.inv.device->platform == Platform::cpu &&
                          config.config().to_value() == entry.config;
  static_cast<void>(system_stopwatch());  // made now, not by the first run that is timed
  drift_.expect(text_of(call.id),
                comparable ? std::make_shared<WatchedCall>(entry, config.config(), by) : nullptr);
}

bool Chain::saw_run(WatchedCall& call, double seconds) {
  const auto now = drift_.add_run(call, seconds);
  if (!now) return false;
  const DriftNote note{call.id,        call.environment,      call.config.to_value(),
                       call.tuned,     call.evidence_seconds, *now,
                       base::utc_now()};
  if (const std::string place = local_directory(); !place.empty()) {
    const auto earlier = find_drift_note(place, call.id, call.environment);
    if (earlier && is_refuted(*earlier, note, call.rule.tolerance())) {
      const std::lock_guard lock(call.mutex);
      call.rule.accept(*now);
      call.drifted = false;
      return false;
    }
    if (const auto error = put_drift_note(place, note))
      warn_once("drift", "cannot write to " + place + " (" + error.text() +
                             "); ejk doctor will not list what has become slow");
  }
  if (options_.on_event) {
    const std::string message =
        fmt::format("a call takes {:.3g} s; it took {:.3g} s when it was tuned ({})", *now,
                    call.evidence_seconds, call.tuned);
    emit({.kind = name_of(EventKind::drift),
          .device = call.id.device,
          .op = call.id.op,
          .key = call.id.key,
          .tier = {},
          .config = note.config,
          .seconds = *now,
          .message = message,
          .evidence_seconds = call.evidence_seconds});
  }
  return true;
}

// In the background or, where that is not possible, later by `ejk tune`.
void Chain::tune_again(const Invocation& inv, const AnyKernel& kernel) {
  const Call call(*this, inv, kernel, Call::Purpose::choice);
  if (background_.waits(text_of(call.id))) return;
  if (!tunes_later(call.policy)) return record_for_later(inv, kernel);
  auto kept = copies_of(call);
  if (!kept) return record_for_later(inv, kernel);
  background_.add({.id = call.id,
                   .inv = call.inv,
                   .policy = call.policy,
                   .kept = std::move(kept),
                   .replaces = true});
}

}  // namespace ejk::detail
