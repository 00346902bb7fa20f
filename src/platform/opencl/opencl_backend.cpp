// SPDX-License-Identifier: Apache-2.0
// Memory, queues, programs and launches of an OpenCL device.
#include "platform/opencl/opencl_backend.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <ejk_kernels/opencl_dialect_cl.h>

#include "base/format.h"
#include "platform/build_log.h"
#include "platform/forked.h"

namespace ejk::detail::opencl {
namespace {

using Kind = DeviceError::Kind;

cl_mem mem(DeviceMemory memory) { return static_cast<cl_mem>(memory); }

// ---- programs

std::string build_log(cl_program program, cl_device_id device) {
  size_t bytes = 0;
  if (cl().GetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_LOG, 0, nullptr, &bytes) !=
      CL_SUCCESS)
    return "";
  std::string log(bytes, '\0');
  if (cl().GetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_LOG, bytes, log.data(), nullptr) !=
      CL_SUCCESS)
    return "";
  log.resize(std::min(log.find('\0'), log.size()));
  return log;
}

class OpenClKernel final : public DeviceKernel {
 public:
  OpenClKernel(std::string kernel_name, Kernel made)
      : name(std::move(kernel_name)), handle(std::move(made)) {
    check(cl().GetKernelInfo(handle.get(), CL_KERNEL_NUM_ARGS, sizeof parameters, &parameters,
                             nullptr),
          name);
    // Null: the one device of its context. What does not say takes none.
    cl().GetKernelWorkGroupInfo(handle.get(), nullptr, CL_KERNEL_LOCAL_MEM_SIZE, sizeof local_bytes,
                                &local_bytes, nullptr);
  }
  std::string name;
  Kernel handle;  // holds its program
  cl_uint parameters = 0;
  cl_ulong local_bytes = 0;
};

class OpenClProgram final : public DeviceProgram {
 public:
  explicit OpenClProgram(Program program) : program_(std::move(program)) {}

  std::unique_ptr<DeviceKernel> kernel(const std::string& name) override {
    cl_int code = CL_SUCCESS;
    Kernel made(cl().CreateKernel(program_.get(), name.c_str(), &code));
    if (code == CL_INVALID_KERNEL_NAME)
      throw DeviceError(Kind::invalid_launch,
                        fmt::format("[{}] the source has no __kernel of that name", name));
    check(code, name);
    return std::make_unique<OpenClKernel>(name, std::move(made));
  }

  std::string binary() const override {
    size_t bytes = 0;
    check(
        cl().GetProgramInfo(program_.get(), CL_PROGRAM_BINARY_SIZES, sizeof bytes, &bytes, nullptr),
        "binary");
    std::string binary(bytes, '\0');
    auto* to = reinterpret_cast<unsigned char*>(binary.data());
    check(cl().GetProgramInfo(program_.get(), CL_PROGRAM_BINARIES, sizeof to, &to, nullptr),
          "binary");
    return binary;
  }

 private:
  Program program_;
};

// In seconds, on the device's clock; NaN if the driver does not say it.
double end_of(const Event& event) {
  cl_ulong nanoseconds = 0;
  if (cl().GetEventProfilingInfo(event.get(), CL_PROFILING_COMMAND_END, sizeof nanoseconds,
                                 &nanoseconds, nullptr) != CL_SUCCESS)
    return std::numeric_limits<double>::quiet_NaN();
  return 1e-9 * static_cast<double>(nanoseconds);
}

}  // namespace

OpenClBackend::OpenClBackend(cl_device_id device, std::string target, bool binary_grows)
    : device_(device), target_(std::move(target)), binary_grows_(binary_grows) {
  watch_forks();
  cl_uint bits = 0;
  check(cl().GetDeviceInfo(device_, CL_DEVICE_MEM_BASE_ADDR_ALIGN, sizeof bits, &bits, nullptr),
        "alignment");
  alignment_ = std::max<size_t>(bits / 8, 1);
  check(cl().GetDeviceInfo(device_, CL_DEVICE_LOCAL_MEM_SIZE, sizeof local_bytes_, &local_bytes_,
                           nullptr),
        "local memory");
  cl_int code = CL_SUCCESS;
  context_.reset(cl().CreateContext(nullptr, 1, &device_, nullptr, nullptr, &code));
  check(code, "context");
}

// ---- queues -------------------------------------------------------------------------------------

// One for everything, timed or not: other libraries may have kept its handle.
cl_command_queue OpenClBackend::thread_queue() {
  static thread_local std::vector<std::pair<uint64_t, CommandQueue>> queues;  // by backend
  refuse_forked(Platform::opencl);
  for (const auto& [backend, queue] : queues)
    if (backend == id()) return queue.get();
  cl_int code = CL_SUCCESS;
  CommandQueue made(
      cl().CreateCommandQueue(context_.get(), device_, CL_QUEUE_PROFILING_ENABLE, &code));
  check(code, "queue");
  return queues.emplace_back(id(), std::move(made)).second.get();
}

void OpenClBackend::wait() { check(cl().Finish(thread_queue()), "wait"); }

void* OpenClBackend::queue() { return thread_queue(); }

double OpenClBackend::seconds_of(const std::function<void()>& enqueue) {
  const auto marker = [&] {
    cl_event event = nullptr;
    check(cl().EnqueueMarkerWithWaitList(thread_queue(), 0, nullptr, &event), "marker");
    return Event(event);
  };
  const Event begin = marker();
  check(cl().Flush(thread_queue()), "marker");  // else a driver may begin it with the first launch
  enqueue();
  const Event end = marker();
  wait();
  return end_of(end) - end_of(begin);
}

// ---- memory -------------------------------------------------------------------------------------

DeviceMemory OpenClBackend::allocate(size_t bytes) {
  refuse_forked(Platform::opencl);
  cl_int code = CL_SUCCESS;
  Buffer made(cl().CreateBuffer(context_.get(), CL_MEM_READ_WRITE, std::max<size_t>(bytes, 1),
                                nullptr, &code));
  if (code != CL_SUCCESS) fail(code, fmt::format("allocate {} bytes", bytes));
  return made.release();
}

void OpenClBackend::release(DeviceMemory memory) noexcept {
  if (memory != nullptr && !is_forked()) cl().ReleaseMemObject(mem(memory));
}

void OpenClBackend::write(DeviceMemory to, size_t offset, const void* from, size_t bytes) {
  if (bytes == 0) return;
  check(cl().EnqueueWriteBuffer(thread_queue(), mem(to), CL_TRUE, offset, bytes, from, 0, nullptr,
                                nullptr),
        "write");
}

void OpenClBackend::read(void* to, DeviceMemory from, size_t offset, size_t bytes) {
  if (bytes == 0) return;
  check(cl().EnqueueReadBuffer(thread_queue(), mem(from), CL_TRUE, offset, bytes, to, 0, nullptr,
                               nullptr),
        "read");
}

void OpenClBackend::copy(DeviceMemory to, size_t to_offset, DeviceMemory from, size_t from_offset,
                         size_t bytes) {
  if (bytes == 0) return;
  check(cl().EnqueueCopyBuffer(thread_queue(), mem(from), mem(to), from_offset, to_offset, bytes, 0,
                               nullptr, nullptr),
        "copy");
}

void OpenClBackend::fill(DeviceMemory memory, size_t offset, size_t bytes, uint8_t value) {
  if (bytes == 0) return;
  check(cl().EnqueueFillBuffer(thread_queue(), mem(memory), &value, sizeof value, offset, bytes, 0,
                               nullptr, nullptr),
        "fill");
}

// ---- programs -----------------------------------------------------------------------------------

std::string_view OpenClBackend::dialect() const { return ejk_kernels::opencl_dialect_cl; }

std::shared_ptr<DeviceProgram> OpenClBackend::build(const std::string& name,
                                                    const std::string& source) {
  refuse_forked(Platform::opencl);
  const char* text = source.c_str();
  const size_t bytes = source.size();
  cl_int code = CL_SUCCESS;
  Program program(cl().CreateProgramWithSource(context_.get(), 1, &text, &bytes, &code));
  check(code, name);
  code = cl().BuildProgram(program.get(), 1, &device_, "", nullptr, nullptr);
  if (code == CL_BUILD_PROGRAM_FAILURE) {
    std::string log = build_log(program.get(), device_);
    throw DeviceError(
        Kind::build, fmt::format("[{}] the OpenCL compiler says: {}", name, first_error(log)), log);
  }
  check(code, name);
  return std::make_shared<OpenClProgram>(std::move(program));
}

std::shared_ptr<DeviceProgram> OpenClBackend::load(const std::string& binary,
                                                   std::vector<KernelFacts> /*facts*/) {
  refuse_forked(Platform::opencl);
  const auto* bytes = reinterpret_cast<const unsigned char*>(binary.data());
  const size_t size = binary.size();
  cl_int accepted = CL_SUCCESS, code = CL_SUCCESS;
  Program program(
      cl().CreateProgramWithBinary(context_.get(), 1, &device_, &size, &bytes, &accepted, &code));
  if (code != CL_SUCCESS || accepted != CL_SUCCESS ||
      cl().BuildProgram(program.get(), 1, &device_, "", nullptr, nullptr) != CL_SUCCESS)
    return nullptr;
  return std::make_shared<OpenClProgram>(std::move(program));
}

// ---- launches -----------------------------------------------------------------------------------

// Memory from a byte on is a part of it, which OpenCL wants to be an object; what is launched keeps
// it alive.
Buffer OpenClBackend::part_of(const LaunchArgument& argument, std::string_view kernel) const {
  if (argument.offset % alignment_ != 0)
    throw DeviceError(Kind::invalid_launch,
                      fmt::format("[{}] got an array that begins at byte {} of its memory; the "
                                  "device needs a multiple of {}; copy it with Tensor::clone",
                                  kernel, argument.offset, alignment_));
  size_t bytes = 0;
  check(cl().GetMemObjectInfo(mem(argument.memory), CL_MEM_SIZE, sizeof bytes, &bytes, nullptr),
        kernel);
  const cl_buffer_region region{argument.offset, bytes - argument.offset};
  cl_int code = CL_SUCCESS;
  Buffer part(cl().CreateSubBuffer(mem(argument.memory), CL_MEM_READ_WRITE,
                                   CL_BUFFER_CREATE_TYPE_REGION, &region, &code));
  check(code, kernel);
  return part;
}

void OpenClBackend::launch(DeviceKernel& kernel, const Grid& grid,
                           std::span<const LaunchArgument> arguments) {
  auto& typed = static_cast<OpenClKernel&>(kernel);
  if (arguments.size() != typed.parameters)
    throw DeviceError(Kind::invalid_launch,
                      fmt::format("[{}] got {} arguments; expected {}", typed.name,
                                  arguments.size(), typed.parameters));
  // PoCL ends the process.
  if (typed.local_bytes > local_bytes_)
    throw DeviceError(Kind::invalid_launch,
                      fmt::format("[{}] takes {} bytes of local memory; a group here has {}",
                                  typed.name, typed.local_bytes, local_bytes_));
  std::vector<Buffer> parts;
  for (cl_uint i = 0; i < arguments.size(); ++i) {
    LaunchArgument one = arguments[i];
    if (one.offset > 0) one.memory = parts.emplace_back(part_of(one, typed.name)).get();
    if (one.number == nullptr) one.number = &one.memory, one.bytes = sizeof one.memory;
    const cl_int code = cl().SetKernelArg(typed.handle.get(), i, one.bytes, one.number);
    if (code != CL_SUCCESS)
      fail(code, fmt::format("{}: argument {} of {} bytes", typed.name, i, one.bytes));
  }
  const auto size = [](int64_t n) { return static_cast<size_t>(n); };
  const size_t items[] = {size(grid.items.x), size(grid.items.y), size(grid.items.z)};
  const size_t all[] = {items[0] * size(grid.groups.x), items[1] * size(grid.groups.y),
                        items[2] * size(grid.groups.z)};
  const cl_int code = cl().EnqueueNDRangeKernel(thread_queue(), typed.handle.get(), 3, nullptr, all,
                                                items, 0, nullptr, nullptr);
  if (code != CL_SUCCESS)
    fail(code,
         fmt::format("{}: groups of {} x {} x {} items", typed.name, items[0], items[1], items[2]));
}

}  // namespace ejk::detail::opencl
