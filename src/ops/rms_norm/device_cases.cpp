// SPDX-License-Identifier: Apache-2.0
// Small calls of rms_norm on devices.
#include <ejk/ops/rms_norm.h>

#include "base/format.h"
#include "ops/common/device_case.h"
#include "ops/common/device_rows.h"

namespace ejk::ops {
namespace {

template <class T>
void add_case(const Device& device, const UseDeviceCase& use, int64_t rows, int64_t columns,
              bool weight) {
  std::optional<Tensor> w;
  if (weight) w = random_tensor<T>({columns}, 2);
  const auto name =
      fmt::format("{}[{}, {}]{}", dtype_name(dtype_of<T>), rows, columns, weight ? ", weight" : "");
  const Tensor x = random_tensor<T>({rows, columns}, 1), out = Tensor::of<T>({rows, columns});
  // Without one the gradient along the output is nothing but rounding.
  if (weight)
    use_case_with_gradient(device, use, name, row_local_bytes, RmsNorm<T>{}, x, w, 1e-5f, out);
  else use_case(device, use, name, row_local_bytes, RmsNorm<T>{}, x, w, 1e-5f, out);
}

}  // namespace

void rms_norm_cases(const Device& device, const UseDeviceCase& use) {
  add_case<float>(device, use, 7, 133, true);
  add_case<float>(device, use, 2, 3000, false);
  add_case<BFloat16>(device, use, 5, 301, true);
}

}  // namespace ejk::ops
