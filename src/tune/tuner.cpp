// SPDX-License-Identifier: Apache-2.0
// A tuning from top to bottom: who takes part, first runs, search, race, decision.
#include <algorithm>

#include <ejk/search.h>

#include "base/file.h"
#include "base/format.h"
#include "base/thrown.h"
#include "tune/tuning.h"

namespace ejk {
namespace detail {
namespace {

// Equal configs become one entrant.
void enter_candidates(Contest& t) {
  const CandidateSet& set = *t.task.candidates;
  for (uint64_t i = 0; i < set.size(); ++i)
    t.entrants[t.entrants.enter(set.config(i))].places.push_back(i);
}

void enter_heuristic(Contest& t) {
  if (!t.task.heuristic || !*t.task.heuristic) return;
  t.roles.heuristic = t.entrants.enter(*t.task.heuristic);
  Entrant& e = t.entrants[*t.roles.heuristic];
  if (!e.places.empty()) return;
  if (const auto point = t.task.candidates->find(e.config.to_value())) e.places.push_back(*point);
}

void reject_invalid(Tuning& t) {
  for (Entrant& e : t.entrants) {
    if (!e.config) e.reject(Rejection::threw, "an empty configuration was given");
    else if (e.candidate()) t.reject_if_invalid(e);
  }
}

bool stands(const Measurement& m) {
  if (is(m.status, CandidateStatus::rejected)) return is_rejected_for_good(m);
  // A first run may have been cold.
  return is(m.status, CandidateStatus::slower) && m.samples > 1;
}

// Of what an earlier tuning found, only its winner and what it left open run again. Without that
// winner it is not known which was second.
void carry_over(Contest& t) {
  const auto winner = t.earlier_winner();
  const bool winner_races = winner && t.entrants[*winner].racing();
  for (const Measurement& m : t.task.known) {
    const auto who = t.entrants.find(m.config);
    if (!who) continue;
    Entrant& e = t.entrants[*who];
    e.known = m;
    if (who == winner || who == t.roles.heuristic || !e.racing()) continue;
    if (has_time(m) ? winner_races && (stands(m) || t.task.known_complete) : stands(m))
      e.status = Status::carried;
  }
}

// After the earlier winner turned out to be bad.
void readmit_carried(Entrants& entrants) {
  for (Entrant& e : entrants)
    if (e.status == Status::carried && !is(e.known.status, CandidateStatus::rejected))
      e.status = Status::racing;
}

bool was_measured(const Entrant& e) {
  return !e.known.config.is_null() && !is(e.known.status, CandidateStatus::untried);
}

// The earlier winner, then what is new: what was measured keeps its numbers if the budget ends
// before its turn, and a later tuning must get farther than this one.
std::vector<EntrantId> not_yet_run(const Contest& t) {
  const auto winner = t.earlier_winner();
  std::vector<EntrantId> list;
  for (const EntrantId i : t.entrants.ids())
    if (t.entrants[i].racing() && !t.entrants[i].ran) list.push_back(i);
  std::ranges::stable_sort(list, {}, [&](EntrantId i) {
    return i == winner ? 0. : was_measured(t.entrants[i]) ? 2 + t.entrants[i].known.ratio : 1;
  });
  return list;
}

void run_open_ones(Tuning& t) {
  carry_over(t);
  for (const Entrant& e : t.entrants) t.again += e.racing() && was_measured(e);
  first_runs(t, not_yet_run(t));
  const auto winner = t.earlier_winner();
  if (!winner || t.entrants[*winner].status != Status::rejected) return;
  readmit_carried(t.entrants);
  first_runs(t, not_yet_run(t));
}

// A resumed tuning that tried all remaining candidates and raced them is complete, even if the
// budget ended before the race settled: resuming once more would not settle it either.
bool has_gone_on(const Tuning& t) {
  const bool open = std::ranges::any_of(
      t.entrants, [](const Entrant& e) { return e.status == Status::untried && !e.suspect; });
  if (t.task.known.empty() || too_large_to_race(*t.task.candidates) || open ||
      t.samples.rounds == 0 || t.stopped())
    return false;
  return t.samples.rounds >= first_look || incumbent_leads(t);
}

// What an earlier tuning found, where nothing that is new came through its first run.
bool heuristic_is_still_best(const Contest& t) {
  const auto heuristic = t.roles.heuristic;
  return t.task.heuristic_may_win && heuristic && t.earlier_winner() == heuristic &&
         t.entrants[*heuristic].racing() && t.entrants[*heuristic].ran;
}

std::optional<EntrantId> choose_winner(Tuning& t) {
  const bool found = t.entrants.any_can_win();
  if (found && t.samples.rounds == 0) count_first_runs(t);
  const auto winner = found ? std::optional(pick(t)) : std::nullopt;
  if (winner ? heuristic_stays(t, *winner) : heuristic_is_still_best(t)) return t.roles.heuristic;
  return winner;
}

// In a race every candidate reads the same arrays. The last-level cache of a server may hold a
// hundred megabytes of them; between two calls of a program, which reads others, it does not.
CacheState cache_state(CacheState wanted, Trial& trial) {
  constexpr size_t large = size_t{32} << 20;
  if (wanted != CacheState::automatic) return wanted;
  size_t bytes = 0;
  for (const auto array : trial.memory()) bytes += array.size();
  return bytes > large ? CacheState::cold : CacheState::warm;
}

}  // namespace

Tuning::Tuning(const TuneTask& what, const TunerOptions& how)
    : Contest{what, {}, {}, {}},
      options(how),
      stopwatch(how.stopwatch ? how.stopwatch : system_stopwatch()),
      sampler(*stopwatch, *what.trial),
      random(how.seed),
      alone(base::list_directory("/proc/self/task").size() == 1),  // 0: not known
      started(stopwatch->now()),
      deadline(started + std::max(0., what.budget.seconds)) {
  samples.sampling.cache = cache_state(how.cache, *what.trial);
  if (!what.guard) return;
  checks.guard = std::make_unique<Guard>(
      *what.trial, GuardLimits{}, [this] { return has_enough(); }, stopwatch);
  if (what.trial->device() == nullptr) return;
  const std::string why_not = checks.guard->start_worker();
  if (why_not.empty()) return;
  checks.guard.reset();
  note = fmt::format(
      "first runs are not guarded: {}; a config that ends this process is not run again by the "
      "next one; ",
      why_not);
}

bool Tuning::reject_if_invalid(Entrant& e) const {
  if (!task.is_valid || task.is_valid(e.config)) return false;
  e.reject(Rejection::invalid, "is_valid says that it cannot run this call");
  return true;
}

std::optional<Failure> failure_of(const std::function<void()>& f) {
  try {
    f();
    return std::nullopt;
  } catch (const DeviceError& error) {
    return Failure{rejection_of(error.device_kind()), error.what()};
  } catch (...) {
    return Failure{Rejection::threw, base::what_was_thrown()};
  }
}

}  // namespace detail

Tuner::Tuner(int warmup, int iters, uint64_t seed)
    : Tuner(TunerOptions{.warmup = warmup, .iters = iters, .seed = seed}) {}

Tuner::Tuner(TunerOptions options) : options_(std::move(options)) {
  if (options_.warmup < 0 || options_.iters < 0)
    throw Error(ErrorKind::invalid_argument,
                fmt::format("[Tuner] warmup {} and iters {} were given: both must be 0 or more",
                            options_.warmup, options_.iters));
  static_cast<void>(make_search(options_.strategy, {}));  // throws if there is none of that name
}

TuneResult Tuner::tune(const TuneTask& task) {
  using namespace detail;
  if (task.trial == nullptr || task.candidates == nullptr)
    throw Error(ErrorKind::invalid_argument,
                fmt::format("[{}] a tuning task without {} was given: set TuneTask::{}", task.op,
                            task.trial == nullptr ? "a trial" : "candidates",
                            task.trial == nullptr ? "trial" : "candidates"));
  Tuning t(task, options_);
  if (!too_large_to_race(*t.task.candidates)) enter_candidates(t);
  enter_heuristic(t);
  reject_invalid(t);
  if (too_large_to_race(*t.task.candidates)) screen(t);
  else run_open_ones(t);
  if (t.entrants.any_can_win() && warm_up_all(t)) run_rounds(t);
  std::optional<EntrantId> winner = choose_winner(t);
  while (winner && !confirm(t, *winner)) winner = choose_winner(t);
  // After the choice: it was cut.
  if (!t.samples.single_run && has_gone_on(t)) t.complete = true;
  t.roles.leading = winner;
  t.tell(TuneProgress::Kind::finished, winner);
  return report(t, winner);
}

}  // namespace ejk
