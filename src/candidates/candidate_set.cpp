// SPDX-License-Identifier: Apache-2.0
// Sets of candidates: what they share, lists, and samples.
#include "candidates/candidate_set.h"

#include <algorithm>
#include <numeric>
#include <random>

#include <ejk/error.h>

#include "base/format.h"

namespace ejk {
namespace detail {

// ---- parameters ---------------------------------------------------------------------------------

std::string name_of(const FieldPath& path) { return fmt::format("{}", fmt::join(path, ".")); }

bool overlap(const FieldPath& a, const FieldPath& b) {
  const auto [in_a, in_b] = std::ranges::mismatch(a, b);
  return in_a == a.end() || in_b == b.end();
}

void ParameterTable::add(FieldPath path, std::vector<Value> values) {
  auto& index = index_by_text_.emplace_back();
  for (uint32_t i = 0; i < values.size(); ++i) index.emplace(stable_json(values[i]), i);
  parameters_.push_back({name_of(path), std::move(values)});
  paths_.push_back(std::move(path));
}

std::optional<std::vector<uint32_t>> ParameterTable::indices_in(const Value& config) const {
  std::vector<uint32_t> out;
  for (size_t i = 0; i < paths_.size(); ++i) {
    const Value* value = &config;
    for (const std::string& name : paths_[i])
      if (value = value->find(name); value == nullptr) return std::nullopt;
    const auto index = index_of(i, *value);
    if (!index) return std::nullopt;
    out.push_back(*index);
  }
  return out;
}

std::optional<uint32_t> ParameterTable::index_of(size_t parameter, const Value& value) const {
  const auto& index = index_by_text_[parameter];
  if (const auto at = index.find(stable_json(value)); at != index.end()) return at->second;
  if (!value.is_array() && !value.is_object()) return std::nullopt;
  // Equal all the same: a map with numbers for keys has another text once it was read from a file.
  const auto& values = parameters_[parameter].values;
  const auto same = std::ranges::find(values, value);
  if (same == values.end()) return std::nullopt;
  return static_cast<uint32_t>(same - values.begin());
}

void ParameterTable::write(std::span<const uint32_t> indices, Value& config) const {
  for (size_t i = 0; i < paths_.size(); ++i) {
    Value* place = &config;
    for (const std::string& name : paths_[i]) place = &(*place)[name];
    *place = parameters_[i].values[indices[i]];
  }
}

// ---- what all sets share ------------------------------------------------------------------------

namespace {

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorKind::invalid_argument, "candidates: " + message);
}

}  // namespace

void IndexedCandidates::check(uint64_t point) const {
  if (point >= size()) refuse(fmt::format("there is no point {}; the set has {}", point, size()));
}

void IndexedCandidates::indices(uint64_t point, std::span<uint32_t> out) const {
  check(point);
  if (out.size() != parameters().size())
    refuse(fmt::format("room for {} indices was given; the set has {} parameters", out.size(),
                       parameters().size()));
  points_->indices(point, out);
}

std::vector<uint32_t> IndexedCandidates::indices_of(uint64_t point) const {
  std::vector<uint32_t> out(parameters().size());
  indices(point, out);
  return out;
}

std::vector<uint64_t> IndexedCandidates::neighbours(uint64_t point) const {
  check(point);
  return points_->neighbours(point);
}

std::optional<uint64_t> IndexedCandidates::find(const Value& config) const {
  const auto indices = table_.indices_in(config);
  if (!indices) return std::nullopt;
  const auto point = points_->find(*indices);
  // The fields that are not parameters must be the same too.
  return point && this->config(*point).to_value() == config ? point : std::nullopt;
}

Value IndexedCandidates::to_value() const {
  Value out = Value::object();
  out["size"] = size();
  out["defaults"] = defaults();
  Value& parameters_out = out["parameters"] = Value::array();
  for (const SearchParameter& p : parameters())
    parameters_out.push_back(Value::object({{"name", p.name}, {"values", Value::Array(p.values)}}));
  if (size() > max_written_points) return out;
  Value points = Value::array();
  for (uint64_t i = 0; i < size(); ++i) {
    const auto indices = indices_of(i);
    points.push_back(Value::Array(indices.begin(), indices.end()));
  }
  out["points"] = std::move(points);
  return out;
}

// ---- a list -------------------------------------------------------------------------------------

namespace {

// Fields of other kinds than structs and those that not all configs have are taken as they are.
bool have_the_same_fields(const std::vector<const Value*>& values) {
  auto is_struct = [](const Value* v) {
    return v->is_object() && !v->as_object().members.empty() && !v->as_object().ordered;
  };
  if (values.empty() || !std::ranges::all_of(values, is_struct)) return false;
  const auto& members = values.front()->as_object().members;
  // A dot would make two names of one.
  auto is_plain = [](const Value::Member& m) {
    return !m.first.empty() && m.first.find('.') == std::string::npos;
  };
  return std::ranges::all_of(members, is_plain) && std::ranges::all_of(values, [&](const Value* v) {
           return v->as_object().members.size() == members.size() &&
                  std::ranges::all_of(members,
                                      [&](const auto& m) { return v->find(m.first) != nullptr; });
         });
}

// One parameter per field of the configs, and the index of each config's value.
class ListReader {
 public:
  explicit ListReader(const std::vector<Value>& configs) {
    if (configs.empty()) return;
    std::vector<const Value*> all;
    for (const Value& c : configs) all.push_back(&c);
    read(all, {});
  }

  ParameterTable table;
  std::vector<std::vector<uint32_t>> columns;  // parameter, config

 private:
  void read(const std::vector<const Value*>& values, const FieldPath& path) {
    if (!have_the_same_fields(values)) return read_leaf(values, path);
    for (const auto& member : values.front()->as_object().members) {
      std::vector<const Value*> fields;
      for (const Value* v : values) fields.push_back(v->find(member.first));
      FieldPath below = path;
      below.push_back(member.first);
      read(fields, below);
    }
  }

  void read_leaf(const std::vector<const Value*>& values, const FieldPath& path) {
    std::unordered_map<std::string, uint32_t> known;
    std::vector<Value> distinct;
    auto& column = columns.emplace_back();
    for (const Value* v : values) {
      const auto [at, is_new] =
          known.try_emplace(stable_json(*v), static_cast<uint32_t>(distinct.size()));
      if (is_new) distinct.push_back(*v);
      column.push_back(at->second);
    }
    table.add(path, std::move(distinct));
  }
};

class ListCandidates final : public IndexedCandidates {
 public:
  ListCandidates(ParameterTable table, std::unique_ptr<const PointSet> points,
                 std::vector<AnyConfig> configs)
      : IndexedCandidates(std::move(table), std::move(points)), configs_(std::move(configs)) {}
  AnyConfig config(uint64_t point) const override {
    check(point);
    return configs_[point];
  }

 private:
  Value defaults() const override { return {}; }

  std::vector<AnyConfig> configs_;
};

std::unique_ptr<PointList> points_of(const std::vector<std::vector<uint32_t>>& columns,
                                     size_t size) {
  std::vector<uint32_t> cells;
  cells.reserve(columns.size() * size);
  for (size_t i = 0; i < size; ++i)
    for (const auto& column : columns) cells.push_back(column[i]);
  return std::make_unique<PointList>(size, columns.size(), std::move(cells));
}

}  // namespace
}  // namespace detail

std::shared_ptr<const CandidateSet> candidate_list(std::vector<AnyConfig> configs) {
  std::vector<Value> values;
  for (const AnyConfig& c : configs) values.push_back(c.to_value());
  detail::ListReader reader(values);
  auto points = detail::points_of(reader.columns, configs.size());
  return std::make_shared<detail::ListCandidates>(std::move(reader.table), std::move(points),
                                                  std::move(configs));
}

// ---- samples ------------------------------------------------------------------------------------

namespace {

// Below `limit`, each equally likely; the same on every platform, as std's distributions are not.
uint64_t draw(std::mt19937_64& random, uint64_t limit) {
  const uint64_t unfair = (0 - limit) % limit;  // 2^64 mod limit: as many numbers are left out
  uint64_t number = random();
  while (number < unfair) number = random();
  return number % limit;
}

// A shuffle that ends after `count` cards. `card(i)` gives a reference to what lies at i.
template <class Card>
std::vector<uint64_t> deal(uint64_t size, uint64_t count, uint64_t seed, Card card) {
  std::mt19937_64 random(seed);
  std::vector<uint64_t> out;
  out.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t drawn = i + draw(random, size - i);
    const uint64_t first = card(i);
    out.push_back(std::exchange(card(drawn), first));
  }
  return out;
}

}  // namespace

std::vector<uint64_t> sample_points(const CandidateSet& set, uint64_t count, uint64_t seed) {
  const uint64_t size = set.size();
  count = std::min(count, size);
  if (count > size / 8) {
    std::vector<uint64_t> cards(size);
    std::iota(cards.begin(), cards.end(), uint64_t{0});
    return deal(size, count, seed, [&](uint64_t i) -> uint64_t& { return cards[i]; });
  }
  std::unordered_map<uint64_t, uint64_t> moved;  // cards that lie elsewhere than at their own place
  return deal(size, count, seed,
              [&](uint64_t i) -> uint64_t& { return moved.try_emplace(i, i).first->second; });
}

}  // namespace ejk
