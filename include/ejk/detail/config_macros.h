// SPDX-License-Identifier: Apache-2.0
// A config as macros of a device program, and as words that tell launches apart.
#pragma once

#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include <ejk/detail/export.h>
#include <ejk/detail/reflect.h>

namespace EJK_EXPORT ejk {
namespace detail {

// A field that is one number in the source.
template <class T>
concept MacroNumber =
    std::integral<T> || std::is_enum_v<T> || std::same_as<T, float> || std::same_as<T, double>;

template <class T>
consteval bool has_numbers_only() {
  if constexpr (MacroNumber<T>) return true;
  else if constexpr (Reflected<T>)
    return []<class... F>(std::type_identity<std::tuple<F...>>) {
      return (has_numbers_only<std::remove_cvref_t<F>>() && ...);
    }(std::type_identity<decltype(fields_of(std::declval<T&>()))>{});
  else return false;
}

// How many numbers a config has, those of nested structs included.
template <class T>
consteval size_t word_count() {
  if constexpr (MacroNumber<T>) return 1;
  else
    return []<class... F>(std::type_identity<std::tuple<F...>>) {
      return (size_t{0} + ... + word_count<std::remove_cvref_t<F>>());
    }(std::type_identity<decltype(fields_of(std::declval<T&>()))>{});
}

// Writes them behind each other and gives the place behind the last.
template <class T>
uint64_t* config_words(const T& value, uint64_t* to) {
  if constexpr (std::same_as<T, float>) *to++ = std::bit_cast<uint32_t>(value);
  else if constexpr (std::same_as<T, double>) *to++ = std::bit_cast<uint64_t>(value);
  else if constexpr (MacroNumber<T>) *to++ = static_cast<uint64_t>(value);
  else
    for_each_field(value,
                   [&](std::string_view, const auto& field) { to = config_words(field, to); });
  return to;
}

// ---- names

// The path of a field as a macro. Of a longer one `size` tells that it does not fit.
struct MacroName {
  static constexpr size_t most = 120;
  std::array<char, most> text{};
  size_t size = 0;

  constexpr void add(char c) {
    if (size < most) text[size] = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
    ++size;
  }
  constexpr std::string_view view() const { return {text.data(), size < most ? size : most}; }
};

constexpr MacroName joined(MacroName name, std::string_view field) {
  if (name.size > 0) name.add('_');
  for (const char c : field) name.add(c);
  return name;
}

template <class T>
constexpr void collect_names(const MacroName& name, MacroName*& to) {
  if constexpr (MacroNumber<T>) *to++ = name;
  else
    [&]<class... F>(std::type_identity<std::tuple<F...>>) {
      size_t i = 0;
      (collect_names<std::remove_cvref_t<F>>(joined(name, field_names<T>[i++]), to), ...);
    }(std::type_identity<decltype(fields_of(std::declval<T&>()))>{});
}

template <class C>
consteval auto make_macro_names() {
  std::array<MacroName, word_count<C>()> names{};
  MacroName* to = names.data();
  collect_names<C>({}, to);
  return names;
}
// Of the numbers, in their order: "BM", "TILE_BN".
template <class C>
inline constexpr auto macro_names = make_macro_names<C>();

// What compilers and the library's own header define must not change its meaning.
constexpr bool is_usable_macro(const MacroName& name) {
  const std::string_view text = name.view();
  for (const char c : text)
    if (!is_identifier(c)) return false;
  for (const std::string_view begin : {"_", "EJK_", "CL_", "CLK_", "CUDA"})
    if (text.starts_with(begin)) return false;
  for (const std::string_view taken : {"NULL", "NAN", "INFINITY", "MAXFLOAT"})
    if (text == taken) return false;
  return !text.empty() && name.size <= MacroName::most;
}

template <class C>
consteval bool has_usable_names() {
  for (const MacroName& name : macro_names<C>)
    if (!is_usable_macro(name)) return false;
  return true;
}
template <class C>
consteval bool has_different_names() {
  const auto& names = macro_names<C>;
  for (size_t i = 0; i < names.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      if (names[i].view() == names[j].view()) return false;
  return true;
}

// Whether a config can be macros; says what is wrong with one that cannot.
template <class C>
consteval bool check_macro_config() {
  static_assert(has_numbers_only<C>(),
                "ejk: a config of a device kernel has numbers, bools, enums and structs of these");
  if constexpr (has_numbers_only<C>()) {
    static_assert(has_usable_names<C>(),
                  "ejk: a field of this config, in upper case, is a macro that compilers or ejk "
                  "reserve (_..., EJK_..., CL_..., CLK_..., CUDA..., NULL, NAN, INFINITY, "
                  "MAXFLOAT); give it another name");
    static_assert(has_different_names<C>(),
                  "ejk: two fields of this config are the same macro in upper case; rename one");
  }
  return has_numbers_only<C>();
}

// ---- text

void append_macro(std::string& to, std::string_view name, int64_t value);
void append_macro(std::string& to, std::string_view name, uint64_t value);
void append_macro(std::string& to, std::string_view name, float value);
void append_macro(std::string& to, std::string_view name, double value);

template <class T>
void append_macros(const T& value, const MacroName*& name, std::string& to) {
  if constexpr (std::is_enum_v<T>)
    append_macros(static_cast<std::underlying_type_t<T>>(value), name, to);
  else if constexpr (std::floating_point<T>) append_macro(to, (name++)->view(), value);
  else if constexpr (std::signed_integral<T>)
    append_macro(to, (name++)->view(), static_cast<int64_t>(value));
  else if constexpr (std::integral<T>)
    append_macro(to, (name++)->view(), static_cast<uint64_t>(value));
  else
    for_each_field(value,
                   [&](std::string_view, const auto& field) { append_macros(field, name, to); });
}

// "#define BM 64\n..." of a C.
template <class C>
std::string macros_of(const void* config) {
  std::string out;
  const MacroName* name = macro_names<C>.data();
  append_macros(*static_cast<const C*>(config), name, out);
  return out;
}

}  // namespace detail
}  // namespace ejk
