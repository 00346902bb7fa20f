// SPDX-License-Identifier: Apache-2.0
// Configurations: plain structs that become JSON and come back.
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ejk/any_config.h>
#include <ejk/detail/export.h>
#include <ejk/detail/reflect.h>
#include <ejk/error.h>
#include <ejk/value.h>

// A config is a plain aggregate with a default constructor. Its fields are found without a macro
// and may be
//   - bools, numbers, enums, strings
//   - std::optional, std::vector, std::array, std::tuple and std::pair of such values
//   - std::map from strings or integers to such values
//   - other such structs
// Any other type is a compile error that says so.
//
// Their names are what stores keep: a stored config that lacks a field, or has one that the struct
// has not, does not fit any more and is passed over. Raise the kernel's `version` if a field keeps
// its name and changes its meaning.
//
// A struct names its fields inside itself if it
//   - has a base class,
//   - has C arrays as fields, or
//   - has more than 24 fields:
//   struct Config : Base { int own = 1;  EJK_CONFIG(Config, inherited, own) };
// The list then decides which fields count and in which order they are written. The number of
// fields in it has no limit.
#define EJK_CONFIG(Type, ...)                                       \
  using ejk_config_self = Type;                                     \
  static constexpr std::string_view ejk_field_names = #__VA_ARGS__; \
  auto ejk_fields() { return std::tie(__VA_ARGS__); }               \
  auto ejk_fields() const { return std::tie(__VA_ARGS__); }

namespace EJK_EXPORT ejk {

namespace detail {

template <class T, template <class...> class Template>
inline constexpr bool is_a = false;
template <template <class...> class Template, class... A>
inline constexpr bool is_a<Template<A...>, Template> = true;
template <class T>
inline constexpr bool is_std_array = false;
template <class T, size_t N>
inline constexpr bool is_std_array<std::array<T, N>> = true;
template <class T>
inline constexpr bool is_string_like = std::is_convertible_v<const T&, std::string_view>;

template <class E>
Value enum_to_value(E e) {
  using I = std::underlying_type_t<E>;
  const auto i = static_cast<std::conditional_t<std::is_signed_v<I>, int64_t, uint64_t>>(e);
  if (std::cmp_greater_equal(i, first_enumerator) && std::cmp_less(i, enumerator_limit)) {
    const auto name =
        enumerator_names<E>[static_cast<size_t>(static_cast<int>(i) - first_enumerator)];
    if (!name.empty()) return name;
  }
  return i;
}

// The members of a map with integer keys by ascending number, whatever the map's own order.
template <class M, class F>
void for_each_in_order(const M& map, F&& f) {
  if constexpr (std::same_as<typename M::key_compare, std::less<typename M::key_type>>)
    for (const auto& [name, item] : map) f(name, item);
  else {
    std::map<typename M::key_type, const typename M::mapped_type*> ascending;
    for (const auto& [name, item] : map) ascending.emplace(name, &item);
    for (const auto& [name, item] : ascending) f(name, *item);
  }
}

// Whether T is made of nothing but values: then it can be written as JSON and keyed by value.
template <class T>
consteval bool is_made_of_values() {
  if constexpr (std::same_as<T, Value> || std::is_arithmetic_v<T> || std::is_enum_v<T> ||
                is_string_like<T> || std::same_as<T, std::nullopt_t> ||
                std::same_as<T, std::nullptr_t>)
    return true;
  else if constexpr (is_a<T, std::optional> || is_a<T, std::vector> || is_std_array<T>)
    return is_made_of_values<typename T::value_type>();
  else if constexpr (std::is_bounded_array_v<T>)
    return is_made_of_values<std::remove_extent_t<T>>();
  else if constexpr (is_a<T, std::map>)
    return (std::integral<typename T::key_type> ||
            is_string_like<typename T::key_type>)&&is_made_of_values<typename T::mapped_type>();
  else if constexpr (is_a<T, std::tuple> || is_a<T, std::pair>)
    return []<class... P>(std::type_identity<std::tuple<P...>>) {
      return (is_made_of_values<P>() && ...);
    }(std::type_identity<decltype(std::tuple_cat(std::declval<T>()))>{});
  else if constexpr (Reflected<T>)
    return []<class... F>(std::type_identity<std::tuple<F&...>>) {
      return (is_made_of_values<F>() && ...);
    }(std::type_identity<decltype(fields_of(std::declval<T&>()))>{});
  else return false;
}
template <class T>
concept MadeOfValues = is_made_of_values<std::remove_cv_t<T>>();

template <class T>
Value value_of(const T& v) {
  if constexpr (std::same_as<T, Value> || std::is_arithmetic_v<T>) return v;
  else if constexpr (std::is_enum_v<T>) return enum_to_value(v);
  else if constexpr (is_string_like<T>) return std::string_view(v);
  else if constexpr (std::same_as<T, std::nullopt_t> || std::same_as<T, std::nullptr_t>) return {};
  else if constexpr (is_a<T, std::optional>) return v ? value_of(*v) : Value();
  else if constexpr (is_a<T, std::tuple> || is_a<T, std::pair>) {
    Value out = Value::array();
    std::apply([&](const auto&... item) { (out.push_back(value_of(item)), ...); }, v);
    return out;
  } else if constexpr (is_a<T, std::vector> || is_std_array<T> || std::is_bounded_array_v<T>) {
    Value out = Value::array();
    for (const auto& item : v) out.push_back(value_of(item));
    return out;
  } else if constexpr (is_a<T, std::map>) {
    Value::Object out;
    if constexpr (std::integral<typename T::key_type>) {
      out.ordered = true;  // numbers sort as numbers before they become text
      for_each_in_order(v, [&](auto name, const auto& item) {
        out.members.emplace_back(std::to_string(name), value_of(item));
      });
    } else
      for (const auto& [name, item] : v)
        out.members.emplace_back(std::string(name), value_of(item));
    return out;
  } else if constexpr (Reflected<T>) {
    Value out = Value::object();
    for_each_field(v,
                   [&](std::string_view name, const auto& field) { out[name] = value_of(field); });
    return out;
  } else {
    static_assert(
        Reflected<T>,
        "ejk: this type cannot be written as JSON; use bools, numbers, enums, strings, "
        "optionals, vectors, arrays, tuples, maps and plain structs (EJK_CONFIG for others)");
  }
}

// Where in a document a value stands. It becomes a text only where something does not fit.
struct Path {
  const Path* outer = nullptr;
  std::string_view name = {};  // of a member
  size_t index = 0;            // of an element, which has no name
};

enum class Missing { error, keep_default };

// These throw Error(parse) that names the place.
[[noreturn]] void mismatch(const Path& path, std::string_view problem);
void expect(bool is_right, const Path& path, const Value& v, std::string_view what);
void expect_enumerator(bool is_one, const Path& path, const Value& v, std::string_view type);
// An object that has these members, or some of them, and no other.
void expect_members(const Path& path, const Value& v, std::string_view type,
                    std::span<const std::string_view> names, Missing missing);
// The bits of an integer in [min, max].
uint64_t read_whole(const Path& path, const Value& v, std::string_view type, int64_t min,
                    uint64_t max);
// A number of at most that magnitude, or an infinity.
double read_real(const Path& path, const Value& v, std::string_view type, double max);
// The name of a member as the integer that it spells.
Value key_of(const Path& path, const std::string& name);
bool is_whole(const Value& v);

template <class T>
T read_integer(const Path& path, const Value& v, std::string_view type) {
  using Limits = std::numeric_limits<T>;
  return static_cast<T>(read_whole(path, v, type, static_cast<int64_t>(Limits::min()),
                                   static_cast<uint64_t>(Limits::max())));
}

template <class T>
T read_enum(const Path& path, const Value& v) {
  if (is_whole(v)) {
    const auto number = read_integer<std::underlying_type_t<T>>(path, v, type_name<T>());
    expect_enumerator(is_enumerator<T>(number), path, v, type_name<T>());
    return static_cast<T>(number);
  }
  expect(v.is_string(), path, v, "an enumerator");
  const auto& names = enumerator_names<T>;
  for (size_t i = 0; i < names.size(); ++i)
    if (!names[i].empty() && names[i] == v.as_string())
      return static_cast<T>(static_cast<int>(i) + first_enumerator);
  mismatch(path, "unknown enumerator " + stable_json(v));
}

template <class T>
void read_value(const Value& v, T& out, const Path& path, Missing missing) {
  if constexpr (std::same_as<T, Value>) out = v;
  else if constexpr (std::same_as<T, bool>)
    expect(v.is_bool(), path, v, "a bool"), out = v.as_bool();
  else if constexpr (std::integral<T>) out = read_integer<T>(path, v, type_name<T>());
  else if constexpr (std::floating_point<T>)
    out = static_cast<T>(read_real(path, v, type_name<T>(), std::numeric_limits<T>::max()));
  else if constexpr (std::is_enum_v<T>) out = read_enum<T>(path, v);
  else if constexpr (std::same_as<T, std::string>)
    expect(v.is_string(), path, v, "a string"), out = v.as_string();
  else if constexpr (is_a<T, std::optional>) {
    if (v.is_null()) out.reset();
    else read_value(v, out.emplace(), path, missing);
  } else if constexpr (is_a<T, std::tuple> || is_a<T, std::pair>) {
    expect(v.is_array() && v.as_array().size() == std::tuple_size_v<T>, path, v,
           "an array of that length");
    [&]<size_t... I>(std::index_sequence<I...>) {
      (read_value(v.as_array()[I], std::get<I>(out), Path{&path, {}, I}, missing), ...);
    }
    (std::make_index_sequence<std::tuple_size_v<T>>{});
  } else if constexpr (is_a<T, std::vector> || is_std_array<T> || std::is_bounded_array_v<T>) {
    expect(v.is_array(), path, v, "an array");
    const auto& items = v.as_array();
    if constexpr (is_a<T, std::vector>) out.resize(items.size());
    else expect(items.size() == std::size(out), path, v, "an array of that length");
    for (size_t i = 0; i < items.size(); ++i) {
      std::iter_value_t<decltype(std::begin(out))> item{};
      read_value(items[i], item, Path{&path, {}, i}, missing);
      out[i] = std::move(item);
    }
  } else if constexpr (is_a<T, std::map>) {
    expect(v.is_object(), path, v, "an object");
    out.clear();
    for (const auto& [name, item] : v.as_object().members) {
      typename T::key_type key{};
      if constexpr (std::integral<typename T::key_type>)
        key = read_integer<typename T::key_type>(path, key_of(path, name), "its key");
      else key = name;
      read_value(item, out[key], Path{&path, name}, missing);
    }
  } else if constexpr (Reflected<T>) {
    const auto& names = field_names<T>;
    expect_members(path, v, type_name<T>(), {names.data(), names.size()}, missing);
    for_each_field(out, [&](std::string_view name, auto& field) {
      if (const Value* found = v.find(name)) read_value(*found, field, Path{&path, name}, missing);
    });
  } else {
    static_assert(Reflected<T>, "ejk: this type cannot be read from JSON");
  }
}

template <class C>
std::shared_ptr<const void> config_from_value(const Value& value, std::string& why) {
  auto config = std::make_shared<C>();
  try {
    read_value(value, *config, {}, Missing::error);
  } catch (const Error& e) {
    why = e.what();
    return nullptr;
  }
  return config;
}

template <class C>
inline constexpr ConfigType config_type_of = {
    type_name<C>(), [](const void* c) { return value_of(*static_cast<const C*>(c)); },
    &config_from_value<C>};

}  // namespace detail

// How the core reads and writes configs of type C. The object lives as long as the process.
template <class C>
constexpr const ConfigType& config_type() {
  return detail::config_type_of<C>;
}

// Moves a config behind a type that compiled code can pass around; AnyConfig::as names the type
// again. Copies of the result share one immutable config, so several threads may read them.
template <class C>
AnyConfig make_config(C config) {
  return {std::make_shared<C>(std::move(config)), &config_type<C>()};
}

// A config, or any other value made of the types above,
//   to_value, from_value   as a Value, and back
//   to_json, from_json     as JSON text, and back
//   stable_json            as its canonical text: equal configs have equal texts
//   short_hash             as the first 16 hex digits of the hash of that text
// All of them may be called from several threads.
//
// Written are an enum as the name of its enumerator (its number, if it has no name), an empty
// optional as null, tuples and pairs as arrays, maps and structs as objects.
//
// from_value and from_json
//   - keep the default of a field that the document does not name, at any depth
//   - read an enumerator by name or by number
//   - throw Error(parse) that names the field for an unknown field, another type, a number out of
//     range, an enumerator that does not exist or an array of another length
template <class T>
requires(!std::same_as<T, Value>) Value to_value(const T& config) {
  return detail::value_of(config);
}
template <class T>
T from_value(const Value& value) {
  T config{};
  detail::read_value(value, config, {}, detail::Missing::keep_default);
  return config;
}
template <class T>
requires(!std::convertible_to<const T&, Value>) std::string to_json(const T& config) {
  return stable_json(detail::value_of(config));
}
template <class T>
T from_json(std::string_view text) {
  return from_value<T>(parse_json(text));
}
template <class T>
requires(!std::convertible_to<const T&, Value>) std::string stable_json(const T& config) {
  return stable_json(detail::value_of(config));
}
template <class T>
requires(!std::convertible_to<const T&, Value> &&
         !std::convertible_to<const T&, std::string_view>) std::string short_hash(const T& config) {
  return short_hash(detail::value_of(config));
}

// Parameters of attention-like kernels, as ejkernel has them: a config of their own, or fields of
// one. A field that is not set leaves the choice to the kernel. No part of the library reads them.
struct FwdParams {
  // Sizes of blocks along each axis, number of splits along the keys, and how a GPU runs the block
  // (warps per block, stages of its pipeline).
  std::optional<int> blocksize_m = {}, blocksize_k = {}, blocksize_n = {}, q_blocksize = {},
                     kv_blocksize = {}, blocksize_heads = {}, blocksize_keys = {},
                     num_key_splits = {}, num_warps = {}, num_stages = {};
  bool operator==(const FwdParams&) const = default;
};
// The same for the backward pass.
struct BwdParams {
  // As in FwdParams.
  std::optional<int> blocksize_m = {}, blocksize_k = {}, blocksize_n = {}, q_blocksize = {},
                     kv_blocksize = {}, num_warps = {}, num_stages = {};
  bool operator==(const BwdParams&) const = default;
};

}  // namespace ejk
