// SPDX-License-Identifier: Apache-2.0
// Whether arrays share memory, so that operations can refuse outputs that would destroy inputs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include <ejk/tensor.h>

namespace ejk::ops {

// The bytes from the first to behind the last element of a matrix.
struct Extent {
  intptr_t begin = 0, end = 0;
  bool meets(const Extent& other) const { return begin < other.end && other.begin < end; }
};

template <class T>
Extent extent_of(const StridedView<T, 2>& m) {
  if (m.size() == 0) return {};
  int64_t low = 0, high = 0;
  for (size_t d = 0; d < 2; ++d) {
    const int64_t reach = (m.shape[d] - 1) * m.strides[d];
    (reach < 0 ? low : high) += reach;
  }
  const auto at = reinterpret_cast<intptr_t>(m.data);
  const auto size = static_cast<int64_t>(sizeof(T));
  return {at + low * size, at + (high + 1) * size};
}
template <class T>
Extent extent_of(const std::span<const T>& line) {
  const auto at = reinterpret_cast<intptr_t>(line.data());
  return {at, at + static_cast<intptr_t>(line.size_bytes())};
}

// Whether two elements of a matrix may be one. Exact unless both strides are larger than 1 and
// rows reach into each other.
template <class T>
bool overlaps_itself(const StridedView<T, 2>& m) {
  if (m.size() == 0) return false;
  const auto inner = static_cast<size_t>(std::abs(m.strides[0]) < std::abs(m.strides[1]) ? 0 : 1);
  const int64_t small = std::abs(m.strides[inner]), large = std::abs(m.strides[1 - inner]);
  if (m.shape[inner] > 1 && small == 0) return true;
  return m.shape[1 - inner] > 1 && (m.shape[inner] - 1) * small >= large;
}

// Whether an element of one may share memory with an element of the other: exact for matrices that
// lie beside each other in the rows of one larger matrix, else by their extents.
template <class T>
bool overlap(const StridedView<const T, 2>& a, const StridedView<T, 2>& b) {
  const Extent of_a = extent_of(a), of_b = extent_of(b);
  if (!of_a.meets(of_b)) return false;
  const int64_t pitch = a.strides[0] * static_cast<int64_t>(sizeof(T));
  if (a.strides[0] != b.strides[0] || pitch <= 0 || a.strides[1] < 0 || b.strides[1] < 0)
    return true;
  const auto width = [](const auto& m) {
    return ((m.shape[1] - 1) * m.strides[1] + 1) * static_cast<int64_t>(sizeof(T));
  };
  if (width(a) > pitch || width(b) > pitch) return true;
  const int64_t distance = reinterpret_cast<intptr_t>(b.data) - reinterpret_cast<intptr_t>(a.data);
  const int64_t from_a = (distance % pitch + pitch) % pitch;  // where b's rows begin in a's
  return from_a < width(a) || from_a + width(b) > pitch;
}

// Whether they are one and the same: each element is read before it is written in its place.
template <class T>
bool same_place(const StridedView<const T, 2>& a, const StridedView<T, 2>& b) {
  return a.data == b.data && a.shape == b.shape && a.strides == b.strides;
}

}  // namespace ejk::ops
