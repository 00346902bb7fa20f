// SPDX-License-Identifier: Apache-2.0
// The time of day, for records.
#pragma once

#include <string>

#include <time.h>

namespace ejk::base {

// ISO 8601: "2000-01-01T00:00:00Z".
inline std::string utc_now() {
  const time_t now = time(nullptr);
  tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  return {text, strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

}  // namespace ejk::base
