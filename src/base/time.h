// SPDX-License-Identifier: Apache-2.0
// Seconds and clocks.
#pragma once

#include <algorithm>
#include <chrono>
#include <string>

#include <time.h>

namespace ejk::base {

using Clock = std::chrono::steady_clock;

// Of a clock that is never set back.
inline double seconds_now() {
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

// What is longer than a year counts as one: nothing waits longer, and the clock cannot overflow.
inline Clock::duration duration_of(double seconds) {
  constexpr double year = 365 * 86'400.;
  const double bounded = seconds < year ? std::max(seconds, 0.) : year;  // of NaN too
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(bounded));
}

// The time of day in ISO 8601: "2000-01-01T00:00:00Z".
inline std::string utc_now() {
  const time_t now = time(nullptr);
  tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  return {text, strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

}  // namespace ejk::base
