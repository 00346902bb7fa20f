// SPDX-License-Identifier: Apache-2.0
// How long work took on a device, by its own clock where that can be believed.
#pragma once

#include <functional>

#include <ejk/stopwatch.h>

#include "platform/backend.h"

namespace ejk::detail {

struct DeviceTime {
  double seconds = 0;
  bool by_device = false;  // else by the host's wall clock, around the work and the wait for it
};

// Runs `enqueue` and waits for what it has begun. A device's clock that says nothing, zero or more
// than passed on the host is never asked for the truth again.
DeviceTime device_time(Backend& backend, Stopwatch& stopwatch,
                       const std::function<void()>& enqueue);

}  // namespace ejk::detail
