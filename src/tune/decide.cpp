// SPDX-License-Identifier: Apache-2.0
// What the samples of a race say.
//
// The constants were fixed by replaying recorded noise (make bench-winner ARGS='--traces DIR', 20
// traces):
//
//   value                    equals give the first   right at 2 %    3 %      5 %   rounds
//   as they are                      0.998              0.922      0.988    0.9994    32
//   level_quantile 0.5               0.997              0.857      0.964    0.998     37
//   level_quantile 0.3               0.997              0.850      0.949    0.992     32
//   clear 2.5                        0.996              0.901      0.983    0.997     32
//   clear_of_incumbent 4.5           0.995              0.930      0.990    0.9994    28
//   doubt_of_few 0                   0.996              0.915      0.989    0.998     28
//   clear_tie 1.5                    0.998              0.922      0.988    0.9994    32
//   min_error 0.006                  0.996              0.928      0.987    0.9994    28
//   min_error 0.024                  0.999              0.877      0.973    0.9994    43
//   hopeless_excess 2                0.998              0.921      0.983    0.999     32
//   no last_clear                    0.999              0.799      0.922    0.992     32
//
// A first look after 12 rounds instead of 6 changes none of these by more than 0.002.
#include "tune/decide.h"

#include <algorithm>
#include <cmath>

#include "tune/statistics.h"

namespace ejk::detail {
namespace {

// Noise only adds time, so the time of an undisturbed kernel lies below the middle.
constexpr double level_quantile = 0.4;

// Standard errors. An incumbent needs more, since the luckiest of many rivals tries to beat it.
constexpr double clear = 3.5, clear_of_incumbent = 6, clear_tie = 2.5;
// Errors estimated from few rounds are themselves uncertain: at 12 rounds half as much again is
// needed.
constexpr double doubt_of_few = 6;

// Of the time; candidates that differ by less are equal.
constexpr double min_difference = 0.003;
// After the last round this much, and this clear, is enough to replace the incumbent. With 2.5
// errors 2 of 1000 tunings of eight equals of 13.3 us, beside a build, did not give the first;
// with 3.5 none.
constexpr double last_difference = 0.015, last_clear = 3.5;

// Of one sample: a clock that shows the same time again and again is not that exact.
constexpr double min_error = 0.012;

// By how much of the best's time a candidate was slower in every round, times the square of their
// number: 2.5 times as slow after two rounds, 1.7 after three, 1.17 after six.
constexpr double hopeless_excess = 6;

double quantile(std::vector<double>& values, double share) {
  std::ranges::sort(values);
  const double at = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, values.size() - 1);
  const double weight = at - static_cast<double>(below);
  return values[below] * (1 - weight) + values[above] * weight;
}

// One standard error of the level, from how far apart the values are that could have been it.
double level_error(std::vector<double>& values) {
  constexpr double reach = 1.5;  // standard errors; more values speak than at 1
  const auto n = static_cast<double>(values.size());
  const double ranks = reach * std::sqrt(n * level_quantile * (1 - level_quantile)) / (n - 1);
  const double low = quantile(values, std::max(0., level_quantile - ranks)),
               high = quantile(values, std::min(1., level_quantile + ranks));
  return std::hypot((high - low) / (2 * reach), min_error / std::sqrt(n));
}

struct Time {
  size_t who, round;
  double log_seconds;
};

std::vector<Time> times(const RaceSamples& samples) {
  std::vector<Time> list;
  for (size_t who = 0; who < samples.size(); ++who)
    for (size_t round = 0; round < samples[who].size(); ++round)
      if (samples[who][round] > 0) list.push_back({who, round, std::log(samples[who][round])});
  return list;
}

// The level of each group of what `own` leaves of a time; groups without times stay at 0.
template <class Group, class Own>
std::vector<double> levels(const std::vector<Time>& all, size_t groups, Group group, Own own) {
  std::vector<std::vector<double>> values(groups);
  for (const Time& t : all) values[group(t)].push_back(t.log_seconds - own(t));
  std::vector<double> found(groups);
  for (size_t i = 0; i < groups; ++i)
    if (!values[i].empty()) found[i] = quantile(values[i], level_quantile);
  return found;
}

}  // namespace

int look_after(int rounds) {
  // Until the first look one more round costs as much as all before.
  return rounds < first_look ? rounds + 1 : rounds + std::max(2, rounds / 6);
}

Standings::Standings(const RaceSamples& samples) : all_(samples.size()) {
  constexpr int passes = 3;  // after two the levels hardly move
  const std::vector<Time> all = times(samples);
  size_t rounds = 0;
  for (const auto& own : samples) rounds = std::max(rounds, own.size());
  const auto who = [](const Time& t) { return t.who; };
  const auto round = [](const Time& t) { return t.round; };
  std::vector<double> of_round(rounds), of_one(samples.size());
  for (int pass = 0; pass < passes; ++pass) {
    of_round = levels(all, rounds, round, [&](const Time& t) { return of_one[t.who]; });
    of_one = levels(all, samples.size(), who, [&](const Time& t) { return of_round[t.round]; });
  }
  std::vector<std::vector<double>> left(samples.size());
  for (const Time& t : all)
    left[t.who].push_back(t.log_seconds - of_round[t.round] - of_one[t.who]);
  for (size_t i = 0; i < samples.size(); ++i) {
    all_[i].rounds = static_cast<int>(left[i].size());
    if (!left[i].empty()) all_[i].log_seconds = of_one[i];
    if (left[i].size() > 2) all_[i].error = level_error(left[i]);
  }
}

double Standings::behind(size_t rival, size_t best) const {
  return all_[rival].log_seconds - all_[best].log_seconds;
}

double Standings::significance(size_t rival, size_t best) const {
  const double error = std::hypot(all_[rival].error, all_[best].error);
  return std::isfinite(error) ? behind(rival, best) / error : 0;
}

bool Standings::slower(size_t rival, size_t best, double errors, double difference) const {
  const int rounds = std::min(all_[rival].rounds, all_[best].rounds);
  return rounds >= first_look && behind(rival, best) > difference &&
         significance(rival, best) > errors * (1 + doubt_of_few / rounds);
}

bool Standings::clearly_slower(size_t rival, size_t best) const {
  return slower(rival, best, clear, min_difference);
}

bool Standings::clearly_beaten(size_t incumbent, size_t best) const {
  return slower(incumbent, best, clear_of_incumbent, min_difference);
}

bool Standings::probably_beaten(size_t incumbent, size_t best) const {
  return slower(incumbent, best, last_clear, last_difference);
}

bool Standings::tied(size_t rival, size_t best) const {
  const int rounds = std::min(all_[rival].rounds, all_[best].rounds);
  const double error = std::hypot(all_[rival].error, all_[best].error);
  return rounds >= first_look &&
         (tie_band - behind(rival, best)) / error > clear_tie * (1 + doubt_of_few / rounds);
}

bool hopeless(std::span<const double> rival, std::span<const double> best, const HopelessIf& when) {
  constexpr size_t min_rounds = 2, min_rounds_of_incumbent = 3;
  const std::vector<double> ratios = paired_ratios(rival, best);
  const size_t rounds = ratios.size() + (when.slow_in_warm_up ? 1 : 0);
  if (when.starved && ratios.size() < size_t{first_look}) return false;
  if (ratios.empty() || rounds < (when.incumbent ? min_rounds_of_incumbent : min_rounds))
    return false;
  const auto n = static_cast<double>(rounds);
  const double excess = (when.incumbent ? 3 : 1) * hopeless_excess / (n * n);
  return std::ranges::min(ratios) > 1 + excess;
}

}  // namespace ejk::detail
