// SPDX-License-Identifier: Apache-2.0
// CUDA's driver of the emulation. What goes to a stream happens when a caller waits for it, so that
// a program that forgets to wait sees memory as it was before.
//
//   FAKE_CUDA_DEVICES=2         how many there are (1)
//   FAKE_CUDA_ARCH=90           their compute capability, 9.0
//   FAKE_CUDA_FAIL=call:nth:n   that call returns n the nth time; 700 to 719 but 701 last, as on
//   hardware
#include "platform/cuda/driver_api.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "failures.h"
#include "module.h"

using namespace ejk::detail::cuda;

namespace {

using emulated::Extent;
using emulated::Fault;

struct EmulatedDevice;

struct EmulatedStream {
  EmulatedDevice* device;
  std::deque<std::function<Fault()>> pending;
  uint64_t done = 0;
  uint64_t issued() const { return done + pending.size(); }
};

struct EmulatedEvent {
  EmulatedStream* stream = nullptr;
  uint64_t position = 0;  // done when the stream has done as much
  double milliseconds = 0;
  bool happened = false;
};

struct EmulatedDevice {
  emulated::Memory memory{size_t{1} << 30};
  Status lost = success;
  std::map<void*, std::unique_ptr<EmulatedStream>> streams;
  std::map<void*, std::shared_ptr<EmulatedEvent>> events;
  std::map<void*, std::unique_ptr<emulated::LoadedModule>> modules;
};

int number_of(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoi(text);
}

std::mutex mutex;
bool is_initialized = false;
std::vector<std::unique_ptr<EmulatedDevice>> devices;
std::string finding;  // of the last kernel that failed
thread_local EmulatedDevice* current = nullptr;

Status lose(EmulatedDevice& device, int status) {
  const bool lasts =
      status >= illegal_address && status <= launch_failed && status != launch_out_of_resources;
  if (lasts) device.lost = static_cast<Status>(status);
  return static_cast<Status>(status);
}

enum class Needs { nothing, initialized, context };

// What every call does first.
Status enter(const char* call, Needs needs) {
  if (const int status = emulated::injected_failure(call); status != 0)
    return current == nullptr ? static_cast<Status>(status) : lose(*current, status);
  if (needs != Needs::nothing && !is_initialized) return not_initialized;
  if (needs == Needs::context && current == nullptr) return invalid_context;
  return needs == Needs::context ? current->lost : success;
}

#define ENTER(needs)                  \
  const std::scoped_lock lock(mutex); \
  if (const Status refused = enter(__func__, Needs::needs); refused != success) return refused;

template <class T>
T* find(std::map<void*, T>& all, const void* handle) {
  const auto found = all.find(const_cast<void*>(handle));
  return found == all.end() ? nullptr : &found->second;
}

// ---- streams

Status run_until(EmulatedStream& stream, uint64_t position) {
  while (stream.done < position) {
    const std::function<Fault()> next = std::move(stream.pending.front());
    stream.pending.pop_front();
    ++stream.done;
    if (const Fault fault = next()) {
      finding = fault.text;
      std::fprintf(stderr, "emulated CUDA: %s\n", fault.text.c_str());
      stream.done += stream.pending.size();
      stream.pending.clear();
      return lose(*stream.device, fault.status);
    }
  }
  return success;
}

Status run_all(EmulatedDevice& device) {
  for (auto& [handle, stream] : device.streams)
    if (const Status status = run_until(*stream, stream->issued()); status != success)
      return status;
  return success;
}

// The legacy stream waits for all others, and all others for it.
Status enqueue(Stream handle, std::function<Fault()> what) {
  if (handle == nullptr) {
    if (const Status status = run_all(*current); status != success) return status;
    const Fault fault = what();
    return fault ? lose(*current, fault.status) : success;
  }
  const auto* stream = find(current->streams, handle);
  if (stream == nullptr) return invalid_handle;
  (*stream)->pending.push_back(std::move(what));
  return success;
}

Status wait_for(Stream handle) {
  if (handle == nullptr) return run_all(*current);
  const auto* stream = find(current->streams, handle);
  return stream == nullptr ? invalid_handle : run_until(**stream, (*stream)->issued());
}

bool holds(DevicePointer begin, size_t bytes) { return current->memory.holds(begin, bytes); }

int attribute_of(DeviceAttribute attribute) {
  const int arch = number_of("FAKE_CUDA_ARCH", 90);
  switch (attribute) {
    case DeviceAttribute::max_threads_per_block:
      return 1024;
    case DeviceAttribute::max_shared_memory_per_block:
      return 48 << 10;
    case DeviceAttribute::warp_size:
      return 32;
    case DeviceAttribute::multiprocessor_count:
      return 4;
    case DeviceAttribute::l2_cache_size:
      return 4 << 20;
    case DeviceAttribute::compute_capability_major:
      return arch / 10;
    case DeviceAttribute::compute_capability_minor:
      return arch % 10;
    case DeviceAttribute::max_shared_memory_per_block_optin:
      return 99 << 10;
  }
  return -1;
}

bool fits(Extent grid, Extent block) {
  const auto between = [](unsigned x, unsigned most) { return x >= 1 && x <= most; };
  return between(grid.x, 0x7fffffff) && between(grid.y, 65535) && between(grid.z, 65535) &&
         between(block.x, 1024) && between(block.y, 1024) && between(block.z, 64) &&
         block.x * block.y * block.z <= 1024;
}

}  // namespace

extern "C" {

// ---- for tests only

// As in a new process, with what the environment says now.
void fake_cuda_reset() {
  const std::scoped_lock lock(mutex);
  emulated::forget_calls();
  is_initialized = false;
  current = nullptr;
  devices.clear();
  finding.clear();
}
void fake_cuda_forget_calls() { emulated::forget_calls(); }
const char* fake_cuda_finding() { return finding.c_str(); }
int fake_cuda_calls(const char* call) { return emulated::calls_of(call); }

// ---- devices

Status cuInit(unsigned) {
  ENTER(nothing)
  const int count = number_of("FAKE_CUDA_DEVICES", 1);
  if (count == 0) return no_device;
  while (static_cast<int>(devices.size()) < count)
    devices.push_back(std::make_unique<EmulatedDevice>());
  is_initialized = true;
  return success;
}

Status cuDriverGetVersion(int* version) {
  ENTER(nothing)
  *version = 13000;
  return success;
}

Status cuGetErrorName(Status status, const char** name) {
  static const std::map<int, const char*> names = {
      {invalid_value, "CUDA_ERROR_INVALID_VALUE"}, {out_of_memory, "CUDA_ERROR_OUT_OF_MEMORY"},
      {no_device, "CUDA_ERROR_NO_DEVICE"},         {illegal_address, "CUDA_ERROR_ILLEGAL_ADDRESS"},
      {launch_failed, "CUDA_ERROR_LAUNCH_FAILED"},
  };
  ENTER(nothing)
  const auto found = names.find(status);
  *name = found == names.end() ? nullptr : found->second;
  return found == names.end() ? invalid_value : success;
}

// Hardware has a fixed text for each; here it is what was found.
Status cuGetErrorString(Status status, const char** text) {
  ENTER(nothing)
  const bool found = status >= illegal_address && !finding.empty();
  *text = found ? finding.c_str() : nullptr;
  return found ? success : invalid_value;
}

Status cuDeviceGetCount(int* count) {
  ENTER(initialized)
  *count = static_cast<int>(devices.size());
  return success;
}

Status cuDeviceGet(Ordinal* device, int index) {
  ENTER(initialized)
  if (index < 0 || index >= static_cast<int>(devices.size())) return invalid_device;
  *device = index;
  return success;
}

Status cuDeviceGetName(char* name, int bytes, Ordinal) {
  ENTER(initialized)
  std::snprintf(name, static_cast<size_t>(bytes), "Emulated GPU");
  return success;
}

Status cuDeviceGetAttribute(int* value, DeviceAttribute attribute, Ordinal) {
  ENTER(initialized)
  *value = attribute_of(attribute);
  return *value < 0 ? invalid_value : success;
}

Status cuDevicePrimaryCtxRetain(Context* context, Ordinal device) {
  ENTER(initialized)
  *context = reinterpret_cast<Context>(devices.at(static_cast<size_t>(device)).get());
  return success;
}

Status cuCtxSetCurrent(Context context) {
  ENTER(initialized)
  const auto found = std::ranges::find_if(devices, [&](const auto& device) {
    return reinterpret_cast<Context>(device.get()) == context;
  });
  if (context != nullptr && found == devices.end()) return invalid_context;
  current = context == nullptr ? nullptr : found->get();
  return success;
}

Status cuCtxGetCurrent(Context* context) {
  ENTER(initialized)
  *context = reinterpret_cast<Context>(current);
  return success;
}

// ---- streams and events

Status cuStreamCreate(Stream* stream, unsigned) {
  ENTER(context)
  auto made = std::make_unique<EmulatedStream>();
  made->device = current;
  *stream = reinterpret_cast<Stream>(made.get());
  current->streams[made.get()] = std::move(made);
  return success;
}

Status cuStreamDestroy_v2(Stream stream) {
  ENTER(context)
  if (const Status status = wait_for(stream); status != success) return status;
  current->streams.erase(stream);
  return success;
}

Status cuStreamSynchronize(Stream stream) {
  ENTER(context)
  return wait_for(stream);
}

Status cuEventCreate(Event* event, unsigned) {
  ENTER(context)
  auto made = std::make_shared<EmulatedEvent>();
  *event = reinterpret_cast<Event>(made.get());
  current->events[made.get()] = std::move(made);
  return success;
}

Status cuEventDestroy_v2(Event event) {
  ENTER(context)
  return current->events.erase(event) == 1 ? success : invalid_handle;
}

Status cuEventRecord(Event event, Stream stream) {
  ENTER(context)
  const auto* found = find(current->events, event);
  const auto* on = find(current->streams, stream);
  if (found == nullptr || on == nullptr) return invalid_handle;
  (*found)->stream = on->get();
  (*found)->happened = false;
  const Status status = enqueue(stream, [event = *found]() -> Fault {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    event->milliseconds = std::chrono::duration<double, std::milli>(now).count();
    event->happened = true;
    return {};
  });
  (*found)->position = (*on)->issued();
  return status;
}

Status cuEventSynchronize(Event event) {
  ENTER(context)
  const auto* found = find(current->events, event);
  if (found == nullptr) return invalid_handle;
  EmulatedStream* stream = (*found)->stream;
  return stream == nullptr ? success : run_until(*stream, (*found)->position);
}

Status cuEventElapsedTime(float* milliseconds, Event start, Event end) {
  ENTER(context)
  const auto *first = find(current->events, start), *last = find(current->events, end);
  if (first == nullptr || last == nullptr) return invalid_handle;
  constexpr auto not_ready = static_cast<Status>(600);
  if (!(*first)->happened || !(*last)->happened) return not_ready;
  *milliseconds = static_cast<float>((*last)->milliseconds - (*first)->milliseconds);
  return success;
}

// ---- memory

Status cuMemAlloc_v2(DevicePointer* memory, size_t bytes) {
  ENTER(context)
  if (bytes == 0) return invalid_value;
  const auto begin = current->memory.allocate(bytes);
  *memory = begin.value_or(0);
  return begin ? success : out_of_memory;
}

Status cuMemFree_v2(DevicePointer memory) {
  ENTER(context)
  if (const Status status = run_all(*current); status != success) return status;
  return current->memory.release(memory) ? success : invalid_value;
}

// Memory of the host may be page-locked, and is then read as late as this.
Status cuMemcpyHtoDAsync_v2(DevicePointer to, const void* from, size_t bytes, Stream stream) {
  ENTER(context)
  if (!holds(to, bytes)) return invalid_value;
  return enqueue(stream, [to, from, bytes]() -> Fault {
    std::memcpy(reinterpret_cast<void*>(to), from, bytes);
    return {};
  });
}

Status cuMemcpyDtoHAsync_v2(void* to, DevicePointer from, size_t bytes, Stream stream) {
  ENTER(context)
  if (!holds(from, bytes)) return invalid_value;
  return enqueue(stream, [to, from, bytes]() -> Fault {
    std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
    return {};
  });
}

Status cuMemcpyDtoDAsync_v2(DevicePointer to, DevicePointer from, size_t bytes, Stream stream) {
  ENTER(context)
  if (!holds(to, bytes) || !holds(from, bytes)) return invalid_value;
  return enqueue(stream, [to, from, bytes]() -> Fault {
    std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
    return {};
  });
}

Status cuMemsetD8Async(DevicePointer to, unsigned char value, size_t bytes, Stream stream) {
  ENTER(context)
  if (!holds(to, bytes)) return invalid_value;
  return enqueue(stream, [to, value, bytes]() -> Fault {
    std::memset(reinterpret_cast<void*>(to), value, bytes);
    return {};
  });
}

// ---- modules

Status cuModuleLoadData(Module* module, const void* image) {
  ENTER(context)
  auto loaded = emulated::LoadedModule::load(image);
  if (loaded == nullptr) return invalid_image;
  // A cubin runs on later devices of the same generation only.
  const int made_for = loaded->table().arch, arch = number_of("FAKE_CUDA_ARCH", 90);
  if (made_for / 10 != arch / 10 || made_for > arch) return no_binary_for_gpu;
  *module = reinterpret_cast<Module>(loaded.get());
  current->modules[loaded.get()] = std::move(loaded);
  return success;
}

Status cuModuleUnload(Module module) {
  ENTER(context)
  if (const Status status = run_all(*current); status != success) return status;
  return current->modules.erase(module) == 1 ? success : invalid_handle;
}

Status cuModuleGetFunction(Function* function, Module module, const char* name) {
  ENTER(context)
  const auto* loaded = find(current->modules, module);
  if (loaded == nullptr) return invalid_handle;
  const emulated::Kernel* kernel = (*loaded)->kernel(name);
  *function = reinterpret_cast<Function>(const_cast<emulated::Kernel*>(kernel));
  return kernel == nullptr ? not_found : success;
}

Status cuFuncGetParamInfo(Function function, size_t index, size_t* offset, size_t* bytes) {
  ENTER(context)
  const auto* kernel = reinterpret_cast<const emulated::Kernel*>(function);
  if (index >= kernel->parameters) return invalid_value;
  *offset = 0;  // no caller asks for it
  *bytes = kernel->sizes[index];
  return success;
}

Status cuLaunchKernel(Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                      unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                      Stream stream, void** parameters, void** extra) {
  ENTER(context)
  const Extent grid = {grid_x, grid_y, grid_z}, block = {block_x, block_y, block_z};
  if (!fits(grid, block) || shared_bytes != 0 || extra != nullptr) return invalid_value;
  const auto* kernel = reinterpret_cast<const emulated::Kernel*>(function);
  const auto owner = std::ranges::find_if(current->modules, [&](const auto& module) {
    const auto& table = module.second->table();
    return table.kernels <= kernel && kernel < table.kernels + table.kernel_count;
  });
  if (owner == current->modules.end()) return invalid_handle;
  if (static_cast<int>(block.x * block.y * block.z) > kernel->max_threads)
    return launch_out_of_resources;
  emulated::Launch launch = {owner->second.get(), kernel, grid, block,
                             std::vector<std::byte>(kernel->parameter_bytes)};
  kernel->capture(parameters, launch.parameters.data());
  return enqueue(stream, [launch = std::move(launch), device = current] {
    return run(launch, device->memory);
  });
}

}  // extern "C"
