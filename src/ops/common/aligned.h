// SPDX-License-Identifier: Apache-2.0
// Memory aligned for vectors.
#pragma once

#include <algorithm>
#include <cstdint>
#include <new>

#include <hwy/aligned_allocator.h>

namespace ejk::ops {

template <class T>
using Aligned = hwy::AlignedFreeUniquePtr<T[]>;

// Throws std::bad_alloc, so not on a thread of in_parts.
template <class T>
Aligned<T> aligned(int64_t count) {
  auto memory = hwy::AllocateAligned<T>(static_cast<size_t>(std::max<int64_t>(count, 1)));
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

using AlignedFloats = Aligned<float>;
inline AlignedFloats floats(int64_t count) { return aligned<float>(count); }

}  // namespace ejk::ops
