// SPDX-License-Identifier: Apache-2.0
// How long work took on a device, by its own clock where that can be believed.
#pragma once

#include <functional>

#include <ejk/stopwatch.h>

#include "platform/backend.h"

namespace ejk::detail {

// What passes until what `enqueue` begins is done. A clock that says nothing, zero or more than
// passed on the host is never asked again (Backend::clock_lies): then `device` is the wall's time.
Elapsed device_time(Backend& backend, Stopwatch& stopwatch, const std::function<void()>& enqueue);

}  // namespace ejk::detail
