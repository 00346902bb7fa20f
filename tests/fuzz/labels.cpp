// SPDX-License-Identifier: Apache-2.0
// libFuzzer: build/fuzz/tests/fuzz/labels CORPUS tests/data/lowered
#include <cstddef>
#include <cstdint>

#include "labels.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::check_labels({reinterpret_cast<const char*>(data), size});
  return 0;
}
