// SPDX-License-Identifier: Apache-2.0
// Memory, streams, modules and launches of a CUDA device.
#include "platform/cuda/cuda_backend.h"

#include <elf.h>
#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <utility>

#include <ejk_kernels/cuda_dialect_cl.h>
#include "base/format.h"
#include "platform/cuda/compile.h"
#include "platform/forked.h"

namespace ejk::detail::cuda {
namespace {

using Kind = DeviceError::Kind;

DevicePointer pointer(DeviceMemory memory, size_t offset = 0) {
  return reinterpret_cast<DevicePointer>(memory) + offset;
}

// The context is current from here to the end of the block; then what was, as other libraries rely
// on it.
class InContext {
 public:
  explicit InContext(Context context) : context_(context) {
    refuse_forked(Platform::cuda);
    check(driver().cuCtxGetCurrent(&before_), "context");
    if (before_ != context_) check(driver().cuCtxSetCurrent(context_), "context");
  }
  ~InContext() {
    if (before_ != nullptr && before_ != context_) driver().cuCtxSetCurrent(before_);
  }
  InContext(const InContext&) = delete;
  InContext& operator=(const InContext&) = delete;

 private:
  Context context_, before_ = nullptr;
};

// Frees from any thread. Errors of the driver are ignored: there is no caller to hear them.
void released(Context context, auto free) noexcept {
  if (is_forked()) return;
  try {
    const InContext in(context);
    free();
  } catch (const DeviceError&) {
    // The context is lost, and everything in it with it.
  }
}

// ---- what a thread has on a device

struct ThreadStream {
  uint64_t backend = 0;
  Context context = nullptr;
  Stream stream = nullptr;
  Event begin = nullptr, end = nullptr;

  ThreadStream() = default;
  ThreadStream(const ThreadStream&) = delete;
  ThreadStream& operator=(const ThreadStream&) = delete;
  ~ThreadStream() {
    released(context, [&] {
      if (begin != nullptr) driver().cuEventDestroy_v2(begin);
      if (end != nullptr) driver().cuEventDestroy_v2(end);
      if (stream != nullptr) driver().cuStreamDestroy_v2(stream);
    });
  }
};

ThreadStream& thread_stream(uint64_t backend, Context context) {
  static thread_local std::vector<std::unique_ptr<ThreadStream>> all;
  for (const auto& one : all)
    if (one->backend == backend) return *one;
  auto made = std::make_unique<ThreadStream>();
  made->backend = backend;
  made->context = context;
  // It waits for the default stream, and that for it: what other libraries do there is in order.
  check(driver().cuStreamCreate(&made->stream, stream_default), "stream");
  return *all.emplace_back(std::move(made));
}

// ---- programs

struct LoadedModule {
  Context context;
  Module module = nullptr;
  LoadedModule(Context in, Module loaded) : context(in), module(loaded) {}
  ~LoadedModule() {
    released(context, [&] { driver().cuModuleUnload(module); });
  }
  LoadedModule(const LoadedModule&) = delete;
  LoadedModule& operator=(const LoadedModule&) = delete;
};

// nullopt-like: empty and not `known` where the driver is too old to say.
struct Parameters {
  bool known = false;
  std::vector<size_t> bytes;
};

Parameters parameters_of(Function function) {
  if (driver().cuFuncGetParamInfo == nullptr) return {};
  Parameters parameters{.known = true, .bytes = {}};
  size_t offset = 0, bytes = 0;
  Status status = success;
  while ((status = driver().cuFuncGetParamInfo(function, parameters.bytes.size(), &offset,
                                               &bytes)) == success)
    parameters.bytes.push_back(bytes);
  if (status != invalid_value) check(status, "parameters");  // that one means: no more
  return parameters;
}

class CudaKernel final : public DeviceKernel {
 public:
  CudaKernel(std::string kernel_name, Function kernel, int64_t registers_of_item,
             std::shared_ptr<LoadedModule> in)
      : name(std::move(kernel_name)),
        function(kernel),
        parameters(parameters_of(kernel)),
        registers(registers_of_item),
        module_(std::move(in)) {}
  std::string name;
  Function function;
  Parameters parameters;
  int64_t registers;  // 0: not known

 private:
  std::shared_ptr<LoadedModule> module_;
};

class CudaProgram final : public DeviceProgram {
 public:
  CudaProgram(std::shared_ptr<LoadedModule> module, std::string cubin,
              std::vector<KernelFacts> facts)
      : module_(std::move(module)), cubin_(std::move(cubin)), facts_(std::move(facts)) {}

  std::unique_ptr<DeviceKernel> kernel(const std::string& name) override {
    const InContext in(module_->context);
    Function function = nullptr;
    const Status status = driver().cuModuleGetFunction(&function, module_->module, name.c_str());
    if (status == not_found)
      throw DeviceError(Kind::invalid_launch,
                        fmt::format("[{}] the source has no __kernel of that name", name));
    check(status, name);
    const auto facts = std::ranges::find(facts_, name, &KernelFacts::kernel);
    const int64_t registers = facts == facts_.end() ? 0 : facts->registers;
    return std::make_unique<CudaKernel>(name, function, registers, module_);
  }
  std::string binary() const override { return cubin_; }
  std::vector<KernelFacts> facts() const override { return facts_; }

 private:
  std::shared_ptr<LoadedModule> module_;
  std::string cubin_;
  std::vector<KernelFacts> facts_;
};

// The driver is not told how many bytes there are: it believes the header.
bool is_whole_cubin(const std::string& bytes) {
  Elf64_Ehdr header;
  if (bytes.size() < sizeof header) return false;
  std::memcpy(&header, bytes.data(), sizeof header);
  const size_t sections = size_t{header.e_shentsize} * header.e_shnum;
  return std::memcmp(header.e_ident, ELFMAG, SELFMAG) == 0 && header.e_shoff <= bytes.size() &&
         sections <= bytes.size() - header.e_shoff;
}

}  // namespace

CudaBackend::CudaBackend(Ordinal device, int arch, std::string target)
    : arch_(arch), target_(std::move(target)) {
  watch_forks();
  check(driver().cuDevicePrimaryCtxRetain(&context_, device), "context");
}

Stream CudaBackend::stream() { return thread_stream(id(), context_).stream; }

void CudaBackend::wait() {
  const InContext in(context_);
  check(driver().cuStreamSynchronize(stream()), "wait");
}

void* CudaBackend::queue() {
  const InContext in(context_);
  return stream();
}

double CudaBackend::seconds_of(const std::function<void()>& enqueue) {
  const InContext in(context_);
  ThreadStream& mine = thread_stream(id(), context_);
  for (Event* event : {&mine.begin, &mine.end})
    if (*event == nullptr) check(driver().cuEventCreate(event, event_default), "event");
  check(driver().cuStreamSynchronize(mine.stream), "wait");
  check(driver().cuEventRecord(mine.begin, mine.stream), "event");
  enqueue();
  check(driver().cuEventRecord(mine.end, mine.stream), "event");
  check(driver().cuEventSynchronize(mine.end), "wait");
  float milliseconds = 0;
  check(driver().cuEventElapsedTime(&milliseconds, mine.begin, mine.end), "event");
  return 1e-3 * static_cast<double>(milliseconds);
}

// ---- memory -------------------------------------------------------------------------------------

DeviceMemory CudaBackend::allocate(size_t bytes) {
  const InContext in(context_);
  DevicePointer made = 0;
  const Status status = driver().cuMemAlloc_v2(&made, std::max<size_t>(bytes, 1));
  if (status != success) check(status, fmt::format("allocate {} bytes", bytes));
  return reinterpret_cast<DeviceMemory>(made);  // NOLINT: no address here
}

void CudaBackend::release(DeviceMemory memory) noexcept {
  if (memory == nullptr) return;
  released(context_, [&] { driver().cuMemFree_v2(pointer(memory)); });
}

// Memory of the host may be page-locked by its owner, and is then read later, so it has to wait.
void CudaBackend::write(DeviceMemory to, size_t offset, const void* from, size_t bytes) {
  if (bytes == 0) return;
  const InContext in(context_);
  const Stream mine = stream();
  check(driver().cuMemcpyHtoDAsync_v2(pointer(to, offset), from, bytes, mine), "write");
  check(driver().cuStreamSynchronize(mine), "write");
}

void CudaBackend::read(void* to, DeviceMemory from, size_t offset, size_t bytes) {
  if (bytes == 0) return;
  const InContext in(context_);
  const Stream mine = stream();
  check(driver().cuMemcpyDtoHAsync_v2(to, pointer(from, offset), bytes, mine), "read");
  check(driver().cuStreamSynchronize(mine), "read");
}

void CudaBackend::copy(DeviceMemory to, size_t to_offset, DeviceMemory from, size_t from_offset,
                       size_t bytes) {
  if (bytes == 0) return;
  const InContext in(context_);
  check(driver().cuMemcpyDtoDAsync_v2(pointer(to, to_offset), pointer(from, from_offset), bytes,
                                      stream()),
        "copy");
}

void CudaBackend::fill(DeviceMemory memory, size_t offset, size_t bytes, uint8_t value) {
  if (bytes == 0) return;
  const InContext in(context_);
  check(driver().cuMemsetD8Async(pointer(memory, offset), value, bytes, stream()), "fill");
}

// ---- programs -----------------------------------------------------------------------------------

std::string_view CudaBackend::dialect() const { return ejk_kernels::cuda_dialect_cl; }

std::shared_ptr<DeviceProgram> CudaBackend::build(const std::string& name,
                                                  const std::string& source) {
  Cubin cubin = compile(name, source, arch_);
  const InContext in(context_);
  Module module = nullptr;
  check(driver().cuModuleLoadData(&module, cubin.bytes.data()), name);
  return std::make_shared<CudaProgram>(std::make_shared<LoadedModule>(context_, module),
                                       std::move(cubin.bytes), std::move(cubin.facts));
}

std::shared_ptr<DeviceProgram> CudaBackend::load(const std::string& binary,
                                                 std::vector<KernelFacts> facts) {
  if (!is_whole_cubin(binary)) return nullptr;
  const InContext in(context_);
  Module module = nullptr;
  if (driver().cuModuleLoadData(&module, binary.data()) != success) return nullptr;
  return std::make_shared<CudaProgram>(std::make_shared<LoadedModule>(context_, module), binary,
                                       std::move(facts));
}

// ---- launches -----------------------------------------------------------------------------------

namespace {

constexpr size_t max_arguments = 64;

[[noreturn]] void refuse(const CudaKernel& kernel, const std::string& why) {
  throw DeviceError(Kind::invalid_launch, fmt::format("[{}] {}", kernel.name, why));
}

void check_arguments(const CudaKernel& kernel, std::span<const LaunchArgument> arguments) {
  if (arguments.size() > max_arguments)
    refuse(kernel,
           fmt::format("got {} arguments; expected {} at most", arguments.size(), max_arguments));
  if (!kernel.parameters.known) return;
  if (arguments.size() != kernel.parameters.bytes.size())
    refuse(kernel, fmt::format("got {} arguments; expected {}", arguments.size(),
                               kernel.parameters.bytes.size()));
  for (size_t i = 0; i < arguments.size(); ++i) {
    const size_t bytes =
        arguments[i].number == nullptr ? sizeof(DevicePointer) : arguments[i].bytes;
    if (bytes != kernel.parameters.bytes[i])
      refuse(kernel, fmt::format("argument {} has {} bytes; expected {}", i, bytes,
                                 kernel.parameters.bytes[i]));
  }
}

// The driver's own answer does not say which of its resources there are too few of.
void check_registers(const CudaKernel& kernel, const Extent& items) {
  constexpr int64_t most = 65536;  // of a group, on every device since 2014
  if (kernel.registers * items.x * items.y * items.z > most)
    refuse(kernel, fmt::format("takes {} registers in each of {} x {} x {} items; a group has {}",
                               kernel.registers, items.x, items.y, items.z, most));
}

std::array<unsigned, 3> counts(const CudaKernel& kernel, const Extent& extent) {
  constexpr int64_t most = std::numeric_limits<int32_t>::max();
  for (const int64_t n : {extent.x, extent.y, extent.z})
    if (n > most)
      refuse(kernel, fmt::format("got {} groups or items; expected {} at most", n, most));
  return {static_cast<unsigned>(extent.x), static_cast<unsigned>(extent.y),
          static_cast<unsigned>(extent.z)};
}

}  // namespace

void CudaBackend::launch(DeviceKernel& kernel, const Grid& grid,
                         std::span<const LaunchArgument> arguments) {
  auto& typed = static_cast<CudaKernel&>(kernel);
  check_arguments(typed, arguments);
  std::array<DevicePointer, max_arguments> memory;
  std::array<void*, max_arguments> values;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const LaunchArgument& one = arguments[i];
    if (one.number == nullptr) memory[i] = pointer(one.memory, one.offset);
    values[i] = one.number == nullptr ? &memory[i] : const_cast<void*>(one.number);
  }
  const auto groups = counts(typed, grid.groups), items = counts(typed, grid.items);
  check_registers(typed, grid.items);
  const InContext in(context_);
  const Status status =
      driver().cuLaunchKernel(typed.function, groups[0], groups[1], groups[2], items[0], items[1],
                              items[2], 0, stream(), values.data(), nullptr);
  if (status != success)
    check(status,
          fmt::format("{}: {} x {} x {} groups of {} x {} x {} items", typed.name, groups[0],
                      groups[1], groups[2], items[0], items[1], items[2]),
          Kind::invalid_launch);
}

}  // namespace ejk::detail::cuda
