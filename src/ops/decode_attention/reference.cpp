// SPDX-License-Identifier: Apache-2.0
// Decoding as attention over whole sequences, position by position, in float64.
#include <cmath>
#include <vector>

#include "ops/decode_attention/problem.h"

namespace ejk::ops {
namespace {

double element(const Rows& rows, int64_t at) {
  return rows.bf16 ? static_cast<float>(static_cast<const BFloat16*>(rows.data)[at])
                   : static_cast<const float*>(rows.data)[at];
}

}  // namespace

void decode_reference(const DecodeProblem& p, const Rows& out) {
  for (int64_t b = 0; b < p.batch; ++b)
    for (int64_t n = 0; n < p.heads; ++n) {
      const int64_t kv = n / p.heads_per_kv_head();
      const KeyRange seen = p.seen(b);
      std::vector<double> weights;
      double max = -HUGE_VAL, sum = 0;
      for (int64_t s = seen.begin; s < seen.end; ++s) {
        double dot = 0;
        for (int64_t d = 0; d < p.dim; ++d)
          dot += element(p.q, p.q.offset(b, 0, n) + d) *
                 element(p.k, p.offset(p.k, b, s) + kv * p.k.head_stride + d);
        dot *= p.scale;
        weights.push_back(p.softcap != 0 ? p.softcap * std::tanh(dot / p.softcap) : dot);
        max = std::max(max, weights.back());
      }
      for (double& w : weights) sum += w = std::exp(w - max);
      for (int64_t d = 0; d < p.dim; ++d) {
        double value = 0;
        for (int64_t s = seen.begin; s < seen.end; ++s)
          value += weights[static_cast<size_t>(s - seen.begin)] / sum *
                   element(p.v, p.offset(p.v, b, s) + kv * p.v.head_stride + d);
        const int64_t at = out.offset(b, 0, n) + d;
        if (out.bf16) static_cast<BFloat16*>(out.data)[at] = BFloat16(static_cast<float>(value));
        else static_cast<float*>(out.data)[at] = static_cast<float>(value);
      }
    }
}

}  // namespace ejk::ops
