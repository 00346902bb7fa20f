// SPDX-License-Identifier: Apache-2.0
// The built-in operations: each is a folder here, included and named below. Read by
// the registry and by Python.
#pragma once

#include "ops/decode_attention/op.h"
#include "ops/flash_attention/op.h"
#include "ops/grouped_matmul/op.h"
#include "ops/layer_norm/op.h"
#include "ops/matmul/op.h"
#include "ops/rms_norm/op.h"
#include "ops/softmax/op.h"

namespace ejk::ops {

template <class... Op>
struct OpList {
  // f.operator()<Op>() for each.
  template <class F>
  static void for_each(const F& f) {
    (f.template operator()<Op>(), ...);
  }
};

using BuiltInOps = OpList<MatmulOp, GroupedMatmulOp, FlashAttentionOp, DecodeAttentionOp,
                          PagedDecodeAttentionOp, RmsNormOp, LayerNormOp, SoftmaxOp>;

}  // namespace ejk::ops
