// SPDX-License-Identifier: Apache-2.0
// Order statistics of medians, and the swap test on a window of the sorted samples.
#include "compare.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

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

// From rank `first` up to, without, rank `end`.
struct Ranks {
  Ranks(const Window& window, size_t rounds)
      : first(at(window.first, rounds)), end(std::max(first + 2, at(window.end, rounds))) {}
  static size_t at(double share, size_t rounds) {
    return static_cast<size_t>(std::lround(share * static_cast<double>(rounds)));
  }
  size_t first, end;
  double count() const { return static_cast<double>(end - first); }
};

double mean_within(std::vector<double> logs, const Ranks& ranks) {
  std::ranges::sort(logs);
  double sum = 0;
  for (size_t i = ranks.first; i < ranks.end; ++i) sum += logs[i];
  return sum / ranks.count();
}

struct Sample {
  double log_seconds;
  size_t round;
  bool second;  // of the two
};

// The difference after the two changed places in a random half of the rounds. `sorted` has all
// samples of both; walking it in order needs no sorting of either side.
double swapped_difference(const std::vector<Sample>& sorted, const Ranks& ranks,
                          std::mt19937_64& random, std::vector<uint64_t>& swaps) {
  for (uint64_t& word : swaps) word = random();
  size_t seen[2] = {0, 0};
  double sum[2] = {0, 0};
  for (const Sample& s : sorted) {
    const size_t side = static_cast<size_t>(s.second) ^ (swaps[s.round / 64] >> (s.round % 64) & 1);
    const size_t rank = seen[side]++;
    if (rank >= ranks.first && rank < ranks.end) sum[side] += s.log_seconds;
    if (seen[0] >= ranks.end && seen[1] >= ranks.end) break;
  }
  return (sum[0] - sum[1]) / ranks.count();
}

}  // namespace

// Written out because std::shuffle may draw differently in another standard library.
std::vector<size_t> shuffled(size_t count, std::mt19937_64& random) {
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  for (size_t left = count; left > 1; --left) std::swap(order[left - 1], order[random() % left]);
  return order;
}

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

Slowdown slowdown(std::span<const double> over, std::span<const double> under, const Window& window,
                  int swaps) {
  // Of one round: a clock that shows the same time again and again is not that exact.
  constexpr double least_error = 0.012;
  std::vector<double> a, b;
  for (size_t i = 0; i < std::min(over.size(), under.size()); ++i)
    if (over[i] > 0 && under[i] > 0)
      a.push_back(std::log(over[i])), b.push_back(std::log(under[i]));
  const size_t rounds = a.size();
  if (rounds < 3) return {0, std::numeric_limits<double>::infinity(), static_cast<int>(rounds)};

  const Ranks ranks(window, rounds);
  const double difference = mean_within(a, ranks) - mean_within(b, ranks);
  // As if they were equal: else the difference itself would count as noise.
  std::vector<Sample> sorted;
  for (size_t i = 0; i < rounds; ++i)
    sorted.push_back({a[i], i, false}), sorted.push_back({b[i] + difference, i, true});
  std::ranges::sort(sorted, {}, &Sample::log_seconds);
  std::mt19937_64 random(rounds);
  std::vector<uint64_t> words((rounds + 63) / 64);
  double squares = 0;
  for (int i = 0; i < swaps; ++i)
    squares += std::pow(swapped_difference(sorted, ranks, random, words), 2);
  const double variance = squares / swaps + least_error * least_error / static_cast<double>(rounds);
  return {difference, std::sqrt(variance), static_cast<int>(rounds)};
}

int look_after(int rounds) {
  return rounds < first_look ? first_look : rounds + std::max(2, rounds / 5);
}

namespace {
double with_doubt(double errors, int rounds) {
  constexpr double doubt_of_few = 5;  // rounds
  return errors * (1 + doubt_of_few / rounds);
}
}  // namespace

bool is_slower(const Slowdown& s, double needed, double log_margin) {
  constexpr double least_difference = 0.003;  // of the time; closer ones are equal
  return s.rounds >= first_look && s.log_ratio > least_difference &&
         s.significance(log_margin) > with_doubt(needed, s.rounds);
}

bool is_tied(const Slowdown& s) {
  constexpr double clear_tie = 2.5;
  return s.rounds >= first_look &&
         (tie_band - s.log_ratio) / s.error >= with_doubt(clear_tie, s.rounds);
}

Window sharpest_window(const std::vector<std::span<const double>>& samples) {
  constexpr std::array<Window, 7> windows = {
      {{0.02, 0.1}, {0.03, 0.15}, {0.05, 0.2}, {0.075, 0.3}, {0.1, 0.5}, {0.3, 0.7}, {0, 0.9}}};
  constexpr size_t pairs = 6;  // more of these would only cost time
  constexpr int swaps = 50;
  Window sharpest;
  double least = std::numeric_limits<double>::infinity();
  for (const Window& window : windows) {
    double sum = 0;
    for (size_t i = 0; i + 1 < std::min(samples.size(), pairs + 1); ++i)
      sum += slowdown(samples[i], samples[i + 1], window, swaps).error;
    if (sum < least) least = sum, sharpest = window;
  }
  return sharpest;
}

}  // namespace ejk::detail
