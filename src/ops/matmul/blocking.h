// SPDX-License-Identifier: Apache-2.0
// Blockings of products: which can run, one good guess, and what is worth measuring.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include <ejk/ops/matmul.h>
#include <ejk/parallel.h>
#include <ejk/space.h>

#include "ops/matmul/gemm.h"

namespace ejk::ops {

// Throws Error(invalid_argument) for a blocking that gemm_can_run denies.
void check_blocking(std::string_view op, std::string_view field, const MatmulBlocking& blocking);

// `batch` products of these sizes; of the matrices the strides and types count.
MatmulBlocking gemm_heuristic(int64_t batch, int64_t m, int64_t n, int64_t k, const Matrix& a,
                              const Matrix& b);

// The guess and some others, for products that are tuned beside another one.
std::vector<MatmulBlocking> variations(const MatmulBlocking& guess);

// The blockings worth measuring for one field of a config.
template <class Config>
Space<Config> blocking_space(MatmulBlocking Config::*field, int64_t m, int64_t n, int64_t k) {
  using B = MatmulBlocking;
  using Pack = B::Pack;
  const int64_t floats = simd_floats(n);
  // Of blocks that hold everything, the smallest such is offered.
  const auto up_to = [](int64_t size, const std::vector<int>& values) {
    std::vector<int> out;
    for (const int v : values) {
      out.push_back(v);
      if (v >= size) break;
    }
    return out;
  };
  const bool few_rows = m <= 16;
  return space<Config>()
      .param(field, &B::pack,
             m <= 4 ? std::vector<Pack>{Pack::none, Pack::b}
                    : std::vector<Pack>{Pack::none, Pack::b, Pack::a_and_b})
      .param(field, &B::vectors,
             m == 1 ? std::vector<int>{1, 2, 3, 4, 8} : std::vector<int>{1, 2, 3, 4})
      .where([=](const Config& c) {
        const B& b = c.*field;
        const bool wasteful = (b.vectors - 1) * floats >= n && b.vectors > 1;
        return !wasteful && (few_rows || floats >= 16 || b.vectors <= (n <= 4 * floats ? 4 : 3)) &&
               (b.vectors > 1 || n <= 4 * floats);
      })
      .param(field, &B::kc,
             [=](const Config& c) {
               return (c.*field).pack == Pack::none ? up_to(k, {8, 16, 64, 256, 512, 4096})
                                                    : up_to(k, {128, 192, 256, 384, 512});
             })
      .param(field, &B::nc,
             [=](const Config& c) {
               return (c.*field).pack == Pack::none ? up_to(n, {256, 1024, 4096})
                                                    : up_to(n, {512, 1024, 2048, 4096});
             })
      .param(field, &B::mc,
             [=](const Config& c) {
               return (c.*field).pack == Pack::a_and_b ? up_to(m, {96, 192, 384, 672})
                                                       : up_to(m, {24, 96, 168, 672, 4096});
             })
      .where([=](const Config& c) { return gemm_can_run(c.*field); })
      .param(field, &B::threads, thread_counts());
}

}  // namespace ejk::ops
