// SPDX-License-Identifier: Apache-2.0
// A good guess for the blocking of a product.
#include "ops/matmul/heuristic.h"

namespace ejk::ops {

using Pack = MatmulBlocking::Pack;

namespace {

MatmulBlocking one_thread(int64_t m, int64_t n, int64_t k, const Matrix& a, const Matrix& b) {
  const int64_t floats = simd_floats();
  const bool b_lies_along_k = b.column_stride != 1 && b.row_stride == 1;
  if ((m <= 4 || n == 1) && b_lies_along_k && a.column_stride == 1) return {.pack = Pack::none};
  if (m <= 8 && !b_lies_along_k)
    return {.pack = Pack::none, .kc = 16, .mc = 8, .nc = 4096, .vectors = m == 1 ? 8 : m <= 3 ? 4 : 2};
  if (n <= 4 * floats)
    return {.pack = Pack::b, .kc = 512, .mc = 4096, .nc = 128,
            .vectors = n <= floats ? 1 : 2};
  if (m * n * k <= 128 * 128 * 128)
    return {.pack = b_lies_along_k ? Pack::b : Pack::none, .kc = 256, .mc = 4096, .nc = 1024, .vectors = 2};
  return {.pack = Pack::a_and_b, .kc = 256, .mc = 336, .nc = 1024, .vectors = 2};
}

}  // namespace

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
