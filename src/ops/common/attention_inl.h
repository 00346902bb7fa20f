// SPDX-License-Identifier: Apache-2.0
// What attention does to vectors of logits, and rows as float32. Included once per instruction set.
#if defined(EJK_OPS_ATTENTION_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef EJK_OPS_ATTENTION_INL_H
#undef EJK_OPS_ATTENTION_INL_H
#else
#define EJK_OPS_ATTENTION_INL_H
#endif

#include <cstdint>
#include <cstring>
#include <limits>

#include "ops/simd/exp_inl.h"
#include "ops/simd/vectors_inl.h"

HWY_BEFORE_NAMESPACE();
namespace ejk::ops {
namespace HWY_NAMESPACE {
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

}  // namespace HWY_NAMESPACE
}  // namespace ejk::ops
HWY_AFTER_NAMESPACE();
#endif
