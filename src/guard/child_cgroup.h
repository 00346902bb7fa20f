// SPDX-License-Identifier: Apache-2.0
// A control group for one child process: nothing that it starts can leave it.
#pragma once

#include <sys/types.h>

#include <string>

namespace ejk::detail {

// Below the group of this process, where the system has groups (cgroup v2, Linux 5.14) and lets
// this user make some. Everywhere else it is empty.
class ChildCgroup {
 public:
  ChildCgroup();
  ~ChildCgroup();  // removes the group, whose processes have ended
  ChildCgroup(const ChildCgroup&) = delete;
  ChildCgroup& operator=(const ChildCgroup&) = delete;

  bool made() const { return !directory_.empty(); }
  // Takes in a child that has started nothing yet.
  void add(pid_t child);
  // Ends all that it holds at once. False if it is empty: look for them in another way.
  bool end_all();

 private:
  std::string directory_;  // empty: there is none
  bool holds_child_ = false;
};

}  // namespace ejk::detail
