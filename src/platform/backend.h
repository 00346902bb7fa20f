// SPDX-License-Identifier: Apache-2.0
// What a platform with memory of its own gives the library; one Backend per device.
//
// A `Device` points to its backend (`Device::backend`; null for the CPU, whose memory is the
// host's) and a backend knows no Device. So a test makes a device of its own:
//
//   FakeBackend backend;                       // overrides what the test needs
//   Device device{.platform = Platform::opencl, .fingerprint = "fake", .backend = &backend};
//
// Backends and devices that the library lists live as long as the process. Memory, programs and
// kernels belong to who asked for them. A thread keeps the kernels that it has launched until it
// ends, so those of a fake must not need it when they go.
//
// Every thread has an in-order queue of its own: what it writes, copies, fills and launches
// happens in this order, later; `read` and `wait` wait for it. Threads that share memory
// `wait` before they hand it over. All methods are safe to call from several threads; all that
// fails throws DeviceError with its kind.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ejk/device.h>
#include <ejk/gpu.h>

#include "base/hidden.h"

namespace ejk::detail {

// What the compiler says that a kernel takes; 0 where it says nothing.
struct KernelFacts {
  std::string kernel;
  int64_t registers = 0, spilled_bytes = 0, local_bytes = 0;
};

// One kernel of a program, for the thread that asked for it: its arguments are its state.
class DeviceKernel {
 public:
  virtual ~DeviceKernel() = default;
};

// A program that is loaded on its device. Kernels keep alive what they need of it.
class DeviceProgram {
 public:
  virtual ~DeviceProgram() = default;
  // Kind::invalid_launch if it has no kernel of that name.
  virtual std::unique_ptr<DeviceKernel> kernel(const std::string& name) = 0;
  // What `Backend::load` makes the same program of.
  virtual std::string binary() const = 0;
  virtual std::vector<KernelFacts> facts() const { return {}; }
};

class ProgramCache;

class EJK_HIDDEN Backend {
 public:
  Backend();
  virtual ~Backend();
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  // Not initialised, aligned for every type; 0 bytes are allowed. Kind::out_of_memory.
  virtual DeviceMemory allocate(size_t bytes) = 0;
  // After what was launched with it is done; does not have to wait for that.
  virtual void release(DeviceMemory memory) noexcept = 0;

  // `from` may be changed as soon as it returns, and it may wait for that.
  virtual void write(DeviceMemory to, size_t offset, const void* from, size_t bytes) = 0;
  virtual void read(void* to, DeviceMemory from, size_t offset, size_t bytes) = 0;
  // Between different memories of this device, or parts of one that do not overlap.
  virtual void copy(DeviceMemory to, size_t to_offset, DeviceMemory from, size_t from_offset,
                    size_t bytes) = 0;
  virtual void fill(DeviceMemory memory, size_t offset, size_t bytes, uint8_t value) = 0;

  // The header that stands before every source.
  virtual std::string_view dialect() const = 0;
  // What makes two binaries of one source different here: device target, driver, compiler, and
  // options that the backend adds by itself. Part of the key of the program cache.
  virtual std::string target() const = 0;
  // `source` is the dialect header, the config as #define lines and the kernels, complete; `name`
  // is for messages. Kind::build with the log's first error line in the message and the whole log.
  virtual std::shared_ptr<DeviceProgram> build(const std::string& name,
                                               const std::string& source) = 0;
  // Whether kernels are in the binary only if they had been launched when it was first asked for.
  virtual bool binary_grows() const { return false; }
  // nullptr if the driver refuses the bytes. Only bytes of `binary` under the same target are
  // given, with the facts that were kept beside them.
  virtual std::shared_ptr<DeviceProgram> load(const std::string& binary,
                                              std::vector<KernelFacts> facts) = 0;

  // Launches take memory from multiples of this many bytes on.
  virtual size_t alignment() const { return 1; }
  // Does not wait and, for memory from its begin on, allocates nothing. No group has 0 items;
  // there is at least one group. Kind::invalid_launch if the device cannot run such a grid or the
  // arguments do not fit the kernel.
  virtual void launch(DeviceKernel& kernel, const Grid& grid,
                      std::span<const LaunchArgument> arguments) = 0;
  // Until all that this thread has begun is done.
  virtual void wait() = 0;
  // Seconds on the device's clock from the call to the end of the last thing that `enqueue` begins,
  // and waits for it. Drivers lie: ask device_time() in device_clock.h.
  virtual double seconds_of(const std::function<void()>& enqueue) = 0;
  // This thread's queue as the platform's own handle: cl_command_queue or CUstream.
  virtual void* queue() = 0;

  // Of all backends that this process ever had, so that a later one is never taken for this one.
  uint64_t id() const noexcept { return id_; }
  ProgramCache& programs() noexcept { return *programs_; }
  // Set for good by device_time().
  std::atomic<bool> clock_lies{false};

 private:
  uint64_t id_;
  std::unique_ptr<ProgramCache> programs_;
};

// What was found of a platform, and why nothing. Devices and backends belong together by place.
struct OpenedPlatform {
  std::vector<Device> devices;
  std::vector<std::unique_ptr<Backend>> backends;
  std::string why_none;  // "libOpenCL.so.1 is not installed"
};

// Looks when called; built without the platform it says so. Never throws for what a driver does.
OpenedPlatform open_opencl();
OpenedPlatform open_cuda();

// Whether the program has used a driver of the platform by itself. Touches none.
bool opencl_is_in_use();
bool cuda_is_in_use();

}  // namespace ejk::detail
