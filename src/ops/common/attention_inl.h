// SPDX-License-Identifier: Apache-2.0
// What attention does to vectors of logits, and rows as float32. Included once per instruction set.
#if defined(EJK_OPS_ATTENTION_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef EJK_OPS_ATTENTION_INL_H
#undef EJK_OPS_ATTENTION_INL_H
#else
#define EJK_OPS_ATTENTION_INL_H
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <cstring>
#include <limits>

#include <ejk/tensor.h>

#include "ops/common/exp_inl.h"

HWY_BEFORE_NAMESPACE();
namespace ejk::ops {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using V32 = hn::Vec<F32>;
inline constexpr size_t lanes = hn::MaxLanes(F32());
inline constexpr bool many_registers = HWY_TARGET <= HWY_AVX3;  // 32 instead of 16

inline constexpr float log2_e = 1.44269504f;
inline constexpr float minus_infinity = -std::numeric_limits<float>::infinity();

HWY_INLINE V32 tanh(V32 x) {
  const F32 d;
  const V32 size = hn::Abs(x);
  // Near 0: x + x^3 p(x^2). Elsewhere 1 - 2 / (e^2x + 1), which is 1 from 9.02 on.
  const V32 square = hn::Mul(x, x);
  V32 p = hn::MulAdd(square, hn::Set(d, -0.00592372613f), hn::Set(d, 0.0208734609f));
  p = hn::MulAdd(square, p, hn::Set(d, -0.0538237579f));
  p = hn::MulAdd(square, p, hn::Set(d, 0.13332583f));
  p = hn::MulAdd(square, p, hn::Set(d, -0.333333284f));
  const V32 near_zero = hn::MulAdd(hn::Mul(x, square), p, x);
  const V32 exp_2x =
      exp2_up_to_127(d, hn::Mul(hn::Min(size, hn::Set(d, 10.f)), hn::Set(d, 2 * log2_e)));
  const V32 one = hn::Set(d, 1.f);
  const V32 far = hn::Sub(one, hn::Div(hn::Set(d, 2.f), hn::Add(exp_2x, one)));
  const V32 found =
      hn::IfThenElse(hn::Lt(size, hn::Set(d, 0.625f)), near_zero, hn::CopySign(far, x));
  return hn::IfThenElse(hn::IsNaN(x), x, found);
}

HWY_INLINE V32 load_row(const float* from) { return hn::LoadU(F32(), from); }
HWY_INLINE V32 load_row(const BFloat16* from) {
  const hn::Rebind<uint16_t, F32> d16;
  const hn::Repartition<uint32_t, F32> d32;
  const auto half = hn::LoadU(d16, reinterpret_cast<const uint16_t*>(from));
  return hn::BitCast(F32(), hn::ShiftLeft<16>(hn::PromoteTo(d32, half)));
}

// `count` elements as float32, times factor.
template <class T>
HWY_INLINE void load_elements(const T* from, int64_t count, float factor, float* to) {
  const V32 factors = hn::Set(F32(), factor);
  int64_t i = 0;
  for (; i + static_cast<int64_t>(lanes) <= count; i += static_cast<int64_t>(lanes))
    hn::StoreU(hn::Mul(load_row(from + i), factors), F32(), to + i);
  for (; i < count; ++i) to[i] = static_cast<float>(from[i]) * factor;
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
