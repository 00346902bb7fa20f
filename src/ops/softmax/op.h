// SPDX-License-Identifier: Apache-2.0
// The operation softmax by name.
#pragma once

#include <ejk/ops/softmax.h>

#include "ops/common/description.h"

namespace ejk::ops {

struct SoftmaxOp {
  using Kernels = KernelTypes<Softmax<float>, Softmax<BFloat16>>;
  static constexpr auto* call = &softmax;
  static Description description() {
    return {.name = "softmax",
            .arrays = {{"x", "rows, columns"}},
            .options = {{"scale", DescribedOption::Kind::number, 1.f}},
            .result = {"y", "rows, columns"},
            .gradients = 1,
            .gradient_takes_result = Description::TakesResult::as_first_array};
  }
};

}  // namespace ejk::ops
