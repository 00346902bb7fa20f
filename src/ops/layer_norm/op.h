// SPDX-License-Identifier: Apache-2.0
// The operation layer_norm by name.
#pragma once

#include <ejk/ops/layer_norm.h>

#include "ops/common/description.h"

namespace ejk::ops {

struct LayerNormOp {
  using Kernels = KernelTypes<LayerNorm<float>, LayerNorm<BFloat16>>;
  static constexpr auto* call = &layer_norm;
  static Description description() {
    return {.name = "layer_norm",
            .arrays = {{"x", "rows, columns"},
                       {"weight", "columns", {}, true},
                       {"bias", "columns", {}, true}},
            .options = {{"eps", DescribedOption::Kind::number, 1e-5}},
            .result = {"y", "rows, columns"},
            .kept = {{"moments", "rows, 3", DType::float32}},
            .gradients = 3};
  }
};

}  // namespace ejk::ops
