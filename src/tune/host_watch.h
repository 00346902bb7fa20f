// SPDX-License-Identifier: Apache-2.0
// Configs that run in this process leave it as it was.
#pragma once

#include <optional>
#include <string>

#include <ejk/any_config.h>

#include "guard/holdings.h"
#include "guard/host_state.h"

namespace ejk::detail {

struct Tuning;

// Made before configs run here. It looks at what the whole process shares only where no other
// thread of the program can change that, or be disturbed by the look: beside others, children show
// it.
class HostWatch {
 public:
  enum class Of { thread, process };  // what belongs to the thread costs next to nothing
  explicit HostWatch(Tuning& tuning, Of of = Of::process);
  // Puts back what they left changed, and says for people what that was; "" if nothing.
  std::string put_back() const;
  // The same after runs of one config, of which only what it does again counts: it runs once more.
  // What came once is a library that has started: it keeps what it set up in the process.
  std::string put_back_after(const AnyConfig& config) const;

 private:
  friend class FirstRunWatch;
  std::string put_back_parts() const;
  std::string parts_that_come_again(const AnyConfig& config) const;

  Tuning& tuning_;
  std::optional<ThreadState> thread_;
  std::optional<ProcessState> process_;
};

// The same for a first run, which may be repeated to see whether what it left behind grows with
// every run.
class FirstRunWatch {
 public:
  explicit FirstRunWatch(Tuning& tuning);
  // `passed`: it did not fail.
  std::string put_back_after(const AnyConfig& config, bool passed) const;

 private:
  std::string left_behind(const AnyConfig& config) const;

  HostWatch watch_;
  std::optional<OpenFiles> files_;  // where no other thread runs
  Holdings held_;
};

}  // namespace ejk::detail
