// SPDX-License-Identifier: Apache-2.0
// The operation rms_norm by name.
#pragma once

#include <ejk/ops/rms_norm.h>

#include "ops/common/description.h"

namespace ejk::ops {

struct RmsNormOp {
  using Kernels = KernelTypes<RmsNorm<float>, RmsNorm<BFloat16>>;
  static constexpr auto* call = &rms_norm;
  static Description description() {
    return {.name = "rms_norm",
            .arrays = {{"x", "rows, columns"}, {"weight", "columns", {}, true}},
            .options = {{"eps", DescribedOption::Kind::number, 1e-6}},
            .result = {"y", "rows, columns"},
            .kept = {{"scales", "rows", DType::float32}},
            .gradients = 2};
  }
};

}  // namespace ejk::ops
