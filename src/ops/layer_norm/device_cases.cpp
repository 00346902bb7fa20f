// SPDX-License-Identifier: Apache-2.0
// Small calls of layer_norm on devices.
#include <ejk/ops/layer_norm.h>

#include "base/format.h"
#include "ops/common/device_case.h"
#include "ops/common/device_rows.h"

namespace ejk::ops {
namespace {

template <class T>
void add_case(const Device& device, const UseDeviceCase& use, int64_t rows, int64_t columns,
              bool weight, bool bias) {
  std::optional<Tensor> w, b;
  if (weight) w = random_tensor<T>({columns}, 2);
  if (bias) b = random_tensor<T>({columns}, 3);
  const auto name = fmt::format("{}[{}, {}]{}{}", dtype_name(dtype_of<T>), rows, columns,
                                weight ? ", weight" : "", bias ? ", bias" : "");
  const Tensor x = random_tensor<T>({rows, columns}, 1), out = Tensor::of<T>({rows, columns});
  // Without either the gradient along the output is nothing but rounding.
  if (weight || bias)
    use_case_with_gradient(device, use, name, row_local_bytes, LayerNorm<T>{}, x, w, b, 1e-5f, out);
  else use_case(device, use, name, row_local_bytes, LayerNorm<T>{}, x, w, b, 1e-5f, out);
}

}  // namespace

void layer_norm_cases(const Device& device, const UseDeviceCase& use) {
  add_case<float>(device, use, 7, 133, true, true);
  add_case<float>(device, use, 2, 3000, false, false);
  add_case<BFloat16>(device, use, 5, 301, false, true);
}

}  // namespace ejk::ops
