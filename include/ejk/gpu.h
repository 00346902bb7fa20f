// SPDX-License-Identifier: Apache-2.0
// Kernels that run on devices with memory of their own: OpenCL and CUDA.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include <ejk/device.h>
#include <ejk/error.h>

namespace ejk {

// A device, its driver or its compiler failed.
class DeviceError : public Error {
 public:
  enum class Kind : uint8_t {
    absent,          // no such platform or device here, or built without it
    build,           // the compiler refused the source; log() has all that it said
    invalid_launch,  // more items per group than the device has, arguments that do not fit
    out_of_memory,   // here and now
    lost,            // nothing can run on this device in this process any more
    other,
  };
  DeviceError(Kind kind, const std::string& message, std::string log = {})
      : Error(ErrorKind::device, message), device_kind_(kind), log_(std::move(log)) {}
  Kind device_kind() const noexcept { return device_kind_; }
  const std::string& log() const noexcept { return log_; }

 private:
  Kind device_kind_;
  std::string log_;
};

// How many there are in each dimension. An array would leave zeros where nothing is given.
struct Extent {
  int64_t x = 1, y = 1, z = 1;
};

// How a launch is spread: groups, and items (CUDA: threads) in each of them.
struct Grid {
  Extent groups = {}, items = {};
};

}  // namespace ejk
