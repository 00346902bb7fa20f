// SPDX-License-Identifier: Apache-2.0
// A tuning from top to bottom: who takes part, first runs, search, race, decision.
#include <algorithm>
#include <cmath>
#include <iterator>

#include <cxxabi.h>

#include <fmt/format.h>

#include <ejk/search.h>

#include "base/file.h"
#include "base/thrown.h"
#include "tune/tuning.h"

namespace ejk {
namespace detail {
namespace {

// Equal configs become one entrant.
void enter_candidates(Tuning& t) {
  const CandidateSet& set = *t.task.candidates;
  for (uint64_t i = 0; i < set.size(); ++i) t.entrants[t.enter(set.config(i))].places.push_back(i);
}

void enter_heuristic(Tuning& t) {
  if (!t.task.heuristic || !*t.task.heuristic) return;
  t.heuristic = t.enter(*t.task.heuristic);
  Entrant& e = t.entrants[*t.heuristic];
  if (!e.places.empty()) return;
  if (const auto point = t.task.candidates->find(e.config.to_value())) e.places.push_back(*point);
}

void reject_invalid(Tuning& t) {
  for (Entrant& e : t.entrants) {
    if (!e.config) t.reject(e, Rejection::threw, "an empty configuration was given");
    else if (e.candidate()) t.reject_if_invalid(e);
  }
}

bool stands(const Measurement& m) {
  if (is(m.status, CandidateStatus::rejected)) return is_rejected_for_good(m);
  // A first run may have been cold.
  return is(m.status, CandidateStatus::slower) && m.samples > 1;
}

// Of what an earlier tuning found, only its winner and what it left open run again. Without that
// winner nobody knows who was second.
void carry_over(Tuning& t) {
  const auto winner = t.earlier_winner();
  const bool winner_races = winner && t.entrants[*winner].racing();
  for (const Measurement& m : t.task.known) {
    const auto found = t.by_config.find(stable_json(m.config));
    if (found == t.by_config.end()) continue;
    Entrant& e = t.entrants[found->second];
    e.known = m;
    if (found->second == winner || found->second == t.heuristic || !e.racing()) continue;
    if (has_time(m) ? winner_races && (stands(m) || t.task.known_complete) : stands(m))
      e.status = Status::carried;
  }
}

// After the earlier winner turned out to be bad.
void readmit_carried(Tuning& t) {
  for (Entrant& e : t.entrants)
    if (e.status == Status::carried && !is(e.known.status, CandidateStatus::rejected))
      e.status = Status::racing;
}

bool was_measured(const Entrant& e) {
  return !e.known.config.is_null() && !is(e.known.status, CandidateStatus::untried);
}

// The earlier winner, then what is new: what was measured keeps its numbers if the budget ends
// before its turn, and a later tuning must get farther than this one.
std::vector<size_t> not_yet_run(const Tuning& t) {
  const auto winner = t.earlier_winner();
  std::vector<size_t> list;
  for (size_t i = 0; i < t.entrants.size(); ++i)
    if (t.entrants[i].racing() && !t.entrants[i].ran) list.push_back(i);
  std::ranges::stable_sort(list, {}, [&](size_t i) {
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
  readmit_carried(t);
  first_runs(t, not_yet_run(t));
}

// One that goes on with an earlier tuning, tried what was left and raced is done, even if the
// budget did not allow the race to settle: it would not the next time either.
bool has_gone_on(const Tuning& t) {
  const bool open = std::ranges::any_of(
      t.entrants, [](const Entrant& e) { return e.status == Status::untried && !e.suspect; });
  if (t.task.known.empty() || too_large_to_race(*t.task.candidates) || open || t.rounds == 0 ||
      t.stopped())
    return false;
  return t.rounds >= first_look || incumbent_leads(t);
}

// What an earlier tuning found, where nothing that is new came through its first run.
bool heuristic_is_still_best(const Tuning& t) {
  return t.task.heuristic_may_win && t.heuristic && t.earlier_winner() == t.heuristic &&
         t.entrants[*t.heuristic].racing() && t.entrants[*t.heuristic].ran;
}

std::optional<size_t> choose_winner(Tuning& t) {
  const bool found = t.any_can_win();
  if (found && t.rounds == 0) count_first_runs(t);
  const auto winner = found ? std::optional(pick(t)) : std::nullopt;
  if (winner ? heuristic_stays(t, *winner) : heuristic_is_still_best(t)) return t.heuristic;
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
    : task(what),
      options(how),
      stopwatch(how.stopwatch ? how.stopwatch : system_stopwatch()),
      sampler(*stopwatch, *what.trial),
      started(stopwatch->now()),
      deadline(started + std::max(0., what.budget.seconds)),
      random(how.seed) {
  sampling.cache = cache_state(how.cache, *what.trial);
  alone = base::list_directory("/proc/self/task").size() == 1;  // 0: not known
  if (what.guard)
    guard = std::make_unique<Guard>(
        *what.trial, GuardLimits{}, [this] { return has_enough(); }, stopwatch);
}

double Tuning::elapsed() const { return stopwatch->now() - started; }

size_t Tuning::enter(const AnyConfig& config) {
  const auto [at, added] = by_config.try_emplace(stable_json(config.to_value()), entrants.size());
  if (added) entrants.emplace_back().config = config;
  return at->second;
}

void Tuning::reject(Entrant& e, Rejection kind, std::string why) {
  e.status = Status::rejected, e.rejection = kind, e.why = std::move(why);
}

void Tuning::reject_if(Entrant& e, const std::optional<std::string>& thrown,
                       const std::string& changes) {
  if (thrown) reject(e, Rejection::threw, *thrown);
  else if (!changes.empty()) reject(e, Rejection::changed_host, changes);
}

bool Tuning::reject_if_invalid(Entrant& e) const {
  if (!task.is_valid || task.is_valid(e.config)) return false;
  reject(e, Rejection::invalid, "is_valid says that it cannot run this call");
  return true;
}

bool Tuning::any_can_win() const {
  return std::ranges::any_of(entrants, [](const Entrant& e) { return e.can_win(); });
}

std::optional<size_t> Tuning::earlier_winner() const {
  if (task.known.empty()) return std::nullopt;
  const auto found = by_config.find(stable_json(task.known_winner));
  return found == by_config.end() ? std::nullopt : std::optional(found->second);
}

std::vector<double> Entrant::samples() const {
  std::vector<double> taken;
  std::ranges::copy_if(seconds, std::back_inserter(taken), [](double s) { return !std::isnan(s); });
  return taken;
}

std::optional<std::string> failure_of(const std::function<void()>& f) {
  try {
    f();
    return std::nullopt;
  } catch (...) {
    return base::what_was_thrown();
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
  if (t.any_can_win() && warm_up_all(t)) run_rounds(t);
  std::optional<size_t> winner = choose_winner(t);
  while (winner && !confirm(t, *winner)) winner = choose_winner(t);
  // After the choice: it was cut.
  if (!t.strategy.single_run && has_gone_on(t)) t.complete = true;
  t.leading = winner.value_or(nobody);
  t.tell(TuneProgress::Kind::finished, t.leading);
  return report(t, winner);
}

}  // namespace ejk
