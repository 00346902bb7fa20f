// SPDX-License-Identifier: Apache-2.0
// Loads CUDA's driver and compiler, and reads the driver's errors.
#include "platform/cuda/library.h"

#include <dlfcn.h>

#include <filesystem>
#include <system_error>

#include "base/env.h"
#include "base/format.h"

namespace ejk::detail::cuda {
namespace {

using Kind = DeviceError::Kind;

struct Found {
  void* handle = nullptr;
  std::string file, why_not;
};

// Never closed: drivers have threads and handlers of their own.
Found open_first(const char* variable, std::vector<std::string> files) {
  if (const auto chosen = base::env(variable)) files = {*chosen};
  for (const std::string& file : files)
    if (void* handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL)) return {handle, file, ""};
  return {
      nullptr, "",
      fmt::format("{} cannot be loaded; {} names another file", fmt::join(files, ", "), variable)};
}

// Of the program or the library that has this code.
std::string own_folder() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&own_folder), &info) == 0) return "";
  return std::filesystem::path(info.dli_fname).parent_path().string();
}

template <class F>
void find(const Found& in, const char* name, F& function, std::string& missing) {
  function = reinterpret_cast<F>(::dlsym(in.handle, name));
  if (function == nullptr && missing.empty()) missing = fmt::format("{} has no {}", in.file, name);
}

Kind kind_of(Status status, Kind invalid) {
  if (status == invalid_value) return invalid;
  if (status == out_of_memory) return Kind::out_of_memory;
  if (status == launch_out_of_resources) return Kind::invalid_launch;
  if (status == no_device || status == invalid_device) return Kind::absent;
  // Whatever ended a kernel early ends its context too.
  const bool ended = status >= illegal_address && status <= launch_failed;
  return ended || status == ecc_uncorrectable ? Kind::lost : Kind::other;
}

}  // namespace

DriverApi& driver() {
  static DriverApi api;
  return api;
}

NvrtcApi& nvrtc() {
  static NvrtcApi api;
  return api;
}

#define EJK_CUDA_FIND(name, parameters) find(library, #name, api.name, missing);

std::string load_driver() {
  const Found library = open_first("EJK_CUDA_LIBRARY", {"libcuda.so.1"});
  if (library.handle == nullptr) return library.why_not;
  DriverApi api;
  std::string missing;
  EJK_CUDA_DRIVER_CALLS(EJK_CUDA_FIND)
  if (!missing.empty()) return missing;
  EJK_CUDA_NEWER_DRIVER_CALLS(EJK_CUDA_FIND)
  driver() = api;
  return "";
}

std::vector<std::string> nvrtc_files(const std::string& folder) {
  std::vector<std::string> files{"libnvrtc.so.13", "libnvrtc.so.12"};
  const std::filesystem::path packages = std::filesystem::path(folder).parent_path();
  // Beside a program anybody may have put files, as in /tmp.
  const bool has_wheels = packages.is_absolute() && packages.string().ends_with("-packages");
  for (const char* of_wheel :
       {"nvidia/cu13/lib/libnvrtc.so.13", "nvidia/cuda_nvrtc/lib/libnvrtc.so.12"}) {
    const std::filesystem::path file = packages / of_wheel;
    std::error_code none;
    if (has_wheels && std::filesystem::exists(file, none)) files.push_back(file.string());
  }
  files.emplace_back("/usr/local/cuda/lib64/libnvrtc.so");
  return files;
}

std::string load_nvrtc() {
  const Found library = open_first("EJK_NVRTC_LIBRARY", nvrtc_files(own_folder()));
  if (library.handle == nullptr) return library.why_not;
  NvrtcApi api;
  std::string missing;
  EJK_NVRTC_CALLS(EJK_CUDA_FIND)
  if (missing.empty()) nvrtc() = api;
  return missing;
}

#undef EJK_CUDA_FIND

bool driver_is_in_use() {
  const std::string file = base::env("EJK_CUDA_LIBRARY").value_or("libcuda.so.1");
  void* const loaded = ::dlopen(file.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (loaded == nullptr) return false;
  using Count = decltype(DriverApi::cuDeviceGetCount);
  const auto count_devices = reinterpret_cast<Count>(::dlsym(loaded, "cuDeviceGetCount"));
  int count = 0;
  const bool used = count_devices != nullptr && count_devices(&count) != not_initialized;
  ::dlclose(loaded);
  return used;
}

std::string text_of(Status status) {
  const char *name = nullptr, *text = nullptr;
  if (driver().cuGetErrorName(status, &name) != success || name == nullptr)
    return fmt::format("error {}", static_cast<int>(status));
  if (driver().cuGetErrorString(status, &text) != success || text == nullptr) return name;
  return fmt::format("{}: {}", name, text);
}

void check(Status status, const std::string& step, Kind invalid) {
  if (status == success) return;
  throw DeviceError(kind_of(status, invalid),
                    fmt::format("[{}] the CUDA driver says {}", step, text_of(status)));
}

}  // namespace ejk::detail::cuda
