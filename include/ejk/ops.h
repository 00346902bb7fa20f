// SPDX-License-Identifier: Apache-2.0
// The built-in operations: one header each under ejk/ops/.
#pragma once

#include <ejk/detail/export.h>
#include <ejk/ops/decode_attention.h>
#include <ejk/ops/flash_attention.h>
#include <ejk/ops/grouped_matmul.h>
#include <ejk/ops/layer_norm.h>
#include <ejk/ops/matmul.h>
#include <ejk/ops/rms_norm.h>
#include <ejk/ops/softmax.h>

namespace EJK_EXPORT ejk {
namespace ops {

// Makes their kernels known by op (ejk/registry.h), for all element types, so that recorded calls
// of them can be made again and tuned: before autotune_recorded(), autotune_lowered() or
// rebuild_call(). Thread-safe; a second time changes nothing.
void register_kernels();

}  // namespace ops
}  // namespace ejk
