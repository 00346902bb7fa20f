// SPDX-License-Identifier: Apache-2.0
// Opens the OpenCL devices that a loader finds.
#pragma once

#include "platform/backend.h"

namespace ejk::detail::opencl {

// `library`: the file of the loader. See open_opencl.
OpenedPlatform open(const char* library);

}  // namespace ejk::detail::opencl
