// SPDX-License-Identifier: Apache-2.0
// Order statistics of samples.
#include "tune/statistics.h"

#include <algorithm>
#include <cmath>

namespace ejk::detail {
namespace {

// How many of n sorted values may be left out on either side so that the rest still spans the
// median with that confidence: each value lies below it with chance 1/2, so the number of those
// that do is binomial. Logarithms, because 2^-n underflows for large n.
int values_outside(int n, double confidence) {
  double log_chance = -n * std::log(2.), tail = 0;
  for (int k = 0; k < n; ++k) {
    tail += std::exp(log_chance);
    if (tail > (1 - confidence) / 2) return std::max(0, k - 1);
    log_chance += std::log(static_cast<double>(n - k) / (k + 1));
  }
  return 0;
}

}  // namespace

Interval median_interval(std::vector<double> values, double confidence) {
  if (values.empty()) return {};
  std::ranges::sort(values);
  const size_t n = values.size();
  const auto outside = static_cast<size_t>(values_outside(static_cast<int>(n), confidence));
  return {values[outside], (values[(n - 1) / 2] + values[n / 2]) / 2, values[n - 1 - outside]};
}

std::vector<double> paired_ratios(std::span<const double> over, std::span<const double> under) {
  std::vector<double> ratios;
  for (size_t i = 0; i < std::min(over.size(), under.size()); ++i)
    if (const double ratio = over[i] / under[i]; std::isfinite(ratio)) ratios.push_back(ratio);
  return ratios;
}

}  // namespace ejk::detail
