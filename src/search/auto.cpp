// SPDX-License-Identifier: Apache-2.0
// Bayesian optimisation: a Gaussian process learns the logarithm of the time, and the point that
// promises most is next. Histories become its prior mean and trends it may follow.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <random>

#include "base/shuffle.h"
#include "search/strategies.h"
#include "search/transfer.h"

namespace ejk::detail {
namespace {

// Tried on six of the spaces that bench/search replays, and compared on the other seven before the
// last choices. Pools of 1024 to 4096 with 128 to 256 measurements were level within the noise.
constexpr size_t start_points = 8;       // with 4 the model follows the first accident
constexpr size_t fewest_valid = 3;       // before that there is nothing to model
constexpr size_t start_sample = 500;     // points a start point is chosen from; 8 leave it to luck
constexpr size_t start_memory = 32;      // earlier points it keeps away from
constexpr size_t pool_limit = 2048;      // points predicted at a time: the cost of an ask
constexpr size_t data_limit = 160;       // measurements in the model: the cost of a tell
constexpr size_t learn_limit = 64;       // measurements its scales are learned from
constexpr size_t neighbour_homes = 5;    // best points whose neighbours are in the pool
constexpr double relearn_growth = 0.25;  // scales are learned anew with so much more data,
constexpr size_t relearn_most = 64;      // but at the latest after so many
constexpr size_t bold_every = 3;         // asks; never, and the search can stay in a wrong basin
constexpr double boldness = 3;           // standard deviations such an ask hopes for
constexpr double ceiling_over_gain = 2;  // above the median by twice what the best is below: slow

double expected_improvement(double mean, double deviation, double incumbent) {
  const double z = (incumbent - mean) / deviation;
  const double density = std::exp(-z * z / 2) / std::sqrt(2 * std::numbers::pi);
  return deviation * (z * 0.5 * std::erfc(-z / std::numbers::sqrt2) + density);
}

class AutoSearch final : public SearchStrategy {
 public:
  AutoSearch(SearchSpace given, uint64_t seed, const std::vector<SearchHistory>& histories)
      : SearchStrategy(std::move(given)),
        random_(seed),
        order_(base::shuffled(space().size(), random_)),
        axes_(axes_of(space())),
        transfer_(transfer_from(histories, space(), axes_)),
        process_(axes_, transfer_.trends) {
    if (!has_prior()) return;
    by_prior_ = order_;
    std::ranges::stable_sort(by_prior_, {}, [&](size_t i) { return transfer_.mean[i]; });
  }

 private:
  bool has_prior() const { return !transfer_.mean.empty(); }
  double prior(size_t point) const { return has_prior() ? transfer_.mean[point] : 0; }

  size_t choose() override {
    if (has_prior() ? valid_ == 0 : told_.size() < start_points || valid_ < fewest_valid) {
      const size_t point = has_prior() ? first_open(by_prior_) : far_from_others();
      occupied_.push_back(point);
      return point;
    }
    if (told_.size() < relearn_at_)
      if (const auto point = most_promising()) return *point;
    relearn();
    return *most_promising();
  }

  void learn(size_t point, std::optional<double> seconds) override {
    told_.push_back({point, seconds});
    occupied_.push_back(point);
    if (seconds) ++valid_;
    if (told_.size() <= relearn_at_) process_.add(point, value_of(told_.back()));
  }

  size_t first_open(const std::vector<size_t>& order) {
    while (!is_open(order[next_])) ++next_;
    return order[next_];
  }

  // Of a random sample: first the most central point, then the farthest from the latest ones.
  size_t far_from_others() {
    size_t best = first_open(order_), seen = 0;
    const size_t memory = std::min(occupied_.size(), start_memory);
    const auto others = std::span(occupied_).last(memory);
    double best_distance = -INFINITY;
    for (size_t i = next_; i < order_.size() && seen < start_sample; ++i) {
      if (!is_open(order_[i])) continue;
      ++seen;
      double distance = others.empty() ? -from_centre(order_[i]) : INFINITY;
      for (const size_t other : others)
        distance = std::min(distance, squared_distance(axes_, order_[i], other));
      if (distance > best_distance) best_distance = distance, best = order_[i];
    }
    return best;
  }

  double from_centre(size_t point) const {
    double sum = 0;
    for (const Axis& axis : axes_)
      if (!axis.categorical) sum += (axis.at[point] - 0.5) * (axis.at[point] - 0.5);
    return sum;
  }

  // A result in the model's units: what is left of the standardised logarithm beyond the prior.
  double value_of(const SearchResult& r) const {
    const double log_time = r.seconds ? std::min(std::log(*r.seconds), ceiling_) : ceiling_;
    return (log_time - centre_) / scale_ - prior(r.point);
  }

  void relearn() {
    std::vector<size_t> by_time(told_.size());
    std::iota(by_time.begin(), by_time.end(), size_t{0});
    std::ranges::stable_sort(by_time, {},
                             [&](size_t i) { return told_[i].seconds.value_or(INFINITY); });
    set_units(by_time);
    fill_pool(by_time);

    std::vector<size_t> points;
    std::vector<double> values;
    auto take = [&](size_t limit) {
      points.clear(), values.clear();
      for (const size_t i : representatives(by_time.size(), limit))
        points.push_back(told_[by_time[i]].point), values.push_back(value_of(told_[by_time[i]]));
    };
    take(learn_limit);
    process_.learn_scales(points, values);
    take(data_limit);
    process_.reset(points, values, pool_);
    const auto growth = static_cast<size_t>(static_cast<double>(told_.size()) * relearn_growth);
    relearn_at_ = told_.size() + std::clamp<size_t>(growth, 1, relearn_most);
  }

  void set_units(const std::vector<size_t>& by_time) {
    auto log_time = [&](size_t i) { return std::log(*told_[by_time[i]].seconds); };
    const double best = log_time(0), median = log_time(valid_ / 2), worst = log_time(valid_ - 1);
    ceiling_ = std::min(worst, median + ceiling_over_gain * std::max(median - best, 0.05));
    if (has_prior()) ceiling_ = std::max(ceiling_, best + 2 * transfer_.scale);
    scale_ = transfer_.scale;
    double sum = 0, squares = 0;
    for (size_t i = 0; i < valid_; ++i)
      sum += std::min(log_time(i), ceiling_) - scale_ * prior(told_[by_time[i]].point);
    centre_ = sum / static_cast<double>(valid_);
    if (has_prior()) return;
    for (size_t i = 0; i < valid_; ++i)
      squares += std::pow(std::min(log_time(i), ceiling_) - centre_, 2);
    scale_ = std::max(std::sqrt(squares / static_cast<double>(valid_)), 1e-6);
  }

  // The open points to choose from: all of a small space; of a large one those the histories like,
  // neighbours of the best, and a random sample.
  void fill_pool(const std::vector<size_t>& by_time) {
    pool_.clear();
    std::vector<uint8_t> taken(space().size());
    auto take = [&](size_t point, size_t limit) {
      if (pool_.size() < limit && is_open(point) && !taken[point])
        taken[point] = true, pool_.push_back(point);
    };
    if (space().size() > pool_limit) {
      for (size_t i = 0; i < by_prior_.size() && pool_.size() < pool_limit / 2; ++i)
        take(by_prior_[i], pool_limit);
      const size_t homes = std::min(by_time.size(), neighbour_homes);
      for (size_t h = 0; h < homes; ++h)
        for (const size_t i : order_)
          if (are_neighbours(i, told_[by_time[h]].point)) take(i, pool_limit * 3 / 4);
    }
    const size_t begin = random_() % order_.size();
    for (size_t i = 0; i < order_.size() && pool_.size() < pool_limit; ++i)
      take(order_[(begin + i) % order_.size()], pool_limit);
  }

  // At most two parameters differ.
  bool are_neighbours(size_t a, size_t b) const {
    const auto x = space().point(a), y = space().point(b);
    int different = 0;
    for (size_t d = 0; d < x.size() && different <= 2; ++d) different += x[d] != y[d];
    return different <= 2;
  }

  // Nothing if the pool has no open point.
  std::optional<size_t> most_promising() {
    const double incumbent = (std::log(*best()->seconds) - centre_) / scale_;
    const bool bold = told_.size() % bold_every == 0;
    std::optional<size_t> chosen;
    double most = 0;
    for (size_t p = 0; p < pool_.size(); ++p) {
      if (!is_open(pool_[p])) continue;
      const double mean = process_.mean()[p] + prior(pool_[p]);
      const double deviation = std::sqrt(std::max<double>(process_.variance()[p], 1e-10));
      const double promise =
          bold ? boldness * deviation - mean : expected_improvement(mean, deviation, incumbent);
      if (!chosen || promise > most) most = promise, chosen = pool_[p];
    }
    return chosen;
  }

  std::mt19937_64 random_;
  std::vector<size_t> order_;  // all points, shuffled
  std::vector<Axis> axes_;
  Transfer transfer_;
  std::vector<size_t> by_prior_;  // all points, what the histories like first; empty without them
  GaussianProcess process_;

  std::vector<SearchResult> told_;
  size_t valid_ = 0;              // of those, which did not fail
  std::vector<size_t> occupied_;  // start points and told ones, some of them twice
  size_t next_ = 0;               // before this, the order that is followed has no open points
  std::vector<size_t> pool_;
  size_t relearn_at_ = 0;  // number of told points
  double ceiling_ = 0, centre_ = 0, scale_ = 1;
};

}  // namespace

std::unique_ptr<SearchStrategy> auto_search(SearchSpace space, uint64_t seed,
                                            const std::vector<SearchHistory>& histories) {
  return std::make_unique<AutoSearch>(std::move(space), seed, histories);
}

}  // namespace ejk::detail
