// SPDX-License-Identifier: Apache-2.0
// Small calls of matmul on devices.
#include <ejk/ops/matmul.h>

#include "base/format.h"
#include "ops/common/device_case.h"
#include "ops/matmul/device_product.h"

namespace ejk::ops {
namespace {

struct Shape {
  int64_t batch, batch_of_a, m, n, k;
  bool bias;
};

template <class In, class Result>
void use_shape(const Device& device, const UseDeviceCase& use, const Shape& shape) {
  const auto [batch, batch_of_a, m, n, k, with_bias] = shape;
  std::optional<Tensor> bias;
  if (with_bias) bias = random_tensor<In>({n}, 3);
  const ProductKind kind{
      .a = dtype_of<In>, .b = dtype_of<In>, .c = dtype_of<Result>, .bias = with_bias};
  using Kernel = Matmul<In, Result>;
  const auto local_bytes = [=](const typename Kernel::GpuConfig& c, bool with_gradient) {
    return products_local_bytes(c, kind, dtype_of<In>, with_gradient);
  };
  use_case_with_gradient(
      device, use,
      fmt::format("{}[{}, {}, {}] [{}, {}, {}]{} to {}", dtype_name(dtype_of<In>), batch_of_a, m, k,
                  batch, k, n, with_bias ? ", bias" : "", dtype_name(dtype_of<Result>)),
      local_bytes, Kernel{}, random_tensor<In>({batch_of_a, m, k}, 1),
      random_tensor<In>({batch, k, n}, 2), bias, Tensor::of<Result>({batch, m, n}));
}

}  // namespace

void matmul_cases(const Device& device, const UseDeviceCase& use) {
  // Deeper than the smallest parts, wider than many blocks, with something left over.
  constexpr Shape large{1, 1, 35, 45, 150, true}, few_rows{2, 2, 1, 70, 20, false},
      one_a{2, 1, 9, 35, 17, true};
  use_shape<float, float>(device, use, large);
  use_shape<float, float>(device, use, few_rows);
  use_shape<BFloat16, float>(device, use, one_a);
  use_shape<BFloat16, BFloat16>(device, use, large);
}

}  // namespace ejk::ops
