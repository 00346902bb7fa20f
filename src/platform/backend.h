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
// kernels belong to who asked for them, and must not outlive their backend.
//
// Every thread has an in-order queue of its own: what it writes, copies, fills and launches
// happens in this order, later, and only `read` and `wait` wait for it. Threads that share memory
// `wait` before they hand it over. All methods are safe to call from several threads; all that
// fails throws DeviceError with its kind.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ejk/device.h>
#include <ejk/gpu.h>

namespace ejk::detail {

// Memory of a device: a cl_mem or a CUdeviceptr. Never to be dereferenced here.
using DeviceMemory = void*;

// One argument of a launch: memory from a byte on, or the bytes of a number.
struct LaunchArgument {
  DeviceMemory memory = nullptr;
  size_t offset = 0;             // bytes into `memory`
  const void* number = nullptr;  // not null: a number of `bytes` bytes, copied by the launch
  size_t bytes = 0;
};

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
  virtual std::unique_ptr<DeviceKernel> kernel(const std::string& name) = 0;
  // What `Backend::load` makes the same program of. Some drivers add to it at the first launch.
  virtual std::string binary() const = 0;
  virtual std::string log() const = 0;
  virtual std::vector<KernelFacts> facts() const { return {}; }
};

class Backend {
 public:
  virtual ~Backend() = default;

  // Not initialised, aligned for every type; 0 bytes are allowed. Kind::out_of_memory.
  virtual DeviceMemory allocate(size_t bytes) = 0;
  // After what was launched with it is done; does not have to wait for that.
  virtual void release(DeviceMemory memory) noexcept = 0;

  // `from` may be changed as soon as it returns.
  virtual void write(DeviceMemory to, size_t offset, const void* from, size_t bytes) = 0;
  virtual void read(void* to, DeviceMemory from, size_t offset, size_t bytes) = 0;
  // Between different memories of this device, or parts of one that do not overlap.
  virtual void copy(DeviceMemory to, size_t to_offset, DeviceMemory from, size_t from_offset,
                    size_t bytes) = 0;
  virtual void fill(DeviceMemory memory, size_t offset, size_t bytes, uint8_t value) = 0;

  // What makes two binaries of one source different here: device target, driver, compiler, and
  // options that the backend adds by itself. Part of the key of the program cache.
  virtual std::string target() const = 0;
  // `source` begins with the dialect header; `options` are "-DNAME=VALUE" and the like. Kind::build
  // with the log's first error line in the message and the whole log.
  virtual std::shared_ptr<DeviceProgram> build(const std::string& source,
                                               std::span<const std::string> options) = 0;
  // nullptr if the driver refuses the bytes. Only bytes of `binary` under the same target are
  // given, but they may be damaged.
  virtual std::shared_ptr<DeviceProgram> load(const std::string& binary) = 0;

  // Does not wait, allocates nothing. Kind::invalid_launch if the device cannot run such a grid or
  // the arguments do not fit; of other kernels' memory nothing is checked.
  virtual void launch(DeviceKernel& kernel, const Grid& grid,
                      std::span<const LaunchArgument> arguments) = 0;
  // Until all that this thread has begun is done.
  virtual void wait() = 0;
  // Seconds on the device's clock from the first to the last thing that `enqueue` begins, and
  // waits for them. Drivers lie: device_clock.h decides whether to believe it.
  virtual double seconds_of(const std::function<void()>& enqueue) = 0;
  // This thread's queue as the platform's own handle: cl_command_queue or CUstream.
  virtual void* queue() = 0;
};

// A device that was found, before the library lists it.
struct OpenedDevice {
  Device device;  // its `backend` is `backend`
  std::unique_ptr<Backend> backend;
};
struct OpenedPlatform {
  std::vector<OpenedDevice> devices;
  std::string why_none;  // where there are no devices: "libOpenCL.so.1 is not installed"
};

// Looks once, when asked; built without the platform it says so. Never throws for what a driver
// does.
OpenedPlatform open_opencl();
OpenedPlatform open_cuda();

}  // namespace ejk::detail
