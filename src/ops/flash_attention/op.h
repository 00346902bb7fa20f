// SPDX-License-Identifier: Apache-2.0
// The operation flash_attention by name.
#pragma once

#include <ejk/ops/flash_attention.h>

#include "ops/common/description.h"

namespace ejk::ops {

struct FlashAttentionOp {
  using Kernels = KernelTypes<FlashAttention>;
  static constexpr auto* call = &flash_attention;
  static Description description() {
    using Kind = DescribedOption::Kind;
    return {.name = "flash_attention",
            .arrays = {{"q", "batch, queries, heads, dim"},
                       {"k", "batch, keys, kv_heads, dim"},
                       {"v", "batch, keys, kv_heads, dim"},
                       {"query_seq_lengths", "batch", DType::int32, true},
                       {"key_value_seq_lengths", "batch", DType::int32, true}},
            .options = {{"causal", Kind::flag, false},
                        {"window_left", Kind::whole_number},
                        {"window_right", Kind::whole_number},
                        {"softcap", Kind::number},
                        {"scale", Kind::number}},
            .result = {"out", "batch, queries, heads, dim"},
            .kept = {{"lse", "batch, heads, queries", DType::float32}},
            .gradients = 3,
            .gradient_takes_result = Description::TakesResult::after_arrays};
  }
};

}  // namespace ejk::ops
