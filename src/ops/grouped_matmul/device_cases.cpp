// SPDX-License-Identifier: Apache-2.0
// Small calls of grouped_matmul on devices.
#include <ejk/ops/grouped_matmul.h>

#include "base/format.h"
#include "ops/common/device_case.h"
#include "ops/matmul/device_product.h"

namespace ejk::ops {
namespace {

template <class In, class Result>
void use_shape(const Device& device, const UseDeviceCase& use, int64_t rows, int64_t n, int64_t k) {
  // An empty group, one of several blocks, and rows behind the last.
  const std::vector<int32_t> sizes{3, 0, 21, 1};
  const auto groups = static_cast<int64_t>(sizes.size());
  const ProductKind kind{.a = dtype_of<In>,
                         .b = dtype_of<In>,
                         .c = dtype_of<Result>,
                         .groups = ProductKind::Groups::of_rows};
  using Kernel = GroupedMatmul<In, Result>;
  const auto local_bytes = [=](const typename Kernel::GpuConfig& c, bool with_gradient) {
    return products_local_bytes(c, kind, dtype_of<In>, with_gradient);
  };
  use_case_with_gradient(device, use,
                         fmt::format("{}[{}, {}] [{}, {}, {}] to {}", dtype_name(dtype_of<In>),
                                     rows, k, groups, k, n, dtype_name(dtype_of<Result>)),
                         local_bytes, Kernel{}, random_tensor<In>({rows, k}, 1),
                         random_tensor<In>({groups, k, n}, 2),
                         Tensor::of<int32_t>({groups}, std::span<const int32_t>(sizes)),
                         Tensor::of<Result>({rows, n}));
}

}  // namespace

void grouped_matmul_cases(const Device& device, const UseDeviceCase& use) {
  use_shape<float, float>(device, use, 31, 37, 140);
  use_shape<BFloat16, float>(device, use, 25, 35, 9);
  use_shape<BFloat16, BFloat16>(device, use, 31, 5, 140);
}

}  // namespace ejk::ops
