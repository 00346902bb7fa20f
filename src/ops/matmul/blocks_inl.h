// SPDX-License-Identifier: Apache-2.0
// Matrix products in blocks that stay in the caches. Included once per instruction set by gemm.cpp.
#if defined(EJK_OPS_MATMUL_BLOCKS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef EJK_OPS_MATMUL_BLOCKS_INL_H
#undef EJK_OPS_MATMUL_BLOCKS_INL_H
#else
#define EJK_OPS_MATMUL_BLOCKS_INL_H
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <hwy/highway.h>

#include "ops/matmul/gemm.h"
#include "ops/matmul/pack_inl.h"
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
        strip_(blocking.vectors * lanes),
        max_rows_(static_cast<int64_t>(max_rows(vectors_))),
        pack_a_(packs_a(problem, blocking)),
        copied_row_(copies_rows(problem, blocking) ? step_of_copies(problem, blocking) : 0),
        pack_b_(packs_b(problem, blocking)),
        copy_b_(copies_b(problem, blocking)),
        depths_(evenly(p_.k, blocking.kc)),
        row_blocks_(evenly(p_.m, blocking.mc)),
        max_columns_(blocking.nc),
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
    return both_are_floats && max_rows(2) <= 8 && packs_a(problem, blocking) &&
           problem.a.column_stride == 1;
  }
  // An odd number of cache lines, or rows of a tile would get into the way of each other.
  static int64_t step_of_copies(const Gemm& problem, const MatmulBlocking& blocking) {
    const int64_t lines = (std::min<int64_t>(blocking.kc, problem.k) + 15) / 16;
    return (lines % 2 == 0 ? lines + 1 : lines) * 16;
  }
  static bool packs_b(const Gemm& problem, const MatmulBlocking& blocking) {
    const bool too_many_short_rows =
        !std::is_same_v<B, float> && problem.m > static_cast<int64_t>(max_short_rows);
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
    const int64_t strip = blocking.vectors * lanes;
    if (!packs_b(problem, blocking)) return 0;
    // A part of few rows may need one strip where the whole needs all: room for either.
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
    if (p_.n <= std::max(strip_, max_columns_ - strip_)) return columns(0, p_.n);
    const Even blocks =
        evenly((p_.n + strip_ - 1) / strip_, std::max<int64_t>(1, max_columns_ / strip_));
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
    const Even strips = evenly(last - first, max_rows_);
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
    return !pack_b_ && last_column_ - first_column_ >= min_walked_columns &&
           depth_ <= static_cast<int64_t>(max_walked_depth) &&
           (!side_by_side() || most <= static_cast<int64_t>(max_walked_rows));
  }

  void walk_along(int64_t first, const Even& packed) {
    const Even strips =
        side_by_side() ? packed : evenly(packed.count, static_cast<int64_t>(max_walked_rows));
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
    const auto most = static_cast<int64_t>(max_rows(s.vectors));
    const int64_t above = evenly(count, most).begin(1), below = count - above;
    TileWork<float> work = work_for(b_at(s.column), p_.b.row_stride, s.width, s);
    work.a = a_at(first, 0);
    run_tiles(tiles_of<false, Columns::first, float>(s.vectors), work, {above, 1}, first, 0, s);
    work.a = a_at(first, above);
    if (below > 0) run_tiles(tiles_for<float>(s), work, evenly(below, most), first, above, s);
  }

  // The first tile fetches b and packs it for those below.
  void strip_copied(int64_t first, int64_t count, const Strip& s) requires both_are_floats {
    const auto most = static_cast<int64_t>(max_rows(s.vectors));
    const int64_t above = evenly(count, most).begin(1), below = count - above;
    TileWork<float> work = work_for(b_at(s.column), p_.b.row_stride, s.width, s);
    work.a = a_at(first, 0);
    work.copy = packed_b(s.column);
    run_tiles(tiles_of<false, Columns::copied, float>(s.vectors), work, {above, 1}, first, 0, s);
    work = work_for<float>(packed_b(s.column), packed_width(s), packed_width(s), s);
    work.a = a_at(first, above);
    if (below > 0) run_tiles(tiles_for<float>(s), work, evenly(below, most), first, above, s);
  }

  static int64_t packed_width(const Strip& s) { return static_cast<int64_t>(s.vectors) * lanes; }

  // `packed`: how rows of a were put side by side.
  template <class FromB>
  void strip(const FromB* b, int64_t b_step, int64_t b_width, int64_t first, const Even& packed,
             const Strip& s) {
    const auto most = static_cast<int64_t>(max_rows_with<FromB>(s.vectors));
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
  const int64_t strip_, max_rows_;  // columns and rows of a tile
  const bool pack_a_;
  const int64_t copied_row_;  // from one copied row of a to the next; 0: they are not copied so
  const bool pack_b_, copy_b_;
  const Even depths_, row_blocks_;
  const int64_t max_columns_;  // of a block
  float* const packed_b_;
  float* const packed_a_;
  // the block at work
  int64_t first_column_ = 0, last_column_ = 0, first_k_ = 0, depth_ = 0;
  bool add_ = false;
  const float* bias_ = nullptr;
};

}  // namespace ejk::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
