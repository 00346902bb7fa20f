// SPDX-License-Identifier: Apache-2.0
// Makes and removes directories below /sys/fs/cgroup, or wherever cgroup v2 is mounted.
#include "guard/child_cgroup.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <sstream>
#include <string_view>
#include <thread>

#include "base/file.h"
#include "base/format.h"

namespace ejk::detail {
namespace {

constexpr size_t max_listing = 1 << 20;  // bytes of /proc/self/mountinfo
constexpr std::string_view prefix = "ejk-";

// "/a/b" of the line "0::/a/b".
std::string path_in_hierarchy() {
  std::istringstream lines(base::read_file("/proc/self/cgroup", max_listing).text);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("0::/")) return line.substr(3);
  return {};
}

// The directory of this process's own group; empty if it is not mounted.
std::string own_directory() {
  const std::string path = path_in_hierarchy();
  std::istringstream lines(base::read_file("/proc/self/mountinfo", max_listing).text);
  for (std::string line; !path.empty() && std::getline(lines, line);) {
    if (line.find(" - cgroup2 ") == line.npos) continue;
    std::istringstream fields(line);
    std::string number, parent, device, root, mounted_at;
    fields >> number >> parent >> device >> root >> mounted_at;
    if (root == "/") root.clear();
    if (path.starts_with(root + '/')) return mounted_at + path.substr(root.size());
    if (path == root) return mounted_at;
  }
  return {};
}

bool write_into(const std::string& path, std::string_view text) {
  const base::Fd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  return file.valid() && ::write(file.get(), text.data(), text.size()) == ssize_t(text.size());
}

// Of programs that were killed before they could. One that holds processes is not removed.
void remove_leftovers(const std::string& own) {
  for (const std::string& name : base::list_directory(own)) {
    if (!name.starts_with(prefix)) continue;
    const pid_t maker = std::atoi(name.c_str() + prefix.size());
    if (maker > 0 && ::kill(maker, 0) != 0 && errno == ESRCH) ::rmdir((own + '/' + name).c_str());
  }
}

}  // namespace

ChildCgroup::ChildCgroup() {
  static std::atomic<unsigned> made = 0;
  const std::string own = own_directory();
  if (own.empty() || ::access(own.c_str(), W_OK) != 0) return;
  remove_leftovers(own);
  std::string directory = fmt::format("{}/{}{}-{}", own, prefix, ::getpid(), made++);
  if (::mkdir(directory.c_str(), 0700) != 0) return;
  if (::access((directory + "/cgroup.kill").c_str(), W_OK) == 0) directory_ = std::move(directory);
  else ::rmdir(directory.c_str());
}

void ChildCgroup::add(pid_t child) {
  if (!made()) return;
  holds_child_ = write_into(directory_ + "/cgroup.procs", std::to_string(child));
}

bool ChildCgroup::end_all() { return holds_child_ && write_into(directory_ + "/cgroup.kill", "1"); }

// Processes that were killed are there for a moment.
ChildCgroup::~ChildCgroup() {
  constexpr int max_tries = 100;
  if (!made()) return;
  for (int i = 0; i < max_tries && ::rmdir(directory_.c_str()) != 0 && errno == EBUSY; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace ejk::detail
