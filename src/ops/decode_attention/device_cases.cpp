// SPDX-License-Identifier: Apache-2.0
// Small calls of decode_attention on devices, plain and paged.
#include <array>

#include "base/format.h"
#include "ops/common/device_case.h"
#include "ops/decode_attention/device.h"

namespace ejk::ops {
namespace {

constexpr int64_t dim = 20;

int64_t local_bytes(const DecodeGpuConfig& config, bool) { return decode_local_bytes(config, dim); }

constexpr std::array<int32_t, 2> lengths{150, 67};

template <class T>
void use_plain(const Device& device, const UseDeviceCase& use) {
  use_case(device, use, fmt::format("{} q[2, 6, {}], 150 positions", dtype_name(dtype_of<T>), dim),
           local_bytes, DecodeAttention{}, random_tensor<T>({2, 6, dim}, 1),
           random_tensor<T>({2, 150, 2, dim}, 2), random_tensor<T>({2, 150, 2, dim}, 3),
           std::span<const int32_t>(lengths), DecodeOptions{.window_left = 90});
}

}  // namespace

void decode_attention_cases(const Device& device, const UseDeviceCase& use) {
  use_plain<float>(device, use);
  use_plain<BFloat16>(device, use);
  const std::array<int32_t, 6> pages{4, 0, 2, 3, 1, -1};
  use_case(device, use, fmt::format("float32 q[2, 6, {}], 5 pages of 50", dim), local_bytes,
           PagedDecodeAttention{}, random_tensor<float>({2, 6, dim}, 1),
           random_tensor<float>({5, 50, 2, dim}, 2), random_tensor<float>({5, 50, 2, dim}, 3),
           Tensor::of<int32_t>({2, 3}, std::span<const int32_t>(pages)),
           std::span<const int32_t>(lengths), DecodeOptions{});
}

}  // namespace ejk::ops
