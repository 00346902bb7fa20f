// SPDX-License-Identifier: Apache-2.0
// What a tuning found, with its evidence, and what it tells on the way.
#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

#include <ejk/device.h>

#include "base/time.h"
#include "tune/tuning.h"

namespace ejk::detail {
namespace {

constexpr double reported = 0.95;  // confidence of the intervals in the evidence

// Unresolved: several could have won and not one of them could be told from the incumbent.
Outcome outcome_of(const Tuning& t, size_t winner) {
  if (winner != t.incumbent) return Outcome::tuned;
  bool rivals = false;
  for (size_t i = 0; i < t.entrants.size(); ++i) {
    const Entrant& e = t.entrants[i];
    if (i == winner || !e.candidate()) continue;
    if (e.status == Status::slower) return Outcome::tuned;
    if (!e.racing()) continue;
    if (clearly_slower(t, i, winner)) return Outcome::tuned;
    rivals = true;
  }
  return rivals ? Outcome::unresolved : Outcome::tuned;
}

CandidateStatus status_of(const Tuning& t, size_t index, std::optional<size_t> winner) {
  using enum CandidateStatus;
  const Entrant& e = t.entrants[index];
  if (e.status == Status::rejected) return rejected;
  if (e.status == Status::untried) return untried;
  if (e.status == Status::slower) return slower;
  if (!winner || index == *winner) return ok;
  return clearly_slower(t, index, *winner) ? slower : tied;
}

// Of two that never met in a round, the ratio of their medians.
Interval ratio_of(const Tuning& t, size_t over, size_t under) {
  const std::vector<double> paired = ratios(t, over, under);
  if (!paired.empty()) return median_interval(paired, reported);
  const double one = median_interval(t.entrants[over].samples(), reported).median,
               other = median_interval(t.entrants[under].samples(), reported).median;
  const double ratio = one > 0 && other > 0 ? one / other : 0;
  return {ratio, ratio, ratio};
}

// What was known before, in units of this tuning's incumbent.
Measurement recalled(const Tuning& t, Measurement m) {
  const double incumbent = t.incumbent == nobody ? 0 : t.entrants[t.incumbent].known.ratio;
  if (incumbent > 0) m.ratio /= incumbent, m.ratio_low /= incumbent, m.ratio_high /= incumbent;
  return m;
}

Measurement measurement_of(const Tuning& t, size_t index, std::optional<size_t> winner) {
  const Entrant& e = t.entrants[index];
  const bool no_turn = e.status == Status::untried && e.known.ratio > 0;
  if (e.status == Status::carried || (no_turn && index != t.earlier_winner()))
    return recalled(t, e.known);
  const std::vector<double> taken = e.samples();
  Measurement m;
  m.config = e.config.to_value();
  m.status = name_of(status_of(t, index, winner));
  if (e.rejection) m.kind = name_of(*e.rejection);
  m.why = e.why;
  m.samples = static_cast<int>(taken.size());
  if (!taken.empty() && e.slow_in_warm_up) ++m.samples;  // its warm-up counted as one
  m.seconds = median_interval(taken, reported).median;
  if (t.incumbent != nobody) {
    const Interval ratio = ratio_of(t, index, t.incumbent);
    m.ratio = ratio.median, m.ratio_low = ratio.low, m.ratio_high = ratio.high;
  }
  return m;
}

void add_winner(const Tuning& t, size_t winner, Evidence& evidence) {
  const std::vector<double> taken = t.entrants[winner].samples();
  const Interval seconds = median_interval(taken, reported);
  evidence.seconds = seconds.median;
  evidence.seconds_low = seconds.low, evidence.seconds_high = seconds.high;
  evidence.samples = static_cast<int>(taken.size());
  if (!t.heuristic || t.entrants[*t.heuristic].status == Status::rejected) return;
  evidence.heuristic_seconds = median_interval(t.entrants[*t.heuristic].samples(), reported).median;
  const Interval speedup = ratio_of(t, *t.heuristic, winner);
  evidence.speedup = speedup.median;
  evidence.speedup_low = speedup.low, evidence.speedup_high = speedup.high;
}

// In the order of the candidates. Of a large set only those that somebody looked at.
std::vector<Measurement> measurements(const Tuning& t, std::optional<size_t> winner) {
  std::map<uint64_t, Measurement> by_place;
  for (size_t i = 0; i < t.entrants.size(); ++i)
    for (const uint64_t place : t.entrants[i].places)
      by_place.emplace(place, measurement_of(t, i, winner));
  const uint64_t size = t.task.candidates->size();
  if (winner && !t.entrants[*winner].candidate())
    by_place.emplace(size, measurement_of(t, *winner, winner));
  for (uint64_t place = 0; !too_large_to_list(*t.task.candidates) && place < size; ++place) {
    if (by_place.contains(place)) continue;
    Measurement& m = by_place[place];
    m.config = t.task.candidates->config(place).to_value();
    m.status = name_of(CandidateStatus::untried), m.why = "the search did not ask for it";
  }
  std::vector<Measurement> list;
  for (auto& [place, measurement] : by_place) list.push_back(std::move(measurement));
  return list;
}

// Rounds there may still be, at the pace of those there were.
double expected_rest(const Tuning& t) {
  if (t.rounds == 0) return t.task.budget.seconds;
  double round = 0;
  for (const Entrant& e : t.entrants)
    if (e.racing() && !e.seconds.empty())
      round += e.seconds.back() * static_cast<double>(e.repeats);
  return round * std::max(0, usual_rounds - t.rounds);
}

}  // namespace

TuneResult report(const Tuning& t, std::optional<size_t> winner) {
  TuneResult result;
  result.note = t.note.substr(0, t.note.rfind("; "));  // each remark ends with it
  if (t.heuristic && t.entrants[*t.heuristic].rejection)
    result.heuristic_problem = fmt::format("{}: {}", name_of(*t.entrants[*t.heuristic].rejection),
                                           t.entrants[*t.heuristic].why);
  result.candidates = measurements(t, winner);
  Evidence& evidence = result.evidence;
  evidence.noise = noise(t);
  evidence.complete = t.complete;
  evidence.tuning_seconds = t.elapsed();
  evidence.strategy = text_of(t.strategy);
  evidence.clock = name_of(t.sampling.clock);
  evidence.cache = t.sampling.cache == CacheState::cold ? "cold" : "warm";
  evidence.guard = name_of(!t.guard           ? FirstRuns::none
                           : t.waited.empty() ? FirstRuns::child
                                              : FirstRuns::mixed);
  evidence.data = "call";
  evidence.library = library_version();
  evidence.time = base::utc_now();
  if (!winner) return result;
  const Entrant& best = t.entrants[*winner];
  result.winner = best.candidate() ? best.places.front() : t.task.candidates->size();
  result.config = t.entrants[*winner].config;
  result.outcome = outcome_of(t, *winner);
  add_winner(t, *winner, evidence);
  return result;
}

void Tuning::tell(TuneProgress::Kind kind, size_t who, std::string_view message) {
  if (!task.on_progress) return;
  TuneProgress p;
  p.kind = kind, p.op = task.op, p.key = task.key, p.message = message;
  if (who != nobody) p.config = entrants[who].config.to_value();
  p.tried = static_cast<uint64_t>(tried), p.candidates = task.candidates->size();
  if (heuristic && !entrants[*heuristic].candidate()) ++p.candidates;  // it is tried too
  for (const Entrant& e : entrants)
    p.racing += e.racing() && e.ran, p.rejected += e.status == Status::rejected;
  p.round = rounds;
  if (leading != nobody) {
    const Entrant& best = entrants[leading];
    p.best_seconds = best.seconds.empty() ? best.known.seconds
                                          : median_interval(best.samples(), reported).median;
    if (heuristic && leading != *heuristic && entrants[*heuristic].status != Status::rejected) {
      const auto speedup = ratios(*this, *heuristic, leading);
      p.speedup = !speedup.empty()       ? median_interval(speedup, reported).median
                  : best.known.ratio > 0 ? entrants[*heuristic].known.ratio / best.known.ratio
                                         : 0;
    }
  }
  p.elapsed = elapsed();
  p.remaining = std::max(0., std::min(task.budget.seconds - p.elapsed, expected_rest(*this)));
  const auto failure = failure_of([&] { task.on_progress(p); });
  if (failure && !std::exchange(deaf, true))
    note += fmt::format("on_progress threw: {}; ", *failure);
}

}  // namespace ejk::detail
