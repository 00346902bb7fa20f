// SPDX-License-Identifier: Apache-2.0
// Checks a device's clock against the host's, every time it is read.
#include "platform/device_clock.h"

namespace ejk::detail {

DeviceTime device_time(Backend& backend, Stopwatch& stopwatch,
                       const std::function<void()>& enqueue) {
  backend.wait();  // what was begun before is not to be counted
  if (backend.clock_lies) {
    const auto run = [&] { enqueue(), backend.wait(); };
    return {stopwatch.time(run, Clock::wall).wall, false};
  }
  double said = 0;
  const double wall = stopwatch.time([&] { said = backend.seconds_of(enqueue); }, Clock::wall).wall;
  // Clocks differ by parts per million; what lies, lies by orders of magnitude.
  constexpr double drift = 1.01;
  const bool possible = said > 0 && said <= wall * drift;  // false for NaN
  if (!possible) backend.clock_lies = true;
  return {possible ? said : wall, possible};
}

}  // namespace ejk::detail
