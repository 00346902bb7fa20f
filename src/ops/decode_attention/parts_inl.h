// SPDX-License-Identifier: Apache-2.0
// What both orders of decoding are made of: the query, sums of vectors, ends of rows, heads in
// fours. Included once per instruction set.
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
namespace ejk::ops {
namespace HWY_NAMESPACE {

// The sums of four vectors.
HWY_INLINE void sums_of_four(V32 a, V32 b, V32 c, V32 e, float* to) {
#if HWY_TARGET == HWY_SCALAR
  to[0] = hn::GetLane(a), to[1] = hn::GetLane(b), to[2] = hn::GetLane(c), to[3] = hn::GetLane(e);
#else
  const F32 d;
  const hn::RepartitionToWide<F32> dw;
  const auto ab =
      hn::BitCast(dw, hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b)));
  const auto ce =
      hn::BitCast(dw, hn::Add(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e)));
  // Every 128 bits: parts of the four sums.
  const V32 parts = hn::Add(hn::BitCast(d, hn::InterleaveLower(dw, ab, ce)),
                            hn::BitCast(d, hn::InterleaveUpper(dw, ab, ce)));
  const auto fold = [](auto tag, auto v, auto self, float* into) HWY_ATTR {
    if constexpr (hn::MaxLanes(tag) == 4) hn::StoreU(v, tag, into);
    else {
      const hn::Half<decltype(tag)> half;
      self(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)), self, into);
    }
  };
  fold(d, parts, fold, to);
#endif
}

// The vector at `column` of a row of `dim` elements, zeros behind its end.
template <class T>
HWY_INLINE V32 load_part(const T* row, int64_t column, int64_t dim) {
  if (column + vector_size <= dim) return load_row(row + column);
  T rest[lanes] = {};
  std::copy(row + column, row + dim, rest);
  return load_row(rest);
}

// The heads of a query into [heads][step], so that products with keys are logits.
inline void load_query(const DecodeProblem& p, int64_t sequence, int64_t step, float* to) {
  std::fill_n(to, p.heads * step, 0.f);
  const float factor = p.softcap != 0 ? p.scale / p.softcap : p.scale * log2_e;
  for (int64_t n = 0; n < p.heads; ++n)
    load(p.q, p.q.offset(sequence, 0, n), p.dim, factor, to + n * step);
}

// go<N>(at) for all of [0, count): four at a time, then two, then one.
template <class Go>
HWY_INLINE void in_fours(int64_t count, const Go& go) {
  int64_t at = 0;
  for (; at + 4 <= count; at += 4) go.template operator()<4>(at);
  if (at + 2 <= count) go.template operator()<2>(at), at += 2;
  if (at < count) go.template operator()<1>(at);
}

}  // namespace HWY_NAMESPACE
}  // namespace ejk::ops
HWY_AFTER_NAMESPACE();
#endif
