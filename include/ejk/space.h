// SPDX-License-Identifier: Apache-2.0
// Spaces of configurations: parameters, their values, and constraints between them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <ejk/candidates.h>
#include <ejk/config.h>
#include <ejk/detail/export.h>
#include <ejk/detail/space_parameter.h>

namespace EJK_EXPORT ejk {

// The configurations a kernel may run with: every combination of the parameters' values that the
// constraints accept, in the order the values were given (the last parameter varies fastest).
// Fields that are not parameters keep their defaults.
//
//   ejk::space<Config>()
//       .param(&Config::block, {256, 1024})
//       .param(&Config::tile, [](const Config& so_far) { return divisors(so_far.block); })
//       .where([](const Config& c) { return c.block * c.tile < 4096; })
//       .param(&Config::threads, {1, 2, 4})
//
// A constraint is checked once the parameters declared before it are set, and what it rejects is
// not looked into further: declare each right after the parameters it needs. Later parameters still
// have their defaults then. The product of all values is never walked.
//
// The valid points are counted once, when first asked for, and kept as a tree; copies share it.
// Asking may happen from several threads; declaring may not.
template <class Config>
class Space {
 public:
  // A list of values, or a function that gives one for the fields that were set before.
  template <class T>
  using Values = detail::OfferedValues<Config, T>;

  // The values of a field: {1, 2}, a vector, or a function that gives them for what the parameters
  // declared before are set to. A value given twice counts once; without values there is no point.
  // The field may belong to a base of Config. Throws Error(invalid_argument) for a field that is a
  // parameter already, or that is not written as JSON.
  template <class T, class Owner>
  Space& param(T Owner::*field, std::type_identity_t<Values<T>> values) & {
    return add<T>(
        [field](auto& config) -> auto& { return config.*field; }, std::move(values));
  }
  template <class T, class Owner>
  Space param(T Owner::*field, std::type_identity_t<Values<T>> values) && {
    return std::move(param(field, std::move(values)));
  }
  // A field of a field.
  template <class Outer, class Owner, class T, class Inner>
  Space& param(Outer Owner::*field, T Inner::*part, std::type_identity_t<Values<T>> values) & {
    return add<T>(
        [=](auto& config) -> auto& { return config.*field.*part; }, std::move(values));
  }
  template <class Outer, class Owner, class T, class Inner>
  Space param(Outer Owner::*field, T Inner::*part, std::type_identity_t<Values<T>> values) && {
    return std::move(param(field, part, std::move(values)));
  }
  // A constraint: only configs for which it gives true are points. It sees the parameters that were
  // declared before it, is called by the thread that asks for the points, and should give the same
  // answer each time.
  Space& where(std::function<bool(const Config&)> accept) & {
    definition_.constraints.push_back(
        {definition_.parameters.size(), [accept = std::move(accept)](const void* config) {
           return accept(*static_cast<const Config*>(config));
         }});
    points_ = {};
    return *this;
  }
  Space where(std::function<bool(const Config&)> accept) && {
    return std::move(where(std::move(accept)));
  }

  uint64_t size() const { return candidates()->size(); }  // configs that all conditions accept
  // The config at a place from 0 on, in the order above. Throws Error(invalid_argument) behind the
  // last one.
  Config operator[](uint64_t point) const {
    const AnyConfig config = candidates()->config(point);
    return config.as<Config>();
  }
  // All of them: mind the size.
  std::vector<Config> configs() const {
    const std::shared_ptr<const CandidateSet> set = candidates();
    std::vector<Config> out;
    for (uint64_t i = 0; i < set->size(); ++i) out.push_back(set->config(i).as<Config>());
    return out;
  }
  // `count` different points, as sample_points gives them.
  std::vector<uint64_t> sample(uint64_t count, uint64_t seed) const {
    return sample_points(*candidates(), count, seed);
  }
  // The valid points that differ from this one in exactly one parameter, ascending.
  std::vector<uint64_t> neighbours(uint64_t point) const { return candidates()->neighbours(point); }
  // The place of a config; nullopt if it is not a point of this space.
  std::optional<uint64_t> index_of(const Config& config) const {
    return candidates()->find(to_value(config));
  }

  // Whether a config is a point, without counting the points. Throws what a constraint or a
  // function of values throws.
  bool contains(const Config& config) const {
    return detail::space_contains(definition_, to_value(config));
  }

  // The same without its type. Throws what a constraint or a function of values throws, and
  // Error(invalid_argument) if there are 2^64 points or more.
  std::shared_ptr<const CandidateSet> candidates() const { return points_.of(definition_); }

 private:
  template <class T, class Field>
  Space& add(Field field, Values<T> values) {
    definition_.add(new detail::TypedParameter<Config, T, Field>(field, std::move(values)));
    points_ = {};
    return *this;
  }

  detail::SpaceDefinition definition_{
      &config_type<Config>(),
      []() -> std::shared_ptr<void> { return std::make_shared<Config>(); },
      {},
      {}};
  detail::SpacePoints points_;
};

// An empty space: add parameters with param, conditions with where.
template <class Config>
Space<Config> space() {
  return {};
}

}  // namespace ejk
