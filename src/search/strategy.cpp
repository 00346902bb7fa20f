// SPDX-License-Identifier: Apache-2.0
// What all strategies share: which points are still open, and checks of what they are given.
#include <ejk/search.h>

#include <cmath>

#include <ejk/error.h>
#include <ejk/names.h>

#include "base/format.h"
#include "search/strategies.h"

namespace ejk {
namespace {

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorKind::invalid_argument, "search: " + message);
}

void check_result(const SearchResult& result, size_t size) {
  if (result.point >= size)
    refuse(fmt::format("there is no point {}; the space has {}", result.point, size));
  if (result.seconds && !(std::isfinite(*result.seconds) && *result.seconds > 0))
    refuse(fmt::format(
        "{} is not a time for point {}; give a finite number above 0, or nullopt if it failed",
        *result.seconds, result.point));
}

void check_space(const SearchSpace& space) {
  const size_t width = space.parameters.size();
  if (width == 0 && space.points.empty()) return;
  if (width == 0 || space.points.size() % width != 0)
    refuse(fmt::format("{} value indices do not make whole points of {} parameters",
                       space.points.size(), width));
  for (size_t i = 0; i < space.points.size(); ++i) {
    const SearchParameter& parameter = space.parameters[i % width];
    if (space.points[i] >= parameter.values.size())
      refuse(fmt::format("point {} has value {} of parameter \"{}\", which has {}", i / width,
                         space.points[i], parameter.name, parameter.values.size()));
  }
}

}  // namespace

std::span<const uint32_t> SearchSpace::point(size_t i) const noexcept {
  return std::span(points).subspan(i * parameters.size(), parameters.size());
}

SearchStrategy::SearchStrategy(SearchSpace space)
    : space_(std::move(space)), used_(space_.size()), told_(space_.size()), open_(space_.size()) {}

std::optional<size_t> SearchStrategy::ask() {
  if (open_ == 0) return std::nullopt;
  const size_t point = choose();
  used_[point] = true;
  --open_;
  return point;
}

void SearchStrategy::tell(size_t point, std::optional<double> seconds) {
  check_result({point, seconds}, space_.size());
  if (told_[point]) refuse(fmt::format("point {} was told before; tell each point once", point));
  told_[point] = true;
  if (!used_[point]) --open_;
  used_[point] = true;
  if (seconds && (!best_ || *seconds < *best_->seconds)) best_ = SearchResult{point, seconds};
  learn(point, seconds);
}

std::unique_ptr<SearchStrategy> make_search(std::string_view name, SearchSpace space, uint64_t seed,
                                            const std::vector<SearchHistory>& histories) {
  check_space(space);
  for (const SearchHistory& history : histories)
    for (const SearchResult& result : history) check_result(result, space.size());
  const auto search = named<Search>(name);
  if (search == Search::exhaustive) return detail::exhaustive_search(std::move(space));
  if (search == Search::random) return detail::random_search(std::move(space), seed);
  if (search == Search::automatic) return detail::auto_search(std::move(space), seed, histories);
  refuse(fmt::format("no strategy is named \"{}\"; there are auto, random and exhaustive", name));
}

}  // namespace ejk
