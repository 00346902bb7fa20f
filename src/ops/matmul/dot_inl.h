// SPDX-License-Identifier: Apache-2.0
// Products of few rows or columns with a b whose columns are contiguous (a transposed or a packed
// one): vectors along k. Included once per instruction set by gemm.cpp.
#if defined(EJK_OPS_MATMUL_DOT_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef EJK_OPS_MATMUL_DOT_INL_H
#undef EJK_OPS_MATMUL_DOT_INL_H
#else
#define EJK_OPS_MATMUL_DOT_INL_H
#endif

#include <cstdint>
#include <cstring>
#include <utility>

#include <hwy/highway.h>

#include "ops/matmul/gemm.h"
#include "ops/matmul/pack_inl.h"
#include "ops/matmul/tile_inl.h"

HWY_BEFORE_NAMESPACE();
namespace ejk::ops::HWY_NAMESPACE {

// From one row of a tile's sums to the next: a row is not divided between two fours, or it could
// not be copied at once.
constexpr int64_t dot_row(size_t columns) {
  return columns == 3 ? 4 : static_cast<int64_t>(columns);
}

// Every element has one sum of its own, so that it does not matter which others it is computed
// with. `out` has room for whole fours.
template <size_t rows, size_t columns, class A, class B, size_t... at, size_t... row,
          size_t... column>
HWY_INLINE void dot_tile(int64_t depth, const A* a, int64_t a_row, const B* b, int64_t b_column,
                         float* out, std::index_sequence<at...>, std::index_sequence<row...>,
                         std::index_sequence<column...>) {
  const Floats d;
  Vector sum[rows * columns] = {(static_cast<void>(at), hn::Zero(d))...};
  int64_t k = 0;
  for (; k + lanes <= depth; k += lanes) {
    const Vector as[rows] = {load(a + int64_t{row} * a_row + k)...};
    const Vector bs[columns] = {load(b + int64_t{column} * b_column + k)...};
    ((sum[at] = hn::MulAdd(as[at / columns], bs[at % columns], sum[at])), ...);
  }
  if (k < depth) {
    const Vector as[rows] = {load_some(d, a + int64_t{row} * a_row + k, depth - k)...};
    const Vector bs[columns] = {load_some(d, b + int64_t{column} * b_column + k, depth - k)...};
    ((sum[at] = hn::MulAdd(as[at / columns], bs[at % columns], sum[at])), ...);
  }
  const auto four = [&]<size_t i>() HWY_ATTR {
    constexpr size_t step = columns == 3 ? 3 : 4, last = HWY_MIN(i + step, rows * columns) - 1;
    if constexpr (i % step == 0)
      sum_four(sum[i], sum[HWY_MIN(i + 1, last)], sum[HWY_MIN(i + 2, last)], sum[last],
               out + int64_t{i / step} * 4);
  };
  (four.template operator()<at>(), ...);
}

template <size_t rows, size_t columns, class A, class B>
HWY_NOINLINE void dot_tile(int64_t depth, const A* a, int64_t a_row, const B* b, int64_t b_column,
                           float* out) {
  dot_tile<rows, columns>(depth, a, a_row, b, b_column, out,
                          std::make_index_sequence<rows * columns>(),
                          std::make_index_sequence<rows>(), std::make_index_sequence<columns>());
}

// As many sums as hide the time that one takes, and as the registers hold.
constexpr size_t max_dot_rows(size_t columns) {
#if EJK_OPS_FEW_TILES
  return columns == 1 ? 2 : 1;
#else
  return columns == 1 ? 8 : columns <= 3 ? 4 : columns == 4 ? (HWY_TARGET <= HWY_AVX3 ? 4 : 2) : 1;
#endif
}

// c must be float32; its strides may be anything.
template <class A, class B>
void dot_products(const Gemm& p) {
  float* c = static_cast<float*>(const_cast<void*>(p.c.data));
  const auto* a = static_cast<const A*>(p.a.data);
  const auto* b = static_cast<const B*>(p.b.data);
  const auto block = [&]<size_t rows, size_t columns>(int64_t i, int64_t j) {
    constexpr int64_t out_row = dot_row(columns);
    float out[(rows * size_t{out_row} + 3) / 4 * 4];
    dot_tile<rows, columns>(p.k, a + i * p.a.row_stride, p.a.row_stride, b + j * p.b.column_stride,
                            p.b.column_stride, out);
    if (p.bias != nullptr)
      for (int64_t at = 0; at < int64_t{rows * columns}; ++at)
        out[at / int64_t{columns} * out_row + at % int64_t{columns}] +=
            p.bias[j + at % int64_t{columns}];
    float* const to = c + i * p.c.row_stride + j * p.c.column_stride;
    if (columns == 1 && p.c.row_stride == 1) {
      std::memcpy(to, out, rows * sizeof(float));
    } else if (p.c.column_stride == 1) {
      for (int64_t row = 0; row < int64_t{rows}; ++row)
        std::memcpy(to + row * p.c.row_stride, out + row * out_row, columns * sizeof(float));
    } else {
      for (int64_t row = 0; row < int64_t{rows}; ++row)
        for (int64_t column = 0; column < int64_t{columns}; ++column)
          to[row * p.c.row_stride + column * p.c.column_stride] = out[row * out_row + column];
    }
  };
  const auto columns_at = [&]<size_t columns>(int64_t j) {
    constexpr size_t most = max_dot_rows(columns);
    int64_t i = 0;
    const auto rows_at = [&]<size_t rows>() {
      if constexpr (rows <= most)
        for (; i + int64_t{rows} <= p.m; i += int64_t{rows})
          block.template operator()<rows, columns>(i, j);
    };
    rows_at.template operator()<8>();
    rows_at.template operator()<4>();
    rows_at.template operator()<2>();
    rows_at.template operator()<1>();
  };
  int64_t j = 0;
  if (p.m == 1)
    for (; j + 8 <= p.n; j += 8) columns_at.template operator()<8>(j);
  for (; j + 4 <= p.n; j += 4) columns_at.template operator()<4>(j);
  if (p.n - j == 3) columns_at.template operator()<3>(j);
  if (p.n - j == 2) columns_at.template operator()<2>(j);
  if (p.n - j == 1) columns_at.template operator()<1>(j);
}

}  // namespace ejk::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
