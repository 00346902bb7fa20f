// SPDX-License-Identifier: Apache-2.0
// Decoding as attention over whole sequences, position by position, in float64.
#include <cmath>
#include <vector>

#include "ops/decode_attention/problem.h"

namespace ejk::ops {
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
          dot += p.q.get(p.q.offset(b, 0, n) + d) *
                 p.k.get(p.offset(p.k, b, s) + kv * p.k.head_stride + d);
        dot *= p.scale;
        weights.push_back(p.softcap != 0 ? p.softcap * std::tanh(dot / p.softcap) : dot);
        max = std::max(max, weights.back());
      }
      for (double& w : weights) sum += w = std::exp(w - max);
      for (int64_t d = 0; d < p.dim; ++d) {
        double value = 0;
        for (int64_t s = seen.begin; s < seen.end; ++s)
          value += weights[static_cast<size_t>(s - seen.begin)] / sum *
                   p.v.get(p.offset(p.v, b, s) + kv * p.v.head_stride + d);
        out.put(out.offset(b, 0, n) + d, value);
      }
    }
}

}  // namespace ejk::ops
