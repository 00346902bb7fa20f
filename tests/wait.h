// SPDX-License-Identifier: Apache-2.0
// Waits for what other threads and processes do, always with a deadline. No other file of the tests
// looks again and again.
#pragma once

#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>

namespace ejk::testing {

// Throws after two minutes: longer than a busy machine needs, shorter than the time a test may
// take.
inline void wait_until(const std::function<bool()>& done, const std::string& what = "it") {
  using namespace std::chrono_literals;
  const auto until = std::chrono::steady_clock::now() + 2min;
  for (std::chrono::microseconds pause = 100us; !done(); pause = std::min(2 * pause, {5ms})) {
    if (std::chrono::steady_clock::now() > until)
      throw std::runtime_error(what + " does not come within two minutes");
    std::this_thread::sleep_for(pause);
  }
}

inline void wait_for_file(const std::string& path) {
  wait_until([&] { return std::filesystem::exists(path); }, path);
}

// Counts how often any process opens a file of a directory. A process that waits for a file lock
// opens its file at each look.
class Openings {
 public:
  explicit Openings(const std::string& directory)
      : fd_(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC)), directory_(directory) {
    if (::inotify_add_watch(fd_, directory.c_str(), IN_OPEN) < 0)
      throw std::runtime_error("cannot watch " + directory + ": " + std::strerror(errno));
  }
  ~Openings() { ::close(fd_); }
  Openings(const Openings&) = delete;
  Openings& operator=(const Openings&) = delete;

  void wait_for(int count) {
    wait_until([&] { return read(), count_ >= count; },
               "opening " + std::to_string(count) + " of files in " + directory_);
  }

 private:
  void read() {
    alignas(inotify_event) char events[4096];
    for (ssize_t size; (size = ::read(fd_, events, sizeof events)) > 0;)
      for (const char* at = events; at < events + size;) {
        const auto* event = reinterpret_cast<const inotify_event*>(at);
        if (!(event->mask & IN_ISDIR)) ++count_;
        at += sizeof *event + event->len;
      }
  }

  int fd_, count_ = 0;
  std::string directory_;
};

}  // namespace ejk::testing
