// SPDX-License-Identifier: Apache-2.0
// Small products in one go: nothing is copied, nothing is divided, little is looked at. Where k is
// short, a strip of b stays in registers while the rows of a go by. Included once per instruction
// set by gemm.cpp.
#if defined(EJK_OPS_MATMUL_SMALL_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef EJK_OPS_MATMUL_SMALL_INL_H
#undef EJK_OPS_MATMUL_SMALL_INL_H
#else
#define EJK_OPS_MATMUL_SMALL_INL_H
#endif

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include <hwy/highway.h>

#include "ops/matmul/gemm.h"
#include "ops/matmul/tile_inl.h"

HWY_BEFORE_NAMESPACE();
namespace ejk::ops::HWY_NAMESPACE {

// A strip of columns and the rows that go by. Its last vector overlaps the one before it where the
// columns do not fill them.
struct Passing {
  const float* a;
  int64_t a_row;
  const float* b;
  int64_t b_row;
  float* c;
  int64_t c_row;
  int64_t rows, columns;
  const float* bias;  // null: none
};

// How much of k registers hold, beside the sums and an element of a.
constexpr size_t max_depth_in_registers(size_t vectors) {
#if EJK_OPS_FEW_TILES
  return vectors == 1 ? 2 : 1;
#elif HWY_TARGET <= HWY_AVX3
  return vectors == 1 ? 16 : vectors == 2 ? 12 : 8;
#elif HWY_TARGET <= HWY_AVX2
  return vectors == 1 ? 10 : vectors == 2 ? 6 : 4;
#else
  return vectors == 1 ? 8 : vectors == 2 ? 4 : 2;
#endif
}
constexpr size_t max_vectors_in_registers = 3;

template <class D, size_t vectors, bool few, size_t... at, size_t... column>
HWY_INLINE void pass(const Passing& w, std::index_sequence<at...>, std::index_sequence<column...>) {
  const D d;
  constexpr size_t depth = sizeof...(at) / vectors;
  constexpr auto width = static_cast<int64_t>(hn::MaxLanes(D()));
  const int64_t last = w.columns - width;
  const auto place = [=](size_t vector) HWY_ATTR {
    return vector == 0 ? 0 : vector + 1 == vectors ? last : static_cast<int64_t>(vector) * width;
  };
  const auto read = [&](const float* from) HWY_ATTR {
    if constexpr (few) return load_some(d, from, w.columns);
    else return hn::LoadU(d, from);
  };
  const hn::Vec<D> b[] = {read(w.b + int64_t{at / vectors} * w.b_row + place(at % vectors))...};
  const float* HWY_RESTRICT a = w.a;
  float* HWY_RESTRICT c = w.c;
  const int64_t a_row = w.a_row, c_row = w.c_row;
  const float* const bias = w.bias;
  // Where a row ends the next one begins: it is written behind what this one writes too far.
  const int64_t too_far = few && c_row == w.columns ? (width - 1) / w.columns : w.rows;
  for (int64_t left = w.rows; left > 0; --left) {
    hn::Vec<D> sum[] = {(static_cast<void>(column), hn::Zero(d))...};
    const auto add_product = [&]<size_t k>() HWY_ATTR {
      const auto factor = hn::Set(d, a[k]);
      ((sum[column] = hn::MulAdd(factor, b[k * vectors + column], sum[column])), ...);
    };
    [&]<size_t... k>(std::index_sequence<k...>) HWY_ATTR {
      (add_product.template operator()<k>(), ...);
    }
    (std::make_index_sequence<depth>());
    if (bias != nullptr) ((sum[column] = hn::Add(sum[column], read(bias + place(column)))), ...);
    if constexpr (few) {
      if (left > too_far) hn::StoreU(sum[0], d, c);
      else store_some(sum[0], d, c, w.columns);
    } else {
      (hn::StoreU(sum[column], d, c + place(column)), ...);
    }
    a += a_row;
    c += c_row;
  }
}

template <class D, size_t vectors, bool few, size_t depth>
HWY_NOINLINE void pass_rows(const Passing& w) {
  pass<D, vectors, few>(w, std::make_index_sequence<depth * vectors>(),
                        std::make_index_sequence<vectors>());
}

// Rows pass a strip of `vectors`, or of less than one.
template <class D, size_t vectors, bool few>
HWY_INLINE void pass_rows(int64_t depth, const Passing& w) {
  static constexpr auto all = []<size_t... i>(std::index_sequence<i...>) {
    return std::array{pass_rows<D, vectors, few, i + 1>...};
  }
  (std::make_index_sequence<max_depth_in_registers(vectors)>());
  all[static_cast<size_t>(depth - 1)](w);
}

// Vectors of the strips that are asked for, or fewer if the registers do not hold them.
HWY_INLINE int64_t shallow_vectors(int64_t depth, int vectors) {
  auto v = std::min<size_t>(max_vectors_in_registers, static_cast<size_t>(vectors));
  while (v > 1 && depth > static_cast<int64_t>(max_depth_in_registers(v))) --v;
  return static_cast<int64_t>(v);
}

inline void multiply_shallow(const Gemm& p, const MatmulBlocking& blocking) {
  const auto* const a = static_cast<const float*>(p.a.data);
  const auto* const b = static_cast<const float*>(p.b.data);
  auto* const c = static_cast<float*>(const_cast<void*>(p.c.data));
  Passing w{a, p.a.row_stride, b, p.b.row_stride, c, p.c.row_stride, p.m, p.n, p.bias};
#if HWY_TARGET <= HWY_AVX3
  using Half = hn::FixedTag<float, 8>;
  if (p.n == 8) return pass_rows<Half, 1, false>(p.k, w);
  if (p.n < 8) return pass_rows<Half, 1, true>(p.k, w);
#endif
  const int64_t vectors = shallow_vectors(p.k, blocking.vectors);
  for (int64_t row = 0; row < p.m; row += w.rows) {
    w.rows = std::min<int64_t>(blocking.mc, p.m - row);
    w.a = a + row * p.a.row_stride;
    for (int64_t column = 0; column < p.n; column += w.columns) {
      Strip s = strip_at(column, p.n, vectors);
      // Two vectors that overlap may be too many for the registers: one, and a narrow strip later.
      if (static_cast<int64_t>(s.vectors) > vectors) s = {column, lanes, 1};
      w.columns = s.width;
      w.b = b + column;
      w.c = c + row * p.c.row_stride + column;
      w.bias = p.bias != nullptr ? p.bias + column : nullptr;
      if (s.vectors == 3) pass_rows<Floats, 3, false>(p.k, w);
      else if (s.vectors == 2) pass_rows<Floats, 2, false>(p.k, w);
      else if (is_narrow(s)) pass_rows<Floats, 1, true>(p.k, w);
      else pass_rows<Floats, 1, false>(p.k, w);
    }
  }
}

HWY_INLINE TileWork<float> work_on(const Gemm& p, const Strip& s) {
  const int64_t last = s.width - lanes;
  return {.depth = p.k,
          .a = static_cast<const float*>(p.a.data),
          .a_row = p.a.row_stride,
          .a_step = 1,
          .b = static_cast<const float*>(p.b.data) + s.column,
          .b_step = p.b.row_stride,
          .b_last = last,
          .c = static_cast<float*>(const_cast<void*>(p.c.data)) + s.column,
          .c_row = p.c.row_stride,
          .c_last = last,
          .bias = p.bias != nullptr ? p.bias + s.column : nullptr,
          .add = false,
          .copy = nullptr,
          .soon = 0,
          .columns = s.width};
}

inline void multiply_by_tiles(const Gemm& p, const MatmulBlocking& blocking) {
  for (int64_t column = 0; column < p.n;) {
    const Strip s = strip_at(column, p.n, blocking.vectors);
    column += s.width;
    TileWork<float> work = work_on(p, s);
    const Tile<float>* const tiles = tiles_for<float>(s);
    const Even rows = evenly(p.m, static_cast<int64_t>(max_rows(s.vectors)));
    for (int64_t i = 0; i < rows.parts; ++i) {
      const int64_t count = rows.begin(i + 1) - rows.begin(i);
      tiles[count - 1](work);
      work.a += count * work.a_row;
      work.c += count * work.c_row;
    }
  }
}

// A problem whose b and c are read and written as they lie; false: it is not small, nothing was
// done.
inline bool multiply_small(const Gemm& p, const MatmulBlocking& blocking) {
  constexpr int64_t stays_in_the_cache = 1 << 13;  // floats: the first level is large enough
  const bool b_stays = p.n * p.k <= stays_in_the_cache;
  if (p.k <= static_cast<int64_t>(max_walked_depth)) {
    if (p.m * p.k <= 16 && p.m <= static_cast<int64_t>(max_walked_rows) && p.n >= 4 * lanes) {
      walk(static_cast<size_t>(p.m), work_on(p, {0, p.n, 1}), p.n);
      return true;
    }
    // A few long rows at a time: Blocks walk along them.
    if (p.n * p.k > 1 << 18 && p.n >= min_walked_columns &&
        std::min<int64_t>(p.m, blocking.mc) <= 8)
      return false;
  }
  if (p.k <= static_cast<int64_t>(max_depth_in_registers(1))) {
    multiply_shallow(p, blocking);
    return true;
  }
  if (!b_stays || p.m > 64) return false;
#if HWY_TARGET <= HWY_AVX3
  if (p.n <= 8) return false;  // gemm asks again, for vectors of 8
#endif
  multiply_by_tiles(p, blocking);
  return true;
}

}  // namespace ejk::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
