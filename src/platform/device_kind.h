// SPDX-License-Identifier: Apache-2.0
// What a device is, whatever platform it is reached by; the member "kind" of its identity.
#pragma once

#include <cstdint>

#include <ejk/names.h>

namespace ejk::detail {

enum class DeviceKind : uint8_t { cpu, gpu, accelerator };
constexpr auto names_of(DeviceKind) { return words("cpu", "gpu", "accelerator"); }

}  // namespace ejk::detail
