// SPDX-License-Identifier: Apache-2.0
// Which way a matrix product is computed, and its parts among threads. What computes is compiled
// once per instruction set.
#include "ops/matmul/gemm.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <memory>
#include <new>
#include <type_traits>

#include <ejk/parallel.h>

#include "base/format.h"
#include "base/pages.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/matmul/gemm.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/matmul/blocks_inl.h"
#include "ops/matmul/dot_inl.h"
#include "ops/matmul/pack_inl.h"
#include "ops/matmul/small_inl.h"
#include "ops/matmul/tile_inl.h"

HWY_BEFORE_NAMESPACE();
namespace ejk::ops::HWY_NAMESPACE {

// Calls work with the element types of a and b.
template <class Work>
decltype(auto) with_types(const Gemm& problem, const Work& work) {
  using Wide = float;
  using Short = BFloat16;
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

int64_t depth_in_registers() { return static_cast<int64_t>(max_depth_in_registers(1)); }

int64_t floats_in_a_vector() { return lanes; }

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
HWY_EXPORT(depth_in_registers);
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

// The stride of a dimension of size 1 means nothing: it must not influence the algorithm.
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
  if (HWY_DYNAMIC_DISPATCH(multiply_small)(p, blocking)) return true;
  return half_empty(p.n) && version(true, HWY_CHOOSE_AVX2(multiply_small),
                                    HWY_DYNAMIC_DISPATCH(multiply_small))(p, blocking);
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
  constexpr int64_t max_kept = int64_t{1} << 25;
  thread_local Scratch kept;
  return floats == 0 ? nullptr : (floats <= max_kept ? kept : own).floats(floats);
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

int64_t gemm_depth_in_registers() { return HWY_DYNAMIC_DISPATCH(depth_in_registers)(); }

bool gemm_can_run(const MatmulBlocking& b) {
  const bool known_tile = (b.vectors >= 1 && b.vectors <= 4) || b.vectors == 8;
  const bool known_pack = b.pack == Pack::none || b.pack == Pack::b || b.pack == Pack::a_and_b;
  constexpr int64_t most = int64_t{1} << 24;  // floats that a thread packs
  return known_tile && known_pack && b.kc > 0 && b.mc > 0 && b.nc > 0 && b.threads > 0 &&
         b.kc * (int64_t{b.mc} + std::max(b.nc, 128)) <= most;
}

std::string gemm_sums(const Gemm& problem, const MatmulBlocking& blocking, Depth depth) {
  const Gemm p = without_idle_strides(problem);
  if (by_dots(p, blocking) || way_of(p, blocking).packed_dots) return "lanes";  // whatever kc is
  if (p.k <= blocking.kc) return "one stretch";
  if (depth == Depth::up_to_k) return fmt::format("stretches up to {}", blocking.kc);
  return fmt::format("{} stretches", (p.k + blocking.kc - 1) / blocking.kc);  // Blocks, evenly
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
