// SPDX-License-Identifier: Apache-2.0
// Order statistics of samples that were taken round by round.
#pragma once

#include <span>
#include <vector>

namespace ejk::detail {

struct Interval {
  double low = 0, median = 0, high = 0;
};
// The median and its distribution-free confidence interval, between order statistics. With too few
// values for that confidence: from the smallest to the largest. All 0 if there are none.
Interval median_interval(std::vector<double> values, double confidence = 0.95);
// Round by round over/under, of the rounds in which both took part (the others are NaN).
std::vector<double> paired_ratios(std::span<const double> over, std::span<const double> under);

}  // namespace ejk::detail
