// SPDX-License-Identifier: Apache-2.0
// One tuning on its way: what its steps share, and the steps in their order.
#pragma once

#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <ejk/tuner.h>

#include "guard/guard.h"
#include "store/strategy.h"
#include "tune/contest.h"
#include "tune/host_watch.h"
#include "tune/limits.h"
#include "tune/output_check.h"
#include "tune/rest.h"
#include "tune/verdict.h"

namespace ejk::detail {

// Tells the journal what this process is about to run, as long as it lives.
class Intent {
 public:
  Intent(Journal* journal, const AnyConfig& config);
  ~Intent();
  Intent(const Intent&) = delete;
  Intent& operator=(const Intent&) = delete;

 private:
  Journal* journal_;
};

// What first runs need, and what they found out.
struct Checks {
  std::unique_ptr<Guard> guard;      // none: they happen here
  std::optional<Expected> expected;  // outputs
  SharedOutputs untouched;           // outputs before any run
  std::vector<EntrantId> idle;       // left them so
  std::optional<Finding> doubt;      // the heuristic failed in a child: is it that, or the guard?
  bool passed_in_child = false;      // some config did
  std::string waited;                // how the first config did that only waited in a child
  bool told_who_waited = false;
  bool prepared = false;  // guard, reference and heuristic are dealt with
};

struct Tuning : Contest {
  Tuning(const TuneTask& what, const TunerOptions& how);

  const TunerOptions& options;
  Checks checks;
  std::shared_ptr<Stopwatch> stopwatch;
  Sampler sampler;
  std::mt19937_64 random;
  bool alone;                // no other thread ran in this process when it began
  double started, deadline;  // by the stopwatch
  double rested = 0;         // of the time since then
  int tried = 0;
  int again = 0;  // how many of those are known from an earlier tuning: they cost nothing
  std::optional<Search> search = Search::race;
  std::string note;
  bool deaf = false;  // on_progress has thrown

  double elapsed() const { return stopwatch->now() - started - rested; }
  // The budget is used up, or `stop` is set.
  bool spent() const { return stopped() || stopwatch->now() - rested >= deadline; }
  // As this process does between runs. No clock of a run may be on; it is not part of the budget.
  void rest() {
    if (!rest_between_runs) return;
    const double begin = stopwatch->now();
    rest_between_runs();
    rested += stopwatch->now() - begin;
  }
  // Asked between all runs and several times a second during first runs, so this is also where
  // those who wait for this tuning hear that it goes on.
  bool stopped() const {
    if (task.lease != nullptr) task.lease->refresh();
    return task.stop != nullptr && task.stop->load();
  }
  // No run may begin or go on: `stop` is set, or the budget is spent and a candidate can win.
  bool has_enough() const { return stopped() || (spent() && entrants.any_can_win()); }
  bool may_try_more() const {
    return task.budget.evaluations <= 0 || tried - again < task.budget.evaluations;
  }
  // True if is_valid does not let it run.
  bool reject_if_invalid(Entrant& e) const;
  // Of its samples, else of a search or an earlier tuning; 0: it was not measured.
  double seconds_of(EntrantId who) const {
    const Times& own = samples[who];
    return own.seconds.empty() ? entrants[who].known.seconds : own.median();
  }
  void tell(TuneProgress::Kind kind, std::optional<EntrantId> who = {},
            std::string_view message = {});
};

// Runs f; what it threw, nullopt if nothing. Whatever a candidate throws is a finding about that
// candidate.
std::optional<Failure> failure_of(const std::function<void()>& f);

// ---- the steps ---------------------------------------------------------------------------------

// first_runs.cpp: rejects what is wrong or deadly among these entrants, the heuristic first. Within
// the budget, but until at least one candidate is known to be right.
void first_runs(Tuning& tuning, std::span<const EntrantId> entrants);
// One run in this process, from a reset trial. Throws what the kernel throws.
std::vector<OutputBytes> outputs_of_run(Tuning& tuning, const AnyConfig& config);
// It came back from a run in this process: no suspect any more.
void acquit(Tuning& tuning, Entrant& entrant);

// shortlist.cpp: searches a set that is too large to race; its best few become entrants.
void screen(Tuning& tuning);

// race.cpp
bool warm_up_all(Tuning& tuning);  // false if the budget was spent on the way
void run_rounds(Tuning& tuning);
// Where the budget did not allow one round, the first runs are all there is.
void count_first_runs(Tuning& tuning);

// confirm.cpp: one more run of the winner, whose outputs must still be the expected ones. False if
// they are not: then it is rejected, and the others have raced on. No run if the tuning was
// stopped.
bool confirm(Tuning& tuning, EntrantId winner);

// result.cpp: what there is to tell, with or without a winner.
TuneResult report(const Tuning& tuning, std::optional<EntrantId> winner);

}  // namespace ejk::detail
