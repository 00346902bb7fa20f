// SPDX-License-Identifier: Apache-2.0
// The one place where a tuning reads clocks. A test, or a device with its own clocks, can replace
// it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include <ejk/detail/export.h>

namespace EJK_EXPORT ejk {

// Which time counts in a race.
enum class Clock : uint8_t { thread_cpu, wall, device };

// What the CPU's caches hold when a sample begins.
enum class CacheState : uint8_t {
  warm,       // a sample begins with what the kernel's last run left in the caches
  cold,       // a sample begins with the arguments out of all caches
  automatic,  // cold if the arguments are so large that a program will hardly find them there, warm
              // if they are not
};

// What passed while something ran.
struct Elapsed {
  double wall = 0, thread_cpu = 0, process_cpu = 0;  // seconds
  int64_t waits = 0;                                 // how often the thread gave up its CPU
  int64_t preemptions = 0;  // how often a thread of this process lost its CPU to another program
  double device = 0;  // seconds by the clock of the device that computed; no Stopwatch reads it

  // By that clock.
  double seconds(Clock clock) const {
    return clock == Clock::wall ? wall : clock == Clock::device ? device : thread_cpu;
  }
};

// Thread-safe.
class Stopwatch {
 public:
  virtual ~Stopwatch() = default;
  // Wall seconds since some fixed moment, for budgets.
  virtual double now() = 0;
  // Runs `work` and gives what passed; `finest` is read closest to it. Throws what it throws.
  virtual Elapsed time(const std::function<void()>& work, Clock finest) = 0;
  // Whether other threads of this process may work meanwhile. Their time shows up late in
  // `process_cpu`, so a warm-up beside them takes longer.
  virtual bool beside_other_threads() = 0;
};

// Reads the clocks of this machine.
std::shared_ptr<Stopwatch> system_stopwatch();

}  // namespace ejk
