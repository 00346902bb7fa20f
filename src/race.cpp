// SPDX-License-Identifier: Apache-2.0
// Rounds in shuffled order until the winner is clear, or no difference is left that matters.
#include <algorithm>
#include <array>
#include <cmath>

#include "tuning.h"

namespace ejk::detail {
namespace {

constexpr int rounds_per_control = 4;
constexpr double clear_rematch = 2;     // standard errors
constexpr double clear_median = 0.999;  // confidence
constexpr std::string_view single_run = "single run";
constexpr double reported = 0.95;  // confidence of the intervals in the evidence

constexpr double beaten_incumbent = 4;    // standard errors
constexpr double near_best = 0.01;        // as good as the best: among these the earlier one wins,
constexpr double near_best_errors = 1.5;  // or if it is as near as that,
constexpr double not_near = 0.015;        // but never beyond this

// Before the first look only what is hopeless goes: after `rounds` all of them were slower by this.
struct Hopeless {
  int rounds;
  double ratio;
};
constexpr std::array<Hopeless, 8> hopeless = {{{2, 2.5},
                                               {3, 1.6},
                                               {4, 1.35},
                                               {5, 1.25},
                                               {6, 1.18},
                                               {8, 1.08},
                                               {10, 1.05},
                                               {12, 1.035}}};
constexpr std::array<Hopeless, 4> hopeless_incumbent = {{{3, 3}, {4, 2}, {6, 1.5}, {8, 1.3}}};
constexpr double hopeless_in_one = 4;  // where one round is all there will ever be

// The racing ones and, in some rounds, the control's second turn (`entrants.size()`), in random
// order.
std::vector<size_t> order_of_round(Tuning& t) {
  std::vector<size_t> entered, order;
  for (size_t i = 0; i < t.entrants.size(); ++i)
    if (t.entrants[i].racing() && (!t.in_rematch() || i == t.incumbent || i == t.leading))
      entered.push_back(i);
  if (t.rounds % rounds_per_control == 0) entered.push_back(t.entrants.size());
  for (size_t i : shuffled(entered.size(), t.random)) order.push_back(entered[i]);
  return order;
}

// A round counts only as a whole: false if the budget ran out or a candidate threw.
bool run_round(Tuning& t) {
  const size_t twin = t.entrants.size();
  std::vector<double> seconds(twin + 1, std::numeric_limits<double>::quiet_NaN());
  for (size_t i : order_of_round(t)) {
    if (t.spent()) return false;
    Entrant& e = t.entrants[i == twin ? t.control : i];
    const auto failure = failure_of(
        [&] { seconds[i] = sample_seconds(*t.task.trial, e.config, e.repeats, t.sampling); });
    if (!failure) continue;
    t.reject(e, "threw", *failure);
    return false;
  }
  for (size_t i = 0; i < twin; ++i) t.entrants[i].seconds.push_back(seconds[i]);
  if (std::isfinite(seconds[twin])) t.control_ratios.push_back(seconds[twin] / seconds[t.control]);
  ++t.rounds;
  return true;
}

double median_ratio(const Tuning& t, size_t over, size_t under) {
  return median_interval(ratios(t, over, under), reported).median;
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

// What a candidate takes in units of the control: of both views of a noisy machine the middle.
double score(const Tuning& t, size_t i) {
  if (i == t.control) return 0;
  const double median = std::log(median_ratio(t, i, t.control));
  if (t.rounds < first_look) return median;
  const Slowdown s = slowdown_of(t, i, t.control);
  return s.rounds < 3 ? median : (median + s.log_ratio) / 2;
}

// By all who are still in it, so that no single comparison chooses how it is made.
void choose_window(Tuning& t) {
  std::vector<std::span<const double>> samples;
  for (const Entrant& e : t.entrants)
    if (e.racing()) samples.emplace_back(e.seconds);
  if (samples.size() > 1) t.window = sharpest_window(samples);
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

// Beaten as it seems, though not beyond doubt.
bool seems_slower(const Tuning& t, size_t rival, size_t best) {
  return score(t, rival) - score(t, best) > tie_band &&
         median_interval(ratios(t, rival, best), reported).low > 1;
}

// Of many rivals one may look faster than the incumbent by chance. So the first time does not
// count: it must be behind the best again in rounds that nobody has looked at.
bool loses_rematch(const Tuning& t, size_t best) {
  const auto from = static_cast<size_t>(t.challenged);
  const auto mine = std::span(t.entrants[t.incumbent].seconds).subspan(from),
             others = std::span(t.entrants[best].seconds).subspan(from);
  const Slowdown again = slowdown(mine, others, t.window);
  return again.significance() > clear_rematch &&
         median_interval(paired_ratios(mine, others), reported).median > 1;
}

// True if the incumbent may go.
bool judge_incumbent(Tuning& t, size_t best) {
  const bool beaten = clearly_slower(t, t.incumbent, best);
  if (beaten && hopeless_so_far(ratios(t, t.incumbent, best), true)) return true;
  const bool over = t.rounds >= most_rounds;
  if (t.challenged == 0) {
    if (beaten || (over && seems_slower(t, t.incumbent, best))) t.challenged = t.rounds;
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
    if (e.status == Status::slower) e.status = Status::racing;
}

// True if another round could not change the choice, or not for a gain that is worth it.
bool settled(const Tuning& t, size_t best) {
  for (size_t i = 0; i < t.entrants.size(); ++i) {
    if (i == best || !t.entrants[i].can_win()) continue;
    if (!is_tied(slowdown_of(t, i, best))) return false;
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
  if (t.rounds < most_rounds) return std::min(most_rounds, look_after(t.rounds));
  return std::max(t.rounds + 1, t.challenged + rematch_rounds);
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
  if (t.strategy == single_run) return r.front() > hopeless_in_one;
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
  int look = next_look(t);
  while (t.any_can_win() && (t.rounds < most || t.in_rematch())) {
    seat_incumbent(t);
    if (!run_round(t)) {
      if (!t.any_can_win()) readmit(t);
      if (!t.spent()) continue;
      t.complete = false;
      return;
    }
    t.tell(TuneProgress::Kind::round);
    if (t.rounds < look && t.rounds != most) continue;
    if (t.rounds >= first_look && !t.in_rematch()) choose_window(t);
    const size_t best = leader(t);
    if (best != t.leading) t.leading = best, t.tell(TuneProgress::Kind::best, best);
    drop_slower(t, best);
    look = next_look(t);
    if (t.rounds >= least && (settled(t, best) || fast_enough(t, best))) return;
  }
}

void count_first_runs(Tuning& t) {
  seat_incumbent(t);
  t.strategy = single_run, t.sampling.clock = Clock::wall;
  t.rounds = 1;
  for (Entrant& e : t.entrants)
    if (e.racing()) e.seconds = {e.first_run};
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

}  // namespace ejk::detail
