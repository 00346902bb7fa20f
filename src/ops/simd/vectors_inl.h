// SPDX-License-Identifier: Apache-2.0
// Vectors of floats, from and to float and bfloat16 elements: what all operations compute with.
// Included once per instruction set.
#if defined(EJK_OPS_VECTORS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef EJK_OPS_VECTORS_INL_H
#undef EJK_OPS_VECTORS_INL_H
#else
#define EJK_OPS_VECTORS_INL_H
#endif

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <ejk/tensor.h>
#include <hwy/cache_control.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace ejk::ops::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using Vector = hn::Vec<Floats>;
using Bits16 = hn::Rebind<uint16_t, Floats>;
using Bits32 = hn::RebindToUnsigned<Floats>;
inline constexpr auto lanes = static_cast<int64_t>(hn::MaxLanes(Floats()));
inline constexpr bool many_registers = HWY_TARGET <= HWY_AVX3;  // 32 instead of 16

HWY_INLINE Vector all(float value) { return hn::Set(Floats(), value); }
HWY_INLINE float sum_of_lanes(Vector v) { return hn::GetLane(hn::SumOfLanes(Floats(), v)); }

HWY_INLINE float as_float(float element) { return element; }
HWY_INLINE float as_float(BFloat16 element) {
  return std::bit_cast<float>(uint32_t{element.bits} << 16);
}

template <class D>
HWY_INLINE hn::Vec<D> load(D d, const float* from) {
  return hn::LoadU(d, from);
}
template <class D>
HWY_INLINE hn::Vec<D> load(D d, const BFloat16* from) {
  const hn::Rebind<uint16_t, D> bits16;
  const auto bits = hn::PromoteTo(hn::RebindToUnsigned<D>(), hn::LoadU(bits16, &from->bits));
  return hn::BitCast(d, hn::ShiftLeft<16>(bits));
}
template <class T>
HWY_INLINE Vector load(const T* from) {
  return load(Floats(), from);
}

// To the nearest, ties to even, as BFloat16(float) does; a NaN stays one.
HWY_INLINE hn::Vec<Bits16> to_bfloat16(Vector v) {
  const Bits32 d;
  const auto bits = hn::BitCast(d, v);
  const auto last_kept = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 1u));
  const auto rounded = hn::Add(bits, hn::Add(last_kept, hn::Set(d, 0x7fffu)));
  const auto quiet = hn::Or(bits, hn::Set(d, 0x400000u));
  const auto chosen = hn::IfThenElse(hn::RebindMask(d, hn::IsNaN(v)), quiet, rounded);
  return hn::TruncateTo(Bits16(), hn::ShiftRight<16>(chosen));
}
HWY_INLINE void store(Vector v, float* to) { hn::StoreU(v, Floats(), to); }
HWY_INLINE void store(Vector v, BFloat16* to) { hn::StoreU(to_bfloat16(v), Bits16(), &to->bits); }
// Past the caches; `to` is aligned to a whole vector of its type.
HWY_INLINE void stream(Vector v, float* to) { hn::Stream(v, Floats(), to); }
HWY_INLINE void stream(Vector v, BFloat16* to) {
  // A vector shorter than what a stream writes at least would run over what is behind it.
  if constexpr (HWY_MAX_BYTES / 2 < HWY_STREAM_MULTIPLE) store(v, to);
  else hn::Stream(to_bfloat16(v), Bits16(), &to->bits);
}

// The first lanes only, zeros in the others; memory behind them is not touched.
template <class D, class T>
HWY_INLINE hn::Vec<D> load_some(D d, const T* from, int64_t count) {
#if HWY_TARGET <= HWY_AVX2  // elsewhere masked loads read all lanes
  if constexpr (sizeof(T) == sizeof(float))
    return hn::MaskedLoad(hn::FirstN(d, static_cast<size_t>(count)), d, from);
#endif
  HWY_ALIGN T buffer[hn::MaxLanes(D())] = {};
  std::memcpy(buffer, from, static_cast<size_t>(count) * sizeof(T));
  return load(d, buffer);
}

#if HWY_TARGET != HWY_SCALAR
// Blocks of four numbers become one.
template <class D>
HWY_INLINE void store_folded(D d, hn::Vec<D> v, float* to) {
  if constexpr (hn::MaxLanes(D()) > 4) {
    const hn::Half<D> half;
    store_folded(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)), to);
  } else hn::StoreU(v, d, to);
}
#endif

// The sums of the lanes of four vectors: four at a time take little longer than one. Each is added
// up in the same order, wherever it stands.
HWY_INLINE void sum_four(Vector x0, Vector x1, Vector x2, Vector x3, float* to) {
#if HWY_TARGET == HWY_SCALAR
  to[0] = hn::GetLane(x0), to[1] = hn::GetLane(x1), to[2] = hn::GetLane(x2);
  to[3] = hn::GetLane(x3);
#else
  const Floats d;
  const hn::RepartitionToWide<Floats> pairs;
  const auto halves = [&](Vector x, Vector y) HWY_ATTR {  // of each block: x y x y
    return hn::BitCast(pairs, hn::Add(hn::InterleaveLower(d, x, y), hn::InterleaveUpper(d, x, y)));
  };
  const auto x01 = halves(x0, x1), x23 = halves(x2, x3);
  store_folded(d,
               hn::Add(hn::BitCast(d, hn::InterleaveLower(pairs, x01, x23)),
                       hn::BitCast(d, hn::InterleaveUpper(pairs, x01, x23))),
               to);
#endif
}

#if HWY_TARGET != HWY_SCALAR
// Four rows of four become four columns of four.
template <class T>
HWY_INLINE void transpose_four(const T* from, int64_t row, float* to, int64_t to_row) {
  const hn::FixedTag<float, 4> d;
  const auto r0 = load(d, from), r1 = load(d, from + row);
  const auto r2 = load(d, from + 2 * row), r3 = load(d, from + 3 * row);
  const auto low02 = hn::InterleaveLower(d, r0, r2), low13 = hn::InterleaveLower(d, r1, r3);
  const auto high02 = hn::InterleaveUpper(d, r0, r2), high13 = hn::InterleaveUpper(d, r1, r3);
  hn::StoreU(hn::InterleaveLower(d, low02, low13), d, to);
  hn::StoreU(hn::InterleaveUpper(d, low02, low13), d, to + to_row);
  hn::StoreU(hn::InterleaveLower(d, high02, high13), d, to + 2 * to_row);
  hn::StoreU(hn::InterleaveUpper(d, high02, high13), d, to + 3 * to_row);
}
#endif

}  // namespace ejk::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
