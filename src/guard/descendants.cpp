// SPDX-License-Identifier: Apache-2.0
// Walks down from a process, by /proc.
#include "guard/descendants.h"

#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <sstream>
#include <thread>

#include "base/file.h"

namespace ejk::detail {
namespace {

constexpr size_t small = 1 << 16;  // bytes of a file in /proc

std::string directory_of(pid_t process) { return "/proc/" + std::to_string(process); }

void add_living_descendants(pid_t process, std::vector<pid_t>& all) {
  for (const pid_t child : children_of(process)) {
    if (!is_ending(directory_of(child))) all.push_back(child);
    add_living_descendants(child, all);
  }
}

// Of a child. One that is just starting a program (vfork) does not stop: it is not waited for long.
void stop(pid_t process) {
  constexpr int max_looks = 200;
  ::kill(process, SIGSTOP);
  for (int look = 0; look < max_looks; ++look) {
    siginfo_t state{};
    constexpr int any = WSTOPPED | WEXITED | WNOHANG | WNOWAIT;
    if (::waitid(P_PID, static_cast<id_t>(process), &state, any) != 0 || state.si_pid != 0) return;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

}  // namespace

std::vector<pid_t> children_of(pid_t process) {
  std::vector<pid_t> all;
  const std::string tasks = directory_of(process) + "/task";
  for (const std::string& task : base::list_directory(tasks)) {
    std::istringstream children(base::read_file(tasks + '/' + task + "/children", small).text);
    for (pid_t child = 0; children >> child;) all.push_back(child);
  }
  return all;
}

bool is_ending(const std::string& directory) {
  constexpr unsigned long exiting = 4;  // PF_EXITING
  const std::string stat = base::read_file(directory + "/stat", small).text;
  std::istringstream fields(stat.substr(std::min(stat.size(), stat.rfind(')') + 1)));
  std::string state;
  long parent = 0, group = 0, session = 0, terminal = 0, foreground = 0;
  unsigned long flags = exiting;  // of one that is no more
  fields >> state >> parent >> group >> session >> terminal >> foreground >> flags;
  return (flags & exiting) != 0;
}

// A process that loses its parent on the way becomes a child of the adopter. The adopter is stopped
// first: it reaps no child any more, so that no number becomes another process's. A process that
// waits for a broken disk cannot be ended.
void end_descendants(pid_t adopter) {
  constexpr int max_rounds = 2000;
  stop(adopter);
  for (int round = 0; round < max_rounds; ++round) {
    std::vector<pid_t> living;
    add_living_descendants(adopter, living);
    if (living.empty()) return;
    for (const pid_t process : living) ::kill(process, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(round == 0 ? 0 : 1));
  }
}

}  // namespace ejk::detail
