// SPDX-License-Identifier: Apache-2.0
// Rounds in shuffled order until the winner is clear, or no difference is left that matters.
#include <algorithm>
#include <cmath>

#include "base/shuffle.h"
#include "tune/tuning.h"

namespace ejk::detail {
namespace {

constexpr double reported = 0.95;  // confidence of the intervals in the evidence

constexpr double near_best = 0.01;   // as good as the best: among these the earlier one wins
constexpr double stays_for = 0.005;  // an incumbent that is behind by less needs no more rounds

constexpr double hopeless_in_one = 4;         // where one round is all there will ever be
constexpr double clear_in_search = 1.25;      // the same where a search took some samples
constexpr double beats_earlier_winner = 1.6;  // which was found in a race, not by some samples

// ---- samples ------------------------------------------------------------------------------------

// All run as often per sample as the fastest one needs. One that took far longer in its warm-up
// would make rounds long: it runs less often, which is good enough to see that it is hopeless.
void choose_repeats(Tuning& t) {
  double fastest = INFINITY;
  const auto seconds = [&](const Entrant& e) {
    return e.warm.seconds_per_execution(t.sampling.clock);
  };
  for (const Entrant& e : t.entrants) {
    if (!e.racing() || seconds(e) >= fastest) continue;
    fastest = seconds(e);
    t.sampling.repeats = t.sampler.repeats(e.warm, t.sampling);
  }
  for (Entrant& e : t.entrants) {
    e.slow_in_warm_up = e.racing() && seconds(e) > static_cast<double>(far_slower) * fastest;
    e.repeats = t.sampling.repeats;
    if (e.slow_in_warm_up) e.repeats = std::min(e.repeats, t.sampler.repeats(e.warm, t.sampling));
  }
}

// It is not hopeless after all: from now on it is measured as the others are.
void measure_alike(Tuning& t, Entrant& e) {
  if (e.repeats == t.sampling.repeats) return;
  e.repeats = t.sampling.repeats;
  e.starved = false;
  std::ranges::fill(e.seconds, std::numeric_limits<double>::quiet_NaN());
}

// A sample far below the warm-up shows that the warm-up was disturbed, or made something that stays
// (a table, a pool): then it says nothing about the candidate.
void forget_wrong_warm_up(Tuning& t, Entrant& e) {
  const double warm = e.warm.seconds_per_execution(t.sampling.clock);
  if (!e.slow_in_warm_up || static_cast<double>(far_slower) * e.seconds.back() > warm) return;
  e.slow_in_warm_up = false;
  measure_alike(t, e);
}

// Samples that were taken in another way are worth nothing.
void start_again(Tuning& t) {
  t.rounds = 0;
  for (Entrant& e : t.entrants) e.seconds.clear(), e.starved = false;
  choose_repeats(t);
}

// After the last one left threw: those that had dropped out were right, only slower than it.
void readmit(Tuning& t) {
  for (Entrant& e : t.entrants)
    if (e.status == Status::slower) e.status = Status::racing;
}

std::vector<size_t> order_of_round(Tuning& t) {
  std::vector<size_t> racing, order;
  for (size_t i = 0; i < t.entrants.size(); ++i)
    if (t.entrants[i].racing()) racing.push_back(i);
  for (size_t i : base::shuffled(racing.size(), t.random)) order.push_back(racing[i]);
  return order;
}

constexpr int max_waits = 2;  // samples with the thread's clock; one may have been an accident

// A round counts only as a whole: false if the budget ran out or a candidate threw.
bool run_round(Tuning& t) {
  std::vector<double> seconds(t.entrants.size(), std::numeric_limits<double>::quiet_NaN());
  const HostWatch watch(t, HostWatch::Of::thread);
  for (size_t i : order_of_round(t)) {
    if (t.spent()) return false;
    Entrant& e = t.entrants[i];
    Sampling sampling = t.sampling;
    sampling.repeats = e.repeats;
    Sample sample;
    const auto failure = failure_of([&] { sample = t.sampler.take(e.config, sampling); });
    t.reject_if(e, failure, watch.put_back_after(e.config));
    if (!e.racing()) return false;
    seconds[i] = sample.seconds;
    e.waits += sample.waited;
    e.starved = e.starved || sample.starved;
    if (t.sampling.clock == Clock::thread_cpu && e.waits >= max_waits) {
      t.sampling.clock = Clock::wall;  // its warm-up did not show that it waits
      readmit(t);
      start_again(t);
      return false;
    }
  }
  for (size_t i = 0; i < t.entrants.size(); ++i) t.entrants[i].seconds.push_back(seconds[i]);
  for (Entrant& e : t.entrants)
    if (e.racing()) forget_wrong_warm_up(t, e);
  ++t.rounds;
  return true;
}

// ---- verdicts -----------------------------------------------------------------------------------

void look(Tuning& t) {
  RaceSamples samples;
  for (const Entrant& e : t.entrants) samples.emplace_back(e.seconds);
  t.standings = Standings(samples);
}

// The candidate with the smallest time. At least one can win.
size_t leader(const Tuning& t) {
  size_t best = nobody;
  for (size_t i = 0; i < t.entrants.size(); ++i)
    if (t.entrants[i].can_win() && (best == nobody || t.standings.behind(i, best) < 0)) best = i;
  return best;
}

// The earlier winner, else the heuristic, else the first candidate; another one only if that was
// rejected.
void seat_incumbent(Tuning& t) {
  const auto fit = [&](size_t i) {
    return t.entrants[i].status != Status::rejected && t.entrants[i].status != Status::untried;
  };
  if (t.incumbent != nobody && fit(t.incumbent)) return;
  const auto first = std::ranges::find_if(t.entrants, &Entrant::can_win);
  t.incumbent = static_cast<size_t>(first - t.entrants.begin());
  const auto earlier = t.earlier_winner();
  if (earlier && t.entrants[*earlier].can_win()) t.incumbent = *earlier;
  else if (t.heuristic && fit(*t.heuristic)) t.incumbent = *t.heuristic;
}

void drop(Tuning& t, size_t who) {
  t.entrants[who].status = Status::slower;
  t.tell(TuneProgress::Kind::eliminated, who);
}

void drop_slower(Tuning& t, size_t best) {
  for (size_t i = 0; i < t.entrants.size(); ++i)
    if (i != best && t.entrants[i].racing() && clearly_slower(t, i, best)) drop(t, i);
  for (Entrant& e : t.entrants)
    if (e.racing()) measure_alike(t, e);
}

bool defends(const Tuning& t) { return t.entrants[t.incumbent].can_win(); }

// True if another round could not change the choice, or not for a gain that is worth it.
bool settled(const Tuning& t, size_t best) {
  if (t.entrants[best].samples().empty()) return false;  // those it had were taken in another way
  const double lead = defends(t) ? t.standings.behind(t.incumbent, best) : 0;
  if (defends(t) && t.rounds >= usual_rounds && lead < stays_for) return true;
  if (lead > near_best) return false;
  for (size_t i = 0; i < t.entrants.size(); ++i)
    if (i != best && t.entrants[i].can_win() && !t.standings.tied(i, best)) return false;
  return true;
}

bool fast_enough(const Tuning& t, size_t who) {
  const Interval seconds = median_interval(t.entrants[who].samples(), reported);
  return is_fast_enough(seconds.median, t.task.budget);
}

bool as_good(const Tuning& t, size_t i, size_t best) {
  return !clearly_slower(t, i, best) && t.standings.behind(i, best) < near_best;
}

}  // namespace

std::vector<double> ratios(const Tuning& t, size_t over, size_t under) {
  return paired_ratios(t.entrants[over].seconds, t.entrants[under].seconds);
}

double noise(const Tuning& t) {
  if (t.incumbent == nobody || t.rounds < first_look) return 0;
  const double two_sided = 1.96 * t.standings.error(t.incumbent);
  return std::isfinite(two_sided) ? std::expm1(two_sided) : 0;
}

bool clearly_slower(const Tuning& t, size_t rival, size_t best) {
  const Entrant &mine = t.entrants[rival], &other = t.entrants[best];
  if (t.strategy.single_run) {
    const std::vector<double> r = ratios(t, rival, best);
    if (r.empty()) return false;
    const bool searched =
        too_large_to_race(*t.task.candidates) && mine.known.ratio > 0 && other.known.ratio > 0;
    if (!searched) return r.front() > hopeless_in_one;
    return r.front() > (rival == t.earlier_winner() ? beats_earlier_winner : clear_in_search);
  }
  const bool incumbent = rival == t.incumbent && mine.candidate();
  return hopeless(mine.seconds, other.seconds, {incumbent, mine.slow_in_warm_up, mine.starved}) ||
         (incumbent ? t.standings.clearly_beaten(rival, best)
                    : t.standings.clearly_slower(rival, best));
}

bool warm_up_all(Tuning& t) {
  t.sampling.clock = Clock::thread_cpu;
  for (Entrant& e : t.entrants) {
    if (!e.racing()) continue;
    if (t.spent()) {
      t.complete = false;
      return false;
    }
    const HostWatch watch(t);
    const auto failure = failure_of([&] {
      const Intent intent(t.task.journal, e.config);
      e.warm = t.sampler.warm_up(e.config, t.options.warmup);
    });
    acquit(t, e);
    t.reject_if(e, failure, watch.put_back_after(e.config));
    if (e.racing() && needs_wall(e.warm.elapsed)) t.sampling.clock = Clock::wall;
  }
  start_again(t);
  return true;
}

namespace {

void race(Tuning& t) {
  const int min = std::max(1, t.options.iters), max = std::max(max_rounds, min);
  int next = look_after(t.rounds);
  while (t.any_can_win() && t.rounds < max) {
    seat_incumbent(t);
    if (!run_round(t)) {
      if (!t.any_can_win()) readmit(t);
      if (t.rounds == 0) next = look_after(0);
      if (!t.spent()) continue;
      t.complete = false;
      return look(t);
    }
    t.tell(TuneProgress::Kind::round);
    if (t.rounds < next && t.rounds != max) continue;
    look(t);
    const size_t best = leader(t);
    if (best != t.leading) t.leading = best, t.tell(TuneProgress::Kind::best, best);
    drop_slower(t, best);
    if (t.rounds >= min && (settled(t, best) || fast_enough(t, best))) return;
    next = look_after(t.rounds);
  }
  if (!t.any_can_win()) return;
  const size_t best = leader(t);
  if (best != t.incumbent && defends(t) && t.standings.probably_beaten(t.incumbent, best))
    drop(t, t.incumbent);
}

// One more run of each that raced shows who it was. False if nobody did it again.
bool reject_who_changes_the_host(Tuning& t) {
  bool found = false;
  for (Entrant& e : t.entrants) {
    if (t.stopped()) break;
    if (e.status != Status::racing && e.status != Status::slower) continue;
    const HostWatch watch(t);
    static_cast<void>(failure_of([&] { static_cast<void>(outputs_of_run(t, e.config)); }));
    const std::string changes = watch.put_back();
    t.reject_if(e, std::nullopt, changes);
    found = found || !changes.empty();
  }
  return found;
}

// True if a candidate changed something in this process, is rejected for it, and others are left.
bool must_race_on(Tuning& t, const HostWatch& since) {
  const HostWatch after(t);
  if (since.put_back().empty()) return false;
  if (reject_who_changes_the_host(t)) {
    if (!t.any_can_win()) readmit(t);
    return t.any_can_win();
  }
  after.put_back();  // the program did it: when it was told something, or had a signal
  return false;
}

}  // namespace

void run_rounds(Tuning& t) {
  for (;;) {
    const HostWatch watch(t);
    race(t);
    if (!must_race_on(t, watch)) return;
  }
}

void count_first_runs(Tuning& t) {
  seat_incumbent(t);
  t.strategy.single_run = true, t.sampling.clock = Clock::wall;
  t.rounds = 1;
  // What a search or an earlier tuning measured says more than a first run, which may be cold.
  double unit = INFINITY;  // seconds of the ratio 1
  for (const Entrant& e : t.entrants)
    if (e.racing() && e.ran && e.known.ratio > 0)
      unit = std::min(unit, e.first_run / e.known.ratio);
  for (Entrant& e : t.entrants)
    if (e.racing())
      e.seconds = {e.known.ratio > 0 && unit < INFINITY ? unit * e.known.ratio : e.first_run};
  look(t);
}

// The incumbent stays unless it is clearly beaten, or misses a target that the best meets. Else the
// earliest of those as good as the best: equal candidates give the same winner every time.
size_t pick(const Tuning& t) {
  const size_t best = leader(t);
  const bool cut_short = !t.complete || t.strategy.single_run;
  const bool beaten = cut_short && clearly_slower(t, t.incumbent, best);
  if (fast_enough(t, best) && !fast_enough(t, t.incumbent)) return best;
  if (t.entrants[t.incumbent].can_win() && !beaten) return t.incumbent;
  for (size_t i = 0; i < best; ++i)
    if (t.entrants[i].can_win() && as_good(t, i, best)) return i;
  return best;
}

bool incumbent_leads(const Tuning& t) {
  return t.any_can_win() && t.standings.behind(t.incumbent, leader(t)) <= 0;
}

bool heuristic_stays(const Tuning& t, size_t winner) {
  if (!t.task.heuristic_may_win || !t.heuristic) return false;
  const Entrant& guess = t.entrants[*t.heuristic];
  if (guess.candidate() || !guess.racing() || guess.seconds.empty()) return false;
  if (fast_enough(t, winner) && !fast_enough(t, *t.heuristic)) return false;
  if (!t.complete) return !clearly_slower(t, *t.heuristic, winner);
  const double behind = median_interval(ratios(t, winner, *t.heuristic), reported).median;
  return std::log(behind) > tie_band && clearly_slower(t, winner, *t.heuristic);
}

}  // namespace ejk::detail
