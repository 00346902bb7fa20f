// SPDX-License-Identifier: Apache-2.0
// Where arrays live: on the CPU (no device), or in a device's memory.
#pragma once

#include <string>

#include <ejk/device.h>

namespace ejk::detail {

class Backend;

// For people: "cpu", "opencl 0". Null: the CPU.
std::string place_text(const Device* device);

// Throws Error(invalid_argument) if the device is only described, not opened in this process.
Backend& backend_of(const Device& device);

// Whether it is one of those that ejk::devices() lists. Opens no platform.
bool is_listed(const Device& device);

}  // namespace ejk::detail
