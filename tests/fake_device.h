// SPDX-License-Identifier: Apache-2.0
// GPUs that are made up, for calls with arrays on them.
#pragma once

#include <span>
#include <string>

#include <ejk/device_view.h>
#include <ejk/ejk.h>

#include "platform/fake_backend.h"

namespace fakes {

struct FakeGpu {
  explicit FakeGpu(ejk::Platform platform = ejk::Platform::opencl, int index = 0) {
    device.platform = platform;
    device.index = index;
    device.identity = ejk::Value::object({{"kind", "gpu"}, {"model", "fake"}});
    device.fingerprint = std::string(ejk::platform_name(platform)) + "|fake|0";
    device.backend = &memory;
  }
  FakeBackend memory;
  ejk::Device device;
};

// The elements of a view, as a kernel on the device would see them. `from`: elements beside it.
template <class T, int Rank>
std::span<T> elements(const ejk::DeviceView<T, Rank>& view, int64_t from = 0, int64_t count = -1) {
  auto& memory = static_cast<FakeBackend&>(*view.device->backend);
  const auto n = static_cast<size_t>(count < 0 ? view.size() : count);
  const auto offset = static_cast<int64_t>(view.offset) + from * static_cast<int64_t>(sizeof(T));
  const auto bytes = memory.part(view.memory, static_cast<size_t>(offset), n * sizeof(T));
  return {reinterpret_cast<T*>(bytes.data()), n};
}

}  // namespace fakes
