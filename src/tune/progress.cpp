// SPDX-License-Identifier: Apache-2.0
// A tuning on stderr, and Ctrl-C that ends it with what it has.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <mutex>

#include <signal.h>
#include <unistd.h>

#include <ejk/tuner.h>

#include "base/env.h"
#include "base/format.h"
#include "base/text.h"

namespace ejk {
namespace {

std::string state_of(const TuneProgress& p) {
  std::string line =
      fmt::format("{} {}: {} of {} tried", p.op, p.key.substr(0, 8), p.tried, p.candidates);
  if (p.compile_seconds > 0) line += fmt::format(", {:.1f} s compiled", p.compile_seconds);
  if (p.rejected > 0) line += fmt::format(", {} rejected", p.rejected);
  if (p.round > 0) line += fmt::format(", {} racing, round {}", p.racing, p.round);
  if (p.clock == Clock::device) line += " by the device's clock";
  if (p.best_seconds > 0) line += fmt::format(", best {:.3g} ms", 1e3 * p.best_seconds);
  if (p.speedup > 0) line += fmt::format(" ({:.2f}x)", p.speedup);
  return line;
}

// Lines are cut so that they never wrap: a wrapped line cannot be overwritten.
class Display {
 public:
  void show(const TuneProgress& p) {
    const std::lock_guard lock(mutex_);
    const bool last = p.kind == TuneProgress::Kind::finished;
    const auto now = std::chrono::steady_clock::now();
    if (!last && now < next_) return;
    next_ = now + (terminal_ ? std::chrono::milliseconds(100) : std::chrono::milliseconds(2000));
    std::string line = state_of(p);
    line += last ? fmt::format(", done in {:.1f} s", p.elapsed)
                 : fmt::format(", at most {:.0f} s left", p.remaining);
    if (last) line += p.config.is_null() ? ": nothing was found" : ": " + stable_json(p.config);
    line = base::printable(line);  // names and configs may come from files of others
    if (terminal_) fmt::print(stderr, "\r\033[K{:.78}{}", line, last ? "\n" : "");
    else fmt::print(stderr, "ejk: {}\n", line);
    std::fflush(stderr);
  }

 private:
  std::mutex mutex_;
  const bool terminal_ = isatty(STDERR_FILENO) == 1;
  std::chrono::steady_clock::time_point next_ = std::chrono::steady_clock::now();
};

std::atomic<bool> interrupted{false};
struct sigaction action_before;

extern "C" void note_interrupt(int signal) {
  if (!interrupted.exchange(true)) return;
  sigaction(signal, &action_before, nullptr);  // the second one ends the process as before
  raise(signal);
}

}  // namespace

ProgressSink progress_display() {
  return [display = std::make_shared<Display>()](const TuneProgress& p) { display->show(p); };
}

ProgressSink progress_from_environment() {
  return base::env("EJKERNEL_AUTOTUNE_PROGRESS") == "1" ? progress_display() : ProgressSink{};
}

StopOnInterrupt::StopOnInterrupt() {
  interrupted = false;
  struct sigaction action = {};
  action.sa_handler = note_interrupt;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, &action_before);
}

StopOnInterrupt::~StopOnInterrupt() { sigaction(SIGINT, &action_before, nullptr); }

const std::atomic<bool>& StopOnInterrupt::requested() noexcept { return interrupted; }

}  // namespace ejk
