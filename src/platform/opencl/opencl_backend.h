// SPDX-License-Identifier: Apache-2.0
// One OpenCL device: its context, and a queue per thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "platform/backend.h"
#include "platform/opencl/library.h"

namespace ejk::detail::opencl {

class OpenClBackend final : public Backend {
 public:
  // `target`, `binary_grows`: see Backend. Throws DeviceError if the driver gives no context.
  OpenClBackend(cl_device_id device, std::string target, bool binary_grows);

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
  bool binary_grows() const override { return binary_grows_; }
  std::shared_ptr<DeviceProgram> load(const std::string& binary,
                                      std::vector<KernelFacts> facts) override;
  size_t alignment() const override { return alignment_; }
  void launch(DeviceKernel& kernel, const Grid& grid,
              std::span<const LaunchArgument> arguments) override;
  void wait() override;
  double seconds_of(const std::function<void()>& enqueue) override;
  void* queue() override;

 private:
  cl_command_queue thread_queue();
  Buffer part_of(const LaunchArgument& argument, std::string_view kernel) const;

  cl_device_id device_;
  std::string target_;
  bool binary_grows_;
  size_t alignment_ = 1;      // of parts of memory, in bytes
  cl_ulong local_bytes_ = 0;  // of a group
  Context context_;
};

}  // namespace ejk::detail::opencl
