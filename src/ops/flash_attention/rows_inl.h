// SPDX-License-Identifier: Apache-2.0
// What attention does to vectors of logits, and rows of a head as float32. Included once per
// instruction set.
#if defined(EJK_OPS_FLASH_ROWS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef EJK_OPS_FLASH_ROWS_INL_H
#undef EJK_OPS_FLASH_ROWS_INL_H
#else
#define EJK_OPS_FLASH_ROWS_INL_H
#endif

#include <cstdint>
#include <cstring>
#include <limits>

#include "ops/common/aligned.h"
#include "ops/flash_attention/problem.h"
#include "ops/simd/exp_inl.h"
#include "ops/simd/vectors_inl.h"

HWY_BEFORE_NAMESPACE();
namespace ejk::ops::HWY_NAMESPACE {

inline constexpr float log2_e = 1.44269504f;
inline constexpr float minus_infinity = -std::numeric_limits<float>::infinity();

HWY_INLINE Vector tanh(Vector x) {
  const Floats d;
  const Vector size = hn::Abs(x);
  // Near 0: x + x^3 p(x^2). Elsewhere 1 - 2 / (e^2x + 1), which is 1 from 9.02 on.
  const Vector square = hn::Mul(x, x);
  Vector p = hn::MulAdd(square, hn::Set(d, -0.00592372613f), hn::Set(d, 0.0208734609f));
  p = hn::MulAdd(square, p, hn::Set(d, -0.0538237579f));
  p = hn::MulAdd(square, p, hn::Set(d, 0.13332583f));
  p = hn::MulAdd(square, p, hn::Set(d, -0.333333284f));
  const Vector near_zero = hn::MulAdd(hn::Mul(x, square), p, x);
  const Vector exp_2x =
      exp2_up_to_127(d, hn::Mul(hn::Min(size, hn::Set(d, 10.f)), hn::Set(d, 2 * log2_e)));
  const Vector one = hn::Set(d, 1.f);
  const Vector far = hn::Sub(one, hn::Div(hn::Set(d, 2.f), hn::Add(exp_2x, one)));
  const Vector found =
      hn::IfThenElse(hn::Lt(size, hn::Set(d, 0.625f)), near_zero, hn::CopySign(far, x));
  return hn::IfThenElse(hn::IsNaN(x), x, found);
}

// `count` elements as float32, times factor.
template <class T>
HWY_INLINE void load_elements(const T* from, int64_t count, float factor, float* to) {
  const Vector factors = all(factor);
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) store(hn::Mul(load(from + i), factors), to + i);
  for (; i < count; ++i) to[i] = as_float(from[i]) * factor;
}

template <class T>
HWY_INLINE void store_elements(const float* from, int64_t count, T* to) {
  if constexpr (sizeof(T) == sizeof(float))
    std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
  else
    for (int64_t i = 0; i < count; ++i) to[i] = T(from[i]);
}

inline int64_t round_up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

// From row to row of a copy. Steps of whole 1 KiB would put the rows of a tile into the same cache
// sets.
inline int64_t row_step(int64_t dim) {
  const int64_t step = round_up(dim, 16);
  return step % 256 == 0 ? step + 16 : step;
}

inline void load(const Rows& rows, int64_t at, int64_t dim, float factor, float* to) {
  if (rows.bf16) load_elements(static_cast<const BFloat16*>(rows.data) + at, dim, factor, to);
  else load_elements(static_cast<const float*>(rows.data) + at, dim, factor, to);
}
template <class T>
HWY_INLINE void prefetch_row(const T* row, int64_t dim) {
  for (int64_t c = 0; c < dim; c += static_cast<int64_t>(64 / sizeof(T))) hwy::Prefetch(row + c);
}
inline void prefetch_row(const Rows& rows, int64_t at, int64_t dim) {
  if (rows.bf16) prefetch_row(static_cast<const BFloat16*>(rows.data) + at, dim);
  else prefetch_row(static_cast<const float*>(rows.data) + at, dim);
}
inline void store(const float* from, int64_t dim, const Rows& rows, int64_t at) {
  if (rows.bf16) store_elements(from, dim, static_cast<BFloat16*>(rows.data) + at);
  else store_elements(from, dim, static_cast<float*>(rows.data) + at);
}

// Logits are kept as multiples of ln 2, or before the cap as multiples of it: q is multiplied with
// this when it is loaded.
template <class Problem>
float logit_factor(const Problem& p) {
  return p.softcap != 0 ? p.scale / p.softcap : p.scale * log2_e;
}

// Logits, whole vectors of them, before the cap become what they are behind it.
HWY_INLINE void cap_logits(float softcap, int64_t count, float* logits) {
  const Floats d;
  const Vector factor = hn::Set(d, softcap * log2_e);
  for (int64_t i = 0; i < count; i += lanes)
    hn::Store(hn::Mul(factor, tanh(hn::Load(d, logits + i))), d, logits + i);
}

// For each lane, whether begin <= key < end.
HWY_INLINE hn::Mask<Floats> sees(const int32_t* begin, const int32_t* end, int64_t key) {
  const hn::RebindToSigned<Floats> di;
  const auto index = hn::Set(di, static_cast<int32_t>(key));
  return hn::RebindMask(
      Floats(), hn::AndNot(hn::Gt(hn::LoadU(di, begin), index), hn::Gt(hn::LoadU(di, end), index)));
}

}  // namespace ejk::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
