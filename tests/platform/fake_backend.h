// SPDX-License-Identifier: Apache-2.0
// A device in the host's memory, whose programs are texts and whose launches are written down.
#pragma once

#include <cstdlib>
#include <cstring>
#include <string>
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
  ejk::detail::DeviceMemory allocate(size_t bytes) override { return std::malloc(bytes + 1); }
  void release(ejk::detail::DeviceMemory memory) noexcept override { std::free(memory); }
  void write(ejk::detail::DeviceMemory to, size_t at, const void* from, size_t bytes) override {
    std::memcpy(static_cast<char*>(to) + at, from, bytes);
  }
  void read(void* to, ejk::detail::DeviceMemory from, size_t at, size_t bytes) override {
    std::memcpy(to, static_cast<char*>(from) + at, bytes);
  }
  void copy(ejk::detail::DeviceMemory to, size_t to_at, ejk::detail::DeviceMemory from,
            size_t from_at, size_t bytes) override {
    std::memcpy(static_cast<char*>(to) + to_at, static_cast<char*>(from) + from_at, bytes);
  }
  void fill(ejk::detail::DeviceMemory memory, size_t at, size_t bytes, uint8_t value) override {
    std::memset(static_cast<char*>(memory) + at, value, bytes);
  }

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
  void wait() override { ++waits; }
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
};

// A device with such a backend.
struct FakeDevice {
  FakeBackend backend;
  ejk::Device device{
      .platform = ejk::Platform::opencl, .fingerprint = "opencl|fake|0", .backend = &backend};
};

}  // namespace fakes
