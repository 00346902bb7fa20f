// SPDX-License-Identifier: Apache-2.0
// Small calls of flash_attention on devices.
#include "base/format.h"
#include "ops/common/device_case.h"
#include "ops/flash_attention/device.h"

namespace ejk::ops {
namespace {

struct Shape {
  int64_t batch, queries, keys, heads, kv_heads, dim;
};

template <class T>
void use_shape(const Device& device, const UseDeviceCase& use, const Shape& s,
               const AttentionOptions& options, std::string_view which) {
  const auto local_bytes = [&](const FlashAttention::GpuConfig& config, bool with_gradient) {
    return flash_local_bytes(config, s.dim, with_gradient);
  };
  use_case_with_gradient(
      device, use,
      fmt::format("{} q[{}, {}, {}, {}], k[{}, {}, {}, {}], {}", dtype_name(dtype_of<T>), s.batch,
                  s.queries, s.heads, s.dim, s.batch, s.keys, s.kv_heads, s.dim, which),
      local_bytes, FlashAttention{}, random_tensor<T>({s.batch, s.queries, s.heads, s.dim}, 1),
      random_tensor<T>({s.batch, s.keys, s.kv_heads, s.dim}, 2),
      random_tensor<T>({s.batch, s.keys, s.kv_heads, s.dim}, 3), options);
}

}  // namespace

void flash_attention_cases(const Device& device, const UseDeviceCase& use) {
  const Shape long_one{1, 70, 83, 2, 1, 20}, short_one{2, 5, 41, 4, 2, 7};
  use_shape<float>(device, use, long_one, {.causal = true}, "causal");
  use_shape<float>(device, use, short_one, {.window_left = 3, .softcap = 2.f}, "window, cap");
  use_shape<BFloat16>(device, use, long_one, {}, "all keys");
}

}  // namespace ejk::ops
