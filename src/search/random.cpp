// SPDX-License-Identifier: Apache-2.0
// Every point in random order.
#include <random>

#include "base/shuffle.h"
#include "search/strategies.h"

namespace ejk::detail {
namespace {

class RandomSearch final : public SearchStrategy {
 public:
  RandomSearch(SearchSpace given, uint64_t seed) : SearchStrategy(std::move(given)) {
    std::mt19937_64 random(seed);
    order_ = base::shuffled(space().size(), random);
  }

 private:
  size_t choose() override {
    while (!is_open(order_[next_])) ++next_;
    return order_[next_];
  }

  std::vector<size_t> order_;
  size_t next_ = 0;
};

}  // namespace

std::unique_ptr<SearchStrategy> random_search(SearchSpace space, uint64_t seed) {
  return std::make_unique<RandomSearch>(std::move(space), seed);
}

}  // namespace ejk::detail
