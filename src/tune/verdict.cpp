// SPDX-License-Identifier: Apache-2.0
#include "tune/verdict.h"

#include <cmath>

#include "tune/limits.h"
#include "tune/statistics.h"

namespace ejk::detail {
namespace {

constexpr double near_best = 0.01;   // as good as the best: among these the earlier one wins
constexpr double stays_for = 0.005;  // an incumbent that is behind by less needs no more rounds

constexpr double hopeless_in_one = 4;         // where one round is all there will ever be
constexpr double clear_in_search = 1.25;      // the same where a search took some samples
constexpr double beats_earlier_winner = 1.6;  // which was found in a race, not by some samples

double behind(const Contest& c, EntrantId rival, EntrantId best) {
  return c.samples.standings.behind(at(rival), at(best));
}

bool as_good(const Contest& c, EntrantId who, EntrantId best) {
  return !clearly_slower(c, who, best) && behind(c, who, best) < near_best;
}

// All there is of each is one run, or what a search measured before.
bool slower_in_single_run(const Contest& c, EntrantId rival, EntrantId best) {
  const std::vector<double> r = ratios(c, rival, best);
  if (r.empty()) return false;
  const bool searched = too_large_to_race(*c.task.candidates) &&
                        c.entrants[rival].known.ratio > 0 && c.entrants[best].known.ratio > 0;
  if (!searched) return r.front() > hopeless_in_one;
  return r.front() > (rival == c.earlier_winner() ? beats_earlier_winner : clear_in_search);
}

}  // namespace

std::vector<double> ratios(const Contest& c, EntrantId over, EntrantId under) {
  return paired_ratios(c.samples[over].seconds, c.samples[under].seconds);
}

double noise(const Contest& c) {
  if (!c.roles.incumbent || c.samples.rounds < first_look) return 0;
  const double two_sided = 1.96 * c.samples.standings.error(at(*c.roles.incumbent));
  return std::isfinite(two_sided) ? std::expm1(two_sided) : 0;
}

bool clearly_slower(const Contest& c, EntrantId rival, EntrantId best) {
  if (c.samples.single_run) return slower_in_single_run(c, rival, best);
  const Times &mine = c.samples[rival], &other = c.samples[best];
  const bool incumbent = rival == c.roles.incumbent && c.entrants[rival].candidate();
  const Standings& standings = c.samples.standings;
  return hopeless(mine.seconds, other.seconds, {incumbent, mine.slow_in_warm_up, mine.starved}) ||
         (incumbent ? standings.clearly_beaten(at(rival), at(best))
                    : standings.clearly_slower(at(rival), at(best)));
}

bool fast_enough(const Contest& c, EntrantId who) {
  return is_fast_enough(c.samples[who].median(), c.task.budget);
}

EntrantId leader(const Contest& c) {
  std::optional<EntrantId> best;
  for (const EntrantId i : c.entrants.ids())
    if (c.entrants[i].can_win() && (!best || behind(c, i, *best) < 0)) best = i;
  return *best;
}

bool incumbent_can_win(const Contest& c) { return c.entrants[*c.roles.incumbent].can_win(); }

bool incumbent_leads(const Contest& c) {
  return c.entrants.any_can_win() && behind(c, *c.roles.incumbent, leader(c)) <= 0;
}

bool settled(const Contest& c, EntrantId best) {
  if (c.samples[best].taken().empty()) return false;  // those it had were taken in another way
  const bool defends = incumbent_can_win(c);
  const double lead = defends ? behind(c, *c.roles.incumbent, best) : 0;
  if (defends && c.samples.rounds >= usual_rounds && lead < stays_for) return true;
  if (lead > near_best) return false;
  for (const EntrantId i : c.entrants.ids())
    if (i != best && c.entrants[i].can_win() && !c.samples.standings.tied(at(i), at(best)))
      return false;
  return true;
}

// The incumbent stays unless it is clearly beaten, or misses a target that the best meets. Else the
// earliest of those as good as the best: equal candidates give the same winner every time.
EntrantId pick(const Contest& c) {
  const EntrantId best = leader(c), incumbent = *c.roles.incumbent;
  const bool cut_short = !c.complete || c.samples.single_run;
  const bool beaten = cut_short && clearly_slower(c, incumbent, best);
  if (fast_enough(c, best) && !fast_enough(c, incumbent)) return best;
  if (incumbent_can_win(c) && !beaten) return incumbent;
  for (const EntrantId i : c.entrants.ids())
    if (i < best && c.entrants[i].can_win() && as_good(c, i, best)) return i;
  return best;
}

bool heuristic_stays(const Contest& c, EntrantId winner) {
  if (!c.task.heuristic_may_win || !c.roles.heuristic) return false;
  const EntrantId heuristic = *c.roles.heuristic;
  const Entrant& guess = c.entrants[heuristic];
  if (guess.candidate() || !guess.racing() || c.samples[heuristic].seconds.empty()) return false;
  if (fast_enough(c, winner) && !fast_enough(c, heuristic)) return false;
  if (!c.complete) return !clearly_slower(c, heuristic, winner);
  const double ratio = median_interval(ratios(c, winner, heuristic)).median;
  return std::log(ratio) > tie_band && clearly_slower(c, winner, heuristic);
}

Outcome outcome_of(const Contest& c, EntrantId winner) {
  if (winner != c.roles.incumbent) return Outcome::tuned;
  bool rivals = false;
  for (const EntrantId i : c.entrants.ids()) {
    const Entrant& e = c.entrants[i];
    if (i == winner || !e.candidate()) continue;
    if (e.status == Status::slower) return Outcome::tuned;
    if (!e.racing()) continue;
    if (clearly_slower(c, i, winner)) return Outcome::tuned;
    rivals = true;
  }
  return rivals ? Outcome::unresolved : Outcome::tuned;
}

}  // namespace ejk::detail
