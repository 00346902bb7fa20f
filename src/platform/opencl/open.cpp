// SPDX-License-Identifier: Apache-2.0
// Finds the OpenCL devices of this machine and says what each of them is.
#include "platform/opencl/open.h"

#include <dlfcn.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/env.h"
#include "base/file.h"
#include "base/format.h"
#include "platform/device_kind.h"
#include "platform/fingerprint.h"
#include "platform/opencl/opencl_backend.h"

namespace ejk::detail::opencl {
namespace {

// ---- questions; what a driver does not answer is left out

std::string text_of(auto ask) {
  size_t bytes = 0;
  if (ask(0, nullptr, &bytes) != CL_SUCCESS) return "";
  std::string text(bytes, '\0');
  if (ask(bytes, text.data(), nullptr) != CL_SUCCESS) return "";
  text.resize(std::min(text.find('\0'), text.size()));
  const size_t end = text.find_last_not_of(" \t\n");
  text.resize(end == text.npos ? 0 : end + 1);
  return text;
}

std::string platform_text(cl_platform_id platform, cl_platform_info what) {
  return text_of([&](size_t bytes, void* to, size_t* needed) {
    return cl().GetPlatformInfo(platform, what, bytes, to, needed);
  });
}

std::string device_text(cl_device_id device, cl_device_info what) {
  return text_of([&](size_t bytes, void* to, size_t* needed) {
    return cl().GetDeviceInfo(device, what, bytes, to, needed);
  });
}

template <class T>
T device_number(cl_device_id device, cl_device_info what) {
  T value{};
  return cl().GetDeviceInfo(device, what, sizeof value, &value, nullptr) == CL_SUCCESS ? value
                                                                                       : T{};
}

// "OpenCL 3.0" of "OpenCL 3.0 PoCL 3.1 ...": what stays while a driver is updated.
std::string version_class(const std::string& version) {
  const size_t name = version.find(' ');
  return version.substr(0, name == version.npos ? name : version.find(' ', name + 1));
}

DeviceKind kind_of(cl_device_type type) {
  return (type & CL_DEVICE_TYPE_GPU) != 0   ? DeviceKind::gpu
         : (type & CL_DEVICE_TYPE_CPU) != 0 ? DeviceKind::cpu
                                            : DeviceKind::accelerator;
}

DeviceLimits limits_of(cl_device_id device) {
  return {static_cast<int64_t>(device_number<size_t>(device, CL_DEVICE_MAX_WORK_GROUP_SIZE)),
          static_cast<int64_t>(device_number<cl_ulong>(device, CL_DEVICE_LOCAL_MEM_SIZE)),
          device_number<cl_uint>(device, CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT),
          device_number<cl_uint>(device, CL_DEVICE_MAX_COMPUTE_UNITS)};
}

// Extensions that change which kernels exist.
Value features_of(cl_device_id device) {
  const std::string all = " " + device_text(device, CL_DEVICE_EXTENSIONS) + " ";
  Value features = Value::array();
  for (const auto& [extension, name] : {std::pair{" cl_khr_fp16 ", "fp16"},
                                        {" cl_khr_fp64 ", "fp64"},
                                        {" cl_khr_subgroups ", "subgroups"}})
    if (all.find(extension) != all.npos) features.push_back(name);
  return features;
}

// The driver belongs to it: two drivers for one chip run one config at very different speeds.
Value identity_of(cl_platform_id platform, cl_device_id device, const DeviceLimits& limits) {
  return Value::object(
      {{"kind", name_of(kind_of(device_number<cl_device_type>(device, CL_DEVICE_TYPE)))},
       {"platform", platform_text(platform, CL_PLATFORM_NAME)},
       {"version", version_class(platform_text(platform, CL_PLATFORM_VERSION))},
       {"vendor", device_text(device, CL_DEVICE_VENDOR)},
       {"model", device_text(device, CL_DEVICE_NAME)},
       {"compute_units", limits.compute_units},
       {"group_items", limits.group_items},
       {"local_bytes", limits.local_bytes},
       {"vector_width", limits.vector_width},
       {"features", features_of(device)}});
}

// The version of a platform names its compiler where it has one of its own.
Value environment_of(cl_platform_id platform, cl_device_id device) {
  return Value::object({{"driver", device_text(device, CL_DRIVER_VERSION)},
                        {"compiler", platform_text(platform, CL_PLATFORM_VERSION)},
                        {"language", device_text(device, CL_DEVICE_OPENCL_C_VERSION)},
                        {"library", library_version()}});
}

// CL_DEVICE_VERSION has the instruction set on CPU drivers.
std::string target_of(const Device& device, cl_device_id id) {
  return stable_json(Value::object({{"identity", device.identity},
                                    {"environment", device.environment},
                                    {"device", device_text(id, CL_DEVICE_VERSION)}}));
}

// ---- listing

std::vector<cl_platform_id> platforms() {
  cl_uint count = 0;
  if (cl().GetPlatformIDs(0, nullptr, &count) != CL_SUCCESS || count == 0) return {};
  std::vector<cl_platform_id> ids(count);
  if (cl().GetPlatformIDs(count, ids.data(), nullptr) != CL_SUCCESS) return {};
  return ids;
}

std::vector<cl_device_id> devices_of(cl_platform_id platform) {
  cl_uint count = 0;
  if (cl().GetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 0, nullptr, &count) != CL_SUCCESS) return {};
  std::vector<cl_device_id> ids(count);
  if (count == 0 ||
      cl().GetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, count, ids.data(), nullptr) != CL_SUCCESS)
    return {};
  return ids;
}

// "" if it can run what the library gives it.
std::string why_unusable(cl_device_id id) {
  const std::string name = device_text(id, CL_DEVICE_NAME);
  const std::string version = version_class(device_text(id, CL_DEVICE_VERSION));
  if (version == "OpenCL 1.0" || version == "OpenCL 1.1")
    return fmt::format("{} has {}, and 1.2 is needed", name, version);
  if (device_number<cl_bool>(id, CL_DEVICE_COMPILER_AVAILABLE) == CL_FALSE)
    return fmt::format("{} has no compiler", name);
  return "";
}

void add_device(cl_platform_id platform, cl_device_id id, OpenedPlatform& out) {
  if (std::string why = why_unusable(id); !why.empty()) {
    out.why_none = std::move(why);
    return;
  }
  Device device{.platform = Platform::opencl, .index = static_cast<int>(out.devices.size())};
  device.limits = limits_of(id);
  device.identity = identity_of(platform, id, device.limits);
  device.environment = environment_of(platform, id);
  device.fingerprint = fingerprint_of(Platform::opencl, device.identity);
  try {
    // PoCL compiles a kernel at its first launch, for its size of groups.
    const bool is_pocl = platform_text(platform, CL_PLATFORM_NAME) == "Portable Computing Language";
    out.backends.push_back(std::make_unique<OpenClBackend>(id, target_of(device, id), is_pocl));
  } catch (const DeviceError& error) {
    out.why_none = error.what();
    return;
  }
  device.backend = out.backends.back().get();
  out.devices.push_back(std::move(device));
}

}  // namespace

OpenedPlatform open(const char* library) {
  OpenedPlatform out;
  Library loaded;
  out.why_none = load_library(library, loaded);
  if (!out.why_none.empty()) return out;
  cl() = loaded;
  const auto found = platforms();
  out.why_none = found.empty() ? fmt::format("{} finds no driver", library)
                               : fmt::format("{} finds {} without a device", library,
                                             found.size() == 1 ? "a driver" : "drivers");
  for (cl_platform_id platform : found)
    for (cl_device_id device : devices_of(platform)) add_device(platform, device, out);
  if (!out.devices.empty()) out.why_none.clear();
  return out;
}

}  // namespace ejk::detail::opencl

namespace ejk::detail {

OpenedPlatform open_opencl() { return opencl::open("libOpenCL.so.1"); }

// The loader loads drivers at its first call. It finds them as this does.
bool opencl_is_in_use() {
  const std::string given = base::env("OCL_ICD_VENDORS").value_or("/etc/OpenCL/vendors");
  std::vector<std::string> drivers{given};
  for (const std::string& name : base::list_directory(given))
    drivers.push_back(base::read_file(given + '/' + name, 1 << 16).text);
  if (given.ends_with(".icd")) drivers.push_back(base::read_file(given, 1 << 16).text);
  return std::ranges::any_of(drivers, [](const std::string& driver) {
    const std::string file = driver.substr(0, driver.find_first_of(" \t\r\n"));
    void* const loaded = file.empty() ? nullptr : ::dlopen(file.c_str(), RTLD_LAZY | RTLD_NOLOAD);
    if (loaded != nullptr) ::dlclose(loaded);
    return loaded != nullptr;
  });
}

}  // namespace ejk::detail
