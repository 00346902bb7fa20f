// SPDX-License-Identifier: Apache-2.0
// Runs configurations for the first time in child processes, which may crash, hang or run wild.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ejk/gpu.h>
#include <ejk/names.h>
#include <ejk/tuner.h>

#include "base/file.h"

namespace ejk::detail {

struct GuardLimits {
  double min_deadline_seconds = 1;       // wall time of one run
  double deadline_over_control = 50;     // times the control's own wall time
  double control_deadline_seconds = 10;  // of the control, the reference, or while there is none
  double own_seconds = 60;  // for what is not the config's doing: resetting, handing outputs over
  double still_seconds = 0.2;         // until one whose threads all sleep is said to wait,
  double still_again_seconds = 0.05;  // and after another one has waited
  uint64_t memory_bytes = 0;  // beyond what the process uses now; 0: chosen from the machine
  bool use_cgroup = true;     // where there is one
  int compilers = -1;         // processes that compile device programs ahead; -1: by the cores
};

// How a run ended in the child.
struct Finding {
  // None: it passed, or waited. Unknown says nothing about the config: killed from outside, could
  // not fork...
  std::optional<Rejection> rejection = Rejection::unknown;
  std::string why = {};  // for people, without the word of the rejection; "" if it passed
  // SIGSEGV SIGBUS SIGFPE SIGILL SIGABRT SIGTRAP SIGSYS, also of one out of bounds.
  bool fatal_signal = false;
  double seconds = 0;                     // wall time of the run in the child, if it came back
  double compile_seconds = 0;             // until its device programs could run, in all processes
  bool spills = false;                    // its device kernels have too few registers
  std::vector<OutputBytes> outputs = {};  // what it left, if it passed
  bool waited = false;  // for a thread of the host, perhaps: says nothing about the config
  bool passed() const { return !rejection && !waited; }
  // `why` where nothing beside it tells the rejection.
  std::string sentence() const {
    const bool alone =
        rejection == Rejection::threw || (rejection == Rejection::crashed && fatal_signal);
    return alone ? std::string(name_of(*rejection)) + ": " + why : why;
  }
};

// Whether the config did it for sure, and not the guard.
constexpr bool is_its_own_doing(Rejection kind) {
  return kind == Rejection::threw || kind == Rejection::unbuildable ||
         kind == Rejection::invalid_launch || kind == Rejection::changed_host;
}

// What a config is rejected as that made a device fail so.
Rejection rejection_of(DeviceError::Kind kind);

class CompileAhead;
class GuardChild;
struct JobReport;

// A failure counts only if it cannot be the guard's own fault: what could come from running in a
// child at all (signals, exits, time, memory) is repeated in a fresh child directly after the
// control, which must pass there, and must come again. One trial, one thread; the trial itself is
// left as it was, all runs happen in copies of it.
class Guard {
 public:
  // A run is given up, as unknown, once `enough` says so, which is asked several times a second.
  explicit Guard(Trial& trial, GuardLimits limits = {}, std::function<bool()> enough = {},
                 std::shared_ptr<Stopwatch> stopwatch = system_stopwatch());
  ~Guard();

  // Of a trial on a device: starts a worker, in which all runs will happen. Why that cannot be, for
  // people; "" if it waits for them.
  std::string start_worker();

  // What will run later, so that one child can do it all: it knows what was known at its start.
  void announce(std::span<const AnyConfig> configs);
  // Ends the child that waits for the next one to run. A worker, which costs more to start, stays.
  void rest();

  // Runs the control in a child. If it does not pass there, this kernel cannot be guarded.
  Finding prove(const AnyConfig& control);
  bool usable() const { return why_not_.empty(); }
  const std::string& why_not() const { return why_not_; }  // for people

  // One more run of a config that passed, in a child, whatever it comes to.
  Finding again(const AnyConfig& config);

  // The kernel's own reference, in a child; nullopt if it has none.
  std::optional<Finding> reference();

  // The first run of each config, in this order, several in one child as long as it lives. `each`
  // is called here, not in the child, as soon as something is known, and stops it all by returning
  // false. If no control was proven, the first config that passes becomes the control, and is told
  // before those that failed earlier; until then each has the least deadline, and that of a control
  // only when all have had their turn. Without any: failures stand as they are, but what waited
  // until its deadline without computing is unknown.
  // Configs that would wait as others did are told as `waited` and not run: those that ask for
  // several threads as the one that waited does, and all of them if several waited and none passed.
  // Configs whose device programs are known to spill registers come last.
  void run(std::span<const AnyConfig> configs,
           const std::function<bool(size_t index, Finding finding)>& each);

 private:
  class Tour;
  double deadline() const;
  size_t job_of(const AnyConfig& config);
  // The child, which is started if there is none that knows the job.
  GuardChild& child_for(size_t job);
  JobReport run_job(size_t job, double deadline_seconds, double idle_seconds = 1e9);
  void end_child();
  bool would_wait(const AnyConfig& config) const;

  Trial& trial_;
  GuardLimits limits_;
  std::function<bool()> enough_;
  std::shared_ptr<Stopwatch> stopwatch_;  // of a run in the child; deadlines are real
  std::optional<AnyConfig> control_;
  double control_seconds_ = 0;  // the longest seen
  std::string why_not_;
  std::deque<AnyConfig> announced_;              // by address: jobs point to them
  std::vector<const AnyConfig*> jobs_{nullptr};  // the reference, then the announced ones
  base::Fd parcel_;                              // of a trial on a device
  std::unique_ptr<CompileAhead> ahead_;
  std::unique_ptr<GuardChild> child_;
  size_t child_knows_ = 0;  // so many of the jobs
  // What configs did in children: how many waited; whether one passed; the same of those that ask
  // for several threads.
  int waited_ = 0;
  bool any_passed_ = false, several_threads_waited_ = false, several_threads_passed_ = false;
};

}  // namespace ejk::detail
