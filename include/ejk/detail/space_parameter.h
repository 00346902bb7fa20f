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
#include <utility>
#include <vector>

#include <ejk/candidates.h>
#include <ejk/config.h>
#include <ejk/detail/export.h>

namespace EJK_EXPORT ejk {
namespace detail {

// ---- what compiled code sees --------------------------------------------------------------------

using FieldPath = std::vector<std::string>;  // {"fwd", "block"} is config.fwd.block
void enter(FieldPath& path, std::string_view field);
void leave(FieldPath& path);

// Values are known by their index among all that were met so far. Only `offer` meets new ones.
class SpaceParameter {
 public:
  virtual ~SpaceParameter();
  virtual SpaceParameter* clone() const = 0;  // the caller owns it
  const FieldPath& path() const { return path_; }
  std::vector<Value> values() const;
  // Whether the values depend on the parameters before.
  virtual bool is_dependent() const = 0;
  // The values to try after what is set in the config, each once.
  void offer(const void* config, std::vector<uint32_t>& values);
  virtual void set(void* config, uint32_t value) const = 0;
  virtual void reset(void* config, const void* defaults) const = 0;

 protected:
  SpaceParameter();
  SpaceParameter(const SpaceParameter& other);

  // Offers the value with that key. True if it was never met before.
  bool meet(std::string key);
  virtual void meet_offered(const void* config) = 0;
  virtual Value value(uint32_t index) const = 0;

  FieldPath path_;

 private:
  struct Met;
  std::shared_ptr<Met> met_;  // not shared
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
  // Owns the parameter from then on.
  void add(const SpaceParameter* parameter);
};

// The points of a space, counted when first asked for. Copies share them. Thread-safe.
class SpacePoints {
 public:
  SpacePoints();
  std::shared_ptr<const CandidateSet> of(const SpaceDefinition& space) const;

 private:
  struct Built;
  std::shared_ptr<Built> built_;
};

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
    enter(path, name);
    if constexpr (std::same_as<Member, T>) found = std::addressof(member) == std::addressof(field);
    if constexpr (std::is_class_v<Member> && !is_std_array<Member>)
      if constexpr (Reflected<Member>) found = found || find_path(member, field, path);
    if (!found) leave(path);
  });
  return found;
}

// Values are told apart by their JSON, as configs are. A number's bytes stand for it.
template <class T>
std::string key_of(const T& value) {
  if constexpr (std::integral<T> || std::is_enum_v<T>)
    return {reinterpret_cast<const char*>(&value), sizeof value};
  else if constexpr (std::same_as<T, std::string>) return value;
  else return ejk::stable_json(value_of(value));
}

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
    add(offered.list);
    Config config{};
    if (!find_path(config, field_(config), path_)) no_such_field(type_name<Config>());
  }

  SpaceParameter* clone() const override { return new TypedParameter(*this); }
  bool is_dependent() const override { return function_ != nullptr; }
  void set(void* config, uint32_t value) const override {
    field_(*static_cast<Config*>(config)) = values_[value];
  }
  void reset(void* config, const void* defaults) const override {
    field_(*static_cast<Config*>(config)) = field_(*static_cast<const Config*>(defaults));
  }

 private:
  void meet_offered(const void* config) override {
    add(function_(*static_cast<const Config*>(config)));
  }
  Value value(uint32_t index) const override { return value_of(T(values_[index])); }
  void add(const std::vector<T>& values) {
    for (size_t i = 0; i < values.size(); ++i)
      if (meet(key_of(T(values[i])))) values_.push_back(values[i]);
  }

  Field field_;
  std::function<std::vector<T>(const Config&)> function_;
  std::vector<T> values_;  // in the order they were met, each once
};

}  // namespace detail
}  // namespace ejk
