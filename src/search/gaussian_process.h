// SPDX-License-Identifier: Apache-2.0
// A Gaussian process over the points of a space: what to expect where nothing was measured yet.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "search/axes.h"

namespace ejk::detail {

// A trend is a number for each point that the values may follow linearly.
using Trend = std::vector<float>;

// Values should have about mean 0 and variance 1. Only as many as make sense to keep: adding the
// n-th costs n² + n·pool.
class GaussianProcess {
 public:
  // Both are kept by reference and may be filled later, but not changed after the first use.
  GaussianProcess(const std::vector<Axis>& axes, const std::vector<Trend>& trends);

  // Learns from these values how far each axis reaches, how noisy they are and how much they follow
  // the trends, starting from what was learned last. n³ for each of some 4 trials per axis.
  void learn_scales(std::span<const size_t> points, std::span<const double> values);
  // Forgets all values, takes these, and predicts at the points of `pool` from now on.
  void reset(std::span<const size_t> points, std::span<const double> values,
             std::span<const size_t> pool);
  void add(size_t point, double value);

  // At the points of the pool, in its order; the variance is that of the function without noise.
  std::span<const float> mean() const noexcept { return mean_; }
  std::span<const float> variance() const noexcept { return variance_; }

 private:
  // Logarithms, so that steps are factors.
  struct Scales {
    std::vector<double> inverse_length;  // by axis
    double noise, trend;                 // variances over that of the function
  };
  // Coordinates and trends of some points, one after the other for the inner loops.
  struct Columns {
    std::vector<std::vector<float>> axes, trends;
  };

  void append(Columns& columns, size_t point) const;
  void covariances(const Scales& scales, size_t point, const Columns& columns,
                   std::span<float> out) const;
  double fit(const Scales& scales, std::span<const size_t> points, std::span<const double> values,
             const Columns& columns);

  const std::vector<Axis>& axes_;
  const std::vector<Trend>& trends_;
  Scales scales_;
  double amplitude_ = 1;  // variance of the function

  Columns data_, pool_;
  std::vector<std::vector<double>> factor_;  // rows of the Cholesky factor of the data's covariance
  std::vector<double> whitened_;             // factor⁻¹ · values
  std::vector<std::vector<float>> rows_;     // factor⁻¹ · covariance of data and pool
  std::vector<float> mean_, variance_;
};

}  // namespace ejk::detail
