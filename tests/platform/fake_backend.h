// SPDX-License-Identifier: Apache-2.0
// A device whose memory lies in this process behind handles that are no addresses, whose programs
// are texts, and whose launches are written down.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "platform/backend.h"

namespace fakes {

struct FakeKernel : ejk::detail::DeviceKernel {
  explicit FakeKernel(std::string kernel_name) : name(std::move(kernel_name)) {}
  std::string name;
};

struct FakeProgram : ejk::detail::DeviceProgram {
  explicit FakeProgram(std::string program_text) : text(std::move(program_text)) {}
  std::unique_ptr<ejk::detail::DeviceKernel> kernel(const std::string& name) override {
    return std::make_unique<FakeKernel>(name);
  }
  std::string binary() const override { return "binary of " + text; }
  std::vector<ejk::detail::KernelFacts> facts() const override { return {{"k", 32, 4, 1024}}; }
  std::string text;
};

class FakeBackend : public ejk::detail::Backend {
 public:
  using Handle = ejk::detail::DeviceMemory;

  // Apart from each other as addresses are, which handles of CUDA are, but where no process has
  // memory: to follow one is a fault.
  Handle allocate(size_t bytes) override {
    constexpr size_t alignment = 256;
    const uintptr_t handle = next_;
    next_ += (bytes / alignment + 1) * alignment;
    blocks_[handle].assign(bytes, std::byte{0xEE});
    return reinterpret_cast<Handle>(handle);
  }
  void release(Handle memory) noexcept override {
    blocks_.erase(reinterpret_cast<uintptr_t>(memory));
  }
  void write(Handle to, size_t offset, const void* from, size_t bytes) override {
    log_.emplace_back("write");
    if (bytes > 0) std::memcpy(part(to, offset, bytes).data(), from, bytes);
  }
  void read(void* to, Handle from, size_t offset, size_t bytes) override {
    log_.emplace_back("read");
    if (bytes > 0) std::memcpy(to, part(from, offset, bytes).data(), bytes);
  }
  void copy(Handle to, size_t to_offset, Handle from, size_t from_offset, size_t bytes) override {
    log_.emplace_back("copy");
    std::ranges::copy(part(from, from_offset, bytes), part(to, to_offset, bytes).begin());
  }
  void fill(Handle memory, size_t offset, size_t bytes, uint8_t value) override {
    log_.emplace_back("fill");
    std::ranges::fill(part(memory, offset, bytes), std::byte{value});
  }
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

  std::string_view dialect() const override { return "// dialect"; }
  std::string target() const override { return said_target; }
  std::shared_ptr<ejk::detail::DeviceProgram> build(const std::string&,
                                                    const std::string& source) override {
    built.push_back(source);
    return std::make_shared<FakeProgram>(source);
  }
  bool binary_grows() const override { return grows; }
  std::shared_ptr<ejk::detail::DeviceProgram> load(
      const std::string& binary, std::vector<ejk::detail::KernelFacts> facts) override {
    loaded.push_back(binary), loaded_facts = std::move(facts);
    if (refuses_binaries) return nullptr;
    return std::make_shared<FakeProgram>(binary);
  }
  void launch(ejk::detail::DeviceKernel& kernel, const ejk::Grid& grid,
              std::span<const ejk::detail::LaunchArgument> arguments) override {
    launches.push_back(dynamic_cast<FakeKernel&>(kernel).name);
    last_grid = grid;
    last_arguments.assign(arguments.begin(), arguments.end());
    last_numbers.clear();
    for (const auto& one : arguments)
      last_numbers.push_back(one.number == nullptr
                                 ? ""
                                 : std::string(static_cast<const char*>(one.number), one.bytes));
  }
  void wait() override { ++waits, log_.emplace_back("wait"); }
  double seconds_of(const std::function<void()>& enqueue) override {
    enqueue();
    return said_seconds;
  }
  void* queue() override { return this; }

  std::string said_target = "fake";
  double said_seconds = 1;
  bool refuses_binaries = false, grows = false;
  int waits = 0;
  std::vector<std::string> built, loaded, launches;
  std::vector<ejk::detail::KernelFacts> loaded_facts;
  ejk::Grid last_grid;
  std::vector<ejk::detail::LaunchArgument> last_arguments;
  std::vector<std::string> last_numbers;

 private:
  uintptr_t next_ = uintptr_t{1} << 62;
  std::map<uintptr_t, std::vector<std::byte>> blocks_;
  std::vector<std::string> log_;
};

// A device with such a backend.
struct FakeDevice {
  FakeBackend backend;
  ejk::Device device{
      .platform = ejk::Platform::opencl, .fingerprint = "opencl|fake|0", .backend = &backend};
};

}  // namespace fakes
