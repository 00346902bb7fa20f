// SPDX-License-Identifier: Apache-2.0
#include "platform/here.h"

#include <algorithm>

#include <ejk/names.h>

namespace ejk::detail {

Platform platform_of(std::string_view fingerprint) {
  return named<Platform>(fingerprint.substr(0, fingerprint.find('|'))).value_or(Platform::cpu);
}

const Device* device_here(std::string_view fingerprint) {
  const DeviceList list = devices(platform_of(fingerprint));
  const auto found = std::ranges::find(list, fingerprint, &Device::fingerprint);
  return found == list.end() ? nullptr : &*found;
}

}  // namespace ejk::detail
