// SPDX-License-Identifier: Apache-2.0
// Copies of parts of matrices in the order in which tiles read them, as float32.
// Included once per instruction set by gemm.cpp.
#if defined(EJK_OPS_MATMUL_PACK_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef EJK_OPS_MATMUL_PACK_INL_H
#undef EJK_OPS_MATMUL_PACK_INL_H
#else
#define EJK_OPS_MATMUL_PACK_INL_H
#endif

#include <algorithm>
#include <cstdint>

#include <hwy/highway.h>

#include "ops/matmul/tile_inl.h"

HWY_BEFORE_NAMESPACE();
namespace ejk::ops::HWY_NAMESPACE {

template <class T>
HWY_INLINE void copy_floats(const T* from, int64_t count, float* to) {
  const Floats d;
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(load(from + i), d, to + i);
  for (; i < count; ++i) to[i] = as_float(from[i]);
}

#if HWY_TARGET != HWY_SCALAR
// Four neighbours of `across`, all along k.
template <class T>
HWY_INLINE void pack_four(const T* from, int64_t across, int64_t step, int64_t depth, float* to) {
  int64_t k = 0;
  for (; k + 4 <= depth; k += 4) transpose_four(from + k, across, to + k * step, step);
  // The last ones again, together with some that are done.
  if (k < depth && depth >= 4)
    return transpose_four(from + depth - 4, across, to + (depth - 4) * step, step);
  for (; k < depth; ++k)
    for (int64_t i = 0; i < 4; ++i) to[k * step + i] = as_float(from[i * across + k]);
}
#endif

// to[k * step + i] = from[i * across + k * along] for i < width; zeros up to padded.
template <class T>
void pack_strip(const T* from, int64_t across, int64_t along, int64_t width, int64_t padded,
                int64_t step, int64_t depth, float* to) {
  int64_t i = 0;
  if (across == 1) {
    for (int64_t k = 0; k < depth; ++k) copy_floats(from + k * along, width, to + k * step);
    i = width;
  }
#if HWY_TARGET != HWY_SCALAR
  if (along == 1 && width >= 4) {
    for (; i + 4 <= width; i += 4) pack_four(from + i * across, across, step, depth, to + i);
    // The last ones again, together with some that are done.
    if (i < width) pack_four(from + (width - 4) * across, across, step, depth, to + width - 4);
    i = width;
  }
#endif
  for (; i < width; ++i)
    for (int64_t k = 0; k < depth; ++k) to[k * step + i] = as_float(from[i * across + k * along]);
  if (width < padded)
    for (int64_t k = 0; k < depth; ++k)
      std::fill(to + k * step + width, to + k * step + padded, 0.f);
}

// to[j * rows + k] = from[k * columns + j]: two or three columns side by side become one behind the
// other.
template <size_t columns>
HWY_INLINE void pack_pairs_or_triples(const float* from, int64_t rows, float* to) {
  const Floats d;
  int64_t k = 0;
  for (; k + lanes <= rows; k += lanes) {
    Vector v0, v1, v2;
    if constexpr (columns == 2) hn::LoadInterleaved2(d, from + 2 * k, v0, v1);
    else hn::LoadInterleaved3(d, from + 3 * k, v0, v1, v2);
    hn::StoreU(v0, d, to + k);
    hn::StoreU(v1, d, to + rows + k);
    if constexpr (columns == 3) hn::StoreU(v2, d, to + 2 * rows + k);
  }
  for (; k < rows; ++k)
    for (int64_t j = 0; j < int64_t{columns}; ++j)
      to[j * rows + k] = from[k * int64_t{columns} + j];
}

// A strip of whole vectors whose columns lie side by side. Asks for the rows behind them.
template <size_t vectors, class T>
HWY_INLINE void copy_strip(const T* from, int64_t row_stride, int64_t rows, float* to) {
  const Floats d;
  for (int64_t k = 0; k < rows; ++k) {
    hwy::Prefetch(from + (k + rows) * row_stride);
    for (int64_t v = 0; v < int64_t{vectors}; ++v)
      hn::StoreU(load(from + k * row_stride + v * lanes), d,
                 to + (k * int64_t{vectors} + v) * lanes);
  }
}

template <class T>
HWY_INLINE void copy_strip(size_t vectors, const T* from, int64_t row_stride, int64_t rows,
                           float* to) {
  if (vectors == 1) return copy_strip<1>(from, row_stride, rows, to);
  if (vectors == 2) return copy_strip<2>(from, row_stride, rows, to);
  if (vectors == 3) return copy_strip<3>(from, row_stride, rows, to);
  if (vectors == 8) return copy_strip<8>(from, row_stride, rows, to);
  return copy_strip<4>(from, row_stride, rows, to);
}

// Whole strips of some vectors of columns, one behind the other. Rows of b that lie one behind the
// other are read a few at a time over all strips: read strip by strip, every row would be another
// page.
template <class T>
void pack_columns(const T* from, int64_t row_stride, int64_t column_stride, int64_t columns,
                  size_t vectors, int64_t depth, float* to) {
  const int64_t strip = static_cast<int64_t>(vectors) * lanes;
  const int64_t at_a_time = column_stride == 1 ? 8 : depth;
  for (int64_t k = 0; k < depth; k += at_a_time) {
    const int64_t rows = std::min(at_a_time, depth - k);
    for (int64_t j = 0; j < columns; j += strip) {
      const T* at = from + k * row_stride + j * column_stride;
      if (column_stride == 1) copy_strip(vectors, at, row_stride, rows, to + j * depth + k * strip);
      else
        pack_strip(at, column_stride, row_stride, strip, strip, strip, rows,
                   to + j * depth + k * strip);
    }
  }
}

}  // namespace ejk::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
