// SPDX-License-Identifier: Apache-2.0
// The words of entries and events as types. Public structs and documents carry them as text, so
// that a word of a later version survives a read and a write; code that decides by one asks here.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include <ejk/cache.h>
#include <ejk/stopwatch.h>
#include <ejk/store.h>

namespace ejk {

// Entry::provenance
enum class Provenance : uint8_t { measured, put, imported, transferred };
// Measurement::status, the best first
enum class CandidateStatus : uint8_t { ok, tied, slower, untried, rejected };
// Measurement::kind
enum class Rejection : uint8_t {
  wrong,
  unsteady,
  threw,
  crashed,
  exited,
  timed_out,
  out_of_memory,
  out_of_bounds,
  changed_host,
  quarantined,
  invalid,
  unknown,  // it failed in a child process, and nobody can say of what
};

// What came before the race; none: all candidates raced
enum class Search : uint8_t { none, exhaustive, random, automatic };
// Evidence::guard: where first runs happened
enum class FirstRuns : uint8_t { child, none, mixed };
// Event::kind
enum class EventKind : uint8_t {
  override_,
  overlay_hit,
  cache_hit,
  autotune_start,
  autotune_finish,
  heuristics,
  error,
};

// The name of each value, in the order of the enum.
template <class E>
inline constexpr std::array<std::string_view, 0> names_of{};
template <>
inline constexpr auto names_of<Provenance> =
    std::to_array<std::string_view>({"measured", "put", "imported", "transferred"});
template <>
inline constexpr auto names_of<CandidateStatus> =
    std::to_array<std::string_view>({"ok", "tied", "slower", "untried", "rejected"});
template <>
inline constexpr auto names_of<Rejection> = std::to_array<std::string_view>(
    {"wrong", "unsteady", "threw", "crashed", "exited", "timed_out", "out_of_memory",
     "out_of_bounds", "changed_host", "quarantined", "invalid", "unknown"});
template <>
inline constexpr auto names_of<Search> = std::to_array<std::string_view>({"race", "exhaustive",
                                                                          "random", "auto"});
template <>
inline constexpr auto names_of<FirstRuns> = std::to_array<std::string_view>({"child", "none",
                                                                             "mixed"});
template <>
inline constexpr auto names_of<Clock> = std::to_array<std::string_view>({"thread_cpu", "wall"});
template <>
inline constexpr auto names_of<EventKind> =
    std::to_array<std::string_view>({"override", "overlay_hit", "cache_hit", "autotune_start",
                                     "autotune_finish", "heuristics", "error"});
template <>
inline constexpr auto names_of<Origin> = std::to_array<std::string_view>(
    {"override", "overlay", "memory", "persistent", "autotune", "heuristics"});
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

// Time, memory and is_valid reject only here and now.
constexpr bool is_permanent(Rejection kind) {
  return kind != Rejection::timed_out && kind != Rejection::out_of_memory &&
         kind != Rejection::invalid;
}

inline bool is_rejected_for_good(const Measurement& m) {
  return is(m.status, CandidateStatus::rejected) &&
         is_permanent(named<Rejection>(m.kind).value_or(Rejection::unknown));
}

// It took part and was not rejected.
inline bool has_time(const Measurement& m) {
  return !is(m.status, CandidateStatus::untried) && !is(m.status, CandidateStatus::rejected);
}

// By a tuning of this store's own. Only that is believed, and goes on.
inline bool is_measured(const Entry& entry) { return is(entry.provenance, Provenance::measured); }

}  // namespace ejk
