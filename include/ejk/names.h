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

// Entry::provenance: how the entry came into its store.
enum class Provenance : uint8_t {
  measured,     // a tuning on that device found it
  put,          // a program put it under its key
  imported,     // `ejk import` read it from a file
  transferred,  // it was found on another device
};
// Measurement::status: how a candidate did, the best first.
enum class CandidateStatus : uint8_t {
  ok,        // the winner
  tied,      // the race could not tell it from the winner
  slower,    // it is clearly slower than the winner
  untried,   // it was not run: the budget was spent, or the search did not ask for it
  rejected,  // it must not run this call; Measurement::kind says why
};
// Measurement::kind: why a candidate was rejected.
enum class Rejection : uint8_t {
  wrong,           // its results differ from those expected
  unsteady,        // its results change from run to run
  threw,           // it threw an exception
  unbuildable,     // a device's compiler refused its program
  invalid_launch,  // a device cannot run groups of such a size, or takes no such arguments
  crashed,         // by a fatal signal, or what ended a device's context
  exited,          // it ended the process
  timed_out,       // it ran longer than its deadline
  out_of_memory,   // it asked for more than its limit
  out_of_bounds,   // it missed one of its arrays, or wrote into an input
  changed_host,    // it left settings of the process changed, or more of what it holds each time
  quarantined,     // it crashed in earlier tunings
  invalid,         // is_valid refused it for this call
  unknown,         // it failed in a child process that could not say how
};
// Evidence::strategy: what came before the race.
enum class Search : uint8_t {
  race,        // nothing: all candidates were in the race
  exhaustive,  // every point in the order of the list
  random,      // every point in random order
  automatic,   // a model of the times picked the points; its word is "auto"
};
// Evidence::guard: where the first runs of candidates happened.
enum class FirstRuns : uint8_t {
  child,  // in a child process
  here,   // in the process itself; its word is "none", for no guard
  mixed,  // in a child process, and here those of configs that only waited there
};
// Event::kind: what a chain did for a call.
enum class EventKind : uint8_t {
  override_,        // the call came with a config; its word is "override"
  overlay_hit,      // an overlay in scope answered
  cache_hit,        // memory or the store answered; Event::tier says which
  autotune_start,   // a tuning begins
  autotune_finish,  // a tuning ended; Event::message says how
  heuristics,       // the heuristic answered
  error,            // there is no config for the call, which throws
  takeover,         // calls have another config from now on, which was tuned in the background
  drift,            // calls have become slower than the evidence of their config says
};

// ---- their names, in the order of the enums

namespace detail {
constexpr auto words(auto... word) {
  return std::array<std::string_view, sizeof...(word)>{word...};
}
}  // namespace detail
// The words of an enum, in the order of its values, as files and messages have them. These words do
// not change: what earlier versions wrote stays readable.
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

// The word of a value, for example name_of(Rejection::wrong) == "wrong". It lives as long as the
// process.
template <class E>
constexpr std::string_view name_of(E value) {
  return names_of(value)[static_cast<size_t>(value)];
}
// The value of a word: named<Rejection>("wrong"). nullopt if this version does not know the word,
// as one that a later version wrote; keep such a word as it is.
template <class E>
constexpr std::optional<E> named(std::string_view name) {
  constexpr auto names = names_of(E{});
  for (size_t i = 0; i < names.size(); ++i)
    if (names[i] == name) return static_cast<E>(i);
  return std::nullopt;
}
// Whether a word means that value: is(measurement.status, CandidateStatus::rejected).
template <class E>
constexpr bool is(std::string_view name, E value) {
  return name == name_of(value);
}

// ---- what follows from them

// Whether a tuning that wrote to this store measured the entry (Provenance::measured). Only such an
// entry is trusted as evidence, and only such a tuning is continued.
bool is_measured(const Entry& entry);

// Whether the rejection also holds next time. A candidate that ran out of time or memory, or that
// is_valid refused, may pass under other circumstances.
constexpr bool is_permanent(Rejection kind) {
  return kind != Rejection::timed_out && kind != Rejection::out_of_memory &&
         kind != Rejection::invalid;
}
// Whether this candidate was rejected, for a reason that also holds next time.
bool is_rejected_for_good(const Measurement& m);
// Whether this candidate ran and was not rejected: only then its times mean something.
bool has_time(const Measurement& m);

}  // namespace ejk
