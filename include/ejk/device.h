// SPDX-License-Identifier: Apache-2.0
// What a call runs on: identity (must match for a stored choice to be used) and environment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ejk/detail/export.h>
#include <ejk/value.h>
#include <ejk/version.h>

namespace EJK_EXPORT ejk {

// What a device is driven by. Arrays live on one platform, and a kernel's hooks may differ by it.
enum class Platform : uint8_t { cpu, opencl, cuda };

std::string_view platform_name(Platform platform);  // "cpu", "opencl", "cuda": the hook suffixes

namespace detail {
class Backend;
}

// What kernels and their spaces ask of a device; 0 where it is not known.
struct DeviceLimits {
  int64_t group_items = 0;    // most work-items (threads) in a group
  int64_t local_bytes = 0;    // local (shared) memory of a group
  int64_t vector_width = 0;   // floats in a native vector
  int64_t compute_units = 0;  // groups that run at once
};

// One device. Immutable once made; the devices that this library lists live as long as the process.
struct Device {
  Platform platform = Platform::cpu;  // whose driver runs its kernels
  int index = 0;                      // among the devices of its platform
  // What the device is: kind, vendor, model, ISA, cache sizes. Two devices with equal identity
  // may use each other's stored choices; any difference means another device.
  Value identity = {};
  // What surrounds it: cores and CPU quota visible to this process, compiler, library version.
  // Kept with every entry; a difference is tolerated (loose) or a miss (strict).
  Value environment = {};
  // Readable text that is equal exactly if `identity` is: "cpu|MODEL|16 hex digits".
  std::string fingerprint = {};
  DeviceLimits limits = {};
  // How its memory and programs are reached; null: they are the host's own.
  detail::Backend* backend = nullptr;
};

// The CPU this process runs on, looked at once, at the first call.
const Device& cpu_device();

// Reads a CPU's identity and environment from the proc and sys trees under `root` ("/" for this
// machine; a prepared folder in tests). Files that are missing leave their members out.
Device probe_cpu(const std::string& root);

// Every device found on this machine, the CPU first. Looks at the drivers that are there, once.
std::vector<const Device*> devices();

// The devices of one platform; they live as long as the process.
struct DeviceList : std::span<const Device> {
  Platform platform = Platform::cpu;  // that all of them belong to
  // Throws Error with what there is, and why there are no more.
  const Device& at(size_t index) const;
};
DeviceList devices(Platform platform);
// By name: "cpu", "opencl", "cuda". Throws Error(invalid_argument) for another.
DeviceList devices(std::string_view platform);
// Why the list of a platform is empty, for people; "" if it is not.
std::string why_no_devices(Platform platform);

// "cpu" or "gpu": what the device is, whatever platform it is reached by.
std::string_view device_kind(const Device& device = cpu_device());
// The suffix of the hooks that run there: "cpu", "opencl", "cuda".
std::string_view get_device_platform(const Device& device = cpu_device());
const std::string& device_fingerprint(const Device& device = cpu_device());

// How many threads can really run at once here: affinity mask and cgroup quota considered.
int visible_cores();

}  // namespace ejk
