// SPDX-License-Identifier: Apache-2.0
// What the space of decoding on devices says of a config, for its own tests too.
#pragma once

#include <cstdint>

#include <ejk/ops/decode_attention.h>

namespace ejk::ops {

// The local memory of a group.
int64_t decode_local_bytes(const DecodeGpuConfig& config, int64_t dim);

}  // namespace ejk::ops
