// SPDX-License-Identifier: Apache-2.0
// The clocks of this machine.
#include <ejk/stopwatch.h>

#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>

namespace ejk {
namespace {

double read(clockid_t id) {
  timespec t{};
  clock_gettime(id, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

struct Switches {
  int64_t voluntary, involuntary;
};
Switches switches() {
  rusage thread{}, process{};
  getrusage(RUSAGE_THREAD, &thread);
  getrusage(RUSAGE_SELF, &process);
  return {thread.ru_nvcsw, process.ru_nivcsw};
}

class SystemStopwatch final : public Stopwatch {
 public:
  double now() override { return read(CLOCK_MONOTONIC); }

  // Both orders mirror each other, so that the reading of one clock is part of the outer ones only.
  Elapsed time(const std::function<void()>& work, Clock finest) override {
    const bool by_wall = finest == Clock::wall;
    const clockid_t inner = by_wall ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID,
                    outer = by_wall ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
    const Switches before = switches();
    const double process = read(CLOCK_PROCESS_CPUTIME_ID), outer_begin = read(outer),
                 inner_begin = read(inner);
    work();
    const double inner_seconds = read(inner) - inner_begin;
    const double outer_seconds = read(outer) - outer_begin;
    Elapsed elapsed;
    elapsed.process_cpu = read(CLOCK_PROCESS_CPUTIME_ID) - process;
    const Switches after = switches();
    elapsed.waits = after.voluntary - before.voluntary;
    elapsed.preemptions = after.involuntary - before.involuntary;
    elapsed.wall = by_wall ? inner_seconds : outer_seconds;
    elapsed.thread_cpu = by_wall ? outer_seconds : inner_seconds;
    return elapsed;
  }

  bool beside_other_threads() override {
    struct stat tasks {};
    constexpr nlink_t dots_and_this_one = 3;
    return stat("/proc/self/task", &tasks) != 0 || tasks.st_nlink > dots_and_this_one;
  }
};

}  // namespace

std::shared_ptr<Stopwatch> system_stopwatch() {
  static const auto only = std::make_shared<SystemStopwatch>();
  return only;
}

}  // namespace ejk
