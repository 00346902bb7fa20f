// SPDX-License-Identifier: Apache-2.0
// Times become comparable between devices as standardised logarithms.
#include "search/transfer.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace ejk::detail {
namespace {

constexpr size_t fewest_times = 4;     // fewer say nothing of what is usual
constexpr double ceiling_share = 0.9;  // how slow the slowest tenth is does not matter
constexpr size_t fill_from = 96;       // times that points which were not measured are guessed from

constexpr double unmeasured = std::numeric_limits<double>::quiet_NaN();

// The logarithms by point with failures at the ceiling; empty if there are too few times.
std::vector<double> clipped_logs(const SearchHistory& history, size_t size) {
  std::vector<double> logs(size, unmeasured), sorted;
  for (const SearchResult& r : history) logs[r.point] = r.seconds ? std::log(*r.seconds) : INFINITY;
  std::ranges::copy_if(logs, std::back_inserter(sorted), [](double l) { return std::isfinite(l); });
  if (sorted.size() < fewest_times) return {};
  std::ranges::sort(sorted);
  const double ceiling =
      sorted[static_cast<size_t>(static_cast<double>(sorted.size() - 1) * ceiling_share)];
  for (double& l : logs)
    if (l > ceiling) l = ceiling;
  return logs;
}

// Makes mean 0 and variance 1 of those that were measured; gives the standard deviation before.
double standardise(std::vector<double>& logs) {
  double count = 0, sum = 0, squares = 0;
  for (const double l : logs)
    if (!std::isnan(l)) ++count, sum += l;
  for (const double l : logs)
    if (!std::isnan(l)) squares += (l - sum / count) * (l - sum / count);
  const double deviation = std::sqrt(squares / count);
  for (double& l : logs) l = (l - sum / count) / deviation;
  return deviation;
}

void fill_in(std::vector<double>& logs, const std::vector<Axis>& axes) {
  std::vector<size_t> missing, known;
  for (size_t i = 0; i < logs.size(); ++i) (std::isnan(logs[i]) ? missing : known).push_back(i);
  if (missing.empty()) return;
  std::ranges::stable_sort(known, {}, [&](size_t i) { return logs[i]; });
  std::vector<size_t> points;
  std::vector<double> values;
  for (const size_t i : representatives(known.size(), fill_from))
    points.push_back(known[i]), values.push_back(logs[known[i]]);
  const std::vector<Trend> no_trends;
  GaussianProcess process(axes, no_trends);
  process.learn_scales(points, values);
  process.reset(points, values, missing);
  for (size_t i = 0; i < missing.size(); ++i) logs[missing[i]] = process.mean()[i];
}

}  // namespace

std::vector<size_t> representatives(size_t count, size_t limit) {
  std::vector<size_t> kept(std::min(count, limit));
  std::iota(kept.begin(), kept.end(), size_t{0});
  if (count <= limit) return kept;
  const size_t half = limit / 2;
  for (size_t i = half; i < limit; ++i)
    kept[i] = half + (i - half) * (count - half) / (limit - half);
  return kept;
}

Transfer transfer_from(const std::vector<SearchHistory>& histories, const SearchSpace& space,
                       const std::vector<Axis>& axes) {
  Transfer out;
  double deviations = 0;
  for (const SearchHistory& history : histories) {
    std::vector<double> logs = clipped_logs(history, space.size());
    if (logs.empty()) continue;
    const double deviation = standardise(logs);
    if (!(deviation > 1e-6)) continue;  // all alike
    fill_in(logs, axes);
    deviations += deviation;
    out.trends.emplace_back(logs.begin(), logs.end());
  }
  if (out.trends.empty()) return out;
  const auto count = static_cast<float>(out.trends.size());
  out.scale = deviations / count;
  out.mean.assign(space.size(), 0);
  for (const Trend& trend : out.trends)
    for (size_t i = 0; i < trend.size(); ++i) out.mean[i] += trend[i] / count;
  return out;
}

}  // namespace ejk::detail
