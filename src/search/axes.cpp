// SPDX-License-Identifier: Apache-2.0
// Which axes a parameter gets is decided by its values alone.
#include "search/axes.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

namespace ejk::detail {
namespace {

constexpr double small_number = 8;  // up to here the value itself tells enough
constexpr int max_halvings = 6;

// The values as numbers; nullopt if one of them is something else.
std::optional<std::vector<double>> numbers(const std::vector<Value>& values) {
  std::vector<double> out;
  for (const Value& v : values) {
    if (!v.is_bool() && !v.is_number()) return std::nullopt;
    out.push_back(v.is_bool() ? v.as_bool() : v.as_double());
    if (!std::isfinite(out.back())) return std::nullopt;
  }
  return out;
}

std::vector<float> magnitudes(const std::vector<double>& numbers) {
  const double low = std::ranges::min(numbers), high = std::ranges::max(numbers);
  const bool by_ratio = low >= 0 && high >= 1 && high >= 4 * low;
  std::vector<float> out;
  for (const double x : numbers)
    out.push_back(static_cast<float>(by_ratio ? std::log2(low > 0 ? x : x + 1) : x));
  return out;
}

bool is_power_of_two(double x) { return std::exp2(std::round(std::log2(x))) == x; }

float halvings(double x) {
  int count = 0;
  for (; count < max_halvings && std::fmod(x, 2) == 0; ++count) x /= 2;
  return static_cast<float>(count);
}

// Nothing if the numbers are not such sizes.
std::optional<std::vector<float>> alignments(const std::vector<double>& numbers) {
  auto is_size = [](double x) { return x >= 0 && x < 1e15 && x == std::floor(x); };
  if (!std::ranges::all_of(numbers, is_size) || std::ranges::max(numbers) <= small_number)
    return std::nullopt;
  if (std::ranges::all_of(numbers, [](double x) { return x == 0 || is_power_of_two(x); }))
    return std::nullopt;
  std::vector<float> out;
  for (const double x : numbers) out.push_back(halvings(x));
  return out;
}

void add_axis(std::vector<Axis>& axes, const SearchSpace& space, size_t parameter,
              const std::vector<float>& by_value, bool categorical) {
  Axis axis{std::vector<float>(space.size()), categorical};
  for (size_t i = 0; i < space.size(); ++i) axis.at[i] = by_value[space.point(i)[parameter]];
  const auto [low, high] = std::ranges::minmax(axis.at);
  if (low == high) return;
  if (!categorical)
    for (float& x : axis.at) x = (x - low) / (high - low);
  axes.push_back(std::move(axis));
}

}  // namespace

std::vector<Axis> axes_of(const SearchSpace& space) {
  std::vector<Axis> axes;
  if (space.size() == 0) return axes;
  for (size_t p = 0; p < space.parameters.size(); ++p) {
    const auto& values = space.parameters[p].values;
    if (const auto given = numbers(values)) {
      add_axis(axes, space, p, magnitudes(*given), false);
      if (const auto aligned = alignments(*given)) add_axis(axes, space, p, *aligned, false);
    } else {
      std::vector<float> places(values.size());
      std::iota(places.begin(), places.end(), 0.0f);
      add_axis(axes, space, p, places, true);
    }
  }
  return axes;
}

double squared_distance(const std::vector<Axis>& axes, size_t a, size_t b) {
  double sum = 0;
  for (const Axis& axis : axes) {
    const double difference = axis.categorical ? axis.at[a] != axis.at[b] : axis.at[a] - axis.at[b];
    sum += difference * difference;
  }
  return sum;
}

}  // namespace ejk::detail
