// SPDX-License-Identifier: Apache-2.0
// One part of one sequence, all kv heads of a position, then the next position: memory is read
// strictly in order, which the processor itself fetches ahead of. Two rows side by side take half
// as long again, and prefetch instructions only delay it. Sums go through the first-level cache.
// Included once per instruction set.
#if defined(EJK_OPS_DECODE_BY_POSITION_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef EJK_OPS_DECODE_BY_POSITION_INL_H
#undef EJK_OPS_DECODE_BY_POSITION_INL_H
#else
#define EJK_OPS_DECODE_BY_POSITION_INL_H
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cstdint>

#include "ops/decode_attention/parts_inl.h"
#include "ops/decode_attention/problem.h"

HWY_BEFORE_NAMESPACE();
namespace ejk::ops::HWY_NAMESPACE {

template <class T>
class ByPosition {
 public:
  ByPosition(const DecodeProblem& problem, int64_t block)
      : p_(problem), block_(std::min(block, std::max<int64_t>(problem.positions, 1))) {
    // Lanes of no head are computed with, so they must be numbers.
    std::fill_n(weights_.get(), round_up(block_ * width_, lanes), 0.f);
  }

  // out [heads][step] gets sums of weights times values; max and sum [heads] what they are
  // relative to and the sums of weights.
  void run(int64_t sequence, KeyRange range, float* out, float* max, float* sum) {
    std::fill_n(out, p_.heads * step_, 0.f);
    std::fill_n(max, p_.heads, minus_infinity);
    std::fill_n(sum, p_.heads, 0.f);
    if (range.empty()) return;
    load_query(p_, sequence, step_, q_.get());
    for (int64_t begin = range.begin; begin < range.end; begin += block_) {
      const KeyRange block{begin, std::min(begin + block_, range.end)};
      make_logits(sequence, block);
      softmax(block.end - block.begin, max, sum);
      scale(out);
      add_values(sequence, block, out);
    }
  }

  int64_t step() const { return step_; }

 private:
  const T* row(const Rows& rows, int64_t sequence, int64_t position) const {
    return static_cast<const T*>(rows.data) + p_.offset(rows, sequence, position);
  }

  void make_logits(int64_t sequence, KeyRange block) {
    const int64_t group = p_.heads_per_kv_head(), next = p_.k.head_stride, step = step_;
    const int64_t heads = p_.heads, dim = p_.dim;
    float* to = weights_.get();
    for (int64_t i = block.begin; i < block.end; ++i, to += width_) {
      const T* keys = row(p_.k, sequence, i);
      if (group == 1)
        in_fours(heads, [&]<int Heads>(int64_t n) {
          dot_rows<Heads>(keys + n * next, next, q_.get() + n * step, step, dim, to + n);
        });
      else
        for (int64_t n = 0; n < heads; n += group, keys += next)
          in_fours(group, [&]<int Heads>(int64_t g) {
            dot_row<Heads>(keys, q_.get() + (n + g) * step, step, dim, to + n + g);
          });
    }
  }

  // Of heads that have a row each.
  template <int Heads>
  static HWY_INLINE void dot_rows(const T* keys, int64_t next, const float* q, int64_t step,
                                  int64_t dim, float* to) {
    const Floats d;
    Vector sums[Heads];
#pragma GCC unroll 4
    for (int h = 0; h < Heads; ++h, keys += next, q += step) {
      Vector sum = hn::Zero(d);
      int64_t c = 0;
      for (; c + lanes <= dim; c += lanes)
        sum = hn::MulAdd(hn::Load(d, q + c), load(keys + c), sum);
      if (c < dim) sum = hn::MulAdd(hn::Load(d, q + c), load_part(keys, c, dim), sum);
      sums[h] = sum;
    }
    put<Heads>(sums, to);
  }

  // Of heads that share a row.
  template <int Heads>
  static HWY_INLINE void dot_row(const T* keys, const float* q, int64_t step, int64_t dim,
                                 float* to) {
    const Floats d;
    Vector sums[Heads];
#pragma GCC unroll 4
    for (int h = 0; h < Heads; ++h) sums[h] = hn::Zero(d);
    const auto add = [&](int64_t c, Vector part) HWY_ATTR {
#pragma GCC unroll 4
      for (int h = 0; h < Heads; ++h)
        sums[h] = hn::MulAdd(hn::Load(d, q + h * step + c), part, sums[h]);
    };
    int64_t c = 0;
    for (; c + lanes <= dim; c += lanes) add(c, load(keys + c));
    if (c < dim) add(c, load_part(keys, c, dim));
    put<Heads>(sums, to);
  }

  template <int Heads>
  static HWY_INLINE void put(const Vector* sums, float* to) {
    if constexpr (Heads == 4) sum_four(sums[0], sums[1], sums[2], sums[3], to);
    else
      for (int h = 0; h < Heads; ++h) to[h] = sum_of_lanes(sums[h]);
  }

  // Logits become weights relative to the largest one so far, and factors_ what the sums so far are
  // to be multiplied with. Lane l of a period is head l % width: of several positions if there are
  // fewer heads than lanes.
  void softmax(int64_t count, float* max, float* sum) {
    const Floats d;
    float* weights = weights_.get();
    const int64_t used = count * width_, padded = round_up(used, lanes);
    if (p_.softcap != 0) cap_logits(p_.softcap, used, weights);
    std::fill(weights + used, weights + padded, minus_infinity);
    for (int64_t lane = 0; lane < period_; lane += lanes) {
      Vector largest = hn::Load(d, weights + lane);
      for (int64_t i = lane + period_; i < padded; i += period_)
        largest = hn::Max(largest, hn::Load(d, weights + i));
      hn::Store(largest, d, of_lanes_.get() + lane);
    }
    for (int64_t n = 0; n < width_; ++n) set_base(n, n < p_.heads ? max + n : nullptr);
    for (int64_t lane = 0; lane < period_; lane += lanes) {
      const Vector base = hn::Load(d, of_lanes_.get() + lane);
      Vector total = hn::Zero(d);
      for (int64_t i = lane; i < padded; i += period_) {
        const Vector weight = exp2_up_to_127(d, hn::Sub(hn::Load(d, weights + i), base));
        hn::Store(weight, d, weights + i);
        total = hn::Add(total, weight);
      }
      hn::Store(total, d, of_lanes_.get() + lane);
      hn::Store(exp2_up_to_127(d, hn::Load(d, factors_.get() + lane)), d, factors_.get() + lane);
    }
    for (int64_t n = 0; n < p_.heads; ++n) {
      sum[n] *= factors_[static_cast<size_t>(n)];
      for (int64_t l = n; l < period_; l += width_) sum[n] += of_lanes_[static_cast<size_t>(l)];
    }
  }

  // From the largest logit of each lane to what the head's weights are relative to.
  void set_base(int64_t head, float* max) {
    const float old = max != nullptr ? *max : minus_infinity;
    float largest = old;
    for (int64_t l = head; l < period_; l += width_)
      largest = std::max(largest, of_lanes_[static_cast<size_t>(l)]);
    if (max != nullptr) *max = largest;
    // So far nothing but -inf: 0 instead keeps the weights at 0.
    const float base = largest == minus_infinity ? 0.f : largest;
    for (int64_t l = head; l < period_; l += width_) {
      of_lanes_[static_cast<size_t>(l)] = base;
      factors_[static_cast<size_t>(l)] = old - base;
    }
  }

  void scale(float* out) const {
    const Floats d;
    for (int64_t n = 0; n < p_.heads; ++n, out += step_) {
      const Vector factor = hn::Set(d, factors_[static_cast<size_t>(n)]);
      for (int64_t c = 0; c < step_; c += lanes)
        hn::Store(hn::Mul(hn::Load(d, out + c), factor), d, out + c);
    }
  }

  void add_values(int64_t sequence, KeyRange block, float* out) {
    const int64_t group = p_.heads_per_kv_head(), next = p_.v.head_stride, step = step_;
    const int64_t heads = p_.heads, dim = p_.dim;
    const float* weights = weights_.get();
    for (int64_t i = block.begin; i < block.end; ++i, weights += width_) {
      const T* values = row(p_.v, sequence, i);
      for (int64_t n = 0; n < heads; n += group, values += next) {
        int64_t c = 0;
        const auto add = [&]<int Vectors>() {
          add_columns<Vectors>(values + c, dim - c, weights + n, group, out + n * step + c, step);
          c += Vectors * lanes;
        };
        while (c + 4 * lanes <= dim) add.template operator()<4>();
        while (c < dim) add.template operator()<1>();
      }
    }
  }

  // A part of a row to the heads that share it.
  template <int Vectors>
  static HWY_INLINE void add_columns(const T* values, int64_t columns, const float* weights,
                                     int64_t group, float* out, int64_t step) {
    const Floats d;
    Vector parts[Vectors];
#pragma GCC unroll 4
    for (int j = 0; j < Vectors; ++j)
      parts[j] = Vectors == 1 ? load_part(values, 0, columns) : load(values + j * lanes);
    for (int64_t g = 0; g < group; ++g, out += step) {
      const Vector weight = hn::Set(d, weights[g]);
#pragma GCC unroll 4
      for (int j = 0; j < Vectors; ++j)
        hn::Store(hn::MulAdd(weight, parts[j], hn::Load(d, out + j * lanes)), d, out + j * lanes);
    }
  }

  const DecodeProblem& p_;
  const int64_t block_, step_ = round_up(p_.dim, lanes);
  // Of a position: its heads, and lanes of no head that make vectors whole.
  const int64_t width_ = p_.heads < lanes
                             ? static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(p_.heads)))
                             : round_up(p_.heads, lanes);
  // After so many lanes the heads are the same again: whole vectors.
  const int64_t period_ = std::max(width_, lanes);
  AlignedFloats q_ = floats(p_.heads * step_);                        // [heads][step]
  AlignedFloats weights_ = floats(round_up(block_ * width_, lanes));  // [block][width]
  AlignedFloats of_lanes_ = floats(period_), factors_ = floats(period_);
};

}  // namespace ejk::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
