// SPDX-License-Identifier: Apache-2.0
// The operations decode_attention and paged_decode_attention by name.
#pragma once

#include <ejk/ops/decode_attention.h>

#include "ops/common/description.h"

namespace ejk::ops {

struct DecodeAttentionOp {
  using Kernels = KernelTypes<DecodeAttention>;
  static constexpr auto* call = &decode_attention;
  static Description description() {
    using Kind = DescribedOption::Kind;
    return {.name = "decode_attention",
            .arrays = {{"q", "batch, heads, dim"},
                       {"k", "batch, positions, kv_heads, dim"},
                       {"v", "batch, positions, kv_heads, dim"},
                       {"lengths", "batch", DType::int32, true}},
            .options = {{"window_left", Kind::whole_number},
                        {"softcap", Kind::number},
                        {"scale", Kind::number}},
            .result = {"out", "batch, heads, dim"},
            .gradients = 3};
  }
};

struct PagedDecodeAttentionOp {
  using Kernels = KernelTypes<PagedDecodeAttention>;
  static constexpr auto* call = &decode_attention_paged;
  static Description description() {
    Description paged = DecodeAttentionOp::description();
    paged.name = "paged_decode_attention";
    paged.arrays = {{"q", "batch, heads, dim"},
                    {"k_pages", "pages, page_size, kv_heads, dim"},
                    {"v_pages", "pages, page_size, kv_heads, dim"},
                    {"block_table", "batch, pages of a sequence", DType::int32},
                    {"lengths", "batch", DType::int32, true}};
    return paged;
  }
};

}  // namespace ejk::ops
