// SPDX-License-Identifier: Apache-2.0
// Matrix products in blocks that stay in the caches, compiled once per instruction set.
#include "ops/matmul/gemm.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <memory>
#include <new>
#include <type_traits>

#include <ejk/parallel.h>

#include "base/pages.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/matmul/gemm.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/matmul/dot_inl.h"
#include "ops/matmul/pack_inl.h"
#include "ops/matmul/small_inl.h"
#include "ops/matmul/tile_inl.h"

HWY_BEFORE_NAMESPACE();
namespace ejk::ops::HWY_NAMESPACE {

// A problem whose c is float32 with columns side by side.
template <class A, class B>
class Blocks {
 public:
  Blocks(const Gemm& problem, const MatmulBlocking& blocking, float* scratch)
      : p_(problem),
        a_(static_cast<const A*>(problem.a.data)),
        b_(static_cast<const B*>(problem.b.data)),
        c_(static_cast<float*>(const_cast<void*>(problem.c.data))),
        vectors_(static_cast<size_t>(blocking.vectors)),
        strip_(blocking.vectors * static_cast<int64_t>(hn::Lanes(F()))),
        most_rows_(static_cast<int64_t>(most_rows(vectors_))),
        pack_a_(packs_a(problem, blocking)),
        copied_row_(copies_rows(problem, blocking) ? step_of_copies(problem, blocking) : 0),
        pack_b_(packs_b(problem, blocking)),
        copy_b_(copies_b(problem, blocking)),
        depths_(evenly(p_.k, blocking.kc)),
        row_blocks_(evenly(p_.m, blocking.mc)),
        most_columns_(blocking.nc),
        packed_b_(scratch),
        packed_a_(scratch + floats_for_b(problem, blocking)) {}

  // Elements of a that are not packed are read one by one, as float32.
  static constexpr bool both_are_floats = std::is_same_v<A, float> && std::is_same_v<B, float>;
  static constexpr bool fetches_strips = both_are_floats && HWY_TARGET == HWY_AVX2;
  static bool packs_a(const Gemm&, const MatmulBlocking& blocking) {
    return blocking.pack == MatmulBlocking::Pack::a_and_b || !both_are_floats;
  }
  // Few rows of a tile, that lie along k, are copied as they lie: it takes a third of the time that
  // it takes to put them side by side, and the tile has enough registers to point to them.
  static bool copies_rows(const Gemm& problem, const MatmulBlocking& blocking) {
    return both_are_floats && most_rows(2) <= 8 && packs_a(problem, blocking) &&
           problem.a.column_stride == 1;
  }
  // An odd number of cache lines, or rows of a tile would get into the way of each other.
  static int64_t step_of_copies(const Gemm& problem, const MatmulBlocking& blocking) {
    const int64_t lines = (std::min<int64_t>(blocking.kc, problem.k) + 15) / 16;
    return (lines % 2 == 0 ? lines + 1 : lines) * 16;
  }
  static bool packs_b(const Gemm& problem, const MatmulBlocking& blocking) {
    const bool too_many_short_rows =
        !std::is_same_v<B, float> && problem.m > static_cast<int64_t>(most_short_rows);
    return blocking.pack != MatmulBlocking::Pack::none || problem.b.column_stride != 1 ||
           too_many_short_rows;
  }
  // Strips of b are packed as the first tile reads them, which costs next to nothing: on AVX2,
  // where it was measured.
  static bool copies_b(const Gemm& problem, const MatmulBlocking& blocking) {
    const bool a_is_side_by_side = packs_a(problem, blocking) && !copies_rows(problem, blocking);
    return fetches_strips && packs_b(problem, blocking) && !a_is_side_by_side &&
           problem.b.column_stride == 1;
  }
  static int64_t floats_for_b(const Gemm& problem, const MatmulBlocking& blocking) {
    const int64_t strip = blocking.vectors * static_cast<int64_t>(hn::Lanes(F()));
    if (!packs_b(problem, blocking)) return 0;
    // A part of few rows may need one strip where the whole needs all: room for either.
    const auto lanes = static_cast<int64_t>(hn::Lanes(F()));
    const int64_t one = copies_b(problem, blocking) ? strip + lanes : 0;
    const int64_t all = one > 0 && problem.m <= blocking.mc
                            ? 0
                            : std::min<int64_t>(std::max<int64_t>(blocking.nc, strip),
                                                (problem.n + strip - 1) / strip * strip);
    const int64_t columns = std::max(one, all);
    return (std::min<int64_t>(blocking.kc, problem.k) * columns + 15) / 16 * 16;
  }
  static int64_t floats_for_a(const Gemm& problem, const MatmulBlocking& blocking) {
    const int64_t rows = std::min<int64_t>(blocking.mc, problem.m);
    if (!packs_a(problem, blocking)) return 0;
    return rows * (copies_rows(problem, blocking) ? step_of_copies(problem, blocking)
                                                  : std::min<int64_t>(blocking.kc, problem.k));
  }

  void run() {
    // One block in any case, without a division.
    if (p_.n <= std::max(strip_, most_columns_ - strip_)) return columns(0, p_.n);
    const Even blocks =
        evenly((p_.n + strip_ - 1) / strip_, std::max<int64_t>(1, most_columns_ / strip_));
    for (int64_t j = 0; j < blocks.parts; ++j)
      columns(blocks.begin(j) * strip_, std::min(p_.n, blocks.begin(j + 1) * strip_));
  }

 private:
  void columns(int64_t first, int64_t last) {
    first_column_ = first;
    last_column_ = last;
    for (int64_t k = 0; k < depths_.parts; ++k) {
      first_k_ = depths_.begin(k);
      depth_ = depths_.begin(k + 1) - first_k_;
      add_ = k > 0;
      bias_ = k + 1 == depths_.parts ? p_.bias : nullptr;
      pack_b();
      for (int64_t i = 0; i < row_blocks_.parts; ++i)
        rows(row_blocks_.begin(i), row_blocks_.begin(i + 1));
    }
  }

  const B* b_at(int64_t column) const {
    return b_ + first_k_ * p_.b.row_stride + column * p_.b.column_stride;
  }

  Strip next_strip(int64_t column) const {
    return strip_at(column, last_column_, static_cast<int64_t>(vectors_));
  }

  void pack_b() {
    if (!pack_b_ || copy_b_) return;
    const auto lanes = static_cast<int64_t>(hn::Lanes(F()));
    int64_t edge = first_column_;  // of the whole strips
    while (edge < last_column_ && next_strip(edge).width == strip_) edge += strip_;
    if (first_column_ < edge)
      pack_columns(b_at(first_column_), p_.b.row_stride, p_.b.column_stride, edge - first_column_,
                   vectors_, depth_, packed_b_);
    while (edge < last_column_) {
      const Strip s = next_strip(edge);
      const int64_t step = static_cast<int64_t>(s.vectors) * lanes;
      for (int64_t v = 0; v < static_cast<int64_t>(s.vectors); ++v) {
        const int64_t at = std::max<int64_t>(0, std::min(v * lanes, s.width - lanes));
        pack_strip(b_at(edge + at), p_.b.column_stride, p_.b.row_stride, std::min(lanes, s.width),
                   lanes, step, depth_, packed_b(edge) + v * lanes);
      }
      edge += s.width;
    }
  }
  // A copy that the rows of one block make and use is made at one place that stays in the cache.
  float* packed_b(int64_t column) const {
    return packed_b_ + (copy_b_ && row_blocks_.parts == 1 ? 0 : column - first_column_) * depth_;
  }

  void rows(int64_t first, int64_t last) {
    const Even strips = evenly(last - first, most_rows_);
    if (copied_row_ != 0)
      for (int64_t row = first; row < last; ++row)
        copy_floats(a_ + row * p_.a.row_stride + first_k_, depth_,
                    packed_a_ + (row - first) * copied_row_);
    else if (pack_a_)
      for (int64_t s = 0; s < strips.parts; ++s) {
        const int64_t row = strips.begin(s), count = strips.begin(s + 1) - row;
        pack_strip(a_ + (first + row) * p_.a.row_stride + first_k_ * p_.a.column_stride,
                   p_.a.row_stride, p_.a.column_stride, count, count, count, depth_,
                   packed_a_ + row * depth_);
      }
    if (walks(strips)) return walk_along(first, strips);
    for (int64_t column = first_column_; column < last_column_;) {
      const Strip s = next_strip(column);
      column += s.width;
      if (!pack_b_ || (copy_b_ && is_narrow(s))) strip_in_place(first, strips, s);
      else if (!copy_b_ || first > 0)
        strip<float>(packed_b(s.column), packed_width(s), packed_width(s), first, strips, s);
      else if constexpr (fetches_strips) strip_copied(first, strips.count, s);
    }
  }

  bool side_by_side() const { return pack_a_ && copied_row_ == 0; }

  bool walks(const Even& packed) const {
    const int64_t most = packed.size + (packed.larger > 0 ? 1 : 0);
    return !pack_b_ && last_column_ - first_column_ >= least_walked_columns &&
           depth_ <= static_cast<int64_t>(most_walked_depth) &&
           (!side_by_side() || most <= static_cast<int64_t>(most_walked_rows));
  }

  void walk_along(int64_t first, const Even& packed) {
    const Even strips =
        side_by_side() ? packed : evenly(packed.count, static_cast<int64_t>(most_walked_rows));
    TileWork<B> work = work_for(b_at(first_column_), p_.b.row_stride, 0, {first_column_, 0, 1});
    for (int64_t s = 0; s < strips.parts; ++s) {
      const int64_t row = strips.begin(s), count = strips.begin(s + 1) - row;
      work.a = a_at(first, row);
      work.c = c_ + (first + row) * p_.c.row_stride + first_column_;
      if (side_by_side()) work.a_row = 1, work.a_step = count;
      walk(static_cast<size_t>(count), work, last_column_ - first_column_);
    }
  }

  const float* a_at(int64_t first, int64_t row) const {
    if (copied_row_ != 0) return packed_a_ + row * copied_row_;
    if (pack_a_) return packed_a_ + row * depth_;
    if constexpr (both_are_floats)
      return a_ + (first + row) * p_.a.row_stride + first_k_ * p_.a.column_stride;
    return nullptr;
  }

  // `b_width`: of the strip as it lies in b, from the first column to behind the last.
  template <class FromB>
  TileWork<FromB> work_for(const FromB* b, int64_t b_step, int64_t b_width, const Strip& s) const {
    const auto lanes = static_cast<int64_t>(hn::Lanes(F()));
    return {
        .depth = depth_,
        .a = nullptr,
        .a_row = copied_row_ != 0 ? copied_row_ : p_.a.row_stride,
        .a_step = copied_row_ != 0 ? 1 : p_.a.column_stride,
        .b = b,
        .b_step = b_step,
        .b_last = b_width - lanes,
        .c = nullptr,
        .c_row = p_.c.row_stride,
        .c_last = s.width - lanes,
        .bias = bias_ != nullptr ? bias_ + s.column : nullptr,
        .add = add_,
        .copy = nullptr,
        .soon = s.column + s.width < last_column_ ? s.width + 64 / int64_t{sizeof(FromB)} - 1 : 0,
        .columns = s.width};
  }

  // Runs tiles one below the other, from `row` of the block on.
  template <class FromB>
  void run_tiles(const Tile<FromB>* tiles, TileWork<FromB>& work, const Even& parts, int64_t first,
                 int64_t row, const Strip& s) {
    const float* const a = work.a;
    for (int64_t i = 0; i < parts.parts; ++i) {
      const int64_t begin = parts.begin(i);
      work.a = a + begin * work.a_row;
      work.c = c_ + (first + row + begin) * p_.c.row_stride + s.column;
      tiles[parts.begin(i + 1) - begin - 1](work);
    }
  }

  // b as it lies: the first tile fetches it.
  void strip_in_place(int64_t first, const Even& packed, const Strip& s) {
    if constexpr (fetches_strips)
      if (!side_by_side() && !is_narrow(s)) return strip_fetched(first, packed.count, s);
    strip<B>(b_at(s.column), p_.b.row_stride, s.width, first, packed, s);
  }
  void strip_fetched(int64_t first, int64_t count, const Strip& s) requires both_are_floats {
    const auto most = static_cast<int64_t>(most_rows(s.vectors));
    const int64_t above = evenly(count, most).begin(1), below = count - above;
    TileWork<float> work = work_for(b_at(s.column), p_.b.row_stride, s.width, s);
    work.a = a_at(first, 0);
    run_tiles(tiles_of<false, Columns::first, float>(s.vectors), work, {above, 1}, first, 0, s);
    work.a = a_at(first, above);
    if (below > 0) run_tiles(tiles_for<float>(s), work, evenly(below, most), first, above, s);
  }

  // The first tile fetches b and packs it for those below.
  void strip_copied(int64_t first, int64_t count, const Strip& s) requires both_are_floats {
    const auto most = static_cast<int64_t>(most_rows(s.vectors));
    const int64_t above = evenly(count, most).begin(1), below = count - above;
    TileWork<float> work = work_for(b_at(s.column), p_.b.row_stride, s.width, s);
    work.a = a_at(first, 0);
    work.copy = packed_b(s.column);
    run_tiles(tiles_of<false, Columns::copied, float>(s.vectors), work, {above, 1}, first, 0, s);
    work = work_for<float>(packed_b(s.column), packed_width(s), packed_width(s), s);
    work.a = a_at(first, above);
    if (below > 0) run_tiles(tiles_for<float>(s), work, evenly(below, most), first, above, s);
  }

  static int64_t packed_width(const Strip& s) {
    return static_cast<int64_t>(s.vectors * hn::Lanes(F()));
  }

  // `packed`: how rows of a were put side by side.
  template <class FromB>
  void strip(const FromB* b, int64_t b_step, int64_t b_width, int64_t first, const Even& packed,
             const Strip& s) {
    const auto most = static_cast<int64_t>(most_rows_with<FromB>(s.vectors));
    TileWork<FromB> work = work_for(b, b_step, b_width, s);
    if (!side_by_side()) {
      work.a = a_at(first, 0);
      return run_tiles(tiles_for<FromB>(s), work, evenly(packed.count, most), first, 0, s);
    }
    for (int64_t i = 0; i < packed.parts; ++i) {
      const int64_t row = packed.begin(i), count = packed.begin(i + 1) - row;
      work.a = a_at(first, row);
      if (count <= most && !is_narrow(s)) {
        work.c = c_ + (first + row) * p_.c.row_stride + s.column;
        tiles_of<true, Columns::whole, FromB>(s.vectors)[count - 1](work);
      } else {  // a narrower tile has fewer rows
        work.a_row = 1, work.a_step = count;
        run_tiles(tiles_for<FromB>(s), work, evenly(count, most), first, row, s);
      }
    }
  }

  const Gemm& p_;
  const A* a_;
  const B* b_;
  float* c_;
  const size_t vectors_;
  const int64_t strip_, most_rows_;  // columns and rows of a tile
  const bool pack_a_;
  const int64_t copied_row_;  // from one copied row of a to the next; 0: they are not copied so
  const bool pack_b_, copy_b_;
  const Even depths_, row_blocks_;
  const int64_t most_columns_;  // of a block
  float* const packed_b_;
  float* const packed_a_;
  // the block at work
  int64_t first_column_ = 0, last_column_ = 0, first_k_ = 0, depth_ = 0;
  bool add_ = false;
  const float* bias_ = nullptr;
};

// Calls work with the element types of a and b.
template <class Work>
decltype(auto) with_types(const Gemm& problem, const Work& work) {
  using Wide = float;
  using Short = hwy::bfloat16_t;
  const bool short_b = problem.b.dtype == DType::bfloat16;
  if (problem.a.dtype == DType::bfloat16) {
    if (short_b) return work.template operator()<Short, Short>();
    return work.template operator()<Short, Wide>();
  }
  if (short_b) return work.template operator()<Wide, Short>();
  return work.template operator()<Wide, Wide>();
}

void multiply_blocks(const Gemm& problem, const MatmulBlocking& blocking, float* scratch) {
  with_types(problem, [&]<class A, class B>() { Blocks<A, B>(problem, blocking, scratch).run(); });
}

void multiply_by_dots(const Gemm& problem) {
  with_types(problem, [&]<class A, class B>() { dot_products<A, B>(problem); });
}

// b with its columns one behind the other.
void pack_transposed(const Gemm& p, float* to) {
  with_types(p, [&]<class A, class B>() {
    const auto* const b = static_cast<const B*>(p.b.data);
    if constexpr (std::is_same_v<B, float>)
      if (p.b.column_stride == 1 && p.b.row_stride == p.n && (p.n == 2 || p.n == 3))
        return p.n == 2 ? pack_pairs_or_triples<2>(b, p.k, to)
                        : pack_pairs_or_triples<3>(b, p.k, to);
    pack_strip(b, p.b.row_stride, p.b.column_stride, p.k, p.k, p.k, p.n, to);
  });
}

int64_t floats_for_packing(const Gemm& problem, const MatmulBlocking& blocking) {
  return with_types(problem, [&]<class A, class B>() {
    return Blocks<A, B>::floats_for_a(problem, blocking) +
           Blocks<A, B>::floats_for_b(problem, blocking);
  });
}

int64_t floats_in_a_vector() { return static_cast<int64_t>(hn::Lanes(F())); }

}  // namespace ejk::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ejk::ops {
namespace {

HWY_EXPORT(multiply_blocks);
HWY_EXPORT(multiply_small);
HWY_EXPORT(multiply_by_dots);
HWY_EXPORT(pack_transposed);
HWY_EXPORT(floats_for_packing);
HWY_EXPORT(floats_in_a_vector);

using Pack = MatmulBlocking::Pack;

// Vectors of 16 would be half empty: with those of 8 less of what is read and written is masked.
bool half_empty(int64_t elements) {
  return elements <= 8 && HWY_DYNAMIC_DISPATCH(floats_in_a_vector)() == 16;
}

// The version of a function for vectors of 8 if it is wanted and was compiled.
template <class Function>
Function* version(bool narrow, std::type_identity_t<Function>* eight, Function& usual) {
  return narrow && eight != nullptr ? eight : &usual;
}

void store(float value, const Matrix& c, int64_t row, int64_t column) {
  void* to = const_cast<void*>(c.at(row, column).data);
  if (c.dtype == DType::float32) *static_cast<float*>(to) = value;
  else *static_cast<BFloat16*>(to) = BFloat16(value);
}

// A stride that leads nowhere must not decide which way is taken.
Gemm without_idle_strides(Gemm p) {
  if (p.m == 1) p.c.row_stride = p.n;
  if (p.n == 1) p.b.column_stride = 0, p.c.column_stride = 1;
  if (p.k == 1) p.a.column_stride = 1;
  return p;
}

// Both lie along k: b is read as it lies, unless it is to be packed.
bool by_dots(const Gemm& p, const MatmulBlocking& blocking) {
  return blocking.pack == Pack::none && p.a.column_stride == 1 && p.b.row_stride == 1 &&
         p.b.column_stride != 1;
}

// How a problem is computed. Its parts are computed as the whole is, whose scratch memory they use.
struct Way {
  bool narrow, narrow_dots;  // vectors of 8 numbers
  bool packed_dots;  // fewer columns than a vector has: b is packed along k, as it has to be for
                     // dots
};

Way way_of(const Gemm& p, const MatmulBlocking& blocking) {
  return {half_empty(p.n), half_empty(p.k),
          blocking.pack == Pack::b && p.a.column_stride == 1 &&
              p.n < HWY_DYNAMIC_DISPATCH(floats_in_a_vector)()};
}

// Where c cannot be written by tiles, blocks of it are computed aside and copied.
constexpr int64_t aside_rows = 256, aside_columns = 1024;

bool needs_aside(const Matrix& c) { return c.dtype != DType::float32 || c.column_stride != 1; }

bool all_are_floats(const Gemm& p) {
  return p.a.dtype == DType::float32 && p.b.dtype == DType::float32 && p.c.dtype == DType::float32;
}

// Neither copied nor divided along k: a, b and c are read and written as they lie.
bool in_one_go(const Gemm& p, const MatmulBlocking& blocking) {
  return blocking.pack == Pack::none && p.m > 0 && p.n > 0 && p.k > 0 && p.k <= blocking.kc &&
         all_are_floats(p) && p.a.column_stride == 1 && p.b.column_stride == 1 &&
         p.c.column_stride == 1;
}

int64_t floats_for(const Gemm& p, const MatmulBlocking& blocking, const Way& way) {
  if (in_one_go(p, blocking)) return 0;
  const int64_t aside =
      needs_aside(p.c) ? std::min(aside_rows, p.m) * std::min(aside_columns, p.n) : 0;
  const int64_t packing = way.packed_dots
                              ? p.n * p.k
                              : version(way.narrow, HWY_CHOOSE_AVX2(floats_for_packing),
                                        HWY_DYNAMIC_DISPATCH(floats_for_packing))(p, blocking);
  return (aside + packing + 31) / 16 * 16;
}

void multiply_along_k(const Gemm& p, bool narrow) {
  version(narrow, HWY_CHOOSE_AVX2(multiply_by_dots), HWY_DYNAMIC_DISPATCH(multiply_by_dots))(p);
}

// False: it is not small, nothing was done.
bool multiply_in_one_go(const Gemm& p, const MatmulBlocking& blocking) {
  if (!in_one_go(p, blocking)) return false;
  const bool narrow = p.k > 16 && half_empty(p.n);
  return version(narrow, HWY_CHOOSE_AVX2(multiply_small), HWY_DYNAMIC_DISPATCH(multiply_small))(
      p, blocking);
}

void multiply(const Gemm& p, const MatmulBlocking& blocking, const Way& way, float* scratch) {
  if (multiply_in_one_go(p, blocking)) return;
  if (by_dots(p, blocking)) return multiply_along_k(p, way.narrow_dots);
  if (way.packed_dots) {
    HWY_DYNAMIC_DISPATCH(pack_transposed)(p, scratch);
    Gemm along_k = p;
    along_k.b = {scratch, DType::float32, 1, p.k};
    return multiply_along_k(along_k, way.narrow_dots);
  }
  version(way.narrow, HWY_CHOOSE_AVX2(multiply_blocks), HWY_DYNAMIC_DISPATCH(multiply_blocks))(
      p, blocking, scratch);
}

void multiply_aside(const Gemm& p, const MatmulBlocking& blocking, const Way& way, float* scratch) {
  float* const packing = scratch + std::min(aside_rows, p.m) * std::min(aside_columns, p.n);
  for (int64_t i = 0; i < p.m; i += aside_rows)
    for (int64_t j = 0; j < p.n; j += aside_columns) {
      const int64_t rows = std::min(aside_rows, p.m - i),
                    columns = std::min(aside_columns, p.n - j);
      Gemm part = p.part(i, rows, j, columns);
      part.c = {scratch, DType::float32, columns, 1};
      multiply(part, blocking, way, packing);
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < columns; ++c) store(scratch[r * columns + c], p.c, i + r, j + c);
    }
}

void multiply_any(const Gemm& p, const MatmulBlocking& blocking, const Way& way, float* scratch) {
  if (p.m == 0 || p.n == 0) return;
  if (p.k == 0) {
    for (int64_t i = 0; i < p.m; ++i)
      for (int64_t j = 0; j < p.n; ++j) store(p.bias != nullptr ? p.bias[j] : 0.f, p.c, i, j);
  } else if (needs_aside(p.c)) {
    multiply_aside(p, blocking, way, scratch);
  } else {
    multiply(p, blocking, way, scratch);
  }
}

class Scratch {
 public:
  float* floats(int64_t count) {
    if (count > size_) grow(static_cast<size_t>(count) * sizeof(float));
    return reinterpret_cast<float*>(memory_.get());
  }

 private:
  void grow(size_t bytes) {
    memory_.reset();
    size_ = 0;
    const bool large = bytes >= base::huge_page / 8;
    const size_t unit = large ? base::huge_page : 64;
    bytes = (bytes + unit - 1) / unit * unit;
    memory_ = large ? base::huge_pages(bytes) : small(bytes);
    size_ = static_cast<int64_t>(bytes / sizeof(float));
  }
  static std::shared_ptr<std::byte> small(size_t bytes) {
    auto* const memory = static_cast<std::byte*>(std::aligned_alloc(64, bytes));
    if (memory == nullptr) throw std::bad_alloc();
    return {memory, [](std::byte* p) { std::free(p); }};
  }

  std::shared_ptr<std::byte> memory_;
  int64_t size_ = 0;
};

// What is worth keeping for the next call of this thread is kept, else it is `own`.
float* scratch_for(int64_t floats, Scratch& own) {
  constexpr int64_t most_kept = int64_t{1} << 25;
  thread_local Scratch kept;
  return floats == 0 ? nullptr : (floats <= most_kept ? kept : own).floats(floats);
}

void multiply_alone(const Gemm& problem, const MatmulBlocking& blocking) {
  // To find out what others need takes longer than some of these. A single column that lies as a
  // row does is left to dots, as it would be in parts.
  const bool one_column = problem.n == 1 && problem.b.row_stride == 1;
  if (one_column && in_one_go(problem, blocking))
    return multiply_along_k(problem, half_empty(problem.k));
  if (multiply_in_one_go(problem, blocking)) return;
  const Gemm whole = without_idle_strides(problem);
  const Way way = way_of(whole, blocking);
  Scratch own;
  multiply_any(whole, blocking, way, scratch_for(floats_for(whole, blocking, way), own));
}

// How many threads divide the rows; the others divide the columns. Little is read twice if the
// parts are square.
int row_parts_for(int threads, int64_t rows, int64_t columns) {
  int best = 1;
  double least = std::numeric_limits<double>::infinity();
  for (int parts = 1; parts <= threads; ++parts) {
    if (threads % parts != 0) continue;
    const int64_t height = (rows + parts - 1) / parts;
    const int64_t width = (columns + threads / parts - 1) / (threads / parts);
    const double work = static_cast<double>(height) * static_cast<double>(width);
    const double cost = work + 16 * static_cast<double>(height + width);
    if (cost < least) least = cost, best = parts;
  }
  return best;
}

}  // namespace

int64_t simd_floats(int64_t columns) {
  return half_empty(columns) ? 8 : HWY_DYNAMIC_DISPATCH(floats_in_a_vector)();
}

bool gemm_can_run(const MatmulBlocking& b) {
  const bool known_tile = (b.vectors >= 1 && b.vectors <= 4) || b.vectors == 8;
  const bool known_pack = b.pack == Pack::none || b.pack == Pack::b || b.pack == Pack::a_and_b;
  constexpr int64_t most = int64_t{1} << 24;  // floats that a thread packs
  return known_tile && known_pack && b.kc > 0 && b.mc > 0 && b.nc > 0 && b.threads > 0 &&
         b.kc * (int64_t{b.mc} + std::max(b.nc, 128)) <= most;
}

void gemm(std::span<const Gemm> problems, const MatmulBlocking& blocking) {
  if (blocking.threads == 1) {
    for (const Gemm& p : problems) multiply_alone(p, blocking);
    return;
  }
  int64_t rows = 0, scratch_floats = 0;
  for (const Gemm& p : problems) {
    rows += p.m;
    const Gemm whole = without_idle_strides(p);
    scratch_floats = std::max(scratch_floats, floats_for(whole, blocking, way_of(whole, blocking)));
  }
  if (rows == 0 || problems[0].n == 0) return;
  const int64_t columns = problems[0].n;
  const int threads =
      static_cast<int>(std::min<int64_t>(blocking.threads, std::max(rows, columns)));
  const int row_parts = row_parts_for(threads, rows, columns);
  const int column_parts = threads / row_parts;
  Scratch own;
  float* const scratch = scratch_for(threads * scratch_floats, own);
  in_parts(threads, threads, [&](int64_t first, int64_t last) {
    for (int64_t part = first; part < last; ++part) {
      const int64_t row_part = part / column_parts, column_part = part % column_parts;
      const int64_t top = rows * row_part / row_parts, bottom = rows * (row_part + 1) / row_parts;
      // Whole cache lines of c.
      const int64_t lines = (columns + 15) / 16;
      const int64_t left = std::min(columns, lines * column_part / column_parts * 16);
      const int64_t right = std::min(columns, lines * (column_part + 1) / column_parts * 16);
      int64_t begin = 0;  // of a problem, in rows of all of them
      for (const Gemm& p : problems) {
        const int64_t from = std::max(top, begin) - begin;
        const int64_t to = std::min(bottom, begin + p.m) - begin;
        begin += p.m;
        if (from >= to || left >= right) continue;
        const Gemm whole = without_idle_strides(p);
        multiply_any(whole.part(from, to - from, left, right - left), blocking,
                     way_of(whole, blocking), scratch + part * scratch_floats);
      }
    }
  });
}

}  // namespace ejk::ops
#endif  // HWY_ONCE
