// SPDX-License-Identifier: Apache-2.0
// The register tile: a few rows of a times a few vectors of columns of b, summed over a stretch of k.
// Included once per instruction set by gemm.cpp.
#if defined(EJK_OPS_MATMUL_TILE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef EJK_OPS_MATMUL_TILE_INL_H
#undef EJK_OPS_MATMUL_TILE_INL_H
#else
#define EJK_OPS_MATMUL_TILE_INL_H
#endif

#include <cstddef>
#include <cstdint>
#include <utility>

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace ejk::ops::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using F = hn::ScalableTag<float>;
using V = hn::Vec<F>;

// What a tile works on. `b` has all columns of the tile, if need be in a padded copy.
template <class B>
struct TileWork {
  int64_t depth;
  const float* a;
  int64_t a_row, a_step;  // of a that is not packed; packed, the tile's rows lie side by side
  const B* b;
  int64_t b_step;  // from one k to the next
  float* c;
  int64_t c_row;
  const float* bias;  // added to the sum; null: none
  bool add;           // to what is in c
};

HWY_INLINE V load_floats(F d, const float* from) { return hn::LoadU(d, from); }
HWY_INLINE V load_floats(F d, const hwy::bfloat16_t* from) {
  return hn::PromoteTo(d, hn::LoadU(hn::Rebind<hwy::bfloat16_t, F>(), from));
}

// Accumulators are named by constants so that they become registers: the compiler keeps an array
// that is walked by a loop in memory.
template <size_t rows, size_t vectors, bool packed_a, class B, size_t... at, size_t... column>
HWY_INLINE void multiply(const TileWork<B>& work, std::index_sequence<at...>,
                         std::index_sequence<column...>) {
  const F d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  V sum[rows * vectors] = {(static_cast<void>(at), hn::Zero(d))...};
  const float* HWY_RESTRICT a = work.a;
  const B* HWY_RESTRICT b = work.b;
  const int64_t a_row = packed_a ? 1 : work.a_row;
  const int64_t a_step = packed_a ? int64_t{rows} : work.a_step;
  const int64_t b_step = work.b_step;
  for (int64_t k = work.depth; k > 0; --k) {
    const V columns[vectors] = {load_floats(d, b + int64_t{column} * lanes)...};
    ((sum[at] = hn::MulAdd(hn::Set(d, a[int64_t{at / vectors} * a_row]), columns[at % vectors],
                           sum[at])),
     ...);
    a += a_step;
    b += b_step;
  }
  float* c = work.c;
  const int64_t c_row = work.c_row;
  if (work.add)
    ((sum[at] = hn::Add(hn::LoadU(d, c + int64_t{at / vectors} * c_row +
                                         int64_t{at % vectors} * lanes),
                        sum[at])),
     ...);
  if (work.bias != nullptr)
    ((sum[at] = hn::Add(sum[at], hn::LoadU(d, work.bias + int64_t{at % vectors} * lanes))), ...);
  (hn::StoreU(sum[at], d, c + int64_t{at / vectors} * c_row + int64_t{at % vectors} * lanes), ...);
}

template <size_t rows, size_t vectors, bool packed_a, class B>
HWY_NOINLINE void tile(const TileWork<B>& work) {
  multiply<rows, vectors, packed_a>(work, std::make_index_sequence<rows * vectors>(),
                                    std::make_index_sequence<vectors>());
}

// As many rows as the registers hold beside a row of b and a broadcast element of a.
#if HWY_TARGET <= HWY_AVX3
constexpr size_t most_rows(size_t vectors) {
  return vectors == 1 ? 14 : vectors == 2 ? 14 : vectors == 3 ? 8 : vectors == 4 ? 6 : 3;
}
#else
constexpr size_t most_rows(size_t vectors) {
  return vectors == 1 ? 8 : vectors == 2 ? 6 : vectors == 3 ? 4 : vectors == 4 ? 3 : 1;
}
#endif

template <class B>
using Tile = void (*)(const TileWork<B>&);

template <size_t vectors, bool packed_a, class B, size_t... row>
HWY_INLINE Tile<B> tile_of(size_t rows, std::index_sequence<row...>) {
  static constexpr Tile<B> tiles[] = {tile<row + 1, vectors, packed_a, B>...};
  return tiles[rows - 1];
}

template <bool packed_a, class B>
Tile<B> tile_for(size_t rows, size_t vectors) {
  switch (vectors) {
    case 1:
      return tile_of<1, packed_a, B>(rows, std::make_index_sequence<most_rows(1)>());
    case 2:
      return tile_of<2, packed_a, B>(rows, std::make_index_sequence<most_rows(2)>());
    case 3:
      return tile_of<3, packed_a, B>(rows, std::make_index_sequence<most_rows(3)>());
    case 4:
      return tile_of<4, packed_a, B>(rows, std::make_index_sequence<most_rows(4)>());
    default:
      return tile_of<8, packed_a, B>(rows, std::make_index_sequence<most_rows(8)>());
  }
}

}  // namespace ejk::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
