// SPDX-License-Identifier: Apache-2.0
// What a tuning found, with its evidence, and what it tells on the way.
#include <algorithm>
#include <map>
#include <utility>

#include <ejk/device.h>

#include "base/format.h"
#include "base/time.h"
#include "tune/statistics.h"
#include "tune/tuning.h"

namespace ejk::detail {
namespace {

CandidateStatus status_of(const Tuning& t, EntrantId index, std::optional<EntrantId> winner) {
  using enum CandidateStatus;
  const Entrant& e = t.entrants[index];
  if (e.status == Status::rejected) return rejected;
  if (e.status == Status::untried) return untried;
  if (e.status == Status::slower) return slower;
  if (!winner || index == *winner) return ok;
  return clearly_slower(t, index, *winner) ? slower : tied;
}

// Of two that never met in a round, the ratio of their medians.
Interval ratio_of(const Tuning& t, EntrantId over, EntrantId under) {
  const std::vector<double> paired = ratios(t, over, under);
  if (!paired.empty()) return median_interval(paired);
  const double one = t.samples[over].median(), other = t.samples[under].median();
  const double ratio = one > 0 && other > 0 ? one / other : 0;
  return {ratio, ratio, ratio};
}

// What was known before, in units of this tuning's incumbent.
Measurement recalled(const Tuning& t, Measurement m) {
  const double incumbent = t.roles.incumbent ? t.entrants[*t.roles.incumbent].known.ratio : 0;
  if (incumbent > 0) m.ratio /= incumbent, m.ratio_low /= incumbent, m.ratio_high /= incumbent;
  return m;
}

// It may have been known before, with a compilation of that time.
Measurement with_compilation(Measurement m, const Entrant& e) {
  if (e.compile_seconds > 0) m.compile_seconds = e.compile_seconds;
  return m;
}

Measurement measurement_of(const Tuning& t, EntrantId index, std::optional<EntrantId> winner) {
  const Entrant& e = t.entrants[index];
  const bool no_turn = e.status == Status::untried && e.known.ratio > 0;
  if (e.status == Status::carried || (no_turn && index != t.earlier_winner()))
    return with_compilation(recalled(t, e.known), e);
  const Times& times = t.samples[index];
  const std::vector<double> taken = times.taken();
  Measurement m;
  m.config = e.config.to_value();
  m.status = name_of(status_of(t, index, winner));
  if (e.rejection) m.kind = name_of(*e.rejection);
  m.why = e.why;
  m.compile_seconds = e.compile_seconds;
  m.samples = static_cast<int>(taken.size());
  if (!taken.empty() && times.slow_in_warm_up) ++m.samples;  // its warm-up counted as one
  m.seconds = times.median();
  if (t.roles.incumbent) {
    const Interval ratio = ratio_of(t, index, *t.roles.incumbent);
    m.ratio = ratio.median, m.ratio_low = ratio.low, m.ratio_high = ratio.high;
  }
  return m;
}

void add_winner(const Tuning& t, EntrantId winner, Evidence& evidence) {
  const std::vector<double> taken = t.samples[winner].taken();
  const Interval seconds = median_interval(taken);
  evidence.seconds = seconds.median;
  evidence.seconds_low = seconds.low, evidence.seconds_high = seconds.high;
  evidence.samples = static_cast<int>(taken.size());
  const auto heuristic = t.roles.heuristic;
  if (!heuristic || t.entrants[*heuristic].rejection) return;
  evidence.heuristic_seconds = t.samples[*heuristic].median();
  evidence.heuristic_config = t.entrants[*heuristic].config.to_value();
  const Interval speedup = ratio_of(t, *heuristic, winner);
  evidence.speedup = speedup.median;
  evidence.speedup_low = speedup.low, evidence.speedup_high = speedup.high;
}

// In the order of the candidates. Of a large set only those that were measured or rejected.
std::vector<Measurement> measurements(const Tuning& t, std::optional<EntrantId> winner) {
  std::map<uint64_t, Measurement> by_place;
  for (const EntrantId i : t.entrants.ids())
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
  if (t.samples.rounds == 0) return t.task.budget.seconds;
  double round = 0;
  for (const EntrantId i : t.entrants.ids())
    if (const Times& own = t.samples[i]; t.entrants[i].racing() && !own.seconds.empty())
      round += own.seconds.back() * static_cast<double>(own.repeats);
  return round * std::max(0, usual_rounds - t.samples.rounds);
}

}  // namespace

TuneResult report(const Tuning& t, std::optional<EntrantId> winner) {
  TuneResult result;
  result.note = t.note.substr(0, t.note.rfind("; "));  // each remark ends with it
  if (const auto guess = t.roles.heuristic; guess && t.entrants[*guess].rejection)
    result.heuristic_rejection = t.entrants[*guess].rejection,
    result.heuristic_problem = t.entrants[*guess].why;
  result.candidates = measurements(t, winner);
  Evidence& evidence = result.evidence;
  evidence.noise = noise(t);
  evidence.complete = t.complete;
  evidence.tuning_seconds = t.elapsed();
  evidence.strategy = text_of(Strategy{t.search, t.samples.single_run});
  evidence.clock = name_of(t.samples.sampling.clock);
  evidence.cache = name_of(t.samples.sampling.cache);
  evidence.guard = name_of(!t.checks.guard           ? FirstRuns::here
                           : t.checks.waited.empty() ? FirstRuns::child
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

void Tuning::tell(TuneProgress::Kind kind, std::optional<EntrantId> who, std::string_view message) {
  if (!task.on_progress) return;
  const auto [heuristic, incumbent, leading] = roles;
  TuneProgress p;
  p.kind = kind, p.op = task.op, p.key = task.key, p.message = message;
  if (who) p.config = entrants[*who].config.to_value(), p.seconds = seconds_of(*who);
  p.tried = static_cast<uint64_t>(tried), p.candidates = task.candidates->size();
  if (heuristic && !entrants[*heuristic].candidate()) ++p.candidates;  // it is tried too
  for (const Entrant& e : entrants) {
    p.racing += e.racing() && e.ran, p.rejected += e.status == Status::rejected;
    p.compile_seconds += e.compile_seconds;
  }
  p.round = samples.rounds;
  if (p.round > 0) p.clock = samples.sampling.clock;
  if (leading) {
    const Measurement& known = entrants[*leading].known;
    p.best_seconds = seconds_of(*leading);
    if (heuristic && leading != heuristic && !entrants[*heuristic].rejection) {
      const auto speedup = ratios(*this, *heuristic, *leading);
      p.speedup = !speedup.empty()  ? median_interval(speedup).median
                  : known.ratio > 0 ? entrants[*heuristic].known.ratio / known.ratio
                                    : 0;
    }
  }
  p.elapsed = elapsed();
  p.remaining = std::max(0., std::min(task.budget.seconds - p.elapsed, expected_rest(*this)));
  const auto failure = failure_of([&] { task.on_progress(p); });
  if (failure && !std::exchange(deaf, true))
    note += fmt::format("on_progress threw: {}; ", failure->why);
}

}  // namespace ejk::detail
