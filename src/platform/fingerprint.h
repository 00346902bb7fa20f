// SPDX-License-Identifier: Apache-2.0
// The readable text that stands for a device's identity.
#pragma once

#include <string>

#include <ejk/device.h>

namespace ejk::detail {

// "PLATFORM|MODEL|16 hex digits", equal exactly if platform and identity are.
std::string fingerprint_of(Platform platform, const Value& identity);

}  // namespace ejk::detail
