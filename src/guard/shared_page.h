// SPDX-License-Identifier: Apache-2.0
// What a guarded child and its parent share: a page of facts, and the child's whole life.
#pragma once

#include <atomic>
#include <csignal>
#include <cstdint>
#include <functional>
#include <span>

#include <sys/types.h>

#include <ejk/gpu.h>

#include "guard/child_process.h"

namespace ejk::detail {

// Written by the child only. It is small and stands alone between closed pages, because a candidate
// that runs wild shares the memory it is in; the parent believes nothing in it that cannot be.
struct Board {
  enum class Phase : uint32_t {
    starting,
    waiting,
    refused,  // it cannot make its trial; `why` says what hinders
    resetting,
    building,  // a program of a device, on the way to a run
    running,
    reporting,
    finished
  };
  static constexpr char dying =
      'd';  // instead of a phase: it waits to be ended with all it started
  enum class Verdict : uint32_t {
    none,
    passed,
    threw,
    lacked_resources,  // threw because the system refused something: threads, descriptors
    device_failed,     // in its own words; `device_error` has their kind
    out_of_memory,
    out_of_bounds,
    changed_host,
    no_reference,
    not_reported,  // it passed, but its outputs could not be handed over
  };
  enum class Exit : uint32_t { none, exit, quick_exit, thread };

  std::atomic<Phase> phase;
  std::atomic<Verdict> verdict;
  std::atomic<DeviceError::Kind> device_error;
  std::atomic<uint32_t> job;
  std::atomic<uint64_t> nanoseconds;
  std::atomic<uint64_t> compile_nanoseconds;     // by which the first run took longer
  std::atomic<uint64_t> spilled_bytes;           // by kernels of what was built
  std::atomic<uint64_t> outputs, outputs_bytes;  // in the shared file
  // Left behind by one that died:
  std::atomic<int32_t> signal;
  std::atomic<bool> signal_from_outside;
  std::atomic<bool> starved;  // memory was refused, which may be what it stumbled over later
  std::atomic<const void*> fault_address;  // nullptr: not known
  std::atomic<Exit> exit;
  std::atomic<int32_t> exit_status;
  char why[1024];  // ended by 0
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);  // else not shared between processes

// Its page in a file (-1: in no file, for children that are forked later), between two closed ones;
// nullptr if that fails.
void* map_board(int file);
void* board_in(void* mapped);
void unmap_board(void* mapped);

// In front of each output in the shared file.
struct OutputHeader {
  uint64_t dtype, bytes;
};

constexpr int fatal_signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS};

// Descriptors of the child's ends.
struct ChildEnds {
  int orders, events, standard_error, outputs;
};

// A job as it is told. The text of a config follows it where the child does not know the job.
struct Order {
  uint32_t job, text_bytes;
};

// What a child works on.
struct ChildWork {
  Trial* trial = nullptr;
  Stopwatch* stopwatch = nullptr;
  std::span<const Job> jobs = {};      // those that need no text
  const ConfigType* config = nullptr;  // of texts
  bool only_compiles = false;          // what it runs leaves nothing
};

struct ChildParent {
  pid_t pid;         // who must be its parent
  sigset_t signals;  // the mask it shall have
};

// All that happens in the child, from the fork to its end. `begin` makes its work; what that throws
// ends it.
[[noreturn]] void live_as_child(const std::function<ChildWork()>& begin, Board& board,
                                const ChildEnds& ends, uint64_t memory_bytes,
                                const ChildParent& parent) noexcept;

// The life of a worker, see platform/zygote.h. Its files: the four ends, the board, the parcel.
void live_as_worker(std::span<const int> files, pid_t zygote);
void live_as_compiler(std::span<const int> files, pid_t zygote);

}  // namespace ejk::detail
