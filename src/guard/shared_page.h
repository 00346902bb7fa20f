// SPDX-License-Identifier: Apache-2.0
// What a guarded child and its parent share: a page of facts, and the child's whole life.
#pragma once

#include <atomic>
#include <csignal>
#include <cstdint>
#include <span>

#include <sys/types.h>

#include "guard/child_process.h"

namespace ejk::detail {

// Written by the child only. It is small and stands alone between closed pages, because a candidate
// that runs wild shares the memory it is in; the parent believes nothing in it that cannot be.
struct Board {
  enum class Phase : uint32_t { starting, waiting, resetting, running, reporting, finished };
  static constexpr char dying =
      'd';  // instead of a phase: it waits to be ended with all it started
  enum class Verdict : uint32_t {
    none,
    passed,
    threw,
    lacked_resources,  // threw because the system refused something: threads, descriptors
    out_of_memory,
    out_of_bounds,
    changed_host,
    no_reference,
    not_reported,  // it passed, but its outputs could not be handed over
  };
  enum class Exit : uint32_t { none, exit, quick_exit, thread };

  std::atomic<Phase> phase;
  std::atomic<Verdict> verdict;
  std::atomic<uint32_t> job;
  std::atomic<uint64_t> nanoseconds;
  std::atomic<uint64_t> outputs, outputs_bytes;  // in the shared file
  // Left behind by one that died:
  std::atomic<int32_t> signal;
  std::atomic<bool> signal_from_outside;
  std::atomic<bool> starved;  // memory was refused, which may be what it stumbled over later
  std::atomic<uint64_t> fault_address;  // 0: not known
  std::atomic<Exit> exit;
  std::atomic<int32_t> exit_status;
  char why[1024];  // ended by 0
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);  // else not shared between processes

// In front of each output in the shared file.
struct OutputHeader {
  uint64_t dtype, bytes;
};

constexpr int fatal_signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS};

// Descriptors of the child's ends.
struct ChildEnds {
  int orders, events, standard_error, outputs;
};

// All that happens in the child, from the fork to its end. `host`: who must be its parent.
// `signals`: the mask the host's thread had.
[[noreturn]] void live_as_child(Trial& trial, Stopwatch& stopwatch, std::span<const Job> jobs,
                                Board& board, const ChildEnds& ends, uint64_t memory_bytes,
                                pid_t host, const sigset_t& signals) noexcept;

}  // namespace ejk::detail
