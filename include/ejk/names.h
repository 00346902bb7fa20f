// SPDX-License-Identifier: Apache-2.0
// The words of entries and events as types. Public structs and documents carry them as text, so
// that a word of a later version survives a read and a write; code that decides by one asks here.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include <ejk/store.h>

namespace ejk {

// Entry::provenance
enum class Provenance : uint8_t { measured, put, imported, transferred };

// The name of each value, in the order of the enum.
template <class E>
inline constexpr std::array<std::string_view, 0> names_of{};
template <>
inline constexpr auto names_of<Provenance> =
    std::to_array<std::string_view>({"measured", "put", "imported", "transferred"});
template <>
inline constexpr auto names_of<Outcome> = std::to_array<std::string_view>({"tuned", "unresolved",
                                                                           "failed"});

template <class E>
requires(!names_of<E>.empty()) constexpr std::string_view name_of(E value) {
  return names_of<E>[static_cast<size_t>(value)];
}

// nullopt: this version does not know the name.
template <class E>
constexpr std::optional<E> named(std::string_view name) {
  for (size_t i = 0; i < names_of<E>.size(); ++i)
    if (names_of<E>[i] == name) return static_cast<E>(i);
  return std::nullopt;
}

template <class E>
constexpr bool is(std::string_view name, E value) {
  return name == name_of(value);
}

// By a tuning of this store's own. Only that is believed, and goes on.
inline bool is_measured(const Entry& entry) { return is(entry.provenance, Provenance::measured); }

}  // namespace ejk
