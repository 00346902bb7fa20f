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
                  const Window& window = {});

// The window with the smallest errors between these samples, each compared with the next. Noise
// only ever adds time, so the lower samples are mostly the sharpest, but how low depends on how
// often a sample is undisturbed; the very lowest are luck.
Window sharpest_window(const std::vector<std::span<const double>>& samples);

}  // namespace ejk::detail
