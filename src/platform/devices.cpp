// SPDX-License-Identifier: Apache-2.0
// The devices of all platforms, each platform looked at once.
#include <ejk/device.h>

#include <algorithm>
#include <atomic>
#include <string>

#include <ejk/names.h>

#include "base/format.h"
#include "platform/backend.h"
#include "platform/device_kind.h"
#include "platform/fingerprint.h"
#include "platform/place.h"
#include "platform/zygote.h"

namespace ejk {
namespace {

std::atomic<const detail::OpenedPlatform*> opened_platforms[2];

// Never destroyed: devices, their memory and programs may be in use until the very end.
const detail::OpenedPlatform& remember(detail::OpenedPlatform found) {
  const auto* kept = new detail::OpenedPlatform(std::move(found));
  for (auto& place : opened_platforms)
    if (const detail::OpenedPlatform* none = nullptr; place.compare_exchange_strong(none, kept))
      break;
  return *kept;
}

const detail::OpenedPlatform& opened(Platform platform) {
  detail::start_zygote([] { return detail::opencl_is_in_use() || detail::cuda_is_in_use(); });
  if (platform == Platform::opencl) {
    static const auto& opencl = remember(detail::open_opencl());
    return opencl;
  }
  static const auto& cuda = remember(detail::open_cuda());
  return cuda;
}

}  // namespace

std::string_view platform_name(Platform platform) { return name_of(platform); }

const Device& DeviceList::at(size_t index) const {
  if (index < size()) return (*this)[index];
  const std::string_view name = platform_name(platform);
  if (empty())
    throw DeviceError(DeviceError::Kind::absent,
                      fmt::format("[devices] got {} {}; there is none: {}", name, index,
                                  why_no_devices(platform)));
  throw DeviceError(DeviceError::Kind::absent,
                    fmt::format("[devices] got {} {}; expected less than {}; `ejk devices` lists "
                                "them",
                                name, index, size()));
}

DeviceList devices(Platform platform) {
  if (platform == Platform::cpu) return {{&cpu_device(), 1}, platform};
  return {opened(platform).devices, platform};
}

DeviceList devices(std::string_view platform) {
  if (const auto known = named<Platform>(platform)) return devices(*known);
  throw Error(ErrorKind::invalid_argument,
              fmt::format("[devices] got the platform '{}'; expected one of {}", platform,
                          fmt::join(names_of(Platform{}), ", ")));
}

std::string why_no_devices(Platform platform) {
  return platform == Platform::cpu ? "" : opened(platform).why_none;
}

std::vector<const Device*> devices() {
  std::vector<const Device*> all;
  for (const Platform platform : {Platform::cpu, Platform::opencl, Platform::cuda})
    for (const Device& device : devices(platform)) all.push_back(&device);
  return all;
}

bool detail::is_listed(const Device& device) {
  const auto has = [&](const OpenedPlatform* platform) {
    return platform != nullptr &&
           std::ranges::any_of(platform->devices, [&](const Device& d) { return &d == &device; });
  };
  return std::ranges::any_of(opened_platforms, [&](const auto& place) { return has(place); });
}

std::string_view device_kind(const Device& device) {
  const Value* kind = device.identity.find("kind");
  const bool is_cpu =
      device.platform == Platform::cpu ||
      (kind != nullptr && kind->is_string() && is(kind->as_string(), detail::DeviceKind::cpu));
  return name_of(is_cpu ? detail::DeviceKind::cpu : detail::DeviceKind::gpu);
}

std::string_view get_device_platform(const Device& device) {
  return platform_name(device.platform);
}

const std::string& device_fingerprint(const Device& device) { return device.fingerprint; }

std::string detail::fingerprint_of(Platform platform, const Value& identity) {
  const Value* model = identity.find("model");
  std::string name = model == nullptr     ? "unknown"
                     : model->is_string() ? model->as_string()
                                          : to_json(*model);
  std::ranges::replace(name, '|', '/');  // the separator
  return fmt::format("{}|{}|{}", platform_name(platform), name, short_hash(identity));
}

}  // namespace ejk
