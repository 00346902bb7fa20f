// SPDX-License-Identifier: Apache-2.0
// What the samples of a race say: a pure function from times to a verdict.
#pragma once

#include <limits>
#include <span>
#include <vector>

namespace ejk::detail {

// Of each candidate its seconds, one per round; NaN where it took no part, or fewer rounds.
using RaceSamples = std::vector<std::span<const double>>;

// Differences are judged after so many rounds and whenever there is a sixth more: who looks after
// every round finds a "clear" difference between equals sooner or later.
inline constexpr int first_look = 6;
int look_after(int rounds);
// A race ends here if nothing is left that matters, and there in any case.
inline constexpr int usual_rounds = 40, max_rounds = 80;
// Of the time; a smaller difference does not justify another round.
inline constexpr double tie_band = 0.02;

// How long each takes. Most noise is common to a round (a neighbour, a step of the clock rate), so
// it is taken away first: a time is a round's level plus the candidate's own, both are found in
// turn as quantiles of what the other one leaves, and what is left then says how sure they are.
class Standings {
 public:
  Standings() = default;
  explicit Standings(const RaceSamples& samples);

  // By how much the one is slower, as the logarithm of the ratio; infinite if it was never
  // measured.
  double behind(size_t rival, size_t best) const;
  // The same in standard errors.
  double significance(size_t rival, size_t best) const;
  // Of a candidate's own time, relative; infinite with fewer than 3 rounds.
  double error(size_t who) const { return all_[who].error; }

  bool clearly_slower(size_t rival, size_t best) const;
  // The same for one that many rivals try to beat: the luckiest of them must not.
  bool clearly_beaten(size_t incumbent, size_t best) const;
  // What is said of it after the last round, when nothing will become clearer.
  bool probably_beaten(size_t incumbent, size_t best) const;
  // It is not slower by as much as the tie band, for sure.
  bool tied(size_t rival, size_t best) const;

 private:
  struct One {
    double log_seconds = std::numeric_limits<double>::infinity();  // relative to the rounds
    double error = std::numeric_limits<double>::infinity();
    int rounds = 0;
  };
  bool slower(size_t rival, size_t best, double errors, double difference) const;

  std::vector<One> all_;
};

// Before the first look only what is hopeless goes: it was slower in every round, the fewer there
// are the more. An incumbent must be slower by three times as much; a warm-up in which it was far
// slower counts as a round. A candidate that may have waited for a core is not hopeless: where
// others compute, each of its samples may have waited.
struct HopelessIf {
  bool incumbent = false, slow_in_warm_up = false, starved = false;
};
bool hopeless(std::span<const double> rival, std::span<const double> best, const HopelessIf& when);

}  // namespace ejk::detail
