// SPDX-License-Identifier: Apache-2.0
// Tuning in another process, so that a kernel that crashes does not end this one. The two exchange
// lines of JSON (docs/reference/worker.md), so that a worker can be written in any language.
#pragma once

#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <ejk/detail/export.h>
#include <ejk/record.h>
#include <ejk/selector.h>
#include <ejk/store.h>
#include <ejk/tuner.h>

namespace EJK_EXPORT ejk {

// The version of the messages between host and worker: docs/reference/worker.md.
inline constexpr int worker_protocol = 1;

// Which program is the worker, and how it tunes.
struct WorkerOptions {
  std::vector<std::string> command;       // program and arguments; the program is found by $PATH
  std::vector<std::string> plugins = {};  // shared libraries of kernels that it loads
  // Where it keeps what it finds; "": the default place with its layers.
  std::string store = {};
  bool validate_backward = false;
  // As in a policy; the reference is the heuristic's config. A worker that does not know it is
  // refused.
  Numerics numerics = Numerics::any;
  bool retune = false;  // measures anew what is stored already, instead of going on with it
  // One that has not answered so long after its budget was spent is ended.
  double patience_seconds = 60;
  ProgressSink on_progress = {};
  WarningSink on_warning = {};  // hears of workers that died and were replaced; default: stderr
  // When set from elsewhere, the tuning ends with what it has.
  const std::atomic<bool>* stop = nullptr;
};

// The worker died, hung or did not keep to the protocol. The message says how, and what it was
// running.
class WorkerLost : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// One process, started when it is first needed and again after it was lost. It dies with its host.
// For one thread at a time, which must outlive it.
class Worker {
 public:
  explicit Worker(WorkerOptions options);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // The fingerprint of what its calls run on. Throws Error(invalid_argument) if it cannot be
  // started, or refuses to work; so does tune.
  std::string device();

  // Tunes the call there; the worker has kept the result, which is returned without its candidates.
  // If the worker dies while it runs a config, that config is a suspect, and a fresh worker goes
  // on, some times. Throws the Error that the worker reports, or WorkerLost.
  Entry tune(const RecordedCall& call, double budget_seconds);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// Makes this process a worker for the kernels that are registered here: answers what comes on
// standard input until that ends, on standard output, which kernels then find to be standard error.
// SIGINT ends a tuning with what it has, and then the worker. Returns an exit code.
int run_worker(WarningSink on_warning = {});

}  // namespace ejk
