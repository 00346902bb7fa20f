// SPDX-License-Identifier: Apache-2.0
// Rounded sizes for `key` hooks: calls of nearby sizes share one choice.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

#include <ejk/argument.h>
#include <ejk/detail/export.h>
#include <ejk/tensor.h>

namespace EJK_EXPORT ejk {

// A size rounded up, so that calls of nearby sizes get one key. Gives
//   - the smallest bound that is not less than the size
//   - beyond the largest bound, that one doubled until it is large enough
//   - without bounds, the next power of two
//   - 0 for 0 and for negative sizes
// Bounds need not be in order. bucket(100) == 128, bucket(100, {96, 200}) == 200.
constexpr int64_t bucket(int64_t size, std::initializer_list<int64_t> bounds = {}) {
  if (size <= 0) return 0;
  int64_t largest = 1, best = 0;
  for (const int64_t bound : bounds) {
    largest = std::max(largest, bound);
    if (bound >= size && (best == 0 || bound < best)) best = bound;
  }
  if (best != 0) return best;
  constexpr int64_t half = INT64_MAX / 2;
  while (largest < size) {
    if (largest > half) return size;  // nothing larger can be said
    largest *= 2;
  }
  return largest;
}

// An array without elements whose sizes are rounded, for the tuple that a `key` hook returns:
//
//   auto key(ejk::View<const float, 2> x, const ejk::Out<ejk::View<float, 2>>& y) const {
//     return std::tuple(ejk::bucketed(x), ejk::bucketed(y, {64, 256, 1024}));
//   }
//
// Strides that are not packed are rounded to powers of two, and stay different from packed ones.
// `run` and the other hooks see the exact sizes. A choice is made for the first size of a bucket,
// so `is_valid` should say which others a config can run: it is asked for each of them. The result
// has no elements, so use it for keys only. It refers to nothing.
template <class T, int Rank>
constexpr View<T, Rank> bucketed(const View<T, Rank>& array,
                                 std::initializer_list<int64_t> bounds = {}) {
  View<T, Rank> out{nullptr, array.shape};
  for (int64_t& size : out.shape) size = bucket(size, bounds);
  return out;
}
template <class T, int Rank>
StridedView<T, Rank> bucketed(const StridedView<T, Rank>& array,
                              std::initializer_list<int64_t> bounds = {}) {
  const View<T, Rank> exact{nullptr, array.shape};
  const StridedView<T, Rank> packed(bucketed(exact, bounds));
  if (array.strides == StridedView<T, Rank>(exact).strides) return packed;
  StridedView<T, Rank> out = packed;
  for (size_t d = 0; d < Rank; ++d) {
    const int64_t stride = array.strides[d];
    out.strides[d] = stride < 0 ? -bucket(-stride) : bucket(stride);
  }
  // An array that is not packed does not share a key with packed ones.
  if (out.strides == packed.strides) *std::ranges::max_element(out.strides) *= 2;
  return out;
}
template <Element T, size_t Extent>
constexpr View<T, 1> bucketed(std::span<T, Extent> array,
                              std::initializer_list<int64_t> bounds = {}) {
  return bucketed(View<T, 1>{nullptr, {static_cast<int64_t>(array.size())}}, bounds);
}
template <Element T, class A>
constexpr View<const T, 1> bucketed(const std::vector<T, A>& array,
                                    std::initializer_list<int64_t> bounds = {}) {
  return bucketed(View<const T, 1>{nullptr, {static_cast<int64_t>(array.size())}}, bounds);
}
template <class V>
constexpr auto bucketed(const Out<V>& array, std::initializer_list<int64_t> bounds = {}) {
  return bucketed(array.view, bounds);
}

}  // namespace ejk
