// SPDX-License-Identifier: Apache-2.0
// Finds the CUDA devices of this machine and says what each of them is.
#include <string>
#include <utility>

#include "base/format.h"
#include "platform/cuda/compile.h"
#include "platform/cuda/cuda_backend.h"
#include "platform/fingerprint.h"

namespace ejk::detail {
namespace cuda {
namespace {

int64_t ask(Ordinal device, DeviceAttribute attribute) {
  int value = 0;
  check(driver().cuDeviceGetAttribute(&value, attribute, device), "device");
  return value;
}

std::string name_of(Ordinal device) {
  char name[256] = "";
  check(driver().cuDeviceGetName(name, sizeof name, device), "device");
  return name;
}

// Local memory: what a kernel can declare. Devices have more, for those who ask at the launch.
DeviceLimits limits_of(Ordinal device) {
  return {.group_items = ask(device, DeviceAttribute::max_threads_per_block),
          .local_bytes = ask(device, DeviceAttribute::max_shared_memory_per_block),
          .vector_width = 1,
          .compute_units = ask(device, DeviceAttribute::multiprocessor_count)};
}

Value identity_of(Ordinal device, int arch, const DeviceLimits& limits) {
  return Value::object(
      {{"kind", "gpu"},
       {"vendor", "NVIDIA"},
       {"model", name_of(device)},
       {"compute_capability", fmt::format("{}.{}", arch / 10, arch % 10)},
       {"compute_units", limits.compute_units},
       {"group_items", limits.group_items},
       {"local_bytes", limits.local_bytes},
       {"most_local_bytes", ask(device, DeviceAttribute::max_shared_memory_per_block_optin)},
       {"warp", ask(device, DeviceAttribute::warp_size)},
       {"l2_bytes", ask(device, DeviceAttribute::l2_cache_size)}});
}

// "13.0" of 13000.
std::string driver_version() {
  int version = 0;
  check(driver().cuDriverGetVersion(&version), "driver");
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

std::string nvrtc_version() {
  int major = 0, minor = 0;
  if (nvrtc().nvrtcVersion(&major, &minor) != NvrtcStatus::success)
    throw DeviceError(DeviceError::Kind::absent, "[nvrtc] does not tell its version");
  return fmt::format("NVRTC {}.{}", major, minor);
}

void add_device(int index, OpenedPlatform& out) {
  Ordinal id = 0;
  check(driver().cuDeviceGet(&id, index), "device");
  const int arch = static_cast<int>(10 * ask(id, DeviceAttribute::compute_capability_major) +
                                    ask(id, DeviceAttribute::compute_capability_minor));
  Device device{.platform = Platform::cuda, .index = static_cast<int>(out.devices.size())};
  device.limits = limits_of(id);
  device.identity = identity_of(id, arch, device.limits);
  device.environment = Value::object({{"driver", driver_version()},
                                      {"compiler", nvrtc_version()},
                                      {"library", library_version()}});
  device.fingerprint = fingerprint_of(Platform::cuda, device.identity);
  const std::string target =
      fmt::format("{} {}", stable_json(device.environment), options_text(arch));
  out.backends.push_back(std::make_unique<CudaBackend>(id, arch, target));
  device.backend = out.backends.back().get();
  out.devices.push_back(std::move(device));
}

OpenedPlatform open() {
  OpenedPlatform out;
  for (const auto load : {load_driver, load_nvrtc})
    if (out.why_none = load(); !out.why_none.empty()) return out;
  if (const Status status = driver().cuInit(0); status != success) {
    out.why_none = fmt::format("the CUDA driver does not start: {}", text_of(status));
    return out;
  }
  int count = 0;
  if (driver().cuDeviceGetCount(&count) != success) count = 0;
  out.why_none = "the CUDA driver finds no device";
  for (int i = 0; i < count; ++i) {
    try {
      add_device(i, out);
    } catch (const DeviceError& error) {
      out.why_none = error.what();
    }
  }
  if (!out.devices.empty()) out.why_none.clear();
  return out;
}

}  // namespace
}  // namespace cuda

OpenedPlatform open_cuda() { return cuda::open(); }

bool cuda_is_in_use() { return cuda::driver_is_in_use(); }

}  // namespace ejk::detail
