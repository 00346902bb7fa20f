// SPDX-License-Identifier: Apache-2.0
// Arguments without their data, and arguments made again from that.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ejk/config.h>
#include <ejk/detail/bind.h>
#include <ejk/detail/export.h>

namespace EJK_EXPORT ejk {
namespace detail {

// An array's type, shape and strides and, unless it is only written, what its elements are like:
// ranges, bounds of integers and how many are how large, a seed.
Value sketch_array(const AnyView& array, Role role);

// Owns what rebuilt arguments refer to.
class RebuiltData {
 public:
  // `home`: where arrays that may live on a device do; nullptr: the CPU.
  explicit RebuiltData(std::vector<Tensor> given = {}, const Device* home = nullptr)
      : given_(std::move(given)), home_(home) {}

  // The array that {"given": i} names; nullptr if the sketch is one of its own kind.
  const Tensor* given(const Value& sketch) const;
  // An array like the sketched one, on the CPU. Throws Error(parse) if that is not a sketch of an
  // array, and Error(invalid_argument) if it would not fit into memory.
  const ArrayRef& array(const Value& sketch);
  // The same where the call's arrays live; packed, if that is a device.
  const ArrayRef& array_at_home(const Value& sketch);
  // A tensor there, packed.
  Tensor tensor_at_home(const Value& sketch);
  const std::string& text(std::string text);

 private:
  std::vector<Tensor> given_;
  const Device* home_;
  std::vector<std::shared_ptr<const void>> owned_;
  size_t bytes_ = 0;
};
// Fills an array with elements like the sketched ones.
void fill_array(const AnyView& array, const Value& sketch);

[[noreturn]] void cannot_rebuild(std::string_view what);

template <class P>
concept ViewsAnArray = requires(const P& p) {
  { ArgTraits<P>::array(p) } -> std::same_as<ArrayRef>;
};
template <class P>
inline constexpr bool is_array_vector = false;
template <ArrayElement T, class A>
inline constexpr bool is_array_vector<std::vector<T, A>> = true;

// What `rebuild` makes the argument of again; `array_value` gives the sketch of an array.
template <class P, class ArrayValue>
Value argument_value(const P& p, Role role, const ArrayValue& array_value) {
  if constexpr (is_a<P, Out>) return argument_value(p.view, Role::output, array_value);
  else if constexpr (is_named<P>) return argument_value(p.value, role, array_value);
  else if constexpr (is_a<P, Keyed>) return value_of(p.value);
  else if constexpr (is_a<P, Unkeyed>) {
    if constexpr (Argument<decltype(p.value)>) return argument_value(p.value, role, array_value);
    else return {};
  } else if constexpr (ViewsAnArray<P>) return array_value(ArgTraits<P>::array(p).any(), role);
  else if constexpr (std::same_as<P, Tensor>) return array_value(p.any(), role);
  else if constexpr (is_array_vector<P>) {
    std::array<int64_t, 1> size;
    return array_value(view_vector(p, size), role);
  } else if constexpr (std::same_as<P, Half> || std::same_as<P, BFloat16>)
    return static_cast<double>(static_cast<float>(p));
  else if constexpr (Complex<P>) return Value(Value::Array{p.real(), p.imag()});
  else if constexpr (is_a<P, std::optional>) {
    if (!p) return {};
    return Value::object({{"some", argument_value(*p, role, array_value)}});
  } else if constexpr (is_a<P, std::tuple> || is_a<P, std::pair>) {
    Value out = Value::array();
    std::apply(
        [&](const auto&... item) { (out.push_back(argument_value(item, role, array_value)), ...); },
        p);
    return out;
  } else if constexpr (MadeOfValues<P>) return value_of(p);
  else if constexpr (is_a<P, std::vector> || is_std_array<P>) {
    Value out = Value::array();
    for (const auto& item : p) out.push_back(argument_value(item, role, array_value));
    return out;
  } else if constexpr (is_a<P, std::map>) {
    Value out = Value::array();
    for (const auto& [name, item] : p)
      out.push_back(Value(Value::Array{value_of(name), argument_value(item, role, array_value)}));
    return out;
  } else return {};  // a user's type: it cannot be made from a sketch
}

template <class P>
Value sketch_of(const P& p, Role role) {
  return argument_value(p, role, sketch_array);
}

template <class P>
P rebuild(const Value& sketch, RebuiltData& data) {
  constexpr Place nowhere{"", -1};
  if constexpr (is_a<P, Out> || is_named<P>) {
    return P(rebuild<typename Wrapped<P>::type>(sketch, data));
  } else if constexpr (is_a<P, Keyed>) return P(from_value<typename Wrapped<P>::type>(sketch));
  else if constexpr (is_a<P, Unkeyed>) {
    if constexpr (Argument<typename Wrapped<P>::type>)
      return P(rebuild<typename Wrapped<P>::type>(sketch, data));
    else cannot_rebuild(type_name<P>());
  } else if constexpr (requires { ArrayTarget<P>::make(nowhere, AnyView{}); }) {
    constexpr bool knows_its_device = requires { P::ejk_platforms; }
    || std::same_as<P, AnyView>;
    const ArrayRef& array = knows_its_device ? data.array_at_home(sketch) : data.array(sketch);
    return ArrayTarget<P>::make(nowhere, array.any());
  } else if constexpr (std::same_as<P, Tensor>) return data.tensor_at_home(sketch);
  else if constexpr (is_array_vector<P>) {
    const auto line =
        ArrayTarget<std::span<typename P::value_type>>::make(nowhere, data.array(sketch).any());
    return P(line.begin(), line.end());
  } else if constexpr (std::same_as<P, Half> || std::same_as<P, BFloat16>)
    return P(static_cast<float>(sketch.as_double()));
  else if constexpr (Complex<P>) {
    const auto [real, imaginary] = from_value<std::array<typename P::value_type, 2>>(sketch);
    return P(real, imaginary);
  } else if constexpr (std::same_as<P, std::string_view>) return data.text(sketch.as_string());
  else if constexpr (is_a<P, std::optional>) {
    if (sketch.is_null()) return P();
    const Value* some = sketch.find("some");
    if (some == nullptr) throw Error(ErrorKind::parse, "an optional argument has no \"some\"");
    return P(rebuild<typename P::value_type>(*some, data));
  } else if constexpr (is_a<P, std::tuple> || is_a<P, std::pair>) {
    const auto& items = sketch.as_array();
    if (items.size() != std::tuple_size_v<P>)
      throw Error(ErrorKind::parse, "a tuple has another number of items");
    return [&]<size_t... I>(std::index_sequence<I...>) {
      return P{rebuild<std::tuple_element_t<I, P>>(items[I], data)...};
    }
    (std::make_index_sequence<std::tuple_size_v<P>>{});
  } else if constexpr (MadeOfValues<P> && std::default_initializable<P>)
    return from_value<P>(sketch);
  else if constexpr (is_a<P, std::vector>) {
    P out;
    for (const Value& item : sketch.as_array())
      out.push_back(rebuild<typename P::value_type>(item, data));
    return out;
  } else if constexpr (is_a<P, std::map>) {
    P out;
    for (const Value& item : sketch.as_array()) {
      if (item.as_array().size() != 2)
        throw Error(ErrorKind::parse, "an item of a map is not a pair");
      out.emplace(from_value<typename P::key_type>(item.as_array()[0]),
                  rebuild<typename P::mapped_type>(item.as_array()[1], data));
    }
    return out;
  } else cannot_rebuild(type_name<P>());
}

}  // namespace detail
}  // namespace ejk
