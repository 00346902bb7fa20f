// SPDX-License-Identifier: Apache-2.0
// The register tile: a few rows of a times a few vectors of columns of b, summed over a stretch of
// k. Included once per instruction set by gemm.cpp.
#if defined(EJK_OPS_MATMUL_TILE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef EJK_OPS_MATMUL_TILE_INL_H
#undef EJK_OPS_MATMUL_TILE_INL_H
#else
#define EJK_OPS_MATMUL_TILE_INL_H
#endif

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include <hwy/cache_control.h>
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

// Steps of k between asking for elements and using them.
constexpr int64_t prefetch_ahead = 8;

// Vectors that share a cache line ask for it once.
template <size_t vector, class B>
HWY_INLINE void prefetch_line(const B* at) {
  constexpr size_t vectors_in_a_line = HWY_MAX(1, 64 / (sizeof(B) * hn::MaxLanes(F())));
  if constexpr (vector % vectors_in_a_line == 0) hwy::Prefetch(at);
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
  float* const c = work.c;
  const int64_t c_row = work.c_row;
  // Rows of c are wanted when the sums are done, all at once and mostly from far away.
  (hwy::Prefetch(c + int64_t{at / vectors} * c_row + int64_t{at % vectors} * lanes), ...);
  for (int64_t k = work.depth; k > 0; --k) {
    if (packed_a) hwy::Prefetch(a + prefetch_ahead * a_step);
    (prefetch_line<column, B>(b + prefetch_ahead * b_step + int64_t{column} * lanes), ...);
    const V columns[vectors] = {load_floats(d, b + int64_t{column} * lanes)...};
    ((sum[at] =
          hn::MulAdd(hn::Set(d, a[int64_t{at / vectors} * a_row]), columns[at % vectors], sum[at])),
     ...);
    a += a_step;
    b += b_step;
  }
  if (work.add)
    ((sum[at] =
          hn::Add(hn::LoadU(d, c + int64_t{at / vectors} * c_row + int64_t{at % vectors} * lanes),
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

// As many rows as the registers hold beside a row of b and a broadcast element of a. Each number of
// rows is a function of its own: instruction sets of the past and sanitizers get by with few.
constexpr size_t most_rows(size_t vectors) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || HWY_TARGET == HWY_SCALAR
  return vectors == 1 ? 3 : 2;
#elif HWY_TARGET <= HWY_AVX3
  return vectors == 1 ? 8 : vectors == 2 ? 14 : vectors == 3 ? 8 : 6;
#elif HWY_TARGET <= HWY_AVX2
  return vectors == 1 ? 8 : vectors == 2 ? 6 : vectors == 3 ? 4 : 3;
#else
  return vectors == 1 ? 4 : vectors == 2 ? 4 : vectors == 3 ? 4 : 2;
#endif
}
// Tiles that read b as bfloat16, which is worth it for few rows only.
constexpr size_t most_short_rows = 8;

template <class B>
using Tile = void (*)(const TileWork<B>&);

template <size_t vectors, bool packed_a, class B, size_t... row>
const Tile<B>* tiles_of(std::index_sequence<row...>) {
  static constexpr Tile<B> tiles[] = {tile<row + 1, vectors, packed_a, B>...};
  return tiles;
}
template <size_t vectors, bool packed_a, class B>
const Tile<B>* tiles_of() {
  constexpr size_t most =
      std::is_same_v<B, float> ? most_rows(vectors) : std::min(most_short_rows, most_rows(vectors));
  return tiles_of<vectors, packed_a, B>(std::make_index_sequence<most>());
}

// The tile of `n` rows is at n - 1.
template <bool packed_a, class B>
const Tile<B>* tiles_of(size_t vectors) {
  if (vectors == 1) return tiles_of<1, packed_a, B>();
  if (vectors == 2) return tiles_of<2, packed_a, B>();
  if (vectors == 3) return tiles_of<3, packed_a, B>();
  return tiles_of<4, packed_a, B>();
}

// A few rows of b times few rows of a, walked along the columns of b: so little is done with each
// element that what counts is to read b in the order in which it lies. Sums are those of a tile.
// As with tiles, few functions where speed does not count.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || HWY_TARGET == HWY_SCALAR
constexpr size_t most_walked_rows = 2, most_walked_depth = 2;
#elif HWY_TARGET <= HWY_AVX2
constexpr size_t most_walked_rows = 4, most_walked_depth = 8;
#else
constexpr size_t most_walked_rows = 2, most_walked_depth = 4;
#endif

template <size_t rows, size_t depth, size_t vectors, class B, size_t... row, size_t... column>
HWY_INLINE void walk_step(const V* factors, const TileWork<B>& work, int64_t at,
                          std::index_sequence<row...>, std::index_sequence<column...>) {
  const F d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  V sum[rows * vectors];
  const auto add_product = [&]<size_t k>() HWY_ATTR {
    const B* b = work.b + int64_t{k} * work.b_step + at;
    const V columns[vectors] = {load_floats(d, b + int64_t{column} * lanes)...};
    const auto one_row = [&]<size_t r>() HWY_ATTR {
      ((sum[r * vectors + column] = hn::MulAdd(factors[r * depth + k], columns[column],
                                               k == 0 ? hn::Zero(d) : sum[r * vectors + column])),
       ...);
    };
    (one_row.template operator()<row>(), ...);
  };
  [&]<size_t... k>(std::index_sequence<k...>) HWY_ATTR {
    (add_product.template operator()<k>(), ...);
  }
  (std::make_index_sequence<depth>());
  const auto put = [&]<size_t r>() HWY_ATTR {
    float* const c = work.c + int64_t{r} * work.c_row + at;
    if (work.add)
      ((sum[r * vectors + column] =
            hn::Add(hn::LoadU(d, c + int64_t{column} * lanes), sum[r * vectors + column])),
       ...);
    if (work.bias != nullptr)
      ((sum[r * vectors + column] = hn::Add(
            sum[r * vectors + column], hn::LoadU(d, work.bias + at + int64_t{column} * lanes))),
       ...);
    (hn::StoreU(sum[r * vectors + column], d, c + int64_t{column} * lanes), ...);
  };
  (put.template operator()<row>(), ...);
}

// `columns`: whole vectors of them. work.depth is `depth`.
template <size_t rows, size_t depth, class B>
HWY_NOINLINE void walk(const TileWork<B>& work, int64_t columns) {
  const F d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  V factors[rows * depth];
  for (size_t r = 0; r < rows; ++r)
    for (size_t k = 0; k < depth; ++k)
      factors[r * depth + k] = hn::Set(
          d, work.a[static_cast<int64_t>(r) * work.a_row + static_cast<int64_t>(k) * work.a_step]);
  const auto each_row = std::make_index_sequence<rows>();
  constexpr size_t vectors = rows == 1 ? 1 : 2;  // more of them share a load of a factor
  int64_t at = 0;
  for (; at + int64_t{vectors} * lanes <= columns; at += int64_t{vectors} * lanes)
    walk_step<rows, depth, vectors>(factors, work, at, each_row,
                                    std::make_index_sequence<vectors>());
  if (at < columns)
    walk_step<rows, depth, 1>(factors, work, at, each_row, std::make_index_sequence<1>());
}

template <class B>
void walk(size_t rows, const TileWork<B>& work, int64_t columns) {
  using Walk = void (*)(const TileWork<B>&, int64_t);
  static constexpr auto all = []<size_t... i>(std::index_sequence<i...>) {
    return std::array<Walk, sizeof...(i)>{
        walk<i / most_walked_depth + 1, i % most_walked_depth + 1, B>...};
  }
  (std::make_index_sequence<most_walked_rows * most_walked_depth>());
  all[(rows - 1) * most_walked_depth + static_cast<size_t>(work.depth) - 1](work, columns);
}

}  // namespace ejk::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
