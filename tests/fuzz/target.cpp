// SPDX-License-Identifier: Apache-2.0
// A check as libFuzzer calls it.
#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::check({reinterpret_cast<const char*>(data), size});
  return 0;
}
