// SPDX-License-Identifier: Apache-2.0
// Which point of a large space to measure next: strategies that are asked and told.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ejk/detail/export.h>
#include <ejk/value.h>

namespace EJK_EXPORT ejk {

// One axis of a space.
struct SearchParameter {
  std::string name;           // for messages; different for each parameter
  std::vector<Value> values;  // numbers are taken for ordered, all else for unrelated names
};

// A finite space: parameters and the combinations of their values that are valid. A point is known
// by its place in that list, 0 .. size()-1.
struct SearchSpace {
  std::vector<SearchParameter> parameters;  // the axes
  // Point after point, for each parameter the index of its value.
  std::vector<uint32_t> points;

  // How many points there are; and the value indices of one, valid as long as the space.
  size_t size() const noexcept {
    return parameters.empty() ? 0 : points.size() / parameters.size();
  }
  std::span<const uint32_t> point(size_t i) const noexcept;
};

// What was measured at one point. No seconds: it failed (threw, crashed, was wrong).
struct SearchResult {
  // The place of the point, and its time.
  size_t point = 0;
  std::optional<double> seconds;
};

// What is known of the same points from elsewhere: one other device or problem size. Only the order
// and the ratios of the times count, and a search that finds them misleading overrules them.
using SearchHistory = std::vector<SearchResult>;

// Looks for the fastest point: ask for one, measure it, tell the time. Points may be asked for
// several at a time, and told without having been asked for (measurements kept from before).
// The same seed, asks and tells give the same points. Not synchronised.
class SearchStrategy {
 public:
  virtual ~SearchStrategy() = default;
  SearchStrategy(const SearchStrategy&) = delete;
  SearchStrategy& operator=(const SearchStrategy&) = delete;

  // A point that was neither asked for nor told before; nullopt if there is none left.
  std::optional<size_t> ask();
  // Seconds (any unit, if it is always the same), or nullopt if the point failed. Throws
  // Error(invalid_argument) for a point outside the space or told before, and for a time that is
  // not finite and above 0.
  void tell(size_t point, std::optional<double> seconds);
  // The fastest point told so far; nullopt if none has succeeded.
  std::optional<SearchResult> best() const { return best_; }

 protected:
  explicit SearchStrategy(SearchSpace space);
  const SearchSpace& space() const noexcept { return space_; }         // what is searched
  bool is_open(size_t point) const noexcept { return !used_[point]; }  // neither asked for nor told

 private:
  // An open point. Called only while there is one.
  virtual size_t choose() = 0;
  virtual void learn(size_t /*point*/, std::optional<double> /*seconds*/) {}

  SearchSpace space_;
  std::vector<uint8_t> used_, told_;
  size_t open_ = 0;
  std::optional<SearchResult> best_;
};

// "exhaustive": every point in the order of the list. "random": every point in random order.
// "auto": the fewest evaluations to a good point; the only one to use the histories.
// Throws Error(invalid_argument) for another name, for a space whose points do not fit its
// parameters and for a history that does not fit the space.
std::unique_ptr<SearchStrategy> make_search(std::string_view name, SearchSpace space,
                                            uint64_t seed = 0,
                                            const std::vector<SearchHistory>& histories = {});

}  // namespace ejk
