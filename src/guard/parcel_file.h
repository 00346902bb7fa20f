// SPDX-License-Identifier: Apache-2.0
// A trial's parcel in a file that only lives in memory: written by the host, opened by a worker.
#pragma once

#include <memory>

#include <ejk/device.h>
#include <ejk/tuner.h>

#include "base/file.h"

namespace ejk::detail {

// The exact data of all arrays, the kernel, and what a fork would have had: environment and working
// directory. Throws Error for a trial that cannot be made again in another process.
base::Fd write_parcel(Trial& trial);

struct OpenedParcel {
  std::shared_ptr<Trial> trial;
  const ConfigType* config = nullptr;
};
// In a worker, which takes over environment and directory, opens the driver and copies the arrays
// to the device. Throws Error if the kernel's code or the device is another one here.
OpenedParcel open_parcel(int file);

}  // namespace ejk::detail
