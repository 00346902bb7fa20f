// SPDX-License-Identifier: Apache-2.0
// Small calls of softmax on devices.
#include <ejk/ops/softmax.h>

#include "base/format.h"
#include "ops/common/device_case.h"
#include "ops/common/device_rows.h"

namespace ejk::ops {
namespace {

template <class T>
void add_case(const Device& device, const UseDeviceCase& use, int64_t rows, int64_t columns,
              float scale) {
  use_case_with_gradient(
      device, use,
      fmt::format("{}[{}, {}], scale {}", dtype_name(dtype_of<T>), rows, columns, scale),
      row_local_bytes, Softmax<T>{}, random_tensor<T>({rows, columns}, 1), scale,
      Tensor::of<T>({rows, columns}));
}

}  // namespace

void softmax_cases(const Device& device, const UseDeviceCase& use) {
  add_case<float>(device, use, 7, 133, 1);
  add_case<float>(device, use, 2, 3000, 3);
  add_case<BFloat16>(device, use, 5, 301, 0.5f);
}

}  // namespace ejk::ops
