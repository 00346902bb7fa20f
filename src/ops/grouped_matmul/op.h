// SPDX-License-Identifier: Apache-2.0
// The operation grouped_matmul by name.
#pragma once

#include <ejk/ops/grouped_matmul.h>

#include "ops/common/description.h"

namespace ejk::ops {

struct GroupedMatmulOp {
  using Kernels =
      KernelTypes<GroupedMatmul<float>, GroupedMatmul<BFloat16>, GroupedMatmul<BFloat16, BFloat16>>;
  static constexpr Tensor (*call)(const Tensor&, const Tensor&, const Tensor&,
                                  DType) = &grouped_matmul;
  static Description description() {
    return {.name = "grouped_matmul",
            .arrays = {{"a", "rows, k"},
                       {"b", "groups, k, n"},
                       {"group_sizes", "groups", DType::int32}},
            .options = {{"result", DescribedOption::Kind::dtype}},
            .result = {"c", "rows, n"},
            .gradients = 2};
  }
};

}  // namespace ejk::ops
