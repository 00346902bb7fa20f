// SPDX-License-Identifier: Apache-2.0
// A process that was forked before any driver was touched, and that forks workers: these can use
// devices, which no later fork of this process can.
#pragma once

#include <sys/types.h>

#include <span>
#include <string>

#include "base/or_why.h"

namespace ejk::detail {

// Who may tune says so: as long as there are executors, they decide whether first runs in workers
// are possible, else $EJKERNEL_AUTOTUNE_POLICY does ("heuristics" and "frozen": they are not).
class TuningPlan {
 public:
  explicit TuningPlan(bool guarded_tunings);
  ~TuningPlan();
  TuningPlan(const TuningPlan&) = delete;
  TuningPlan& operator=(const TuningPlan&) = delete;

 private:
  bool guarded_tunings_;
};

// To be called before a platform is opened; only the first call does anything. It forks unless no
// first run will happen in a worker. `used_before` says whether the program has used a driver by
// itself, which a fork would not survive.
void start_zygote(bool (*used_before)());
// Why no worker can be started, for people; "" if one can.
std::string why_no_zygote();
pid_t zygote_pid();  // -1: there is none

// The whole life of a worker, with the files that it was given. SIGCHLD has its default action and
// no signal is blocked; `zygote` is its parent.
using WorkerLife = void (*)(std::span<const int> files, pid_t zygote);

// Thread-safe.
base::OrWhy<pid_t> start_worker(WorkerLife life, std::span<const int> files);
// Waits for the end of a worker and takes its number away. Its status as of waitpid; -1 if it is
// not known.
int reap_worker(pid_t worker);

}  // namespace ejk::detail
