// SPDX-License-Identifier: Apache-2.0
// Which blockings can run, and a good guess for a product.
#include "ops/matmul/blocking.h"

#include "base/format.h"
#include "ops/common/refuse.h"

namespace ejk::ops {

using Pack = MatmulBlocking::Pack;

namespace {

// Elements of b that stay in that level of the cache.
constexpr int64_t max_in_first_level = int64_t{96} * 96, max_in_second_level = int64_t{256} * 256;

// Either tiles of which most lanes are idle, or dots along a packed b: what takes less time, in
// tenths of a cycle. Every dot costs a few cycles at its end.
MatmulBlocking few_columns(int64_t m, int64_t n, int64_t k, const Matrix& a) {
  const int64_t by_tiles = m / 8 * (55 * k) + (m % 8 > 0 ? (33 + 3 * (m % 8)) * k : 0);
  const int64_t to_pack = n <= 3 ? k : 6 * n * k;
  const int64_t by_dots = 100 + to_pack + m * n * (k * 10 / 16 + 30);
  const bool dots = a.column_stride == 1 && k > gemm_depth_in_registers() && by_dots < by_tiles;
  return {.pack = dots ? Pack::b : Pack::none, .kc = 4096, .mc = 672, .nc = 256, .vectors = 1};
}

// For a short k. Rows of c are finished while they are in the cache, because strips share lines.
constexpr MatmulBlocking in_registers{
    .pack = Pack::none, .kc = 512, .mc = 48, .nc = 4096, .vectors = 3};

// Twice as wide and twice as many registers move most limits.
MatmulBlocking with_wide_registers(int64_t m, int64_t n, int64_t k, bool rows_collide,
                                   bool a_lies_along_k, bool b_lies_along_k) {
  const int64_t floats = simd_floats(n);
  const bool shallow = k <= gemm_depth_in_registers();
  const bool c_is_large = m * n >= 1 << 18;
  // Little is done with each element of b, which is read as it lies. Where its rows get into the
  // way of each other, few of them at a time.
  const bool much_of_b = n * k > 1 << 20;
  if (!b_lies_along_k && (m <= 48 || (n > 64 && m <= (much_of_b ? 96 : 192)))) {
    if (rows_collide && much_of_b)
      return {.pack = Pack::none, .kc = m <= 8 ? 16 : 64, .mc = 96, .nc = 4096, .vectors = 2};
    if (shallow) return in_registers;
    const int depth = n * k > 1 << 18 ? 64 : 512;  // of what the second level holds
    const bool six_rows = m <= 6 || (m > 8 && m <= 12) || m > 16;
    return {.pack = Pack::none,
            .kc = m > 32 ? 256 : depth,
            .mc = 96,
            .nc = 1024,
            .vectors = six_rows ? 4 : 3};
  }
  if (shallow && (k > 4 || !c_is_large) && n > 64 && !b_lies_along_k) return in_registers;
  if (m * n >= 1 << 15 && n > 128 && k <= 48 && !b_lies_along_k)
    return {.pack = Pack::b, .kc = 512, .mc = c_is_large ? 24 : 48, .nc = 2048, .vectors = 4};
  const int vectors = static_cast<int>(std::min<int64_t>(4, (n + floats - 1) / floats));
  // A tile as wide as b: a is read once and b stays in the cache.
  if (n <= 64 && n * k <= (1 << 18) && !b_lies_along_k)
    return {.pack = Pack::none, .kc = 4096, .mc = 672, .nc = 256, .vectors = vectors};
  // The whole of b stays in the first level as it lies.
  if (n * k <= max_in_first_level && !b_lies_along_k)
    return {.pack = Pack::none, .kc = 256, .mc = 672, .nc = 1024, .vectors = vectors};
  if (n <= 128 || n * k <= max_in_second_level)
    return {.pack = n > 64 && !b_lies_along_k ? Pack::none : Pack::b,
            .kc = 512,
            .mc = 96,
            .nc = 512,
            .vectors = vectors};
  if (a_lies_along_k) return {.pack = Pack::b, .kc = 512, .mc = 48, .nc = 512, .vectors = 4};
  return {.pack = Pack::a_and_b, .kc = 512, .mc = 168, .nc = 1024, .vectors = 2};
}

MatmulBlocking one_thread(int64_t m, int64_t n, int64_t k, const Matrix& a, const Matrix& b) {
  const int64_t floats = simd_floats(n);
  const bool wide = floats >= 16;  // AVX-512
  const bool b_lies_along_k = b.column_stride != 1 && b.row_stride == 1;
  // Dot products of what lies along k.
  if ((m <= 4 || n == 1) && b_lies_along_k && a.column_stride == 1) return {.pack = Pack::none};
  if (n < simd_floats(16)) return few_columns(m, n, k, a);
  // So little is done with each element of b that it is best read in the order in which it lies.
  const int64_t beside = b.row_stride * 4 % 2048;
  const bool rows_collide =  // few places in the caches
      b.row_stride >= 256 && std::min(beside, 2048 - beside) < 64;
  const bool walk = wide ? m == 1 || (m <= 4 && (rows_collide || n * k > 1 << 20)) : m <= 4;
  if (!b_lies_along_k && ((walk && n >= 256) || (!wide && m <= 8 && rows_collide)))
    return {.pack = Pack::none, .kc = 8, .mc = 8, .nc = 4096, .vectors = 2};
  const bool c_is_large = m * n >= 1 << 19;
  if (!wide && !b_lies_along_k && k <= 8 && n > 64 && m > 8) return in_registers;
  if (wide) return with_wide_registers(m, n, k, rows_collide, a.column_stride == 1, b_lies_along_k);
  const int64_t needed = (n + floats - 1) / floats;
  // As many sums at once as hide the time that one takes.
  if (m <= 4 && !b_lies_along_k) {
    const int64_t most = m == 1 ? 8 : m == 2 ? 4 : 3;
    return {.pack = Pack::none,
            .kc = 2048,
            .mc = 96,
            .nc = 1024,
            .vectors = static_cast<int>(needed > 4 ? most : std::min(needed, most))};
  }
  const int vectors = static_cast<int>(std::min<int64_t>(2, needed));
  // To copy b would take longer than to use it, unless its rows get into the way of each other.
  if (!b_lies_along_k && !rows_collide && (m <= 24 || n * k <= max_in_first_level))
    return {
        .pack = Pack::none, .kc = m <= 12 ? 2048 : 512, .mc = 672, .nc = 1024, .vectors = vectors};
  if (m <= 48 && !b_lies_along_k)
    return {.pack = Pack::b, .kc = rows_collide ? 256 : 512, .mc = 96, .nc = 1024, .vectors = 2};
  if (c_is_large && n > 128 && k <= (n % 8 == 0 ? 32 : 96))
    return {.pack = Pack::b, .kc = 512, .mc = 12, .nc = 2048, .vectors = 4};
  if (n <= 128 || n * k <= max_in_second_level) {
    // Rows of a that stay in the second level.
    const int64_t rows = std::clamp<int64_t>(49152 / std::clamp<int64_t>(k, 1, 512), 96, 672);
    return {
        .pack = Pack::b, .kc = 512, .mc = static_cast<int>(rows), .nc = 1024, .vectors = vectors};
  }
  // All rows are one block: less of b and c at a time is what stays in the second level.
  if (m <= 192 && k > 512)
    return {.pack = Pack::a_and_b, .kc = 384, .mc = 192, .nc = 1024, .vectors = 2};
  return {.pack = Pack::a_and_b, .kc = 512, .mc = 192, .nc = 2048, .vectors = 2};
}

}  // namespace

void check_blocking(std::string_view op, std::string_view field, const MatmulBlocking& blocking) {
  if (!gemm_can_run(blocking))
    refuse(op, fmt::format("config.{} = {}", field, to_json(blocking)),
           "positive numbers, vectors from 1 to 4 or 8, and kc (mc + nc) of at most 2^24");
}

MatmulBlocking gemm_heuristic(int64_t batch, int64_t m, int64_t n, int64_t k, const Matrix& a,
                              const Matrix& b) {
  MatmulBlocking guess = one_thread(m, n, k, a, b);
  // A thread costs some tens of microseconds: it must save more.
  constexpr int64_t worth_a_thread = int64_t{1} << 23;  // multiplications
  const int64_t most = std::max<int64_t>(1, batch * m * n * k / worth_a_thread);
  guess.threads = static_cast<int>(std::min<int64_t>(visible_cores(), most));
  return guess;
}

std::vector<MatmulBlocking> variations(const MatmulBlocking& guess) {
  std::vector<MatmulBlocking> all{guess};
  for (const Pack pack : {Pack::none, Pack::b, Pack::a_and_b})
    for (const int kc : {32, 256, 512})
      for (const int threads : thread_counts()) {
        MatmulBlocking other = guess;
        other.pack = pack;
        other.kc = kc;
        other.threads = threads;
        all.push_back(other);
      }
  return all;
}

}  // namespace ejk::ops
