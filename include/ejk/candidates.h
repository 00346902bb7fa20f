// SPDX-License-Identifier: Apache-2.0
// The configurations one call may run with, without their type: what is searched and measured.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <ejk/any_config.h>
#include <ejk/detail/export.h>
#include <ejk/search.h>
#include <ejk/value.h>

namespace EJK_EXPORT ejk {

// A finite set of configurations, made by Space::candidates, candidate_list or
// candidates_from_value. A point is known by its place, 0 .. size()-1; any other place given is
// Error(invalid_argument). Immutable, so it may be used from several threads.
class CandidateSet {
 public:
  virtual ~CandidateSet() = default;
  virtual uint64_t size() const = 0;                   // how many points there are
  virtual AnyConfig config(uint64_t point) const = 0;  // made on demand
  // Names and values. Of a list: the fields of its configs ("fwd.block" is a field of a field) with
  // the values that occur; configs without common fields are one parameter named "".
  virtual const std::vector<SearchParameter>& parameters() const = 0;
  // For each parameter the index of the point's value. out.size() == parameters().size()
  virtual void indices(uint64_t point, std::span<uint32_t> out) const = 0;
  // The points that differ from this one in exactly one parameter, ascending.
  virtual std::vector<uint64_t> neighbours(uint64_t point) const = 0;
  // The point whose config has this value (AnyConfig::to_value()), the first if there are several;
  // nullopt if there is none.
  virtual std::optional<uint64_t> find(const Value& config) const = 0;
  // For tools: {"defaults", "parameters", "points", "size"}. "defaults" has the fields that are no
  // parameter; "points" has the value indices of each point and is left out of sets with more than
  // max_written_points.
  virtual Value to_value() const = 0;
};

// CandidateSet::to_value writes the points of a set up to this size.
inline constexpr uint64_t max_written_points = 100'000;

// A list is a set too. Equal configs stay as many points as they were given.
std::shared_ptr<const CandidateSet> candidate_list(std::vector<AnyConfig> configs);

// What CandidateSet::to_value wrote; its configs are plain Values. Throws Error(parse) that names
// the place of whatever does not fit, and for a set without "points" that is not a plain product.
std::shared_ptr<const CandidateSet> candidates_from_value(const Value& value);

// `count` different points in random order, every choice equally likely; all of them if there are
// not more. The same seed gives the same points, and a smaller count the first of them.
std::vector<uint64_t> sample_points(const CandidateSet& set, uint64_t count, uint64_t seed);

}  // namespace ejk
