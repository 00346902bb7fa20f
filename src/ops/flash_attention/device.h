// SPDX-License-Identifier: Apache-2.0
// What the space of attention on devices says of a config, for its own tests too.
#pragma once

#include <cstdint>

#include <ejk/ops/flash_attention.h>

namespace ejk::ops {

// The local memory of a group, of the kernel that needs most: forward, or with the gradient.
int64_t flash_local_bytes(const FlashAttention::GpuConfig& config, int64_t dim, bool gradient);

}  // namespace ejk::ops
