// SPDX-License-Identifier: Apache-2.0
// A custom call of XLA, without XLA: its attribute and its arrays are checked, then it runs.
#pragma once

#include <span>
#include <string_view>

#include <ejk/tensor.h>

namespace ejk::python {

// Packed, in memory of the CPU.
struct CallArray {
  void* data;
  DType dtype;
  std::span<const int64_t> shape;
};

// `attribute` is the JSON text that ffi.h describes. It may come from anyone: no element is read or
// written before each of its numbers fits the arrays. Throws Error, and what kernels throw.
void run_custom_call(std::string_view attribute, std::span<const CallArray> inputs,
                     std::span<const CallArray> results);

}  // namespace ejk::python
