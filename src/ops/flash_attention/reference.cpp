// SPDX-License-Identifier: Apache-2.0
// Attention in float64, one query after the other, as it stands in the textbook.
#include <cmath>
#include <vector>

#include "ops/flash_attention/problem.h"

namespace ejk::ops {
namespace {

double logit(const AttentionProblem& p, int64_t q_at, int64_t k_at) {
  double dot = 0;
  for (int64_t d = 0; d < p.dim; ++d) dot += p.q.get(q_at + d) * p.k.get(k_at + d);
  dot *= p.scale;
  return p.softcap != 0 ? p.softcap * std::tanh(dot / p.softcap) : dot;
}

}  // namespace

void attention_reference(const AttentionProblem& p, const Rows& out) {
  for (int64_t b = 0; b < p.batch; ++b)
    for (int64_t t = 0; t < p.queries; ++t)
      for (int64_t n = 0; n < p.heads; ++n) {
        const int64_t kv = n / p.heads_per_kv_head();
        const KeyRange seen = p.seen_by(b, t);
        std::vector<double> weights;
        double max = -HUGE_VAL, sum = 0;
        for (int64_t s = seen.begin; s < seen.end; ++s) {
          weights.push_back(logit(p, p.q.offset(b, t, n), p.k.offset(b, s, kv)));
          max = std::max(max, weights.back());
        }
        for (double& w : weights) sum += w = std::exp(w - max);
        for (int64_t d = 0; d < p.dim; ++d) {
          double value = 0;
          for (int64_t s = seen.begin; s < seen.end; ++s)
            value += weights[static_cast<size_t>(s - seen.begin)] / sum *
                     p.v.get(p.v.offset(b, s, kv) + d);
          out.put(out.offset(b, t, n) + d, value);
        }
      }
}

}  // namespace ejk::ops
