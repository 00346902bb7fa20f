// SPDX-License-Identifier: Apache-2.0
// In the place of all the rest where the library is built without CUDA.
#include "platform/backend.h"

namespace ejk::detail {

OpenedPlatform open_cuda() {
  return {{}, {}, "this libejk was built without it (CMake: -DEJK_CUDA=ON)"};
}

bool cuda_is_in_use() { return false; }

}  // namespace ejk::detail
