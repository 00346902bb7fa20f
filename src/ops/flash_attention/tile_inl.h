// SPDX-License-Identifier: Apache-2.0
// Products of small matrices in registers, for attention. Included once per instruction set.
#if defined(EJK_OPS_FLASH_TILE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef EJK_OPS_FLASH_TILE_INL_H
#undef EJK_OPS_FLASH_TILE_INL_H
#else
#define EJK_OPS_FLASH_TILE_INL_H
#endif

#include <cstdint>

#include "ops/simd/vectors_inl.h"

HWY_BEFORE_NAMESPACE();
namespace ejk::ops::HWY_NAMESPACE {

// Columns of a tile are vectors: max_vectors of them. Rows are values that are broadcast. Together
// they fill the registers: 6 x 2 of 16, 8 x 3 of 32.
inline constexpr int max_vectors = many_registers ? 3 : 2;
template <int Vectors>
inline constexpr int tile_rows = many_registers || Vectors == 1 ? 8 : 6;

// How the left matrix lies in memory: element (row, k) at row * step + k or at row + k * step.
enum class Left { rows, columns };
enum class Into { set, add, scale_and_add };

// into = left x right, or into += it, or into = into * factors + it, for `R` rows.
template <int R, int Vectors, Left L, Into I>
HWY_INLINE void multiply_tile(const float* HWY_RESTRICT left, int64_t left_step,
                              const float* HWY_RESTRICT right, int64_t right_step, int64_t depth,
                              float* HWY_RESTRICT into, int64_t into_step, const float* factors) {
  const Floats d;
  Vector sum[R][Vectors];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int j = 0; j < Vectors; ++j) sum[r][j] = hn::Zero(d);
  for (int64_t k = 0; k < depth; ++k) {
    Vector column[Vectors];
#pragma GCC unroll 4
    for (int j = 0; j < Vectors; ++j) column[j] = load(right + k * right_step + j * lanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Vector value =
          hn::Set(d, L == Left::rows ? left[r * left_step + k] : left[k * left_step + r]);
#pragma GCC unroll 4
      for (int j = 0; j < Vectors; ++j) sum[r][j] = hn::MulAdd(value, column[j], sum[r][j]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int j = 0; j < Vectors; ++j) {
      float* to = into + r * into_step + j * lanes;
      Vector result = sum[r][j];
      if constexpr (I == Into::add) result = hn::Add(load(to), result);
      if constexpr (I == Into::scale_and_add)
        result = hn::MulAdd(load(to), load(factors + j * lanes), result);
      store(result, to);
    }
}

// The same for any number of rows.
template <int Vectors, Left L, Into I>
HWY_NOINLINE void multiply(const float* left, int64_t left_step, const float* right,
                           int64_t right_step, int64_t depth, float* into, int64_t into_step,
                           int64_t rows, const float* factors = nullptr) {
  constexpr int full = tile_rows<Vectors>;
  const int64_t row_step = L == Left::rows ? left_step : 1;
  int64_t r = 0;
  const auto go = [&]<int R>() {
    multiply_tile<R, Vectors, L, I>(left + r * row_step, left_step, right, right_step, depth,
                                    into + r * into_step, into_step, factors);
    r += R;
  };
  while (r + full <= rows) go.template operator()<full>();
  if (r + 4 <= rows) go.template operator()<4>();
  if (r + 2 <= rows) go.template operator()<2>();
  if (r < rows) go.template operator()<1>();
}

// The same for any number of columns, whole vectors of them.
template <Left L, Into I>
HWY_INLINE void multiply_wide(const float* left, int64_t left_step, const float* right,
                              int64_t right_step, int64_t depth, float* into, int64_t into_step,
                              int64_t rows, int64_t columns) {
  const auto wide = max_vectors * lanes;
  int64_t c = 0;
  for (; c + wide <= columns; c += wide)
    multiply<max_vectors, L, I>(left, left_step, right + c, right_step, depth, into + c, into_step,
                                rows);
  const int64_t vectors = (columns - c) / lanes;
  if (max_vectors > 2 && vectors == 2)
    multiply<2, L, I>(left, left_step, right + c, right_step, depth, into + c, into_step, rows);
  else if (vectors == 1)
    multiply<1, L, I>(left, left_step, right + c, right_step, depth, into + c, into_step, rows);
}

// to[c][r] = from[r][c].
HWY_NOINLINE inline void transpose(const float* from, int64_t from_step, int64_t rows,
                                   int64_t columns, float* to, int64_t to_step) {
  int64_t r = 0;
#if HWY_TARGET != HWY_SCALAR
  for (; r + 4 <= rows; r += 4) {
    int64_t c = 0;
    for (; c + 4 <= columns; c += 4)
      transpose_four(from + r * from_step + c, from_step, to + c * to_step + r, to_step);
    for (; c < columns; ++c)
      for (int64_t i = r; i < r + 4; ++i) to[c * to_step + i] = from[i * from_step + c];
  }
#endif
  for (; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) to[c * to_step + r] = from[r * from_step + c];
}

}  // namespace ejk::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
