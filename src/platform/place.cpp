// SPDX-License-Identifier: Apache-2.0
// Where arrays live, in words.
#include "platform/place.h"

#include <ejk/error.h>

#include "base/format.h"

namespace ejk::detail {

std::string place_text(const Device* device) {
  if (device == nullptr || device->platform == Platform::cpu) return "cpu";
  return fmt::format("{} {}", platform_name(device->platform), device->index);
}

Backend& backend_of(const Device& device) {
  if (device.backend != nullptr) return *device.backend;
  throw Error(ErrorKind::invalid_argument,
              fmt::format("[device] got {}, which is not opened here; expected a device that "
                          "ejk::devices() lists",
                          place_text(&device)));
}

}  // namespace ejk::detail
