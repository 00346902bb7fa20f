// SPDX-License-Identifier: Apache-2.0
// In the place of all the rest where the library is built without OpenCL.
#include "platform/backend.h"

namespace ejk::detail {

OpenedPlatform open_opencl() {
  return {{}, {}, "this libejk was built without it (CMake: -DEJK_OPENCL=ON, needs CL/cl.h)"};
}

bool opencl_is_in_use() { return false; }

}  // namespace ejk::detail
