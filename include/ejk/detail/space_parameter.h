// SPDX-License-Identifier: Apache-2.0
// One parameter of a space: its field, its values, and the form in which compiled code sees it.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ejk/candidates.h>
#include <ejk/config.h>

namespace ejk::detail {

// ---- what compiled code sees --------------------------------------------------------------------

using FieldPath = std::vector<std::string>;  // {"fwd", "block"} is config.fwd.block

// Values are known by their index among all that were met so far. Only `offer` meets new ones.
class SpaceParameter {
 public:
  virtual ~SpaceParameter() = default;
  virtual std::unique_ptr<SpaceParameter> clone() const = 0;
  virtual const FieldPath& path() const = 0;
  virtual std::vector<Value> values() const = 0;
  // Whether the values depend on the parameters before.
  virtual bool is_dependent() const = 0;
  // The values to try after what is set in the config, each once.
  virtual void offer(const void* config, std::vector<uint32_t>& values) = 0;
  virtual void set(void* config, uint32_t value) const = 0;
  virtual void reset(void* config, const void* defaults) const = 0;
};

struct SpaceConstraint {
  size_t after;  // how many parameters are set when it is asked
  std::function<bool(const void* config)> accept;
};

struct SpaceDefinition {
  const ConfigType* type;
  std::shared_ptr<void> (*make_default)();
  std::vector<std::shared_ptr<const SpaceParameter>> parameters;
  std::vector<SpaceConstraint> constraints;

  // Throws Error(invalid_argument) if the field, or one it is a part of, is a parameter already.
  void add(std::shared_ptr<const SpaceParameter> parameter);
};

// Walks the parameters in order and gives up a way as soon as a constraint rejects it.
std::shared_ptr<const CandidateSet> build_space(const SpaceDefinition& space);
// Goes only the way of this config.
bool space_contains(const SpaceDefinition& space, const Value& config);

[[noreturn]] void no_such_field(std::string_view config_type);

// ---- the typed side -----------------------------------------------------------------------------

// Finds the field by its address. False if it is not among the fields that are written as JSON.
template <class Owner, class T>
bool find_path(const Owner& owner, const T& field, FieldPath& path) {
  bool found = false;
  for_each_field(owner, [&](std::string_view name, const auto& member) {
    using Member = std::remove_cvref_t<decltype(member)>;
    if (found) return;
    path.emplace_back(name);
    if constexpr (std::same_as<Member, T>) found = std::addressof(member) == std::addressof(field);
    if constexpr (std::is_class_v<Member> && !is_std_array<Member>)
      if constexpr (Reflected<Member>) found = found || find_path(member, field, path);
    if (!found) path.pop_back();
  });
  return found;
}

// Values in the order they were met, each once. They are told apart by their JSON, as configs are.
template <class T>
class DistinctValues {
 public:
  uint32_t index_of(const T& value) {
    const auto [at, is_new] = index_.try_emplace(key_of(value), static_cast<uint32_t>(size()));
    if (is_new) values_.push_back(value);
    return at->second;
  }
  size_t size() const noexcept { return values_.size(); }
  T operator[](uint32_t index) const { return values_[index]; }

 private:
  static constexpr bool is_own_key =
      std::integral<T> || std::is_enum_v<T> || std::same_as<T, std::string>;
  using Key = std::conditional_t<is_own_key, T, std::string>;
  static Key key_of(const T& value) {
    if constexpr (is_own_key) return value;
    else return ejk::stable_json(value_of(value));
  }

  std::vector<T> values_;
  std::unordered_map<Key, uint32_t> index_;
};

// A list of values, or a function that gives them for what is set so far.
template <class Config, class T>
class OfferedValues {
 public:
  OfferedValues() = default;
  OfferedValues(std::initializer_list<T> values) : list(values) {}
  OfferedValues(std::vector<T> values) : list(std::move(values)) {}
  template <class F>
  requires std::invocable<const F&, const Config&> OfferedValues(F values)
      : function([values = std::move(values)](const Config& so_far) {
          std::vector<T> out;
          for (auto&& value : values(so_far)) out.push_back(static_cast<T>(value));
          return out;
        }) {}

  std::vector<T> list;
  std::function<std::vector<T>(const Config&)> function;  // empty: the list counts
};

template <class Config, class T, class Field>
class TypedParameter final : public SpaceParameter {
 public:
  TypedParameter(Field field, OfferedValues<Config, T> offered)
      : field_(field), function_(std::move(offered.function)) {
    for (size_t i = 0; i < offered.list.size(); ++i) values_.index_of(offered.list[i]);
    Config config{};
    if (!find_path(config, field_(config), path_)) no_such_field(type_name<Config>());
  }

  std::unique_ptr<SpaceParameter> clone() const override {
    return std::make_unique<TypedParameter>(*this);
  }
  const FieldPath& path() const override { return path_; }
  std::vector<Value> values() const override {
    std::vector<Value> out;
    for (uint32_t i = 0; i < values_.size(); ++i) out.push_back(value_of(T(values_[i])));
    return out;
  }
  bool is_dependent() const override { return function_ != nullptr; }

  void offer(const void* config, std::vector<uint32_t>& values) override {
    values.clear();
    if (!function_) {
      for (uint32_t i = 0; i < values_.size(); ++i) values.push_back(i);
      return;
    }
    ++round_;
    const std::vector<T> offered = function_(*static_cast<const Config*>(config));
    for (size_t i = 0; i < offered.size(); ++i) {
      const uint32_t index = values_.index_of(offered[i]);
      if (index >= offered_in_.size()) offered_in_.resize(index + 1);
      if (std::exchange(offered_in_[index], round_) != round_) values.push_back(index);
    }
  }

  void set(void* config, uint32_t value) const override {
    field_(*static_cast<Config*>(config)) = values_[value];
  }
  void reset(void* config, const void* defaults) const override {
    field_(*static_cast<Config*>(config)) = field_(*static_cast<const Config*>(defaults));
  }

 private:
  Field field_;
  std::function<std::vector<T>(const Config&)> function_;
  FieldPath path_;
  DistinctValues<T> values_;
  uint64_t round_ = 0;                // calls of `offer`
  std::vector<uint64_t> offered_in_;  // the last round in which a value was offered
};

}  // namespace ejk::detail
