// SPDX-License-Identifier: Apache-2.0
// Threads, open files and child processes that a run leaves behind in its process.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace ejk::detail {

// How many there are.
struct Holdings {
  size_t threads = 0, files = 0, processes = 0;
};
Holdings current_holdings();

// What stays after a first run is a pool, or a file of a library; what grows with every run is a
// leak. Called after the first run, with what there was before it: for people, "" if nothing does.
// `run_again` returns false if it failed.
std::string grows_with_every_run(const Holdings& before, const std::function<bool()>& run_again);

// The files that are open when it is made.
class OpenFiles {
 public:
  OpenFiles();
  // Those that were closed since, or have become others, for people; "" if there are none.
  std::string missing() const;

 private:
  struct File {
    int fd;
    dev_t device;
    ino_t number;
  };
  static bool look(int fd, File& file);
  std::vector<File> files_;
};

}  // namespace ejk::detail
