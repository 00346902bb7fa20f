// SPDX-License-Identifier: Apache-2.0
// What all sets of candidates share: their parameters, and points as indices of the values.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ejk/candidates.h>
#include <ejk/detail/space_parameter.h>

#include "candidates/point_set.h"

namespace ejk::detail {

// Where each parameter stands in a config, and which index a value has.
class ParameterTable {
 public:
  // The values must be different from each other.
  void add(FieldPath path, std::vector<Value> values);
  const std::vector<SearchParameter>& parameters() const noexcept { return parameters_; }
  // nullopt if a parameter is missing in the config or has a value that is not in the table.
  std::optional<std::vector<uint32_t>> indices_in(const Value& config) const;
  void write(std::span<const uint32_t> indices, Value& config) const;

 private:
  std::optional<uint32_t> index_of(size_t parameter, const Value& value) const;

  std::vector<SearchParameter> parameters_;
  std::vector<FieldPath> paths_;
  std::vector<std::unordered_map<std::string, uint32_t>> index_by_text_;
};

// "fwd.block"
std::string name_of(const FieldPath& path);
// Whether they are the same field, or one is a part of the other.
bool overlap(const FieldPath& a, const FieldPath& b);

class IndexedCandidates : public CandidateSet {
 public:
  uint64_t size() const override { return points_->size(); }
  const std::vector<SearchParameter>& parameters() const override { return table_.parameters(); }
  void indices(uint64_t point, std::span<uint32_t> out) const override;
  std::vector<uint64_t> neighbours(uint64_t point) const override;
  std::optional<uint64_t> find(const Value& config) const override;
  Value to_value() const override;

 protected:
  IndexedCandidates(ParameterTable table, std::unique_ptr<const PointSet> points)
      : table_(std::move(table)), points_(std::move(points)) {}
  const ParameterTable& table() const noexcept { return table_; }
  std::vector<uint32_t> indices_of(uint64_t point) const;
  void check(uint64_t point) const;

 private:
  // A config whose parameters are still to be written.
  virtual Value defaults() const = 0;

  ParameterTable table_;
  std::unique_ptr<const PointSet> points_;
};

}  // namespace ejk::detail
