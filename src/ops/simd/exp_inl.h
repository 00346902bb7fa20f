// SPDX-License-Identifier: Apache-2.0
// exp and exp2 of a vector of floats. Included once per instruction set.
#if defined(EJK_OPS_EXP_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef EJK_OPS_EXP_INL_H
#undef EJK_OPS_EXP_INL_H
#else
#define EJK_OPS_EXP_INL_H
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace ejk::ops::HWY_NAMESPACE {

// Both functions cut x into a whole number n of base-2 exponents and a rest r. At 1.5 * 2^23 an ulp
// is 1: adding that rounds to n, which is then, with the bias of an exponent, in the lowest bits.
inline constexpr float exp_rounder = 0x1.8p23f + 127;
// The polynomials 1 + c[4] r + ... + c[0] r^5 whose largest relative error between -1/2 and 1/2,
// and between -ln 2 / 2 and ln 2 / 2, is least: 9.2e-8.
inline constexpr float exp2_terms[5] = {0x1.5bb9dcp-10f, 0x1.3ceab6p-7f, 0x1.c6b754p-5f,
                                        0x1.ebf9bcp-3f, 0x1.62e42ap-1f};
inline constexpr float exp_terms[5] = {0.008290294574776168f, 0.041898022898460584f,
                                       0.16667637017022802f, 0.49999148839598634f,
                                       0.9999997068226848f};

// The larger one; a NaN of x stays.
template <class D, class V = hwy::HWY_NAMESPACE::Vec<D>>
HWY_INLINE V at_least(D d, float least, V x) {
  namespace hn = hwy::HWY_NAMESPACE;
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
  return hn::Max(hn::Set(d, least), x);  // one instruction, which gives the second one for a NaN
#else
  return hn::IfThenElse(hn::Lt(x, hn::Set(d, least)), hn::Set(d, least), x);
#endif
}

// The polynomial of r times 2^n, where `shifted` is n + exp_rounder. The exponent of n = -127 is
// the one of 0.
template <class D, class V = hwy::HWY_NAMESPACE::Vec<D>>
HWY_INLINE V exp_of_parts(D d, V shifted, V r, const float (&c)[5]) {
  namespace hn = hwy::HWY_NAMESPACE;
  V p = hn::MulAdd(hn::Set(d, c[0]), r, hn::Set(d, c[1]));
  p = hn::MulAdd(p, r, hn::Set(d, c[2]));
  p = hn::MulAdd(p, r, hn::Set(d, c[3]));
  p = hn::MulAdd(p, r, hn::Set(d, c[4]));
  p = hn::MulAdd(p, r, hn::Set(d, 1.f));
  const hn::RebindToSigned<D> bits;
  return hn::Mul(p, hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(bits, shifted))));
}

// 2^x for x below 127.5 and exp(x) for x up to 88, both with a relative error below 2e-7 and
// exactly 1 for 0. From x = -126.5 or -87.69 on down to -inf they are exactly 0. NaN stays NaN.
template <class D, class V = hwy::HWY_NAMESPACE::Vec<D>>
HWY_INLINE V exp2_up_to_127(D d, V given) {
  namespace hn = hwy::HWY_NAMESPACE;
  const V x = at_least(d, -127.f, given), rounder = hn::Set(d, exp_rounder);
  const V shifted = hn::Add(x, rounder);
  return exp_of_parts(d, shifted, hn::Sub(x, hn::Sub(shifted, rounder)), exp2_terms);
}

template <class D, class V = hwy::HWY_NAMESPACE::Vec<D>>
HWY_INLINE V exp_up_to_88(D d, V given) {
  namespace hn = hwy::HWY_NAMESPACE;
  const V x = at_least(d, -88.f, given), rounder = hn::Set(d, exp_rounder);
  const V shifted = hn::MulAdd(x, hn::Set(d, 0x1.715476p0f), rounder);  // 1 / ln 2
  const V n = hn::Sub(shifted, rounder);
  // ln 2 in two parts, so that n times the first is exact.
  V r = hn::NegMulAdd(n, hn::Set(d, 0x1.62e4p-1f), x);
  r = hn::NegMulAdd(n, hn::Set(d, 0x1.7f7d1cp-20f), r);
  return exp_of_parts(d, shifted, r, exp_terms);
}

}  // namespace ejk::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
