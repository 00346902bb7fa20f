// SPDX-License-Identifier: Apache-2.0
// The winner is run once more before it is kept: its results may change from run to run.
#include <algorithm>

#include "base/format.h"
#include "tune/tuning.h"

namespace ejk::detail {
namespace {

// True if it stays.
bool is_still_right(Tuning& t, Entrant& e) {
  std::optional<std::string> overrun, difference;
  const HostWatch watch(t);
  const auto failure = failure_of([&] {
    const std::vector<OutputBytes> outputs = outputs_of_run(t, e.config);
    overrun = t.task.trial->overrun();
    difference = t.checks.expected->difference(outputs);
  });
  acquit(t, e);
  const std::string changes = watch.put_back_after(e.config);
  if (!failure && overrun) e.reject(Rejection::out_of_bounds, *overrun);
  else e.reject_if(failure, changes);
  if (e.racing() && difference)
    e.reject(Rejection::unsteady, "was right before the race: " + *difference);
  return e.racing();
}

bool may_come_back(const Entrant& e) {
  if (e.status == Status::carried) return !is(e.known.status, CandidateStatus::rejected);
  return e.status == Status::slower;
}

// Those that were only slower than it, now or in an earlier tuning.
void readmit_others(Tuning& t) {
  std::vector<EntrantId> not_run;
  for (const EntrantId i : t.entrants.ids()) {
    Entrant& e = t.entrants[i];
    if (!may_come_back(e)) continue;
    e.status = Status::racing;
    if (!e.ran) not_run.push_back(i);
  }
  if (!not_run.empty()) first_runs(t, not_run);
}

bool any_measured(const Tuning& t) {
  return std::ranges::any_of(t.entrants.ids(), [&](EntrantId i) {
    return t.entrants[i].can_win() && !t.samples[i].taken().empty();
  });
}

// The budget was spent before any candidate that is left had a sample: their first runs count.
void forget_race(Tuning& t) {
  for (const EntrantId i : t.entrants.ids()) t.samples[i].seconds.clear();
  t.samples.rounds = 0;
  t.complete = false;
}

// Who has no sample, for the budget was spent, cannot be chosen.
void leave_out_unmeasured(Tuning& t) {
  for (const EntrantId i : t.entrants.ids()) {
    if (!t.entrants[i].racing() || !t.samples[i].taken().empty()) continue;
    t.entrants[i].leave_out("the budget was spent before its turn");
    t.complete = false;
  }
}

// What was carried over was slower than the earlier winner, not than those that are left.
void race_on(Tuning& t, EntrantId rejected) {
  if (!t.entrants.any_can_win() || rejected == t.earlier_winner()) readmit_others(t);
  const bool cold = std::ranges::any_of(t.entrants.ids(), [&](EntrantId i) {
    return t.entrants[i].racing() && t.samples[i].warm.executions == 0;
  });
  const bool found = t.entrants.any_can_win();
  if (found && !t.spent() && (!cold || warm_up_all(t))) run_rounds(t);
  if (t.entrants.any_can_win() && !any_measured(t)) forget_race(t);
  else leave_out_unmeasured(t);
}

}  // namespace

bool confirm(Tuning& t, EntrantId winner) {
  Entrant& e = t.entrants[winner];
  // A trial without outputs, or whose outputs no run changed, has nothing to check.
  if (!t.checks.expected) return true;
  if (t.stopped()) {  // nothing may run any more, so the next tuning has to check it
    t.complete = false;
    return true;
  }
  if (is_still_right(t, e)) return true;
  const std::string_view did =
      e.rejection == Rejection::changed_host ? "did other things" : "gave other results";
  t.note += fmt::format("{} {} after the race than before ({}): it is left out; ",
                        stable_json(e.config.to_value()), did, e.why);
  race_on(t, winner);
  return false;
}

}  // namespace ejk::detail
