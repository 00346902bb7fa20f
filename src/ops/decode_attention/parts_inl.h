// SPDX-License-Identifier: Apache-2.0
// What both orders of decoding are made of: the query, ends of rows, heads in fours. Included once
// per instruction set.
#if defined(EJK_OPS_DECODE_PARTS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef EJK_OPS_DECODE_PARTS_INL_H
#undef EJK_OPS_DECODE_PARTS_INL_H
#else
#define EJK_OPS_DECODE_PARTS_INL_H
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "ops/decode_attention/problem.h"
#include "ops/flash_attention/rows_inl.h"

HWY_BEFORE_NAMESPACE();
namespace ejk::ops::HWY_NAMESPACE {

// The vector at `column` of a row of `dim` elements, zeros behind its end.
template <class T>
HWY_INLINE Vector load_part(const T* row, int64_t column, int64_t dim) {
  if (column + lanes <= dim) return load(row + column);
  return load_some(Floats(), row + column, dim - column);
}

// The heads of a query into [heads][step], so that products with keys are logits.
inline void load_query(const DecodeProblem& p, int64_t sequence, int64_t step, float* to) {
  std::fill_n(to, p.heads * step, 0.f);
  for (int64_t n = 0; n < p.heads; ++n)
    load(p.q, p.q.offset(sequence, 0, n), p.dim, logit_factor(p), to + n * step);
}

// go<N>(at) for all of [0, count): four at a time, then two, then one.
template <class Go>
HWY_INLINE void in_fours(int64_t count, const Go& go) {
  int64_t at = 0;
  for (; at + 4 <= count; at += 4) go.template operator()<4>(at);
  if (at + 2 <= count) go.template operator()<2>(at), at += 2;
  if (at < count) go.template operator()<1>(at);
}

}  // namespace ejk::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
