// SPDX-License-Identifier: Apache-2.0
// Copies of which one side, or both, lie in the memory of a device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include <ejk/tensor.h>

namespace ejk::detail {

// Where an array's elements lie, as bytes from its first one: the lowest, and how many from there.
// Strides may be negative.
struct ByteExtent {
  int64_t first = 0;
  size_t bytes = 0;
};
ByteExtent byte_extent(const AnyView& array);

// copy_elements for views that it has checked and that are not empty.
void copy_by_device(const AnyView& from, const AnyView& to);

}  // namespace ejk::detail
