// SPDX-License-Identifier: Apache-2.0
// A forked child cannot use devices: the drivers' threads are not in it, so what is asked of them
// waits for ever.
#pragma once

#include <ejk/device.h>

namespace ejk::detail {

// To be called before a platform is used.
void watch_forks();
bool is_forked() noexcept;
// Throws DeviceError(lost) in a forked child.
void refuse_forked(Platform platform);

}  // namespace ejk::detail
