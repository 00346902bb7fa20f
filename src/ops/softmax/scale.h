// SPDX-License-Identifier: Apache-2.0
// What softmax takes as a scale, on the CPU and on devices.
#pragma once

#include <cmath>
#include <string_view>

#include "ops/common/refuse.h"

namespace ejk::ops {

inline void check_scale(std::string_view op, float scale) {
  if (!(scale > 0) || !std::isfinite(scale))
    refuse(op, fmt::format("scale = {}", scale), "a positive finite scale");
}

}  // namespace ejk::ops
