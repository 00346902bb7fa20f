// SPDX-License-Identifier: Apache-2.0
// Rows of a head as float32. Included once per instruction set.
#if defined(EJK_OPS_FLASH_ROWS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef EJK_OPS_FLASH_ROWS_INL_H
#undef EJK_OPS_FLASH_ROWS_INL_H
#else
#define EJK_OPS_FLASH_ROWS_INL_H
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <cstdint>

#include "ops/common/aligned.h"
#include "ops/common/attention_inl.h"
#include "ops/flash_attention/problem.h"

HWY_BEFORE_NAMESPACE();
namespace ejk::ops {
namespace HWY_NAMESPACE {

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
inline float logit_factor(const AttentionProblem& p) {
  return p.softcap != 0 ? p.scale / p.softcap : p.scale * log2_e;
}

// For each lane, whether begin <= key < end.
HWY_INLINE hn::Mask<Floats> sees(const int32_t* begin, const int32_t* end, int64_t key) {
  const hn::RebindToSigned<Floats> di;
  const auto index = hn::Set(di, static_cast<int32_t>(key));
  return hn::RebindMask(
      Floats(), hn::AndNot(hn::Gt(hn::LoadU(di, begin), index), hn::Gt(hn::LoadU(di, end), index)));
}

}  // namespace HWY_NAMESPACE
}  // namespace ejk::ops
HWY_AFTER_NAMESPACE();
#endif
