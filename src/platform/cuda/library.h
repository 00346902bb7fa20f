// SPDX-License-Identifier: Apache-2.0
// CUDA's driver and its compiler, found at run time, and what their errors mean.
#pragma once

#include <string>
#include <vector>

#include <ejk/gpu.h>

#include "platform/cuda/driver_api.h"
#include "platform/cuda/nvrtc_api.h"

namespace ejk::detail::cuda {

// The ones of this process; empty before they are loaded.
DriverApi& driver();
NvrtcApi& nvrtc();

// EJK_CUDA_LIBRARY, else what the system has; EJK_NVRTC_LIBRARY in the same way. Why there is none;
// "" if there is.
std::string load_driver();
// Whether this process has loaded and initialised it, with or without this library.
bool driver_is_in_use();
std::string load_nvrtc();
// Where it is looked for: what the system finds, what `pip install nvidia-cuda-nvrtc` has put
// beside the Python package that lies in `folder`, then the toolkit's usual place.
std::vector<std::string> nvrtc_files(const std::string& folder);

std::string text_of(Status status);  // "CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected"

// Throws DeviceError of the right kind unless it is success: "[step] the CUDA driver says ...".
// `invalid` is what it means that the driver takes a value for invalid.
void check(Status status, const std::string& step,
           DeviceError::Kind invalid = DeviceError::Kind::other);

}  // namespace ejk::detail::cuda
