// SPDX-License-Identifier: Apache-2.0
// exp of a vector of floats. Included once per instruction set.
#if defined(EJK_OPS_EXP_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef EJK_OPS_EXP_INL_H
#undef EJK_OPS_EXP_INL_H
#else
#define EJK_OPS_EXP_INL_H
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace ejk::ops {
namespace HWY_NAMESPACE {

// exp(x) for x up to 88, with a relative error below 2e-7; exactly 1 for 0. From -87.69 on down to
// -inf it is exactly 0. NaN stays NaN.
template <class D, class V = hwy::HWY_NAMESPACE::Vec<D>>
HWY_INLINE V exp_up_to_88(D d, V given) {
  namespace hn = hwy::HWY_NAMESPACE;
  const auto c = [d](float value) HWY_ATTR { return hn::Set(d, value); };
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
  const V x = hn::Max(c(-88.f), given);  // one instruction, which gives the second one for a NaN
#else
  const V x = hn::IfThenElse(hn::Lt(given, c(-88.f)), c(-88.f), given);
#endif
  // x = n ln 2 + r with |r| <= ln 2 / 2. At 1.5 * 2^23 an ulp is 1: adding that rounds x / ln 2 to
  // n and leaves n, with the bias of an exponent, in the lowest bits.
  const V rounder = c(0x1.8p23f + 127);
  const V shifted = hn::MulAdd(x, c(0x1.715476p0f), rounder);  // 1 / ln 2
  const V n = hn::Sub(shifted, rounder);
  // ln 2 in two parts, so that n times the first is exact.
  V r = hn::NegMulAdd(n, c(0x1.62e4p-1f), x);
  r = hn::NegMulAdd(n, c(0x1.7f7d1cp-20f), r);
  // The polynomial whose largest relative error there is least: 9.2e-8.
  V p = hn::MulAdd(c(0.008290294574776168f), r, c(0.041898022898460584f));
  p = hn::MulAdd(p, r, c(0.16667637017022802f));
  p = hn::MulAdd(p, r, c(0.49999148839598634f));
  p = hn::MulAdd(p, r, c(0.9999997068226848f));
  p = hn::MulAdd(p, r, c(1.f));
  // 2^n; the exponent of -127 is the one of 0.
  const hn::RebindToSigned<D> bits;
  return hn::Mul(p, hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(bits, shifted))));
}

}  // namespace HWY_NAMESPACE
}  // namespace ejk::ops
HWY_AFTER_NAMESPACE();
#endif
