// SPDX-License-Identifier: Apache-2.0
// Every point in the order of the list.
#include "search/strategies.h"

namespace ejk::detail {
namespace {

class ExhaustiveSearch final : public SearchStrategy {
 public:
  explicit ExhaustiveSearch(SearchSpace space) : SearchStrategy(std::move(space)) {}

 private:
  size_t choose() override {
    while (!is_open(next_)) ++next_;
    return next_;
  }

  size_t next_ = 0;
};

}  // namespace

std::unique_ptr<SearchStrategy> exhaustive_search(SearchSpace space) {
  return std::make_unique<ExhaustiveSearch>(std::move(space));
}

}  // namespace ejk::detail
