// SPDX-License-Identifier: Apache-2.0
// Checks a device's clock against the host's, every time it is read.
#include "platform/device_clock.h"

namespace ejk::detail {

Elapsed device_time(Backend& backend, Stopwatch& stopwatch, const std::function<void()>& enqueue) {
  backend.wait();  // what was begun before is not to be counted
  double said = 0;
  const auto work = [&] {
    if (backend.clock_lies) enqueue(), backend.wait();
    else said = backend.seconds_of(enqueue);
  };
  Elapsed elapsed = stopwatch.time(work, Clock::wall);
  // Clocks differ by parts per million; what lies, lies by orders of magnitude.
  constexpr double drift = 1.01;
  const bool possible = said > 0 && said <= elapsed.wall * drift;  // false for NaN
  if (!possible) backend.clock_lies = true;
  elapsed.device = possible ? said : elapsed.wall;
  return elapsed;
}

}  // namespace ejk::detail
