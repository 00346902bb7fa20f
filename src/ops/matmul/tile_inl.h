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
#include <cstring>
#include <type_traits>
#include <utility>

#include "ops/simd/vectors_inl.h"

// Each size of a tile is a function of its own: instruction sets of the past get by with few, and
// so do builds with EJK_OPS_FEWER_TILES.
#undef EJK_OPS_FEW_TILES
#if HWY_TARGET == HWY_SCALAR || defined(EJK_OPS_FEWER_TILES)
#define EJK_OPS_FEW_TILES 1
#else
#define EJK_OPS_FEW_TILES 0
#endif

HWY_BEFORE_NAMESPACE();
namespace ejk::ops::HWY_NAMESPACE {

// What a tile works on. Where the columns do not fill its vectors, the last vector overlaps the one
// before it: both have the same sums, and c is read before it is written.
template <class B>
struct TileWork {
  int64_t depth;
  const float* a;
  int64_t a_row, a_step;  // of a that is not packed; packed, the tile's rows lie side by side
  const B* b;
  int64_t b_step;  // from one k to the next
  int64_t b_last;  // from the first vector to the last
  float* c;
  int64_t c_row;
  int64_t c_last;
  const float* bias;  // added to the sum; null: none
  bool add;           // to what is in c
  float* copy;        // of b, for tiles that make one: its vectors side by side
  int64_t soon;       // from b to the end of the first line that the strip to its right needs
  int64_t columns;    // of tiles with less than a vector
};

// Where a tile's vectors come from and what else becomes of them.
enum class Columns {
  whole,
  first,   // read for the first time: asks for the columns to the right as well
  copied,  // the same, and b is packed
  few,     // less than a vector: memory behind them is not touched
};

// The first lanes only. Masked stores are slow where not every instruction can be masked.
template <class D>
HWY_INLINE void store_some(hn::Vec<D> v, D d, float* to, int64_t count) {
#if HWY_TARGET <= HWY_AVX3
  hn::BlendedStore(v, hn::FirstN(d, static_cast<size_t>(count)), d, to);
#else
  HWY_ALIGN float buffer[hn::MaxLanes(d)];
  hn::Store(v, d, buffer);
  const float* from = buffer;
  const auto put = [&]<int64_t part>() HWY_ATTR {
    if ((count & part) == 0) return;
    std::memcpy(to, from, part * sizeof(float));
    to += part;
    from += part;
  };
  if constexpr (hn::MaxLanes(D()) > 4) put.template operator()<4>();
  if constexpr (hn::MaxLanes(D()) > 2) put.template operator()<2>();
  put.template operator()<1>();
#endif
}

// What is used several times is loaded once: compilers would rather load it for every use, which is
// slow where vectors cross cache lines.
HWY_INLINE Vector in_register(Vector v) {
#if HWY_ARCH_X86_64 && HWY_COMPILER_GCC_ACTUAL && HWY_TARGET <= HWY_SSSE3
#if HWY_TARGET <= HWY_AVX3
  asm("" : "+v"(v.raw));
#else
  asm("" : "+x"(v.raw));
#endif
#endif
  return v;
}
constexpr size_t vector_registers = many_registers ? 32 : 16;

// Steps of k between asking for elements and using them.
constexpr int64_t prefetch_ahead = 8;

// Vectors that share a cache line ask for it once.
template <size_t vector, class B>
HWY_INLINE void prefetch_line(const B* at) {
  constexpr size_t vectors_in_a_line = HWY_MAX(1, 64 / (sizeof(B) * size_t{lanes}));
  if constexpr (vector % vectors_in_a_line == 0) hwy::Prefetch(at);
}

// Into the second level: it is not used before a whole strip is done.
template <size_t vector, class B>
HWY_INLINE void prefetch_line_soon(const B* at) {
  constexpr size_t vectors_in_a_line = HWY_MAX(1, 64 / (sizeof(B) * size_t{lanes}));
  if constexpr (vector % vectors_in_a_line == 0) __builtin_prefetch(at, 0, 2);
}

// Accumulators are named by constants so that they become registers: the compiler keeps an array
// that is walked by a loop in memory.
template <size_t rows, size_t vectors, bool packed_a, Columns kind, class B, size_t... at,
          size_t... column>
HWY_INLINE void multiply(const TileWork<B>& work, std::index_sequence<at...>,
                         std::index_sequence<column...>) {
  const Floats d;
  constexpr bool few = kind == Columns::few;
  const auto place = [](size_t vector, int64_t last) HWY_ATTR {
    return vector == 0 ? 0 : vector + 1 == vectors ? last : static_cast<int64_t>(vector) * lanes;
  };
  const auto read = [&](const auto* from) HWY_ATTR {
    if constexpr (few) return load_some(d, from, work.columns);
    else return load(from);
  };
  Vector sum[rows * vectors] = {(static_cast<void>(at), hn::Zero(d))...};
  const float* HWY_RESTRICT a = work.a;
  const B* HWY_RESTRICT b = work.b;
  const int64_t a_row = packed_a ? 1 : work.a_row;
  const int64_t a_step = packed_a ? int64_t{rows} : work.a_step;
  const int64_t b_step = work.b_step, b_last = work.b_last;
  float* HWY_RESTRICT copy = work.copy;
  const int64_t soon = work.soon;
  float* const c = work.c;
  const int64_t c_row = work.c_row, c_last = work.c_last;
  // Rows of c are wanted when the sums are done, all at once and mostly from far away; but not if
  // they are so short that they follow each other.
  if constexpr (!few)
    (hwy::Prefetch(c + int64_t{at / vectors} * c_row + place(at % vectors, c_last)), ...);
  for (int64_t k = work.depth; k > 0; --k) {
    if (packed_a) hwy::Prefetch(a + prefetch_ahead * a_step);
    if constexpr (!few)
      (prefetch_line<column, B>(b + prefetch_ahead * b_step + int64_t{column} * lanes), ...);
    Vector columns[vectors] = {read(b + place(column, b_last))...};
    if constexpr (rows > 1 && (rows + 1) * vectors < vector_registers)
      ((columns[column] = in_register(columns[column])), ...);
    if constexpr (kind == Columns::copied || kind == Columns::first) {
      (prefetch_line_soon<column, B>(b + soon + int64_t{column} * lanes), ...);
    }
    if constexpr (kind == Columns::copied) {
      (hn::StoreU(columns[column], d, copy + int64_t{column} * lanes), ...);
      copy += int64_t{vectors} * lanes;
    }
    ((sum[at] =
          hn::MulAdd(hn::Set(d, a[int64_t{at / vectors} * a_row]), columns[at % vectors], sum[at])),
     ...);
    a += a_step;
    b += b_step;
  }
  if constexpr (few) {
    // Where a row ends the next one begins, it is written behind what this one writes too far.
    const bool side_by_side = c_row == work.columns && !work.add;
    const auto put = [&]<size_t row>() HWY_ATTR {
      float* const to = c + int64_t{row} * c_row;
      Vector out = sum[row];
      if (work.add) out = hn::Add(read(to), out);
      if (work.bias != nullptr) out = hn::Add(out, read(work.bias));
      if (side_by_side && int64_t{rows - row} * c_row >= lanes) hn::StoreU(out, d, to);
      else store_some(out, d, to, work.columns);
    };
    (put.template operator()<at>(), ...);
    return;
  }
  if (work.add)
    ((sum[at] = hn::Add(
          hn::LoadU(d, c + int64_t{at / vectors} * c_row + place(at % vectors, c_last)), sum[at])),
     ...);
  if (work.bias != nullptr)
    ((sum[at] = hn::Add(sum[at], hn::LoadU(d, work.bias + place(at % vectors, c_last)))), ...);
  (hn::StoreU(sum[at], d, c + int64_t{at / vectors} * c_row + place(at % vectors, c_last)), ...);
}

template <size_t rows, size_t vectors, bool packed_a, Columns kind, class B>
HWY_NOINLINE void tile(const TileWork<B>& work) {
  multiply<rows, vectors, packed_a, kind>(work, std::make_index_sequence<rows * vectors>(),
                                          std::make_index_sequence<vectors>());
}

// As many rows as the registers hold beside a row of b and a broadcast element of a.
constexpr size_t max_rows(size_t vectors) {
#if EJK_OPS_FEW_TILES
  return vectors == 1 ? 3 : vectors <= 4 ? 2 : 1;
#elif HWY_TARGET <= HWY_AVX3
  return vectors == 1 ? 8 : vectors == 2 ? 14 : vectors == 3 ? 8 : vectors == 4 ? 6 : 1;
#elif HWY_TARGET <= HWY_AVX2
  return vectors == 1 ? 8 : vectors == 2 ? 6 : vectors == 3 ? 4 : vectors == 4 ? 3 : 1;
#else
  return vectors <= 3 ? 4 : vectors == 4 ? 2 : 1;
#endif
}
// Tiles that read b as bfloat16, which is worth it for few rows only.
constexpr size_t max_short_rows = 8;

template <class B>
constexpr size_t max_rows_with(size_t vectors) {
  return std::is_same_v<B, float> ? max_rows(vectors) : std::min(max_short_rows, max_rows(vectors));
}

template <class B>
using Tile = void (*)(const TileWork<B>&);

template <size_t vectors, bool packed_a, Columns kind, class B, size_t... row>
const Tile<B>* tiles_of(std::index_sequence<row...>) {
  static constexpr Tile<B> tiles[] = {tile<row + 1, vectors, packed_a, kind, B>...};
  return tiles;
}

// The tile of `n` rows is at n - 1.
template <bool packed_a, Columns kind, class B>
const Tile<B>* tiles_of(size_t vectors) {
  const auto of = []<size_t count>() {
    return tiles_of<count, packed_a, kind, B>(std::make_index_sequence<max_rows_with<B>(count)>());
  };
  if constexpr (kind != Columns::few) {
    if (vectors == 2) return of.template operator()<2>();
    if (vectors == 3) return of.template operator()<3>();
    if (vectors == 4) return of.template operator()<4>();
    if (vectors == 5) return of.template operator()<5>();
    if (vectors == 6) return of.template operator()<6>();
    if (vectors == 7) return of.template operator()<7>();
    if (vectors == 8) return of.template operator()<8>();
  }
  return of.template operator()<1>();
}

// `parts` parts of `count` whose sizes differ by at most one.
struct Even {
  // Where one part is all there is, which is so in most of many short passes, nothing is divided.
  Even(int64_t total, int64_t number)
      : count(total),
        parts(number),
        size(number == 1 ? total : total / number),
        larger(total - number * size) {}
  int64_t begin(int64_t part) const { return part * size + std::min(part, larger); }

  int64_t count, parts;
  int64_t size, larger;  // of a part; how many are larger by one
};
HWY_INLINE Even evenly(int64_t count, int64_t most) {
  return {count, count <= most ? 1 : (count + most - 1) / most};
}

// Columns that one tile is as wide as.
struct Strip {
  int64_t column, width;
  size_t vectors;
};

// No strip has less than a vector of columns if there are as many: its neighbour on the left gives
// it one.
HWY_INLINE Strip strip_at(int64_t column, int64_t last_column, int64_t vectors) {
  const int64_t left = last_column - column, behind = left - vectors * lanes;
  if (behind >= lanes || behind == 0)
    return {column, vectors * lanes, static_cast<size_t>(vectors)};
  if (behind > 0 && vectors > 1)
    return {column, (vectors - 1) * lanes, static_cast<size_t>(vectors - 1)};
  return {column, left, static_cast<size_t>((left + lanes - 1) / lanes)};
}

HWY_INLINE bool is_narrow(const Strip& s) { return s.width < lanes; }

template <class B>
const Tile<B>* tiles_for(const Strip& s) {
  return is_narrow(s) ? tiles_of<false, Columns::few, B>(1)
                      : tiles_of<false, Columns::whole, B>(s.vectors);
}

// A few rows of b times few rows of a, walked along the columns of b: so little is done with each
// element that what counts is to read b in the order in which it lies. Sums are those of a tile.
#if EJK_OPS_FEW_TILES
constexpr size_t max_walked_rows = 2, max_walked_depth = 2;
#elif HWY_TARGET <= HWY_AVX2
constexpr size_t max_walked_rows = 4, max_walked_depth = 8;
#else
constexpr size_t max_walked_rows = 2, max_walked_depth = 4;
#endif

// For fewer columns it takes longer to begin than to walk.
constexpr int64_t min_walked_columns = 256;

// `few`: less than a vector of columns.
template <size_t rows, size_t depth, size_t vectors, bool few, class B, size_t... row,
          size_t... column>
HWY_INLINE void walk_step(const Vector* factors, const TileWork<B>& work, int64_t at, int64_t left,
                          std::index_sequence<row...>, std::index_sequence<column...>) {
  const Floats d;
  const auto read = [&](const auto* from) HWY_ATTR {
    if constexpr (few) return load_some(d, from, left);
    else return load(from);
  };
  Vector sum[rows * vectors];
  const auto add_product = [&]<size_t k>() HWY_ATTR {
    const B* b = work.b + int64_t{k} * work.b_step + at;
    const Vector columns[vectors] = {read(b + int64_t{column} * lanes)...};
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
            hn::Add(read(c + int64_t{column} * lanes), sum[r * vectors + column])),
       ...);
    if (work.bias != nullptr)
      ((sum[r * vectors + column] =
            hn::Add(sum[r * vectors + column], read(work.bias + at + int64_t{column} * lanes))),
       ...);
    if constexpr (few) store_some(sum[r], d, c, left);
    else (hn::StoreU(sum[r * vectors + column], d, c + int64_t{column} * lanes), ...);
  };
  (put.template operator()<row>(), ...);
}

// work.depth is `depth`.
template <size_t rows, size_t depth, class B>
HWY_NOINLINE void walk(const TileWork<B>& work, int64_t columns) {
  const Floats d;
  Vector factors[rows * depth];
  for (size_t r = 0; r < rows; ++r)
    for (size_t k = 0; k < depth; ++k)
      factors[r * depth + k] = hn::Set(
          d, work.a[static_cast<int64_t>(r) * work.a_row + static_cast<int64_t>(k) * work.a_step]);
  const auto each_row = std::make_index_sequence<rows>();
  constexpr size_t vectors = 2;  // they share a load of a factor, and neither waits for the other
  int64_t at = 0;
  for (; at + int64_t{vectors} * lanes <= columns; at += int64_t{vectors} * lanes)
    walk_step<rows, depth, vectors, false>(factors, work, at, 0, each_row,
                                           std::make_index_sequence<vectors>());
  const auto one = std::make_index_sequence<1>();
  for (; at + lanes <= columns; at += lanes)
    walk_step<rows, depth, 1, false>(factors, work, at, 0, each_row, one);
  if (at < columns) walk_step<rows, depth, 1, true>(factors, work, at, columns - at, each_row, one);
}

template <class B>
void walk(size_t rows, const TileWork<B>& work, int64_t columns) {
  using Walk = void (*)(const TileWork<B>&, int64_t);
  static constexpr auto all = []<size_t... i>(std::index_sequence<i...>) {
    return std::array<Walk, sizeof...(i)>{
        walk<i / max_walked_depth + 1, i % max_walked_depth + 1, B>...};
  }
  (std::make_index_sequence<max_walked_rows * max_walked_depth>());
  all[(rows - 1) * max_walked_depth + static_cast<size_t>(work.depth) - 1](work, columns);
}

}  // namespace ejk::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
