// SPDX-License-Identifier: Apache-2.0
// Compiles the device programs of configs in other processes, while the first of these run.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "base/file.h"
#include "guard/child_process.h"

namespace ejk::detail {

// What it makes goes to the programs on disk. It begins with the last configs, and who runs them
// with the first ones, so that nothing is compiled twice. One thread uses it.
class CompileAhead {
 public:
  // Trial and parcel must outlive it. Nothing is started yet.
  CompileAhead(Trial& trial, const base::Fd& parcel, const GuardLimits& limits, int processes);
  ~CompileAhead();

  // The configs must live until `end`. `deadline`: seconds of one launch.
  void begin(std::span<const Job> configs, double deadline);
  struct Report {
    double seconds = 0;   // that were spent on it; 0: it was not compiled
    bool spills = false;  // registers
  };
  // Leaves this config and those before it to the caller, or waits until it is compiled if that has
  // begun, unless `enough` says so.
  Report take(size_t index, const std::function<bool()>& enough);
  // What is being compiled is given up. The processes stay for the next ones.
  void end();

 private:
  enum class State { open, begun, done };
  struct Config {
    Job config;
    State state = State::open;
    Report report = {};
  };
  void compile_until_end(std::unique_ptr<GuardChild>& child);

  Trial& trial_;
  const base::Fd& parcel_;
  const GuardLimits limits_;
  Patience patience_{0};
  std::atomic<bool> ended_{true};
  const std::function<bool()> enough_ = [this] { return ended_.load(); };
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Config> configs_;
  size_t front_ = 0, back_ = 0;  // those between them are not taken yet
  std::vector<std::unique_ptr<GuardChild>> children_;
  std::vector<std::thread> threads_;
};

}  // namespace ejk::detail
