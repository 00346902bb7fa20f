// SPDX-License-Identifier: Apache-2.0
// One CUDA device: its primary context, which it shares with other libraries, and a stream per
// thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "platform/backend.h"
#include "platform/cuda/library.h"

namespace ejk::detail::cuda {

class CudaBackend final : public Backend {
 public:
  // `arch`: 10 * major + minor; `target`: see Backend::target. Throws DeviceError if the driver
  // gives no context.
  CudaBackend(Ordinal device, int arch, std::string target);

  DeviceMemory allocate(size_t bytes) override;
  void release(DeviceMemory memory) noexcept override;
  void write(DeviceMemory to, size_t offset, const void* from, size_t bytes) override;
  void read(void* to, DeviceMemory from, size_t offset, size_t bytes) override;
  void copy(DeviceMemory to, size_t to_offset, DeviceMemory from, size_t from_offset,
            size_t bytes) override;
  void fill(DeviceMemory memory, size_t offset, size_t bytes, uint8_t value) override;

  std::string_view dialect() const override;
  std::string target() const override { return target_; }
  std::shared_ptr<DeviceProgram> build(const std::string& name, const std::string& source) override;
  std::shared_ptr<DeviceProgram> load(const std::string& binary,
                                      std::vector<KernelFacts> facts) override;
  void launch(DeviceKernel& kernel, const Grid& grid,
              std::span<const LaunchArgument> arguments) override;
  void wait() override;
  double seconds_of(const std::function<void()>& enqueue) override;
  void* queue() override;

 private:
  Stream stream();

  int arch_;
  std::string target_;
  Context context_ = nullptr;
};

}  // namespace ejk::detail::cuda
