// SPDX-License-Identifier: Apache-2.0
// Values as parameters: numbers, strings, settings, and the wrappers that say how they count.
#pragma once

#include <bit>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <ejk/detail/argument_arrays.h>
#include <ejk/detail/export.h>

namespace EJK_EXPORT ejk {
namespace detail {

// ---- scalars --------------------------------------------------------------------------------

inline Arg describe_value(Value v) {
  Arg arg;
  arg.value = std::move(v);
  return arg;
}

template <class P>
requires(std::integral<P> || std::is_enum_v<P>) struct ArgTraits<P> {
  static constexpr int words = 1;
  static void emit(const P& p, auto& sink) { sink.push(static_cast<uint64_t>(p)); }
  static Arg describe(const P& p) { return describe_value(value_of(p)); }
  using Copy = ValueCopy<P>;
};

template <class P>
requires(Element<P> && !std::integral<P>) struct ArgTraits<P> {
  static constexpr int words = 0;
  static void emit(const P&, auto&) {}
  static Arg describe(const P&) {
    Arg arg;  // like a rank-0 array: its type counts
    arg.kind = Arg::Kind::tensor;
    arg.dtype = dtype_of<P>;
    return arg;
  }
  using Copy = ValueCopy<P>;
};

template <class P>
requires(std::same_as<P, std::string> || std::same_as<P, std::string_view>) struct ArgTraits<P> {
  static constexpr int words = any_number_of_words;
  static void emit(const P& p, auto& sink) { sink.push_bytes(p); }
  static Arg describe(const P& p) { return describe_value(std::string_view(p)); }
  using Copy = ValueCopy<P>;
};

template <class P>
requires(std::same_as<P, std::nullptr_t> || std::same_as<P, std::nullopt_t>) struct ArgTraits<P> {
  static constexpr int words = 0;
  static void emit(const P&, auto&) {}
  static Arg describe(const P&) { return describe_value({}); }
  using Copy = ValueCopy<P>;
};

// ---- values that count although their type would not say so ------------------------------------

// Pushes every leaf of v by value.
template <class T>
void emit_by_value(const T& v, auto& sink) {
  if constexpr (std::same_as<T, std::nullptr_t> || std::same_as<T, std::nullopt_t>) return;
  else if constexpr (std::same_as<T, Value>) sink.push_bytes(stable_json(v));
  else if constexpr (std::floating_point<T>)
    sink.push(std::bit_cast<uint64_t>(static_cast<double>(v)));
  else if constexpr (std::integral<T> || std::is_enum_v<T>) sink.push(static_cast<uint64_t>(v));
  else if constexpr (is_string_like<T>) sink.push_bytes(v);
  else if constexpr (is_a<T, std::optional>) {
    sink.push(v.has_value());
    if (v) emit_by_value(*v, sink);
  } else if constexpr (is_a<T, std::tuple> || is_a<T, std::pair>) {
    std::apply([&](const auto&... item) { (emit_by_value(item, sink), ...); }, v);
  } else if constexpr (is_a<T, std::vector> || is_std_array<T> || std::is_bounded_array_v<T>) {
    sink.push(std::size(v));
    for (const auto& item : v) emit_by_value(item, sink);
  } else if constexpr (is_a<T, std::map>) {
    sink.push(v.size());
    for (const auto& [name, item] : v) emit_by_value(name, sink), emit_by_value(item, sink);
  } else
    for_each_field(v, [&](std::string_view, const auto& field) { emit_by_value(field, sink); });
}

template <class T>
consteval int words_by_value() {
  return std::is_arithmetic_v<T> || std::is_enum_v<T> ? 1 : any_number_of_words;
}

template <MadeOfValues T>
struct ArgTraits<Keyed<T>> {
  static constexpr int words = words_by_value<T>();
  static void emit(const Keyed<T>& p, auto& sink) { emit_by_value(p.value, sink); }
  static Arg describe(const Keyed<T>& p) { return describe_value(value_of(p.value)); }
  using Copy = ValueCopy<Keyed<T>>;
};

// Plain structs: settings, not data, so that their numbers count by value.
template <class P>
concept SettingsStruct = Reflected<P> && !DynamicTensor<P> && !HasKey<P> && !is_std_array<P> &&
                         !std::is_empty_v<P> && MadeOfValues<P>;
template <SettingsStruct P>
struct ArgTraits<P> {
  static constexpr int words = any_number_of_words;
  static void emit(const P& p, auto& sink) { emit_by_value(p, sink); }
  static Arg describe(const P& p) { return describe_value(value_of(p)); }
  using Copy = ValueCopy<P>;
};

// ---- wrappers -------------------------------------------------------------------------------

// Of a wrapper that is made again from the copy of what it holds.
template <class P, Argument T>
class WrappedCopy {
 public:
  WrappedCopy(const P& original, Role role) : inner_(original.value, role) {}
  P& get() { return value_ = P(inner_.get()); }
  void reset() { inner_.reset(); }
  void append_outputs(std::vector<OutputBytes>& outputs) const { inner_.append_outputs(outputs); }

 private:
  typename ArgTraits<T>::Copy inner_;
  P value_;
};

template <Argument T>
struct ArgTraits<Unkeyed<T>> {
  static constexpr int words = 0;
  static void emit(const Unkeyed<T>&, auto&) {}
  static Arg describe(const Unkeyed<T>& p) {
    Arg arg = ArgTraits<T>::describe(p.value);
    arg.unkeyed = true;
    return arg;
  }
  using Copy = WrappedCopy<Unkeyed<T>, T>;
};
// Handles, pointers, anything that run takes: the library does not look inside.
template <class T>
requires(!Argument<T>) struct ArgTraits<Unkeyed<T>> {
  static constexpr int words = 0;
  static void emit(const Unkeyed<T>&, auto&) {}
  static Arg describe(const Unkeyed<T>&) {
    Arg arg;
    arg.unkeyed = true;
    return arg;
  }
  using Copy = ValueCopy<Unkeyed<T>>;
};

template <class V>
class OutCopy {
 public:
  OutCopy(const Out<V>& original, Role)
      : inner_(original.view, Role::output), value_(inner_.get()) {}
  OutCopy(OutCopy&&) = delete;
  Out<V>& get() { return value_; }
  void reset() { inner_.reset(); }
  void append_outputs(std::vector<OutputBytes>& outputs) const { inner_.append_outputs(outputs); }

 private:
  typename ArgTraits<V>::Copy inner_;
  Out<V> value_;
};
template <Argument V>
struct ArgTraits<Out<V>> {
  static constexpr int words = ArgTraits<V>::words;
  static void emit(const Out<V>& p, auto& sink) { ArgTraits<V>::emit(p.view, sink); }
  static Arg describe(const Out<V>& p) {
    Arg arg = ArgTraits<V>::describe(p.view);
    arg.role = Role::output;
    return arg;
  }
  using Copy = OutCopy<V>;
};

template <FixedString Name, Argument T, auto... D>
struct ArgTraits<Named<Name, T, D...>> {
  using P = Named<Name, T, D...>;
  static constexpr int words = ArgTraits<T>::words;
  static void emit(const P& p, auto& sink) { ArgTraits<T>::emit(p.value, sink); }
  static Arg describe(const P& p) { return ArgTraits<T>::describe(p.value); }
  using Copy = WrappedCopy<P, T>;
};

}  // namespace detail
}  // namespace ejk
