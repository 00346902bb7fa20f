// SPDX-License-Identifier: Apache-2.0
// A space from its parameters and constraints: the tree of its valid points.
#include <ejk/space.h>

#include <algorithm>
#include <mutex>
#include <numeric>
#include <unordered_map>
#include <utility>

#include <ejk/error.h>

#include "candidates/candidate_set.h"

namespace ejk::detail {
namespace {

using Parameters = std::vector<std::unique_ptr<SpaceParameter>>;

[[noreturn]] void refuse(std::string_view config_type, const std::string& message) {
  throw Error(ErrorKind::invalid_argument, "space of " + std::string(config_type) + ": " + message);
}

// Goes through the values of the parameters in order, depth first.
class Walk {
 public:
  Walk(const SpaceDefinition& space, const Parameters& parameters)
      : parameters_(parameters),
        constraints_(parameters.size() + 1),
        offered_(parameters.size()),
        edges_(parameters.size()),
        config_(space.make_default()),
        defaults_(space.make_default()) {
    for (const SpaceConstraint& c : space.constraints) {
      constraints_[c.after].push_back(&c.accept);
      depth_ = std::max(depth_, c.after);
    }
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (parameters[i]->is_dependent()) depth_ = std::max(depth_, i + 1);
      else parameters[i]->offer(nullptr, offered_[i]);
    }
    for (size_t i = 0; i < depth_; ++i) layers_.emplace_back(i + 1 == depth_);
  }

  // nullptr if there are too many.
  std::unique_ptr<PointTree> points() {
    std::vector<uint32_t> free_counts;
    for (size_t i = depth_; i < offered_.size(); ++i)
      free_counts.push_back(static_cast<uint32_t>(offered_[i].size()));
    const uint64_t leaves = lacks_values() ? 0 : walk_all();
    std::optional<uint64_t> size = leaves;
    for (const uint32_t count : free_counts) size = size ? product(*size, count) : size;
    if (!size) return nullptr;
    return std::make_unique<PointTree>(std::move(layers_), leaves, std::move(free_counts));
  }

 private:
  bool lacks_values() const {
    for (size_t i = 0; i < parameters_.size(); ++i)
      if (!parameters_[i]->is_dependent() && offered_[i].empty()) return true;
    return false;
  }

  uint64_t walk_all() {
    if (!accepted(0)) return 0;
    if (depth_ == 0) return 1;
    const uint32_t root = walk(0);
    for (TreeLayer& layer : layers_) layer.finish();
    return layers_[0].leaves(root);
  }

  bool accepted(size_t parameters_set) const {
    return std::ranges::all_of(constraints_[parameters_set],
                               [&](const auto* accept) { return (*accept)(config_.get()); });
  }

  // The node for what is set so far.
  uint32_t walk(size_t depth) {
    SpaceParameter& parameter = *parameters_[depth];
    if (parameter.is_dependent()) parameter.offer(config_.get(), offered_[depth]);
    auto& edges = edges_[depth];
    edges.clear();
    for (const uint32_t value : offered_[depth]) {
      parameter.set(config_.get(), value);
      if (accepted(depth + 1)) append_edge(depth, value);
    }
    parameter.reset(config_.get(), defaults_.get());  // a constraint must not see what was tried
    return layers_[depth].add(edges);
  }

  void append_edge(size_t depth, uint32_t value) {
    if (depth + 1 == depth_) return edges_[depth].push_back({value, 0, 1});
    const uint32_t child = walk(depth + 1);
    const uint64_t leaves = layers_[depth + 1].leaves(child);
    if (leaves > 0) edges_[depth].push_back({value, child, leaves});
  }

  const Parameters& parameters_;
  std::vector<std::vector<const std::function<bool(const void*)>*>> constraints_;
  std::vector<std::vector<uint32_t>> offered_;
  std::vector<std::vector<TreeLayer::Edge>> edges_;  // of the node at each depth
  std::shared_ptr<void> config_;
  std::shared_ptr<const void> defaults_;
  size_t depth_ = 0;  // parameters from here on are free
  std::vector<TreeLayer> layers_;
};

class SpaceCandidates final : public IndexedCandidates {
 public:
  SpaceCandidates(ParameterTable table, std::unique_ptr<const PointSet> points,
                  const SpaceDefinition& space, Parameters parameters)
      : IndexedCandidates(std::move(table), std::move(points)),
        type_(space.type),
        make_default_(space.make_default),
        parameters_(std::move(parameters)) {}

  AnyConfig config(uint64_t point) const override {
    const std::vector<uint32_t> values = indices_of(point);
    std::shared_ptr<void> config = make_default_();
    for (size_t i = 0; i < values.size(); ++i) parameters_[i]->set(config.get(), values[i]);
    return {std::move(config), type_};
  }

 private:
  Value defaults() const override { return type_->to_value(make_default_().get()); }

  const ConfigType* type_;
  std::shared_ptr<void> (*make_default_)();
  Parameters parameters_;
};

// Walks the parameters in order and gives up a way as soon as a constraint rejects it.
std::shared_ptr<const CandidateSet> build_space(const SpaceDefinition& space) {
  Parameters parameters;
  for (const auto& p : space.parameters) parameters.emplace_back(p->clone());
  auto points = Walk(space, parameters).points();
  if (!points)
    refuse(space.type->name, "has 2^64 points or more; leave out values or add constraints");
  ParameterTable table;
  for (const auto& p : parameters) table.add(p->path(), p->values());
  return std::make_shared<SpaceCandidates>(std::move(table), std::move(points), space,
                                           std::move(parameters));
}

}  // namespace

void enter(FieldPath& path, std::string_view field) { path.emplace_back(field); }
void leave(FieldPath& path) { path.pop_back(); }

struct SpaceParameter::Met {
  std::unordered_map<std::string, uint32_t> index;
  uint64_t round = 0;                      // calls of `offer`
  std::vector<uint64_t> offered_in;        // the last round in which a value was offered
  std::vector<uint32_t>* offer = nullptr;  // where the present round's go
};

SpaceParameter::SpaceParameter() : met_(std::make_unique<Met>()) {}
SpaceParameter::SpaceParameter(const SpaceParameter& other)
    : path_(other.path_), met_(std::make_unique<Met>(*other.met_)) {}
SpaceParameter::~SpaceParameter() = default;

std::vector<Value> SpaceParameter::values() const {
  std::vector<Value> out;
  for (uint32_t i = 0; i < met_->index.size(); ++i) out.push_back(value(i));
  return out;
}

bool SpaceParameter::meet(std::string key) {
  const auto [at, is_new] =
      met_->index.try_emplace(std::move(key), static_cast<uint32_t>(met_->index.size()));
  if (is_new) met_->offered_in.push_back(0);
  const bool again = std::exchange(met_->offered_in[at->second], met_->round) == met_->round;
  if (met_->offer != nullptr && !again) met_->offer->push_back(at->second);
  return is_new;
}

void SpaceParameter::offer(const void* config, std::vector<uint32_t>& values) {
  values.clear();
  if (!is_dependent()) {
    values.resize(met_->index.size());
    std::iota(values.begin(), values.end(), 0U);
    return;
  }
  ++met_->round;
  met_->offer = &values;
  meet_offered(config);
  met_->offer = nullptr;
}

void no_such_field(std::string_view config_type) {
  refuse(config_type,
         "a parameter is not among the fields that are written as JSON; name it in EJK_CONFIG");
}

void SpaceDefinition::add(const SpaceParameter* taken) {
  std::shared_ptr<const SpaceParameter> parameter(taken);
  for (const auto& other : parameters)
    if (overlap(parameter->path(), other->path()))
      refuse(type->name, "the parameter \"" + name_of(parameter->path()) +
                             "\" was given before (as \"" + name_of(other->path()) +
                             "\"); give all its values at once");
  parameters.push_back(std::move(parameter));
}

struct SpacePoints::Built {
  std::mutex mutex;
  std::shared_ptr<const CandidateSet> set;
};

SpacePoints::SpacePoints() : built_(std::make_shared<Built>()) {}

std::shared_ptr<const CandidateSet> SpacePoints::of(const SpaceDefinition& space) const {
  std::lock_guard lock(built_->mutex);
  if (!built_->set) built_->set = build_space(space);
  return built_->set;
}

bool space_contains(const SpaceDefinition& space, const Value& config) {
  const std::shared_ptr<void> so_far = space.make_default();
  const auto accepted = [&](size_t parameters_set) {
    return std::ranges::all_of(space.constraints, [&](const SpaceConstraint& c) {
      return c.after != parameters_set || c.accept(so_far.get());
    });
  };
  if (!accepted(0)) return false;
  for (size_t i = 0; i < space.parameters.size(); ++i) {
    const std::unique_ptr<SpaceParameter> parameter(space.parameters[i]->clone());
    const Value* wanted = &config;
    for (const std::string& name : parameter->path())
      if (wanted = wanted->find(name); wanted == nullptr) return false;
    std::vector<uint32_t> offered;
    parameter->offer(so_far.get(), offered);
    const std::vector<Value> values = parameter->values();
    const auto found =
        std::ranges::find_if(offered, [&](uint32_t value) { return values[value] == *wanted; });
    if (found == offered.end()) return false;
    parameter->set(so_far.get(), *found);
    if (!accepted(i + 1)) return false;
  }
  // The fields that are not parameters must be the same too.
  return space.type->to_value(so_far.get()) == config;
}

}  // namespace ejk::detail
