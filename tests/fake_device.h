// SPDX-License-Identifier: Apache-2.0
// Devices whose memory lies in this process behind handles that are no addresses.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <ejk/device_view.h>
#include <ejk/ejk.h>

#include "platform/fake_backend.h"

namespace fakes {

// Whoever follows a handle falls into the first page of memory, which nobody has.
class FakeMemory : public FakeBackend {
 public:
  using Handle = ejk::detail::DeviceMemory;

  Handle allocate(size_t bytes) override {
    const uintptr_t handle = ++made_;
    blocks_[handle].assign(bytes, std::byte{0xEE});
    return reinterpret_cast<Handle>(handle);
  }
  void release(Handle memory) noexcept override {
    blocks_.erase(reinterpret_cast<uintptr_t>(memory));
  }
  void write(Handle to, size_t offset, const void* from, size_t bytes) override {
    log_.push_back("write");
    if (bytes > 0) std::memcpy(part(to, offset, bytes).data(), from, bytes);
  }
  void read(void* to, Handle from, size_t offset, size_t bytes) override {
    log_.push_back("read");
    if (bytes > 0) std::memcpy(to, part(from, offset, bytes).data(), bytes);
  }
  void copy(Handle to, size_t to_offset, Handle from, size_t from_offset, size_t bytes) override {
    log_.push_back("copy");
    std::ranges::copy(part(from, from_offset, bytes), part(to, to_offset, bytes).begin());
  }
  void fill(Handle memory, size_t offset, size_t bytes, uint8_t value) override {
    log_.push_back("fill");
    std::ranges::fill(part(memory, offset, bytes), std::byte{value});
  }
  void wait() override { log_.push_back("wait"); }

  // What a kernel sees: bytes of a block, also beside the array in it.
  std::span<std::byte> part(Handle memory, size_t offset, size_t bytes) {
    const auto block = blocks_.find(reinterpret_cast<uintptr_t>(memory));
    if (block == blocks_.end()) throw std::logic_error("no such memory");
    if (offset + bytes > block->second.size()) throw std::logic_error("outside of the memory");
    return std::span(block->second).subspan(offset, bytes);
  }
  size_t blocks() const { return blocks_.size(); }
  // What was asked for since the last time.
  std::vector<std::string> take_log() { return std::exchange(log_, {}); }

 private:
  uintptr_t made_ = 0;
  std::map<uintptr_t, std::vector<std::byte>> blocks_;
  std::vector<std::string> log_;
};

struct FakeGpu {
  explicit FakeGpu(ejk::Platform platform = ejk::Platform::opencl, int index = 0) {
    device.platform = platform;
    device.index = index;
    device.identity = ejk::Value::object({{"kind", "gpu"}, {"model", "fake"}});
    device.fingerprint = std::string(ejk::platform_name(platform)) + "|fake|0";
    device.backend = &memory;
  }
  FakeMemory memory;
  ejk::Device device;
};

// The elements of a view, as a kernel on the device would see them. `from`: elements beside it.
template <class T, int Rank>
std::span<T> elements(const ejk::DeviceView<T, Rank>& view, int64_t from = 0, int64_t count = -1) {
  auto& memory = static_cast<FakeMemory&>(*view.device->backend);
  const auto n = static_cast<size_t>(count < 0 ? view.size() : count);
  const auto offset = static_cast<int64_t>(view.offset) + from * static_cast<int64_t>(sizeof(T));
  const auto bytes = memory.part(view.memory, static_cast<size_t>(offset), n * sizeof(T));
  return {reinterpret_cast<T*>(bytes.data()), n};
}

}  // namespace fakes
