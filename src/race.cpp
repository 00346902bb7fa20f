// SPDX-License-Identifier: Apache-2.0
// Rounds in shuffled order until the winner is clear, or no difference is left that matters.
#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <numeric>

#include "tuning.h"

namespace ejk::detail {
namespace {

constexpr int rounds_per_control = 4;
constexpr double clear_rematch = 2.5;   // standard errors
constexpr double clear_median = 0.999;  // confidence
constexpr std::string_view single_run = "single run";
constexpr double reported = 0.95;  // confidence of the intervals in the evidence

constexpr double beaten_incumbent = 4;    // standard errors
constexpr double seems_behind = 0.005;    // enough for a final
constexpr double near_best = 0.01;        // as good as the best: among these the earlier one wins,
constexpr double near_best_errors = 1.5;  // or if it is as near as that,
constexpr double not_near = 0.015;        // but never beyond this

// Before the first look only what is hopeless goes: after `rounds` all of them were slower by this.
struct Hopeless {
  int rounds;
  double ratio;
};
constexpr std::array<Hopeless, 8> hopeless = {
    {{2, 2.5}, {3, 1.6}, {4, 1.35}, {5, 1.25}, {6, 1.18}, {8, 1.08}, {10, 1.05}, {12, 1.035}}};
constexpr std::array<Hopeless, 4> hopeless_incumbent = {{{3, 3}, {4, 2}, {6, 1.5}, {8, 1.3}}};
constexpr double hopeless_in_one = 4;         // where one round is all there will ever be
constexpr double clear_in_search = 1.25;      // the same where a search took some samples
constexpr double beats_earlier_winner = 1.6;  // which was found in a race, not by some samples

// The racing ones and, in some rounds, the control's second turn (`entrants.size()`), in random
// order; in the final rounds as often as one sample there needs turns.
std::vector<size_t> order_of_round(Tuning& t) {
  std::vector<size_t> entered, order;
  for (size_t i = 0; i < t.entrants.size(); ++i)
    if (t.entrants[i].racing()) entered.push_back(i);
  if (t.rounds % rounds_per_control == 0) entered.push_back(t.entrants.size());
  for (int turn = 0; turn < (t.in_final() ? t.final_turns : 1); ++turn)
    for (size_t i : shuffled(entered.size(), t.random)) order.push_back(entered[i]);
  return order;
}

// The mean of some turns, without the longest one if there are several.
double sample_of(std::vector<double> turns) {
  if (turns.empty()) return std::numeric_limits<double>::quiet_NaN();
  if (turns.size() > 2) turns.erase(std::ranges::max_element(turns));
  return std::accumulate(turns.begin(), turns.end(), 0.) / static_cast<double>(turns.size());
}

// A warm-up did not show that somebody waits: what was measured by now is worth nothing.
void start_again_with_wall(Tuning& t) {
  t.sampling.clock = Clock::wall;
  t.rounds = t.challenged = 0, t.finalists.clear(), t.control_ratios.clear();
  for (Entrant& e : t.entrants) {
    e.seconds.clear(), e.final_seconds.clear();
    if (e.status == Status::slower || e.status == Status::left_out) e.status = Status::racing;
    e.repeats = repeats_of(e.warm, *t.task.trial, t.sampling);
  }
}

constexpr int most_waits = 2;  // samples with the thread's clock; one may have been an accident

// A round counts only as a whole: false if the budget ran out or a candidate threw.
bool run_round(Tuning& t) {
  const size_t twin = t.entrants.size();
  std::vector<std::vector<double>> turns(twin + 1);
  for (size_t i : order_of_round(t)) {
    if (t.spent()) return false;
    Entrant& e = t.entrants[i == twin ? t.control : i];
    bool waited = false;
    const auto failure = failure_of([&] {
      turns[i].push_back(sample_seconds(*t.task.trial, e.config, e.repeats, t.sampling, &waited));
    });
    e.waits += !failure && waited;
    if (t.sampling.clock == Clock::thread_cpu && e.waits >= most_waits) {
      start_again_with_wall(t);
      return false;
    }
    if (!failure) continue;
    t.reject(e, "threw", *failure);
    return false;
  }
  std::vector<double> seconds;
  for (size_t i = 0; i <= twin; ++i) {
    if (t.in_final() && i < twin)
      std::ranges::copy(turns[i], std::back_inserter(t.entrants[i].final_seconds));
    seconds.push_back(sample_of(std::move(turns[i])));
  }
  for (size_t i = 0; i < twin; ++i) t.entrants[i].seconds.push_back(seconds[i]);
  if (std::isfinite(seconds[twin])) t.control_ratios.push_back(seconds[twin] / seconds[t.control]);
  ++t.rounds;
  return true;
}

Slowdown slowdown_of(const Tuning& t, size_t rival, size_t best) {
  return slowdown(t.entrants[rival].seconds, t.entrants[best].seconds, t.window);
}

// How far the control is from itself beyond doubt: what an order of running or an unruly machine
// does to equals must not be taken for a difference.
double bias(const Tuning& t) {
  if (t.control_ratios.size() < 6) return 0;
  const Interval aa = median_interval(t.control_ratios, 0.99);
  return std::max({0., std::log(aa.low), -std::log(aa.high)});
}

bool hopeless_so_far(const std::vector<double>& ratios, bool incumbent) {
  const double least = std::ranges::min(ratios);
  const auto is = [&](const Hopeless& h) {
    return static_cast<int>(ratios.size()) >= h.rounds && least > h.ratio;
  };
  return incumbent ? std::ranges::any_of(hopeless_incumbent, is)
                   : std::ranges::any_of(hopeless, is);
}

std::span<const double> before_final(const Tuning& t, const Entrant& e) {
  const auto rounds = static_cast<size_t>(t.finalists.empty() ? t.rounds : t.regular_rounds);
  return std::span(e.seconds).first(std::min(rounds, e.seconds.size()));
}

// What a candidate takes in units of the control: of both views of a noisy machine the middle.
double score(std::span<const double> mine, std::span<const double> control, const Window& window) {
  const double median = std::log(median_interval(paired_ratios(mine, control), reported).median);
  const Slowdown s = slowdown(mine, control, window);
  return s.rounds < first_look ? median : (median + s.log_ratio) / 2;
}

// Every turn of the final counts as much as a round before it.
double score(const Tuning& t, size_t i) {
  if (i == t.control) return 0;
  const Entrant &mine = t.entrants[i], &control = t.entrants[t.control];
  const double first = score(before_final(t, mine), before_final(t, control), t.window);
  const size_t turns = std::min(mine.final_seconds.size(), control.final_seconds.size());
  if (turns < static_cast<size_t>(first_look)) return first;
  const double weight = static_cast<double>(turns) / t.regular_rounds;
  const double again = score(mine.final_seconds, control.final_seconds, t.final_window);
  return (first + weight * again) / (1 + weight);
}

// By all who are still in it, so that no single comparison chooses how it is made.
void choose_window(Tuning& t) {
  const bool final = !t.finalists.empty();
  std::vector<std::span<const double>> samples;
  for (const Entrant& e : t.entrants)
    if (e.racing()) samples.emplace_back(final ? e.final_seconds : e.seconds);
  if (samples.size() > 1) (final ? t.final_window : t.window) = sharpest_window(samples);
}

// The candidate with the smallest score. At least one can win.
size_t leader(const Tuning& t) {
  size_t best = nobody;
  double least = 0;
  for (size_t i = 0; i < t.entrants.size(); ++i) {
    if (!t.entrants[i].can_win()) continue;
    const double mine = score(t, i);
    if (best == nobody || mine < least) best = i, least = mine;
  }
  return best;
}

// The earlier winner, else the heuristic, else the first candidate; another one only if that was
// rejected. The control is the incumbent until it is beaten or rejected: no round is spent on a
// loser, however slow it is.
void seat_incumbent(Tuning& t) {
  const auto fit = [&](size_t i) {
    return t.entrants[i].status != Status::rejected && t.entrants[i].status != Status::untried;
  };
  if (t.incumbent == nobody || !fit(t.incumbent)) {
    const auto first = std::ranges::find_if(t.entrants, &Entrant::can_win);
    t.incumbent = static_cast<size_t>(first - t.entrants.begin());
    const auto earlier = t.earlier_winner();
    if (earlier && t.entrants[*earlier].can_win()) t.incumbent = *earlier;
    else if (t.heuristic && fit(*t.heuristic)) t.incumbent = *t.heuristic;
  }
  if (t.control == nobody) t.control = t.incumbent;
  if (!t.entrants[t.control].racing()) t.control = leader(t);
}

// Of many rivals one may look faster than the incumbent by chance. So the first time does not
// count: it must be behind the best again in rounds that nobody has looked at.
bool loses_rematch(const Tuning& t, size_t best) {
  const auto from = static_cast<size_t>(t.challenged);
  const auto mine = std::span(t.entrants[t.incumbent].seconds).subspan(from),
             others = std::span(t.entrants[best].seconds).subspan(from);
  return slowdown(mine, others, t.window).significance() > clear_rematch &&
         median_interval(paired_ratios(mine, others), reported).median > 1;
}

// The same after a final, in which there are more turns: what was clearer before needs less there.
bool loses_final(const Tuning& t, size_t best) {
  constexpr double from_nothing = 3.8, clear_before = 2.5, counts_for = 0.45;  // standard errors
  const Entrant &mine = t.entrants[t.incumbent], &other = t.entrants[best];
  const Slowdown before = slowdown(before_final(t, mine), before_final(t, other), t.window);
  const double needed =
      from_nothing - counts_for * std::clamp(before.significance(), 0., clear_before);
  const Slowdown s = slowdown(mine.final_seconds, other.final_seconds, t.final_window);
  const Interval middle = median_interval(paired_ratios(mine.final_seconds, other.final_seconds),
                                          std::erf(needed / std::sqrt(2.)));
  return (s.significance(bias(t)) > needed && middle.median > 1) ||
         (std::log(middle.low) > bias(t) && s.log_ratio > 0);
}

// True if the incumbent may go.
bool judge_incumbent(Tuning& t, size_t best) {
  const bool beaten = clearly_slower(t, t.incumbent, best);
  if (beaten && hopeless_so_far(ratios(t, t.incumbent, best), true)) return true;
  if (!t.finalists.empty()) return loses_final(t, best);
  const bool over = t.rounds >= t.regular_rounds;
  if (t.challenged == 0) {
    const bool seems = score(t, t.incumbent) - score(t, best) > seems_behind;
    if (beaten || (over && seems)) t.challenged = t.rounds;
    return false;
  }
  if (!beaten && !over) t.challenged = 0;
  if (t.challenged == 0 || t.rounds < t.challenged + rematch_rounds) return false;
  const bool loses = loses_rematch(t, best);
  t.challenged = t.rounds;
  return loses;
}

void drop_slower(Tuning& t, size_t best) {
  for (size_t i = 0; i < t.entrants.size(); ++i) {
    if (i == best || !t.entrants[i].racing()) continue;
    const bool defends = i == t.incumbent && t.entrants[i].candidate();
    if (defends ? !judge_incumbent(t, best) : !clearly_slower(t, i, best)) continue;
    t.entrants[i].status = Status::slower;
    t.tell(TuneProgress::Kind::eliminated, i);
  }
}

// After the last one left threw: those that had dropped out were right, only slower than it.
void readmit(Tuning& t) {
  for (Entrant& e : t.entrants)
    if (e.status == Status::slower || e.status == Status::left_out) e.status = Status::racing;
}

// True if another round could not change the choice, or not for a gain that is worth it.
bool settled(const Tuning& t, size_t best) {
  for (size_t i = 0; i < t.entrants.size(); ++i) {
    if (i == best || !t.entrants[i].can_win()) continue;
    const Slowdown s = slowdown_of(t, i, best);
    if (!is_tied(s) || s.log_ratio - s.error < -tie_band) return false;
  }
  return true;
}

bool fast_enough(const Tuning& t, size_t who) {
  if (!(t.task.budget.target_seconds > 0)) return false;
  const std::vector<double> taken = t.entrants[who].samples();
  return !taken.empty() && median_interval(taken, reported).median <= t.task.budget.target_seconds;
}

bool as_good(const Tuning& t, size_t i, size_t best) {
  if (clearly_slower(t, i, best)) return false;
  const double near =
      std::clamp(near_best_errors * slowdown_of(t, i, best).error, near_best, not_near);
  return score(t, i) - score(t, best) < near;
}

int next_look(const Tuning& t) {
  for (const Hopeless& h : hopeless)
    if (t.rounds < h.rounds) return h.rounds;
  if (t.rounds < t.regular_rounds) return std::min(t.regular_rounds, look_after(t.rounds));
  return t.regular_rounds + rematch_rounds;
}

// Half the width of the median's interval at one standard error.
double median_error(const Tuning& t, size_t over, size_t under) {
  const Interval i = median_interval(ratios(t, over, under), 0.6827);
  return (i.high - i.low) / 2;
}

double seconds_per_turn(const Entrant& e) {
  const std::vector<double> taken = e.samples();
  if (taken.empty()) return 0;
  return median_interval(taken, reported).median * static_cast<double>(e.repeats);
}

// How many turns each finalist has in a round: enough to tell the incumbent, or the next best, from
// the best, but the final takes little more time than the race before and leaves some of the
// budget.
int turns_needed(const Tuning& t, size_t best) {
  constexpr double wanted_error = 0.006, over_the_race = 2, of_the_budget = 0.7;
  constexpr double little = 0.25;  // seconds that nobody minds
  double error = 0, race = 0, turn = 0;
  for (const Entrant& e : t.entrants)
    race += seconds_per_turn(e) * static_cast<double>(e.samples().size());
  for (size_t i : t.finalists) {
    turn += seconds_per_turn(t.entrants[i]);
    if (i != best)
      error = std::max({error, slowdown_of(t, i, best).error, median_error(t, i, best)});
  }
  const double wanted = t.regular_rounds * std::pow(error / wanted_error, 2) / rematch_rounds;
  const double seconds =
      std::min(std::max(over_the_race * race, little), of_the_budget * t.remaining());
  const double turns = std::min(wanted, seconds / (rematch_rounds * turn));
  return static_cast<int>(std::clamp<double>(turns, 1, most_final_turns));
}

// Of those still in the race some may be faster than the best so far by as much as matters. They go
// on with it, with the incumbent if it was challenged, and with the control.
void call_final(Tuning& t, size_t best) {
  constexpr size_t most_finalists = 4;
  constexpr double may_be_best = 2.5;  // standard errors
  constexpr double matters = tie_band / 2;
  const bool defends = t.entrants[t.incumbent].can_win();
  if (defends && t.challenged == 0) return;  // it stays
  t.finalists = {best};
  if (t.control != best) t.finalists.push_back(t.control);
  if (defends && !t.is_finalist(t.incumbent)) t.finalists.push_back(t.incumbent);
  std::vector<std::pair<double, size_t>> near;
  for (size_t i = 0; i < t.entrants.size(); ++i) {
    if (!t.entrants[i].can_win() || t.is_finalist(i)) continue;
    const double behind = score(t, i) - score(t, best), error = slowdown_of(t, i, best).error;
    if (behind - may_be_best * error < -matters) near.emplace_back(behind, i);
  }
  std::ranges::sort(near);
  for (size_t k = 0; k < near.size() && t.finalists.size() < most_finalists; ++k)
    t.finalists.push_back(near[k].second);
  if (t.finalists.size() == 1) {
    t.finalists.clear();
    return;
  }
  t.final_turns = turns_needed(t, best);
  for (size_t i = 0; i < t.entrants.size(); ++i) {
    if (!t.entrants[i].can_win() || t.is_finalist(i)) continue;
    t.entrants[i].status = Status::left_out;
  }
}

}  // namespace

std::vector<double> ratios(const Tuning& t, size_t over, size_t under) {
  return paired_ratios(t.entrants[over].seconds, t.entrants[under].seconds);
}

double noise(const Tuning& t) {
  if (t.control_ratios.empty()) return 0;
  const Interval aa = median_interval(t.control_ratios, reported);
  return std::max({0., 1 - aa.low, aa.high - 1});
}

// By two views that must agree: the sharpest window of the samples, and the median, which
// knows what the candidate's own unsteadiness costs. Clear in one of them is enough.
bool clearly_slower(const Tuning& t, size_t rival, size_t best) {
  const std::vector<double> r = ratios(t, rival, best);
  if (r.empty()) return false;
  if (t.strategy == single_run) {
    const bool searched = t.task.candidates->size() > most_raced &&
                          t.entrants[rival].known.ratio > 0 && t.entrants[best].known.ratio > 0;
    if (!searched) return r.front() > hopeless_in_one;
    return r.front() > (rival == t.earlier_winner() ? beats_earlier_winner : clear_in_search);
  }
  const bool incumbent = rival == t.incumbent && t.entrants[rival].candidate();
  if (hopeless_so_far(r, incumbent)) return true;
  if (static_cast<int>(r.size()) < first_look) return false;
  const Interval middle = median_interval(r, clear_median);
  const Slowdown s = slowdown_of(t, rival, best);
  if (middle.median <= 1 || s.log_ratio <= 0) return false;
  return is_slower(s, incumbent ? beaten_incumbent : clear_difference, bias(t)) ||
         std::log(middle.low) > bias(t);
}

bool warm_up_all(Tuning& t) {
  t.sampling.clock = Clock::thread_cpu;
  for (Entrant& e : t.entrants) {
    if (!e.racing()) continue;
    if (t.spent()) {
      t.complete = false;
      return false;
    }
    const auto failure = failure_of([&] {
      const Intent intent(t.task.journal, e.config);
      e.warm = warm_up(*t.task.trial, e.config, t.options.warmup);
    });
    acquit(t, e);
    if (failure) t.reject(e, "threw", *failure);
    else if (e.warm.needs_wall()) t.sampling.clock = Clock::wall;
  }
  for (Entrant& e : t.entrants) e.repeats = repeats_of(e.warm, *t.task.trial, t.sampling);
  return true;
}

void run_rounds(Tuning& t) {
  const int least = std::max(1, t.options.iters), most = std::max(most_rounds, least);
  t.regular_rounds = most;
  int look = next_look(t);
  while (t.any_can_win() && (t.rounds < most || t.in_final())) {
    seat_incumbent(t);
    if (!run_round(t)) {
      if (!t.any_can_win()) readmit(t);
      if (t.rounds == 0) look = next_look(t);
      if (!t.spent()) continue;
      t.complete = false;
      return;
    }
    t.tell(TuneProgress::Kind::round);
    if (t.rounds < look && t.rounds != most) continue;
    if (t.rounds >= first_look) choose_window(t);
    const size_t best = leader(t);
    if (best != t.leading) t.leading = best, t.tell(TuneProgress::Kind::best, best);
    drop_slower(t, best);
    if (t.rounds >= least && (settled(t, best) || fast_enough(t, best))) return;
    if (t.rounds == most) call_final(t, best);
    look = next_look(t);
  }
}

void count_first_runs(Tuning& t) {
  seat_incumbent(t);
  t.strategy = single_run, t.sampling.clock = Clock::wall;
  t.rounds = 1;
  // What a search or an earlier tuning measured says more than a first run, which may be cold.
  double unit = INFINITY;  // seconds of the ratio 1
  for (const Entrant& e : t.entrants)
    if (e.racing() && e.ran && e.known.ratio > 0)
      unit = std::min(unit, e.first_run / e.known.ratio);
  for (Entrant& e : t.entrants)
    if (e.racing())
      e.seconds = {e.known.ratio > 0 && unit < INFINITY ? unit * e.known.ratio : e.first_run};
}

// The incumbent stays unless it is clearly beaten, or misses a target that the best meets. Else the
// earliest of those as good as the best: equal candidates give the same winner every time.
size_t pick(const Tuning& t) {
  const size_t best = leader(t);
  const bool cut_short = !t.complete || t.strategy == single_run;
  const bool beaten = cut_short && clearly_slower(t, t.incumbent, best);
  if (fast_enough(t, best) && !fast_enough(t, t.incumbent)) return best;
  if (t.entrants[t.incumbent].can_win() && !beaten) return t.incumbent;
  for (size_t i = 0; i < best; ++i)
    if (t.entrants[i].can_win() && as_good(t, i, best)) return i;
  return best;
}

bool incumbent_leads(const Tuning& t) {
  return t.any_can_win() && score(t, t.incumbent) <= score(t, leader(t));
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
