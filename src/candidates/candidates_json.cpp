// SPDX-License-Identifier: Apache-2.0
// Sets of candidates read from JSON, which may be anything.

#include <algorithm>
#include <initializer_list>

#include <ejk/error.h>

#include "base/format.h"
#include "candidates/candidate_set.h"

namespace ejk {
namespace detail {
namespace {

constexpr size_t max_parameters = 1000;  // a product of many would be written as endless points
constexpr size_t max_path = 64;          // nested deeper, a config could not be destroyed safely

[[noreturn]] void malformed(const std::string& place, const std::string& problem) {
  throw Error(ErrorKind::parse, "candidates: " + place + ": " + problem);
}

const Value& member(const Value& of, const std::string& place, std::string_view name) {
  if (!of.is_object())
    malformed(place, "expected an object, found " + std::string(kind_name(of.kind())));
  const Value* found = of.find(name);
  if (found == nullptr) malformed(place, fmt::format("\"{}\" is missing", name));
  return *found;
}

const Value::Array& array_in(const Value& value, const std::string& place) {
  if (!value.is_array())
    malformed(place, "expected an array, found " + std::string(kind_name(value.kind())));
  return value.as_array();
}

uint64_t count_in(const Value& value, const std::string& place) {
  if (!value.is_int() || (value.kind() == Value::Kind::integer && value.as_int() < 0))
    malformed(place, "expected a count, found " + stable_json(value));
  return value.as_uint();
}

void check_members(const Value& object, const std::string& place,
                   std::initializer_list<std::string_view> known) {
  for (const auto& m : object.as_object().members)
    if (std::ranges::find(known, m.first) == known.end())
      malformed(place, fmt::format("\"{}\" is not known", m.first));
}

FieldPath path_in(const std::string& name, const std::string& place) {
  FieldPath path;
  for (size_t begin = 0; begin <= name.size() && !name.empty();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    if (end == begin) malformed(place, "has an empty part");
    if (path.size() == max_path) malformed(place, fmt::format("has more than {} parts", max_path));
    path.push_back(name.substr(begin, end - begin));
    begin = end + 1;
  }
  return path;
}

void check_distinct(const Value::Array& values, const std::string& place) {
  std::unordered_map<std::string, size_t> known;
  for (size_t i = 0; i < values.size(); ++i)
    if (!known.emplace(stable_json(values[i]), i).second)
      malformed(fmt::format("{}[{}]", place, i), "is there twice");
}

// Writing the parameter must not have to go through a number or a string.
void check_place_in(const Value& defaults, const FieldPath& path, const std::string& place) {
  const Value* at = &defaults;
  for (const std::string& name : path) {
    if (!at->is_object() && !at->is_null())
      malformed(place, "stands in \"defaults\" inside a value that is not an object");
    if (at = at->find(name); at == nullptr) return;
  }
}

ParameterTable read_parameters(const Value& list, const Value& defaults) {
  ParameterTable table;
  std::vector<FieldPath> paths;
  const auto& items = array_in(list, "parameters");
  if (items.size() > max_parameters)
    malformed("parameters", fmt::format("has {}; the most are {}", items.size(), max_parameters));
  for (size_t i = 0; i < items.size(); ++i) {
    const std::string place = fmt::format("parameters[{}]", i);
    const Value& name = member(items[i], place, "name");
    const Value& values = member(items[i], place, "values");
    check_members(items[i], place, {"name", "values"});
    if (!name.is_string()) malformed(place + ".name", "expected a string");
    FieldPath path = path_in(name.as_string(), place + ".name");
    for (const FieldPath& other : paths)
      if (overlap(path, other))
        malformed(place + ".name", stable_json(name) + " was given before, or a part of it");
    check_place_in(defaults, path, place + ".name");
    check_distinct(array_in(values, place + ".values"), place + ".values");
    paths.push_back(path);
    table.add(std::move(path), values.as_array());
  }
  return table;
}

std::optional<uint32_t> index_below(size_t count, const Value& value) {
  if (value.kind() != Value::Kind::integer || !std::in_range<size_t>(value.as_int()))
    return std::nullopt;
  const auto index = static_cast<size_t>(value.as_int());
  return index < count ? std::optional(static_cast<uint32_t>(index)) : std::nullopt;
}

std::unique_ptr<PointSet> read_points(const Value& list, uint64_t size,
                                      const std::vector<SearchParameter>& parameters) {
  const auto& points = array_in(list, "points");
  if (points.size() != size)
    malformed("points", fmt::format("has {}, but \"size\" is {}", points.size(), size));
  std::vector<uint32_t> cells;
  for (size_t i = 0; i < points.size(); ++i) {
    const std::string place = fmt::format("points[{}]", i);
    const auto& indices = array_in(points[i], place);
    if (indices.size() != parameters.size())
      malformed(place,
                fmt::format("has {} indices for {} parameters", indices.size(), parameters.size()));
    for (size_t k = 0; k < indices.size(); ++k) {
      const auto index = index_below(parameters[k].values.size(), indices[k]);
      if (!index)
        malformed(fmt::format("{}[{}]", place, k),
                  fmt::format("expected an index below {}, found {}", parameters[k].values.size(),
                              stable_json(indices[k])));
      cells.push_back(*index);
    }
  }
  return std::make_unique<PointList>(size, parameters.size(), std::move(cells));
}

// Without points a set can only be the whole product.
std::unique_ptr<PointSet> product_of(uint64_t size,
                                     const std::vector<SearchParameter>& parameters) {
  std::vector<uint32_t> counts;
  std::optional<uint64_t> points = 1;
  for (const SearchParameter& p : parameters) {
    counts.push_back(static_cast<uint32_t>(p.values.size()));
    points = points ? product(*points, p.values.size()) : points;
  }
  if (points != size)
    malformed("points",
              fmt::format("is missing, and the {} points are not the whole product", size));
  return std::make_unique<PointTree>(std::vector<TreeLayer>{}, 1, std::move(counts));
}

// Configs are made when asked for: all of them could take far more memory than their description.
class ReadCandidates final : public IndexedCandidates {
 public:
  ReadCandidates(ParameterTable table, std::unique_ptr<const PointSet> points, Value defaults)
      : IndexedCandidates(std::move(table), std::move(points)), defaults_(std::move(defaults)) {}
  AnyConfig config(uint64_t point) const override {
    Value config = defaults_;
    table().write(indices_of(point), config);
    return make_config(std::move(config));
  }

 private:
  Value defaults() const override { return defaults_; }

  Value defaults_;
};

}  // namespace
}  // namespace detail

std::shared_ptr<const CandidateSet> candidates_from_value(const Value& value) {
  using namespace detail;
  const Value& defaults = member(value, "the set", "defaults");
  const uint64_t size = count_in(member(value, "the set", "size"), "size");
  check_members(value, "the set", {"defaults", "parameters", "points", "size"});
  ParameterTable table = read_parameters(member(value, "the set", "parameters"), defaults);
  const Value* written = value.find("points");
  auto points = written ? read_points(*written, size, table.parameters())
                        : product_of(size, table.parameters());
  return std::make_shared<ReadCandidates>(std::move(table), std::move(points), defaults);
}

}  // namespace ejk
