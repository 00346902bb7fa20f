// SPDX-License-Identifier: Apache-2.0
// Calls that were answered with a heuristic and wait for their tuning.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

#include <ejk/kernel.h>
#include <ejk/selector.h>

#include "base/file.h"
#include "choose/machine_load.h"
#include "choose/recent_map.h"

namespace ejk::detail {

// All of an id in one text, for maps.
std::string text_of(const EntryId& id);

struct LaterCall {
  EntryId id;
  Invocation inv;  // as the chain sees it under its policy
  AutotunePolicy policy;
  std::shared_ptr<const KeptCall> kept;
  std::optional<Entry> so_far = {};  // of a tuning that was cut short
  bool replaces = false;             // what is stored, which has become slow
};

// The queue. One call at a time is tuned: by its own thread, which lets a process do it, or by a
// thread of the program that has nothing to do. Thread-safe.
//
// A process that the program forks at any moment has no such thread: nothing is tuned there, and
// nothing of this is touched, as its lock may be held by a thread that is not there.
class Background {
 public:
  enum class Place { process, here };
  enum class End {
    done,
    later,     // there is more to do: it waits again
    gave_way,  // it was broken off, and begins again
  };
  // How a call is to be tuned now.
  struct Turn {
    Place place;
    double seconds;                 // of tuning, at most
    double share;                   // of one core, in a process
    int give_way;                   // becomes readable when it must end at once
    std::function<bool()> is_busy;  // the process must wait
  };
  struct Work {
    std::function<End(LaterCall&, const Turn&)> tune;
    std::function<void(const LaterCall&)> leave;  // what is not tuned by this process
    std::function<bool()> is_stopped;             // nothing is to be tuned now
  };

  // Each may take minutes of a small share of a core: more of them would wait for days.
  static constexpr size_t max_calls = 1000;

  // `is_busy`: empty: as the machine is.
  Background(Work work, std::function<bool()> is_busy, size_t max_known);
  ~Background();  // breaks off what is on, and leaves all that waits
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  // True if the call waits or was here before.
  bool knows(const std::string& id) const;
  // True if it waits or is being tuned.
  bool waits(const std::string& id) const;
  // Of policy.background_bytes, what may still be taken; nullopt: there are too many calls.
  std::optional<size_t> room(const AutotunePolicy& policy) const;
  void add(LaterCall later);
  void note(const std::string& id);  // it does not come, and is known from now on
  // Tunes here; how many still wait.
  size_t idle(double seconds);

 private:
  struct State;
  static void work(State& state);
  bool is_mine() const { return owner_ == ::getpid(); }

  const pid_t owner_ = ::getpid();
  State* state_;  // is left alone in a forked process
};

// Held by threads of this kind while they use what a call in a forked process needs, too: the
// program forks before or after that.
class WhileNobodyForks {
 public:
  WhileNobodyForks();
  ~WhileNobodyForks();
  WhileNobodyForks(const WhileNobodyForks&) = delete;
  WhileNobodyForks& operator=(const WhileNobodyForks&) = delete;
};
// For as long as it lives, the program may.
class WhileOthersMayFork {
 public:
  WhileOthersMayFork();
  ~WhileOthersMayFork();
  WhileOthersMayFork(const WhileOthersMayFork&) = delete;
  WhileOthersMayFork& operator=(const WhileOthersMayFork&) = delete;

 private:
  const bool held_;
};

}  // namespace ejk::detail
