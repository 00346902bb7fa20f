// SPDX-License-Identifier: Apache-2.0
// The programs of one device, by all that they were made of.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "platform/backend.h"

namespace ejk::detail {

// A program and what of it is on disk.
struct CachedProgram {
  std::string key, name, source;
  std::mutex mutex;
  std::shared_ptr<DeviceProgram> program;  // null until it is loaded or built
  bool is_kept = false;
  std::set<std::string> kept_kernels;  // those that had been launched when it was written
};

// Is told, by the thread that does it, when a program begins to be made, loaded or kept, and when
// that is over: where runs have a deadline, the compiler's time is not theirs. `spilled_bytes`:
// what its kernels keep in memory for want of registers. One for the process; null: none.
using BuildWatch = void (*)(bool begins, int64_t spilled_bytes);
void watch_builds(BuildWatch watch);

// From now on launches of this process only make and keep their programs. Where these must be
// launched for that, with one group. For a process that compiles ahead: there is no way back.
void only_compile_launches();

// First in memory, then on disk, else built. Thread-safe; a text is built by one thread, and those
// that want the same wait for it.
class ProgramCache {
 public:
  explicit ProgramCache(Backend& backend) : backend_(backend) {}

  struct Counts {
    int64_t built = 0, loaded = 0;
    double build_seconds = 0;  // loading included
  };

  // Throws what Backend::build throws; the next one tries again.
  std::shared_ptr<CachedProgram> get(const std::string& name, const std::string& source);
  // Writes the binary, unless the one on disk has the kernel. Where binaries grow, after the first
  // launch of the kernel by a thread, which it waits for.
  void keep(CachedProgram& program, const std::string& kernel);
  Counts counts() const;

 private:
  struct Slot {
    std::shared_ptr<CachedProgram> program;
    uint64_t last_use = 0;
  };
  std::shared_ptr<CachedProgram> slot(const std::string& name, const std::string& source);
  void make(CachedProgram& program);

  Backend& backend_;
  mutable std::mutex mutex_;
  std::map<std::string, Slot> programs_;
  uint64_t uses_ = 0;
  Counts counts_;
};

}  // namespace ejk::detail
