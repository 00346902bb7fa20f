// SPDX-License-Identifier: Apache-2.0
// Tensors on devices as operations use them: arguments of launches, and results that are not filled
// first.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include <ejk/gpu.h>
#include <ejk/tensor.h>

#include "platform/backend.h"
#include "platform/place.h"

namespace ejk::ops {

// An argument of a launch.
struct DeviceArray {
  explicit DeviceArray(const Tensor& t)
      : device(&t.device()), memory(t.any().data), offset(t.any().offset) {}
  const Device* device;
  void* memory;
  size_t offset;
};

inline Tensor packed_there(const Tensor& t) { return t.packed() ? t : t.clone(); }

// A kernel writes every element: zeros before that would cost as much as it does.
inline Tensor tensor_to_write(DType dtype, const std::vector<int64_t>& shape,
                              const Device& device) {
  AnyView view{nullptr, dtype, device.platform, shape, {}, true, &device, 0};
  ejk::detail::Backend& backend = ejk::detail::backend_of(device);
  const std::shared_ptr<void> memory(backend.allocate(view.bytes()),
                                     [&backend](void* handle) { backend.release(handle); });
  view.data = memory.get();
  return Tensor::around(view, memory);
}

}  // namespace ejk::ops
