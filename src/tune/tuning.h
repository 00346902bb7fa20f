// SPDX-License-Identifier: Apache-2.0
// One tuning on its way: who takes part, what is known of each, and the steps in their order.
#pragma once

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include <ejk/tuner.h>

#include "guard/guard.h"
#include "store/strategy.h"
#include "tune/decide.h"
#include "tune/host_watch.h"
#include "tune/limits.h"
#include "tune/output_check.h"
#include "tune/sample.h"
#include "tune/statistics.h"

namespace ejk::detail {

inline constexpr size_t nobody = std::numeric_limits<size_t>::max();  // index of no entrant

enum class Status { racing, slower, rejected, untried, carried };

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

struct Entrant {
  AnyConfig config;
  std::vector<uint64_t> places;  // among the candidates; none: a heuristic that is only the control
  Status status = Status::racing;
  std::optional<Rejection> rejection;
  std::string why;       // of a rejection, or why it is untried
  bool suspect = false;  // a process died while it ran this; it has only passed in a child
  bool ran = false;      // its first run is over
  double first_run = 0;  // wall seconds of that
  Footprint warm;
  int64_t repeats = 1;  // executions per sample: those of the race, or fewer if it is far slower
  bool slow_in_warm_up = false;  // far slower than the fastest
  int waits = 0;                 // samples in which it waited
  bool starved = false;          // in one of them, perhaps for a core
  std::vector<double> seconds;   // one per round, NaN if it was not in that round
  // From an earlier tuning or a search; reported if it is carried. All ratios have the same unit.
  Measurement known;

  bool racing() const { return status == Status::racing; }
  bool candidate() const { return !places.empty(); }
  bool can_win() const { return racing() && candidate() && ran; }
  std::vector<double> samples() const;  // of the rounds it took part in
};

struct Tuning {
  Tuning(const TuneTask& what, const TunerOptions& how);

  const TuneTask& task;
  const TunerOptions& options;
  std::vector<Entrant> entrants;                      // candidates in their order, the control last
  std::optional<size_t> heuristic;                    // index of its entrant
  std::unordered_map<std::string, size_t> by_config;  // stable_json -> entrant

  std::unique_ptr<Guard> guard;      // none: first runs happen here
  std::optional<Expected> expected;  // outputs
  SharedOutputs untouched;           // outputs before any run
  std::vector<size_t> idle;          // entrants that left them so
  std::optional<Finding> doubt;      // the heuristic failed in a child: is it that, or the guard?
  bool passed_in_child = false;      // some config did
  std::string waited;                // how the first config did that only waited in a child
  bool told_who_waited = false;
  bool prepared = false;  // guard, reference and heuristic are dealt with
  bool alone;             // no other thread ran in this process when it began

  std::shared_ptr<Stopwatch> stopwatch;
  Sampler sampler;
  Sampling sampling;          // of the race
  size_t incumbent = nobody;  // what the others are compared with in the report
  int rounds = 0;
  Standings standings;  // after the last look
  int tried = 0;
  int again = 0;            // how many of those are known from an earlier tuning: they cost nothing
  bool deaf = false;        // on_progress has thrown
  size_t leading = nobody;  // the best so far that was told
  bool complete = true;
  Strategy strategy;
  std::string note;
  double started, deadline;  // by the stopwatch
  std::mt19937_64 random;

  double elapsed() const;
  // The budget is used up, or somebody wants it to end.
  bool spent() const { return stopped() || stopwatch->now() >= deadline; }
  // Asked between all runs and several times a second during first runs, so this is also where
  // those who wait for this tuning hear that it goes on.
  bool stopped() const {
    if (task.lease != nullptr) task.lease->refresh();
    return task.stop != nullptr && task.stop->load();
  }
  // No run may begin or go on: somebody wants it to end, or the budget is spent and there is
  // something to show for it.
  bool has_enough() const;
  bool may_try_more() const {
    return task.budget.evaluations <= 0 || tried - again < task.budget.evaluations;
  }
  // The place of the config's entrant, which is made if there is none yet.
  size_t enter(const AnyConfig& config);
  static void reject(Entrant& e, Rejection kind, std::string why);
  // Of one that ran: for what it threw or, if it did not, left changed in this process ("":
  // nothing).
  static void reject_if(Entrant& e, const std::optional<std::string>& thrown,
                        const std::string& changes);
  // True if is_valid does not let it run.
  bool reject_if_invalid(Entrant& e) const;
  bool any_can_win() const;
  // The winner of the tuning that this one goes on with, if it is among the entrants.
  std::optional<size_t> earlier_winner() const;
  void tell(TuneProgress::Kind kind, size_t who = nobody, std::string_view message = {});
};

// Runs f; what it threw as text, nullopt if nothing. Whatever a candidate throws is a finding about
// that candidate.
std::optional<std::string> failure_of(const std::function<void()>& f);

// ---- the steps ---------------------------------------------------------------------------------

// first_runs.cpp: rejects what is wrong or deadly among these entrants, the heuristic first. Within
// the budget, but until at least one candidate is known to be right.
void first_runs(Tuning& tuning, std::span<const size_t> entrants);
// One run in this process, from a reset trial. Throws what the kernel throws.
std::vector<OutputBytes> outputs_of_run(Tuning& tuning, const AnyConfig& config);
// It came back from a run in this process: no suspect any more.
void acquit(Tuning& tuning, Entrant& entrant);

// screen.cpp: searches a set that is too large to race; its best few become entrants.
void screen(Tuning& tuning);

// race.cpp
bool warm_up_all(Tuning& tuning);  // false if the budget was spent on the way
void run_rounds(Tuning& tuning);
// Where the budget did not allow one round, the first runs are all there is.
void count_first_runs(Tuning& tuning);
// How far the incumbent's time may be off, relative.
double noise(const Tuning& tuning);
bool clearly_slower(const Tuning& tuning, size_t rival, size_t best);
size_t pick(const Tuning& tuning);
// Nobody looks better than the incumbent.
bool incumbent_leads(const Tuning& tuning);
std::vector<double> ratios(const Tuning& tuning, size_t over, size_t under);

// race.cpp: whether a heuristic that is none of the candidates stays although they have a winner.
bool heuristic_stays(const Tuning& tuning, size_t winner);

// confirm.cpp: one more run of the winner, whose outputs must still be the expected ones. False if
// they are not: then it is rejected, and the others have raced on. No run if the tuning was
// stopped.
bool confirm(Tuning& tuning, size_t winner);

// report.cpp: what there is to tell, with or without a winner.
TuneResult report(const Tuning& tuning, std::optional<size_t> winner);

}  // namespace ejk::detail
