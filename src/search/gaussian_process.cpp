// SPDX-License-Identifier: Apache-2.0
// Exact inference with a Cholesky factor that grows by one row per value.
#include "search/gaussian_process.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace ejk::detail {
namespace {

// What is believed before there are data; variances are in units of the function's own.
constexpr float unknown_mean = 1;        // variance of the mean
constexpr double usual_noise = 0.01;     // repeated measurements, and what the axes cannot tell
constexpr double usual_trend = 0.1;      // of the weight of each trend
constexpr double usual_length = 2;       // of an axis from 0 to 1
constexpr double length_spread = 0.8;    // of the logarithm of that length
constexpr double other_spread = 1;       // of the logarithms of noise and trend
constexpr double amplitude_worth = 2;    // the amplitude 1 counts as so many values
constexpr double smallest_pivot = 1e-8;  // equal points without noise must not divide by zero
constexpr double learning_steps[] = {0.7, 0.35};

// Matérn 5/2: smooth, but not so smooth that it trusts far extrapolation.
float correlation(float squared_distance) {
  const float r = std::sqrt(5 * squared_distance);
  return (1 + r + r * r / 3) * std::exp(-r);
}

double log_normal(double value, double centre, double spread) {
  return -0.5 * (value - centre) * (value - centre) / (spread * spread);
}

}  // namespace

GaussianProcess::GaussianProcess(const std::vector<Axis>& axes, const std::vector<Trend>& trends)
    : axes_(axes),
      trends_(trends),
      scales_{std::vector<double>(axes.size(), -std::log(usual_length)), std::log(usual_noise),
              std::log(usual_trend)} {}

void GaussianProcess::append(Columns& columns, size_t point) const {
  columns.axes.resize(axes_.size());
  columns.trends.resize(trends_.size());
  for (size_t d = 0; d < axes_.size(); ++d) columns.axes[d].push_back(axes_[d].at[point]);
  for (size_t t = 0; t < trends_.size(); ++t) columns.trends[t].push_back(trends_[t][point]);
}

// Of the point with each of the first out.size() columns, without noise.
void GaussianProcess::covariances(const Scales& scales, size_t point, const Columns& columns,
                                  std::span<float> out) const {
  std::ranges::fill(out, 0.0f);
  for (size_t d = 0; d < axes_.size(); ++d) {
    const auto weight = static_cast<float>(std::exp(2 * scales.inverse_length[d]));
    const float x = axes_[d].at[point];
    const float* at = columns.axes[d].data();
    if (axes_[d].categorical)
      for (size_t i = 0; i < out.size(); ++i) out[i] += at[i] != x ? weight : 0.0f;
    else
      for (size_t i = 0; i < out.size(); ++i) out[i] += weight * (at[i] - x) * (at[i] - x);
  }
  for (float& c : out) c = correlation(c) + unknown_mean;
  for (size_t t = 0; t < trends_.size(); ++t) {
    const float weight = static_cast<float>(std::exp(scales.trend)) * trends_[t][point];
    const float* at = columns.trends[t].data();
    for (size_t i = 0; i < out.size(); ++i) out[i] += weight * at[i];
  }
}

// The logarithm of the posterior of the scales, up to a constant, with the amplitude at its best,
// which is left in amplitude_.
double GaussianProcess::fit(const Scales& scales, std::span<const size_t> points,
                            std::span<const double> values, const Columns& columns) {
  const size_t n = points.size();
  std::vector<double> factor(n * n), whitened(n);
  std::vector<float> covariance(n);
  double log_determinant = 0, squares = 0;
  for (size_t i = 0; i < n; ++i) {
    covariances(scales, points[i], columns, std::span(covariance).first(i + 1));
    double* row = &factor[i * n];
    for (size_t j = 0; j < i; ++j) {
      const double* other = &factor[j * n];
      row[j] = (covariance[j] - std::inner_product(other, other + j, row, 0.0)) / other[j];
    }
    const double rest =
        covariance[i] + std::exp(scales.noise) - std::inner_product(row, row + i, row, 0.0);
    row[i] = std::sqrt(std::max(rest, smallest_pivot));
    whitened[i] = (values[i] - std::inner_product(row, row + i, whitened.data(), 0.0)) / row[i];
    squares += whitened[i] * whitened[i];
    log_determinant += 2 * std::log(row[i]);
  }
  const double worth = static_cast<double>(n) + amplitude_worth;
  amplitude_ = (squares + amplitude_worth) / worth;
  double prior = log_normal(scales.noise, std::log(usual_noise), other_spread) +
                 log_normal(scales.trend, std::log(usual_trend), other_spread);
  for (const double length : scales.inverse_length)
    prior += log_normal(length, -std::log(usual_length), length_spread);
  return -0.5 * (worth * std::log(squares + amplitude_worth) + log_determinant) + prior;
}

// Coordinate ascent with a few fixed steps: the data move, so the exact top is not worth its price.
void GaussianProcess::learn_scales(std::span<const size_t> points, std::span<const double> values) {
  Columns columns;
  for (const size_t point : points) append(columns, point);
  double best = fit(scales_, points, values, columns);
  auto improve = [&](double& scale, double step) {
    const double before = scale;
    for (const double moved : {before + step, before - step}) {
      scale = moved;
      if (const double got = fit(scales_, points, values, columns); got > best) {
        best = got;
        return;
      }
    }
    scale = before;
  };
  for (const double step : learning_steps) {
    for (double& length : scales_.inverse_length) improve(length, step);
    improve(scales_.noise, step);
    if (!trends_.empty()) improve(scales_.trend, step);
  }
  fit(scales_, points, values, columns);
}

void GaussianProcess::reset(std::span<const size_t> points, std::span<const double> values,
                            std::span<const size_t> pool) {
  factor_.clear(), whitened_.clear(), rows_.clear();
  data_ = pool_ = {};
  for (const size_t point : pool) append(pool_, point);
  mean_.assign(pool.size(), 0);
  variance_.assign(pool.size(), 1 + unknown_mean);
  for (const auto& trend : pool_.trends)
    for (size_t i = 0; i < pool.size(); ++i)
      variance_[i] += static_cast<float>(std::exp(scales_.trend)) * trend[i] * trend[i];
  for (float& v : variance_) v *= static_cast<float>(amplitude_);
  for (size_t i = 0; i < points.size(); ++i) add(points[i], values[i]);
}

void GaussianProcess::add(size_t point, double value) {
  const size_t n = factor_.size(), width = mean_.size();
  append(data_, point);
  std::vector<float> covariance(n + 1);
  covariances(scales_, point, data_, covariance);
  std::vector<double> row(n + 1);
  for (size_t i = 0; i < n; ++i) {
    const double* other = factor_[i].data();
    row[i] = (amplitude_ * covariance[i] - std::inner_product(other, other + i, row.data(), 0.0)) /
             other[i];
  }
  const double rest = amplitude_ * (covariance[n] + std::exp(scales_.noise)) -
                      std::inner_product(row.begin(), row.begin() + static_cast<std::ptrdiff_t>(n),
                                         row.begin(), 0.0);
  row[n] = std::sqrt(std::max(rest, smallest_pivot));
  const double whitened =
      (value - std::inner_product(whitened_.begin(), whitened_.end(), row.begin(), 0.0)) / row[n];

  std::vector<float> pooled(width);
  covariances(scales_, point, pool_, pooled);
  for (float& c : pooled) c *= static_cast<float>(amplitude_);
  for (size_t i = 0; i < n; ++i) {
    const auto weight = static_cast<float>(row[i]);
    const float* other = rows_[i].data();
    for (size_t p = 0; p < width; ++p) pooled[p] -= weight * other[p];
  }
  const auto inverse = static_cast<float>(1 / row[n]), step = static_cast<float>(whitened);
  for (size_t p = 0; p < width; ++p) {
    pooled[p] *= inverse;
    mean_[p] += pooled[p] * step;
    variance_[p] -= pooled[p] * pooled[p];
  }
  factor_.push_back(std::move(row));
  whitened_.push_back(whitened);
  rows_.push_back(std::move(pooled));
}

}  // namespace ejk::detail
