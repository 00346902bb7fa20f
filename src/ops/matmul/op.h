// SPDX-License-Identifier: Apache-2.0
// The operation matmul by name.
#pragma once

#include <ejk/ops/matmul.h>

#include "ops/common/description.h"

namespace ejk::ops {

struct MatmulOp {
  using Kernels = KernelTypes<Matmul<float>, Matmul<BFloat16>, Matmul<BFloat16, BFloat16>>;
  static constexpr Tensor (*call)(const Tensor&, const Tensor&, const MatmulOptions&) = &matmul;
  static Description description() {
    using Kind = DescribedOption::Kind;
    return {.name = "matmul",
            .arrays = {{"a", "batch*, m, k"}, {"b", "batch*, k, n"}, {"bias", "n", {}, true}},
            .options = {{"transpose_a", Kind::flag, false},
                        {"transpose_b", Kind::flag, false},
                        {"result", Kind::dtype}},
            .result = {"c", "batch, m, n"},
            .gradients = 3};
  }
  // The array as the kernel sees it.
  static Tensor seen(std::string_view array, const Tensor& given, const Value& options) {
    const Value* transpose = options.find("transpose_" + std::string(array));
    const bool other_order = transpose != nullptr && transpose->as_bool() && given.rank() == 3;
    return other_order ? given.transposed({0, 2, 1}) : given;
  }
};

}  // namespace ejk::ops
