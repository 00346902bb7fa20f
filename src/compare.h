// SPDX-License-Identifier: Apache-2.0
// Which of two is faster, from samples that were taken round by round on a noisy machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

namespace ejk::detail {

// 0 .. count-1 in random order. The same order for the same state of `random` everywhere.
std::vector<size_t> shuffled(size_t count, std::mt19937_64& random);

struct Interval {
  double low = 0, median = 0, high = 0;
};
// The median and its distribution-free confidence interval, between order statistics. With too few
// values for that confidence: from the smallest to the largest. All 0 if there are none.
Interval median_interval(std::vector<double> values, double confidence);
// Round by round over/under, of the rounds in which both took part (the others are NaN).
std::vector<double> paired_ratios(std::span<const double> over, std::span<const double> under);

// Which of its sorted samples speak for one that was measured, as shares of their number.
struct Window {
  double first = 0.075, end = 0.3;
};

// How much slower one is than the other, as the logarithm of the ratio, and how far that may be
// off (one standard error).
struct Slowdown {
  double log_ratio = 0, error = 0;
  int rounds = 0;
  // Beyond `log_margin`, in standard errors.
  double significance(double log_margin = 0) const { return (log_ratio - log_margin) / error; }
};
// Compares the means of the samples in the window. The error comes from swapping the two at random
// within rounds: if they were equal, nobody could tell (that is what rounds are for). Over the
// rounds in which both took part; error is infinite if there are fewer than 3.
Slowdown slowdown(std::span<const double> over, std::span<const double> under,
                  const Window& window = {}, int swaps = 200);

// ---- when a difference is clear ----------------------------------------------------------------

// Differences are judged after so many rounds and whenever there is a fifth more: looking after
// every round would find a "clear" difference between equals sooner or later.
inline constexpr int first_look = 15;
int look_after(int rounds);
// With a rematch and the control's second turns no candidate is sampled more than 80 times.
inline constexpr int most_rounds = 44, rematch_rounds = 20;
// A sample of a final is the mean of up to so many turns of the candidate, among those of others.
inline constexpr int most_final_turns = 20;
inline constexpr double tie_band = 0.02;  // of the time; less does not justify another round

// In standard errors, which are looked at several times and themselves estimated: hence far out,
// and farther where there are few rounds to estimate them from.
inline constexpr double clear_difference = 3.6;
bool is_slower(const Slowdown& s, double needed = clear_difference, double log_margin = 0);
bool is_tied(const Slowdown& s);  // not slower by as much as the band

// The window with the smallest errors between these samples, each compared with the next. Noise
// only ever adds time, so the lower samples are mostly the sharpest, but how low depends on how
// often a sample is undisturbed; the very lowest are luck.
Window sharpest_window(const std::vector<std::span<const double>>& samples);

}  // namespace ejk::detail
