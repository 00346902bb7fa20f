// SPDX-License-Identifier: Apache-2.0
// Counts what a process holds, from /proc.
#include "guard/holdings.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "base/file.h"
#include "guard/descendants.h"
#include "guard/host_state.h"

namespace ejk::detail {
namespace {

size_t living_threads() {
  const auto tasks = base::list_directory("/proc/self/task");
  return static_cast<size_t>(std::ranges::count_if(
      tasks, [](const std::string& task) { return !is_ending("/proc/self/task/" + task); }));
}

}  // namespace

Holdings current_holdings() {
  return {base::list_directory("/proc/self/task").size(),
          base::list_directory("/proc/self/fd").size(), children_of(::getpid()).size()};
}

std::string grows_with_every_run(const Holdings& before, const std::function<bool()>& run_again) {
  constexpr int more_runs = 8;
  // A pool may start its threads one after the other.
  const int max_for_threads =
      std::max(16, 2 * static_cast<int>(std::thread::hardware_concurrency()));
  bool threads = true, files = true, processes = true;
  Holdings last = before;
  for (int run = 0;; ++run) {
    const Holdings now = current_holdings();
    threads = threads && now.threads > last.threads && living_threads() > last.threads;
    files = files && now.files > last.files;
    processes = processes && now.processes > last.processes;
    if (!threads && !files && !processes) return {};
    if (run >= (threads ? max_for_threads : more_runs)) break;
    if (!run_again()) return {};
    last = now;
  }
  if (threads) {  // some may be about to end
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    threads = living_threads() > last.threads;
  }
  if (!threads && !files && !processes) return {};
  const std::string what = joined(joined(threads ? "threads" : "", files ? "open files" : ""),
                                  processes ? "processes" : "");
  return "leaves more " + what + " behind with every run";
}

bool OpenFiles::look(int fd, File& file) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) return false;
  file = {fd, status.st_dev, status.st_ino};
  return true;
}

OpenFiles::OpenFiles() {
  File file{};
  for (const std::string& name : base::list_directory("/proc/self/fd"))
    if (look(std::atoi(name.c_str()), file)) files_.push_back(file);
}

std::string OpenFiles::missing() const {
  std::string what;
  for (const File& before : files_) {
    File now{};
    if (look(before.fd, now) && now.device == before.device && now.number == before.number)
      continue;
    what = joined(what, "the open file " + std::to_string(before.fd));
  }
  return what;
}

}  // namespace ejk::detail
