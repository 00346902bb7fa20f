// SPDX-License-Identifier: Apache-2.0
// Which of the devices that stores and records speak of is in this machine.
#pragma once

#include <string_view>

#include <ejk/device.h>

namespace ejk::detail {

// The platform that a fingerprint begins with; the CPU if it names none that is known.
Platform platform_of(std::string_view fingerprint);

// The first device here with this fingerprint; nullptr: there is none. Looks at the drivers of its
// platform only.
const Device* device_here(std::string_view fingerprint);

}  // namespace ejk::detail
