// SPDX-License-Identifier: Apache-2.0
// The fields of plain structs and the names of enumerators, found without macros.
#pragma once

#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include <ejk/detail/export.h>

namespace EJK_EXPORT ejk {
namespace detail {

// The name of a type as the compiler prints it, for messages.
template <class T>
consteval std::string_view type_name() {
  constexpr std::string_view text = __PRETTY_FUNCTION__;
  constexpr size_t from = text.find("T = ") + 4;
  constexpr size_t to = text.find_first_of(";]", from);
  return text.substr(from, to - from);
}

// Structs that carry EJK_CONFIG name their fields themselves; what a base named is not enough.
template <class T>
concept NamesItsFields = requires(T& t) {
  requires std::same_as<typename T::ejk_config_self, T>;
  t.ejk_fields();
  { T::ejk_field_names } -> std::convertible_to<std::string_view>;
};

#if defined(__clang__)
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wundefined-inline"
#pragma clang diagnostic ignored "-Wundefined-var-template"
#pragma clang diagnostic ignored "-Wundefined-internal"
#else
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpragmas"
#endif

struct Anything {
  template <class T>
  constexpr operator T() const noexcept {
    __builtin_unreachable();  // never called: only its type is looked at
  }
};

template <class T, size_t... I>
constexpr bool takes_braces(std::index_sequence<I...>) {
  return requires { T{(static_cast<void>(I), Anything{})...}; };
}

template <class T>
struct AnyBaseOf {
  template <class B>
  requires(std::is_base_of_v<B, T> && !std::is_same_v<B, T>) constexpr operator B() const noexcept {
    __builtin_unreachable();
  }
};
// The first initialiser of an aggregate with a base is the base's.
template <class T>
inline constexpr bool has_base = requires {
  T{AnyBaseOf<T>{}};
};

inline constexpr size_t max_fields = 24;

// How many fields the aggregate T has, counted by how many initialisers it takes.
template <class T, size_t N = 0>
consteval size_t count_fields() {
  if constexpr (N > max_fields) return 0;
  else if constexpr (takes_braces<T>(std::make_index_sequence<N>{}) &&
                     !takes_braces<T>(std::make_index_sequence<N + 1>{}))
    return N;
  else return count_fields<T, N + 1>();
}

// Whether the I-th initialiser is a field's, and not that of one element of a C array.
template <class T, size_t N, size_t I>
constexpr bool is_one_field() {
  return []<size_t... Before, size_t... After>(std::index_sequence<Before...>,
                                               std::index_sequence<After...>) {
    return requires {
      T{(static_cast<void>(Before), Anything{})..., {}, (static_cast<void>(After), Anything{})...};
    };
  }
  (std::make_index_sequence<I>{}, std::make_index_sequence<N - I - 1>{});
}
template <class T>
consteval bool has_fields_only() {
  return []<size_t... I>(std::index_sequence<I...>) {
    return (is_one_field<T, sizeof...(I), I>() && ...);
  }
  (std::make_index_sequence<count_fields<T>()>{});
}

// clang-format off
// References to the fields, as a tuple.
template <class T>
constexpr auto tie_fields(T& v) {
  constexpr size_t n = count_fields<std::remove_const_t<T>>();
  if constexpr (n == 0) return std::tuple<>{};
  else if constexpr (n == 1) { auto& [m0] = v; return std::tie(m0); }
  else if constexpr (n == 2) { auto& [m0, m1] = v; return std::tie(m0, m1); }
  else if constexpr (n == 3) { auto& [m0, m1, m2] = v; return std::tie(m0, m1, m2); }
  else if constexpr (n == 4) { auto& [m0, m1, m2, m3] = v; return std::tie(m0, m1, m2, m3); }
  else if constexpr (n == 5) { auto& [m0, m1, m2, m3, m4] = v; return std::tie(m0, m1, m2, m3, m4); }
  else if constexpr (n == 6) { auto& [m0, m1, m2, m3, m4, m5] = v; return std::tie(m0, m1, m2, m3, m4, m5); }
  else if constexpr (n == 7) { auto& [m0, m1, m2, m3, m4, m5, m6] = v; return std::tie(m0, m1, m2, m3, m4, m5, m6); }
  else if constexpr (n == 8) { auto& [m0, m1, m2, m3, m4, m5, m6, m7] = v; return std::tie(m0, m1, m2, m3, m4, m5, m6, m7); }
  else if constexpr (n == 9) { auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8] = v; return std::tie(m0, m1, m2, m3, m4, m5, m6, m7, m8); }
  else if constexpr (n == 10) { auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9] = v; return std::tie(m0, m1, m2, m3, m4, m5, m6, m7, m8, m9); }
  else if constexpr (n == 11) { auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10] = v; return std::tie(m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10); }
  else if constexpr (n == 12) { auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11] = v; return std::tie(m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11); }
  else if constexpr (n == 13) { auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12] = v; return std::tie(m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12); }
  else if constexpr (n == 14) { auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13] = v; return std::tie(m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13); }
  else if constexpr (n == 15) { auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14] = v; return std::tie(m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14); }
  else if constexpr (n == 16) { auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15] = v; return std::tie(m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15); }
  else if constexpr (n == 17) { auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16] = v; return std::tie(m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16); }
  else if constexpr (n == 18) { auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17] = v; return std::tie(m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17); }
  else if constexpr (n == 19) { auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18] = v; return std::tie(m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18); }
  else if constexpr (n == 20) { auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18, m19] = v; return std::tie(m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18, m19); }
  else if constexpr (n == 21) { auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18, m19, m20] = v; return std::tie(m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18, m19, m20); }
  else if constexpr (n == 22) { auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18, m19, m20, m21] = v; return std::tie(m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18, m19, m20, m21); }
  else if constexpr (n == 23) { auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18, m19, m20, m21, m22] = v; return std::tie(m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18, m19, m20, m21, m22); }
  else if constexpr (n == 24) { auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18, m19, m20, m21, m22, m23] = v; return std::tie(m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18, m19, m20, m21, m22, m23); }
}
// clang-format on

template <class T>
struct Holder {
  T value;
};
template <class T>
extern Holder<T> nowhere;  // declared only: its address is all that is needed

template <class P>
struct FieldAddress {
  P pointer;
};
template <class P>
FieldAddress(P) -> FieldAddress<P>;

template <auto Address>
consteval std::string_view printed() {
  return __PRETTY_FUNCTION__;
}

constexpr bool is_identifier(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

// The compiler prints the address as "...Type::field)}" (g++) or "...value.field}" (clang).
template <class T, size_t I>
consteval std::string_view field_name() {
  constexpr std::string_view text =
      printed<FieldAddress{&std::get<I>(tie_fields(nowhere<T>.value))}>();
  size_t end = text.rfind('}');
  while (end > 0 && !is_identifier(text[end - 1])) --end;
  size_t begin = end;
  while (begin > 0 && is_identifier(text[begin - 1])) --begin;
  return text.substr(begin, end - begin);
}

template <class T>
concept PlainStruct =
    std::is_class_v<T> && std::is_aggregate_v<T> && !NamesItsFields<T> && !has_base<T> &&
    (count_fields<T>() > 0 || std::is_empty_v<T>)&&has_fields_only<T>();

template <class T>
concept Reflected = NamesItsFields<T> || PlainStruct<T>;

template <class T>
constexpr auto fields_of(T& v) {
  if constexpr (NamesItsFields<std::remove_const_t<T>>) return v.ejk_fields();
  else return tie_fields(v);
}

template <class T>
inline constexpr size_t field_count = std::tuple_size_v<decltype(fields_of(std::declval<T&>()))>;

// "a, b, c" as EJK_CONFIG recorded it, cut at the commas.
template <size_t N>
consteval std::array<std::string_view, N> split_names(std::string_view text) {
  std::array<std::string_view, N> names{};
  for (size_t i = 0, at = 0; i < N; ++i) {
    while (at < text.size() && !is_identifier(text[at])) ++at;
    size_t end = at;
    while (end < text.size() && is_identifier(text[end])) ++end;
    names[i] = text.substr(at, end - at);
    at = end;
  }
  return names;
}

template <class T, size_t... I>
consteval std::array<std::string_view, sizeof...(I)> plain_names(std::index_sequence<I...>) {
  return {field_name<T, I>()...};
}

template <class T>
consteval auto make_field_names() {
  if constexpr (NamesItsFields<T>) return split_names<field_count<T>>(T::ejk_field_names);
  else return plain_names<T>(std::make_index_sequence<field_count<T>>{});
}
template <class T>
inline constexpr auto field_names = make_field_names<T>();

// Calls f(name, field) for each field in order.
template <class T, class F>
constexpr void for_each_field(T& object, F&& f) {
  auto fields = fields_of(object);
  [&]<size_t... I>(std::index_sequence<I...>) {
    (f(field_names<std::remove_const_t<T>>[I], std::get<I>(fields)), ...);
  }
  (std::make_index_sequence<std::tuple_size_v<decltype(fields)>>{});
}

// "" for a value that is not an enumerator: compilers print those as "(Type)5".
template <auto Enumerator>
consteval std::string_view enumerator_name() {
  constexpr std::string_view text = printed<Enumerator>();
  size_t end = text.find_first_of(";]", text.find("= ") + 2);
  size_t begin = end;
  while (begin > 0 && is_identifier(text[begin - 1])) --begin;
  const bool named = begin > 1 && (text[begin - 1] == ':' || text[begin - 1] == ' ') &&
                     !(text[begin] >= '0' && text[begin] <= '9');
  return named ? text.substr(begin, end - begin) : std::string_view{};
}

inline constexpr int first_enumerator = -4, enumerator_limit = 64;

template <class E, int I>
consteval std::string_view enumerator_name_at() {
  using U = std::underlying_type_t<E>;
  using Limits = std::numeric_limits<U>;
  if constexpr (I < 0 ? std::is_unsigned_v<U>
                      : static_cast<uint64_t>(Limits::max()) < static_cast<uint64_t>(I))
    return {};
  else return enumerator_name<std::bit_cast<E>(static_cast<U>(I))>();
}

// Names of the enumerators whose values lie in [first_enumerator, enumerator_limit).
template <class E>
consteval auto make_enumerator_names() {
  return []<int... I>(std::integer_sequence<int, I...>) {
    return std::array<std::string_view, sizeof...(I)>{
        enumerator_name_at<E, I + first_enumerator>()...};
  }
  (std::make_integer_sequence<int, enumerator_limit - first_enumerator>{});
}
template <class E>
inline constexpr auto enumerator_names = make_enumerator_names<E>();

// Enums whose enumerators cannot be seen name them: an overload beside the enum, a friend inside a
// class, constexpr auto ejk_enumerators(Mode) { return std::array{Mode::a, Mode::b}; }
template <class E>
concept NamesItsEnumerators = requires(E e) {
  { *ejk_enumerators(e).begin() } -> std::convertible_to<E>;
};
// Enums whose values are meant to be combined have an operator| of their own.
template <class E>
concept Combined = requires(E a, E b) {
  { a | b } -> std::same_as<E>;
};

// Where enumerators are looked for: all values of a type of one byte, else those that have names
// above and every single bit.
inline constexpr int first_bit = 6;
static_assert(1 << first_bit == enumerator_limit);
template <class U>
inline constexpr int values_looked_at = sizeof(U) == 1
                                            ? 256
                                            : enumerator_limit - first_enumerator +
                                                  8 * static_cast<int>(sizeof(U)) - first_bit;
template <class U>
constexpr U value_looked_at(int i) {
  constexpr int in_a_row = sizeof(U) == 1 ? 256 : enumerator_limit - first_enumerator;
  if (i >= in_a_row) return static_cast<U>(uint64_t{1} << (i - in_a_row + first_bit));
  return static_cast<U>(sizeof(U) == 1 ? i : i + first_enumerator);
}

template <class U, size_t N>
struct EnumeratorValues {
  std::array<U, N> values{};
  size_t count = 0;
  constexpr void add(U value) { values[count++] = value; }
};

template <class E>
consteval auto make_enumerator_values() {
  using U = std::underlying_type_t<E>;
  if constexpr (NamesItsEnumerators<E>) {
    EnumeratorValues<U, ejk_enumerators(E{}).size()> out;
    for (const E e : ejk_enumerators(E{})) out.add(static_cast<U>(e));
    return out;
  } else return []<int... I>(std::integer_sequence<int, I...>) {
      constexpr std::array named = {
          !enumerator_name<std::bit_cast<E>(value_looked_at<U>(I))>().empty()...};
      EnumeratorValues<U, sizeof...(I)> out;
      for (size_t i = 0; i < named.size(); ++i)
        if (named[i]) out.add(value_looked_at<U>(static_cast<int>(i)));
      return out;
    }
  (std::make_integer_sequence<int, values_looked_at<U>>{});
}
template <class E>
inline constexpr auto enumerator_values = make_enumerator_values<E>();

// Whether an enumerator has that value, or some of them together where they may be combined.
template <class E>
constexpr bool is_enumerator(std::underlying_type_t<E> value) {
  if constexpr (std::same_as<E, std::byte>) return true;  // has no enumerators: a number
  const auto& known = enumerator_values<E>;
  auto rest = value;
  for (size_t i = 0; i < known.count; ++i) {
    const auto one = known.values[i];
    if (one == value) return true;
    if constexpr (Combined<E>)
      if ((value & one) == one) rest = static_cast<decltype(rest)>(rest & ~one);
  }
  return Combined<E> && rest == 0;
}

#if defined(__clang__)
#pragma clang diagnostic pop
#else
#pragma GCC diagnostic pop
#endif

}  // namespace detail
}  // namespace ejk
