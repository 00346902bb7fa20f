// SPDX-License-Identifier: Apache-2.0
// One child process that runs a trial's jobs when it is told to, and what became of it.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include <ejk/stopwatch.h>
#include <ejk/tuner.h>

#include "base/file.h"
#include "base/time.h"
#include "guard/child_cgroup.h"
#include "guard/guard.h"

namespace ejk::detail {

struct Board;  // shared with the child

// What can be asked of a child: a run of this config, or of the reference if there is none.
using Job = const AnyConfig*;

struct JobReport {
  Finding finding;
  bool may_be_ours = false;    // the guard itself could be the cause: repeat it
  bool needs_control = false;  // says nothing unless the control passes in its place
  bool waited = false;         // was late without having computed much
  bool has_reference = false;  // of the reference's job
  bool hung = false;           // before or after the run
};

// How long a child may take for a run, in seconds.
struct Patience {
  double deadline;
  double idle = 1e9;   // gives up if it computed next to nothing for so long
  double still = 1e9;  // the same if none of its threads ran at all, where the host has threads
  double own = 60;     // before and after the run
};

class GuardChild {
 public:
  using Clock = base::Clock;

  // A fork of this process, which knows the trial and the jobs it was forked with. The jobs must
  // outlive it. `enough` may be empty.
  GuardChild(Trial& trial, Stopwatch& stopwatch, std::span<const Job> jobs,
             const GuardLimits& limits, const std::function<bool()>& enough);
  // A worker (platform/zygote.h), which makes the trial again of its parcel and can use a device.
  // One that compiles runs a config only as far as its programs need it, and leaves no outputs.
  enum class Purpose { runs, compiles };
  GuardChild(Trial& trial, const base::Fd& parcel, Purpose purpose, const GuardLimits& limits,
             const std::function<bool()>& enough);
  // Ends the child and what it started, and leaves no zombie.
  ~GuardChild();
  GuardChild(const GuardChild&) = delete;
  GuardChild& operator=(const GuardChild&) = delete;

  // False if it could not be started or has ended.
  bool alive() const;
  const std::string& why_not_started() const { return why_not_started_; }
  size_t jobs_done() const { return jobs_done_; }

  JobReport run(size_t job, Job config, const Patience& patience);

 private:
  enum class Event { told, ended, late, given_up };
  struct Watch;

  bool open_channels();
  bool fork_here(Trial& trial, Stopwatch& stopwatch, std::span<const Job> jobs,
                 uint64_t memory_bytes);
  bool start_worker(const base::Fd& parcel, Purpose purpose);
  void wait_until_ready(Clock::duration patience);
  bool tell(size_t job, Job config);
  Event wait(Clock::time_point deadline);
  void drain_stderr();
  std::string words_on_board() const;
  JobReport told(size_t job);
  JobReport ended();
  JobReport died_of(int signal) const;
  JobReport exited(int status) const;
  JobReport late(const Watch& watch);
  bool late_already(Watch& watch) const;
  bool take_outputs(std::vector<OutputBytes>& outputs) const;
  double cpu_seconds() const;
  std::string with_last_words(std::string why) const;
  bool look(siginfo_t& info) const;
  void kill_group();
  int reap();  // its status, or no_status if someone else took it

  const Trial& trial_;
  const std::function<bool()>& enough_;
  Board* board_ = nullptr;
  void* board_pages_ = nullptr;
  base::Fd board_file_, orders_, events_, stderr_, outputs_, pidfd_;
  base::Fd childs_orders_, childs_events_, childs_stderr_;
  std::optional<ChildCgroup> cgroup_;
  pid_t pid_ = -1;
  bool is_worker_ = false;
  std::chrono::milliseconds between_looks_{100};  // while the tuning may be told to stop
  bool host_has_threads_ = false;                 // which a fork of it lacks
  char told_ = 0;                                 // its last event, a Board::Phase
  size_t jobs_done_ = 0;
  std::string why_not_started_, last_words_;
};

// How much a child may use beyond what the process uses now, if no limit is given.
uint64_t default_memory_limit();

}  // namespace ejk::detail
