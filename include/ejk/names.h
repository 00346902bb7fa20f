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
#include <ejk/detail/export.h>
#include <ejk/device.h>
#include <ejk/error.h>
#include <ejk/invocation.h>
#include <ejk/stopwatch.h>
#include <ejk/store.h>

namespace EJK_EXPORT ejk {

// Entry::provenance
enum class Provenance : uint8_t { measured, put, imported, transferred };
// Measurement::status, the best first
enum class CandidateStatus : uint8_t { ok, tied, slower, untried, rejected };
// Measurement::kind
enum class Rejection : uint8_t {
  wrong,     // results
  unsteady,  // results that change from run to run
  threw,
  unbuildable,     // a device's compiler refused its program
  invalid_launch,  // a device cannot run groups of such a size, or takes no such arguments
  crashed,         // by a fatal signal, or what ended a device's context
  exited,          // ended the process
  timed_out,       // ran longer than its deadline
  out_of_memory,   // asked for more than its limit
  out_of_bounds,   // missed one of its arrays, or wrote into an input
  changed_host,    // left settings of the process changed, or more of what it holds with every run
  quarantined,     // crashed in earlier tunings
  invalid,         // is_valid
  unknown,         // failed in a child process, which does not tell of what
};
// What came before the race; race: nothing, all candidates were in it
enum class Search : uint8_t { race, exhaustive, random, automatic };
// Evidence::guard: where first runs happened
enum class FirstRuns : uint8_t { child, here, mixed };
// Event::kind
enum class EventKind : uint8_t {
  override_,
  overlay_hit,
  cache_hit,
  autotune_start,
  autotune_finish,
  heuristics,
  error,
  takeover,
  drift,
};

// ---- their names, in the order of the enums

namespace detail {
constexpr auto words(auto... word) {
  return std::array<std::string_view, sizeof...(word)>{word...};
}
}  // namespace detail
// The words of an enum, in the order of its values: those that stand in files and messages.
constexpr auto names_of(Provenance) {
  return detail::words("measured", "put", "imported", "transferred");
}
constexpr auto names_of(CandidateStatus) {
  return detail::words("ok", "tied", "slower", "untried", "rejected");
}
constexpr auto names_of(Rejection) {
  return detail::words("wrong", "unsteady", "threw", "unbuildable", "invalid_launch", "crashed",
                       "exited", "timed_out", "out_of_memory", "out_of_bounds", "changed_host",
                       "quarantined", "invalid", "unknown");
}
constexpr auto names_of(Search) { return detail::words("race", "exhaustive", "random", "auto"); }
constexpr auto names_of(FirstRuns) { return detail::words("child", "none", "mixed"); }
constexpr auto names_of(EventKind) {
  return detail::words("override", "overlay_hit", "cache_hit", "autotune_start", "autotune_finish",
                       "heuristics", "error", "takeover", "drift");
}
constexpr auto names_of(Origin) {
  return detail::words("override", "overlay", "memory", "persistent", "autotune", "heuristics");
}
constexpr auto names_of(Outcome) { return detail::words("tuned", "unresolved", "failed"); }
constexpr auto names_of(Clock) { return detail::words("thread_cpu", "wall", "device"); }
constexpr auto names_of(CacheState) { return detail::words("warm", "cold", "automatic"); }
constexpr auto names_of(Platform) { return detail::words("cpu", "opencl", "cuda"); }
constexpr auto names_of(Context) { return detail::words("", "shard_map", "batch"); }
constexpr auto names_of(ErrorKind) {
  return detail::words("invalid_argument", "no_configuration", "parse", "io", "device");
}

// The word that stands for a value in files and messages, the value of a word, and whether a word
// stands for a value.
template <class E>
constexpr std::string_view name_of(E value) {
  return names_of(value)[static_cast<size_t>(value)];
}
// nullopt: this version does not know the name.
template <class E>
constexpr std::optional<E> named(std::string_view name) {
  constexpr auto names = names_of(E{});
  for (size_t i = 0; i < names.size(); ++i)
    if (names[i] == name) return static_cast<E>(i);
  return std::nullopt;
}
template <class E>
constexpr bool is(std::string_view name, E value) {
  return name == name_of(value);
}

// ---- what follows from them

// Whether a tuning that wrote to this store measured the entry. Only such an entry is trusted as
// evidence, and only such a tuning is continued.
bool is_measured(const Entry& entry);

// Whether the rejection also holds next time. A candidate that ran out of time or memory, or that
// is_valid refused, may pass under other circumstances.
constexpr bool is_permanent(Rejection kind) {
  return kind != Rejection::timed_out && kind != Rejection::out_of_memory &&
         kind != Rejection::invalid;
}
bool is_rejected_for_good(const Measurement& m);
// It took part and was not rejected.
bool has_time(const Measurement& m);

}  // namespace ejk
