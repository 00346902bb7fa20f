// SPDX-License-Identifier: Apache-2.0
// Who takes part in a tuning, what was measured, and who holds which role.
#pragma once

#include <algorithm>
#include <cmath>
#include <deque>
#include <iterator>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <ejk/names.h>
#include <ejk/tuner.h>

#include "tune/decide.h"
#include "tune/sample.h"
#include "tune/statistics.h"

namespace ejk::detail {

enum class EntrantId : size_t {};
constexpr size_t at(EntrantId who) { return static_cast<size_t>(who); }

// ---- who takes part

// What was thrown.
struct Failure {
  Rejection kind;
  std::string why;
};

enum class Status { racing, slower, rejected, untried, carried };

struct Entrant {
  AnyConfig config;
  std::vector<uint64_t> places;  // among the candidates; none: a heuristic that is only the control
  Status status = Status::racing;
  std::optional<Rejection> rejection;
  std::string why;             // of a rejection, or why it is untried
  bool suspect = false;        // a process died while it ran this; it has only passed in a child
  bool ran = false;            // its first run is over
  double first_run = 0;        // wall seconds of that
  double compile_seconds = 0;  // until its device programs could run
  bool spills = false;         // these have too few registers
  // From an earlier tuning or a search; reported if it is carried. All ratios have the same unit.
  Measurement known;

  bool racing() const { return status == Status::racing; }
  bool candidate() const { return !places.empty(); }
  bool can_win() const { return racing() && candidate() && ran; }
  void reject(Rejection kind, std::string reason) {
    status = Status::rejected, rejection = kind, why = std::move(reason);
  }
  // For what a run threw or, if it did not, left changed in this process ("": nothing).
  void reject_if(const std::optional<Failure>& failure, const std::string& changes) {
    if (failure) reject(failure->kind, failure->why);
    else if (!changes.empty()) reject(Rejection::changed_host, changes);
  }
  // Not tried any further; this says nothing about the candidate.
  void leave_out(std::string reason) { status = Status::untried, why = std::move(reason); }
};

// They stay where they are when others enter.
class Entrants : public std::deque<Entrant> {
 public:
  Entrant& operator[](EntrantId who) { return begin()[static_cast<std::ptrdiff_t>(who)]; }
  const Entrant& operator[](EntrantId who) const {
    return begin()[static_cast<std::ptrdiff_t>(who)];
  }
  // In the order in which they entered: the candidates in theirs.
  std::vector<EntrantId> ids() const {
    std::vector<EntrantId> all;
    for (size_t i = 0; i < size(); ++i) all.push_back(EntrantId{i});
    return all;
  }
  bool any_can_win() const { return std::ranges::any_of(*this, &Entrant::can_win); }
  std::optional<EntrantId> find(const Value& config) const {
    const auto found = by_config_.find(stable_json(config));
    return found == by_config_.end() ? std::nullopt : std::optional(found->second);
  }
  // Its entrant, which is made if there is none yet.
  EntrantId enter(const AnyConfig& config) {
    const auto [entry, added] =
        by_config_.try_emplace(stable_json(config.to_value()), EntrantId{size()});
    if (added) emplace_back().config = config;
    return entry->second;
  }

 private:
  std::unordered_map<std::string, EntrantId> by_config_;  // by stable_json
};

// ---- what was measured

// Of one entrant, in the race.
struct Times {
  Footprint warm;
  int64_t repeats = 1;  // executions per sample: those of the race, or fewer if it is far slower
  bool slow_in_warm_up = false;  // far slower than the fastest
  int misled = 0;                // samples whose clock did not tell the whole cost
  bool starved = false;          // in one of them, perhaps for a core
  std::vector<double> seconds;   // one per round, NaN if it was not in that round

  // Of the rounds it took part in.
  std::vector<double> taken() const {
    std::vector<double> out;
    std::ranges::copy_if(seconds, std::back_inserter(out), [](double s) { return !std::isnan(s); });
    return out;
  }
  double median() const { return median_interval(taken()).median; }  // 0 if there are none
};

struct Samples {
  Sampling sampling;  // how they are taken
  int rounds = 0;
  bool single_run = false;  // there was no time for a round: first runs count as one
  Standings standings;      // after the last look

  Times& operator[](EntrantId who) {
    if (of_.size() <= at(who)) of_.resize(at(who) + 1);
    return of_[at(who)];
  }
  const Times& operator[](EntrantId who) const {
    static const Times none;
    return at(who) < of_.size() ? of_[at(who)] : none;
  }

 private:
  std::deque<Times> of_;
};

// ---- who holds which role

struct Roles {
  std::optional<EntrantId> heuristic;
  std::optional<EntrantId> incumbent;  // what the others are compared with
  std::optional<EntrantId> leading;    // the best so far that was told
};

struct Contest {
  const TuneTask& task;
  Entrants entrants;
  Samples samples;
  Roles roles;
  bool complete = true;  // false: the budget, or what could not be tried, cut it short

  // The winner of the tuning that this one goes on with, if it takes part.
  std::optional<EntrantId> earlier_winner() const {
    return task.known.empty() ? std::nullopt : entrants.find(task.known_winner);
  }
};

}  // namespace ejk::detail
