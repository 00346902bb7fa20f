// SPDX-License-Identifier: Apache-2.0
// One part of one sequence, a few positions of a kv head at a time, then the next head: sums stay
// in registers. For many heads of q that share one of k and v, and for few of k and v. Included
// once per instruction set.
#if defined(EJK_OPS_DECODE_BY_HEAD_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef EJK_OPS_DECODE_BY_HEAD_INL_H
#undef EJK_OPS_DECODE_BY_HEAD_INL_H
#else
#define EJK_OPS_DECODE_BY_HEAD_INL_H
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ops/decode_attention/parts_inl.h"
#include "ops/decode_attention/problem.h"

HWY_BEFORE_NAMESPACE();
namespace ejk::ops::HWY_NAMESPACE {

inline constexpr int keys_at_once = 4;
// The processor alone does not ask for memory early enough: keys are asked for so many positions
// before they are needed, values while logits are made.
inline constexpr int64_t keys_ahead = 16;

template <class T>
class ByHead {
 public:
  ByHead(const DecodeProblem& problem, int64_t block)
      : p_(problem), block_(std::min(block, std::max<int64_t>(problem.positions, 1))) {}

  // out [heads][step] gets sums of weights times values; max and sum [heads] what they are
  // relative to and the sums of weights.
  void run(int64_t sequence, KeyRange range, float* out, float* max, float* sum) {
    out_ = out, max_ = max, sum_ = sum;
    std::fill_n(out, p_.heads * step_, 0.f);
    std::fill_n(max, p_.heads, minus_infinity);
    std::fill_n(sum, p_.heads, 0.f);
    if (range.empty()) return;
    load_query(p_, sequence, step_, q_.get());
    // Heads of a position that are neighbours in memory are read together.
    const int64_t at_once = side_by_side(p_.k) ? p_.kv_heads : 1;
    for (int64_t first = 0; first < p_.kv_heads; first += at_once)
      for (int64_t begin = range.begin; begin < range.end; begin += block_)
        keys(sequence, {begin, std::min(begin + block_, range.end)}, range.end, first,
             first + at_once);
  }

  int64_t step() const { return step_; }

 private:
  void keys(int64_t sequence, KeyRange range, int64_t last, int64_t first_head, int64_t last_head) {
    const int64_t count = range.end - range.begin;
    for (int64_t i = 0; i < count; ++i)
      value_at_[static_cast<size_t>(i)] = p_.offset(p_.v, sequence, range.begin + i);
    for (int64_t i = 0; i < count + keys_ahead; ++i)
      key_at_[static_cast<size_t>(i)] =
          p_.offset(p_.k, sequence, std::min(range.begin + i, last - 1));
    const int64_t group = p_.heads_per_kv_head();
    for (int64_t i = 0; i < count; i += keys_at_once) make_logits(i, count, first_head, last_head);
    for (int64_t n = first_head * group; n < last_head * group; ++n) softmax(n, count);
    // A few positions at a time, so that they are still in the cache for the next head.
    constexpr int64_t few = 32;
    for (int64_t i = 0; i < count; i += few)
      for (int64_t head = first_head; head < last_head; ++head)
        add_values(head, i, std::min(i + few, count));
  }

  const T* key_row(int64_t i, int64_t head) const {
    return static_cast<const T*>(p_.k.data) + key_at_[static_cast<size_t>(i)] +
           head * p_.k.head_stride;
  }
  const T* value_row(int64_t i, int64_t head) const {
    return static_cast<const T*>(p_.v.data) + value_at_[static_cast<size_t>(i)] +
           head * p_.v.head_stride;
  }

  void make_logits(int64_t i, int64_t count, int64_t first_head, int64_t last_head) {
    const int64_t group = p_.heads_per_kv_head();
    for (int64_t head = first_head; head < last_head; ++head) {
      const T* rows[keys_at_once];
      for (int64_t j = 0; j < keys_at_once; ++j)
        rows[j] = key_row(std::min(i + j, count - 1), head);
      for (int64_t j = i; j < std::min(i + keys_at_once, count); ++j) {
        prefetch_row(key_row(j + keys_ahead, head), p_.dim);
        prefetch_row(value_row(j, head), p_.dim);
      }
      in_fours(group,
               [&]<int Heads>(int64_t g) { dot_products<Heads>(rows, head * group + g, i); });
    }
  }

  template <int Heads>
  HWY_INLINE void dot_products(const T* const* rows, int64_t head, int64_t i) {
    const Floats d;
    Vector sum[Heads][keys_at_once];
#pragma GCC unroll 4
    for (int h = 0; h < Heads; ++h)
#pragma GCC unroll 4
      for (int j = 0; j < keys_at_once; ++j) sum[h][j] = hn::Zero(d);
    const auto add = [&](int64_t c, const Vector* keys) HWY_ATTR {
#pragma GCC unroll 4
      for (int h = 0; h < Heads; ++h) {
        const Vector q = hn::Load(d, q_.get() + (head + h) * step_ + c);
#pragma GCC unroll 4
        for (int j = 0; j < keys_at_once; ++j) sum[h][j] = hn::MulAdd(q, keys[j], sum[h][j]);
      }
    };
    int64_t c = 0;
    Vector keys[keys_at_once];
    for (; c + lanes <= p_.dim; c += lanes) {
#pragma GCC unroll 4
      for (int j = 0; j < keys_at_once; ++j) keys[j] = load(rows[j] + c);
      add(c, keys);
    }
    if (c < p_.dim) {
      for (int j = 0; j < keys_at_once; ++j) keys[j] = load_part(rows[j], c, p_.dim);
      add(c, keys);
    }
#pragma GCC unroll 4
    for (int h = 0; h < Heads; ++h)
      sum_four(sum[h][0], sum[h][1], sum[h][2], sum[h][3],
               logits_.get() + (head + h) * logits_step_ + i);
  }

  // Logits of a head become weights relative to the largest one so far.
  void softmax(int64_t head, int64_t count) {
    const Floats d;
    float* logits = logits_.get() + head * logits_step_;
    const int64_t padded = round_up(count, lanes);
    if (p_.softcap != 0) cap_logits(p_.softcap, padded, logits);
    std::fill(logits + count, logits + padded, minus_infinity);
    Vector max = hn::Set(d, max_[head]);
    for (int64_t i = 0; i < padded; i += lanes) max = hn::Max(max, hn::Load(d, logits + i));
    const float old = max_[head], largest = hn::GetLane(hn::MaxOfLanes(d, max));
    max_[head] = largest;
    // So far nothing but -inf: 0 instead keeps the weights at 0.
    const Vector base = hn::Set(d, largest == minus_infinity ? 0.f : largest);
    Vector sum = hn::Zero(d);
    for (int64_t i = 0; i < padded; i += lanes) {
      const Vector weight = exp2_up_to_127(d, hn::Sub(hn::Load(d, logits + i), base));
      hn::Store(weight, d, logits + i);
      sum = hn::Add(sum, weight);
    }
    const Vector factor = exp2_up_to_127(d, hn::Sub(hn::Set(d, old), base));
    sum_[head] = sum_[head] * hn::GetLane(factor) + sum_of_lanes(sum);
    float* out = out_ + head * step_;
    for (int64_t c = 0; c < step_; c += lanes)
      hn::Store(hn::Mul(hn::Load(d, out + c), factor), d, out + c);
  }

  void add_values(int64_t kv_head, int64_t begin, int64_t end) {
    const int64_t group = p_.heads_per_kv_head();
    in_fours(group, [&]<int Heads>(int64_t g) {
      int64_t c = 0;
      const auto columns = [&]<int Vectors>() {
        for (; c + Vectors * lanes <= p_.dim; c += Vectors * lanes)
          add_values<Heads, Vectors>(kv_head, kv_head * group + g, begin, end, c);
      };
      if constexpr (Heads == 1) columns.template operator()<8>();
      columns.template operator()<4>();
      columns.template operator()<2>();
      for (; c < p_.dim; c += lanes)
        add_values<Heads, 1>(kv_head, kv_head * group + g, begin, end, c);
    });
  }

  template <int Heads, int Vectors>
  HWY_INLINE void add_values(int64_t kv_head, int64_t head, int64_t begin, int64_t end,
                             int64_t column) {
    const Floats d;
    Vector sum[Heads][Vectors];
    float* out = out_ + head * step_ + column;
#pragma GCC unroll 4
    for (int h = 0; h < Heads; ++h)
#pragma GCC unroll 8
      for (int j = 0; j < Vectors; ++j) sum[h][j] = hn::Load(d, out + h * step_ + j * lanes);
    for (int64_t i = begin; i < end; ++i) {
      const T* row = value_row(i, kv_head) + column;
      Vector values[Vectors];
#pragma GCC unroll 8
      for (int j = 0; j < Vectors; ++j)
        values[j] = Vectors == 1 ? load_part(row, 0, p_.dim - column) : load(row + j * lanes);
#pragma GCC unroll 4
      for (int h = 0; h < Heads; ++h) {
        const Vector weight =
            hn::Set(d, logits_[static_cast<size_t>((head + h) * logits_step_ + i)]);
#pragma GCC unroll 8
        for (int j = 0; j < Vectors; ++j) sum[h][j] = hn::MulAdd(weight, values[j], sum[h][j]);
      }
    }
#pragma GCC unroll 4
    for (int h = 0; h < Heads; ++h)
#pragma GCC unroll 8
      for (int j = 0; j < Vectors; ++j) hn::Store(sum[h][j], d, out + h * step_ + j * lanes);
  }

  const DecodeProblem& p_;
  const int64_t block_, step_ = round_up(p_.dim, lanes);
  const int64_t logits_step_ = round_up(block_, std::max<int64_t>(lanes, keys_at_once));
  AlignedFloats q_ = floats(p_.heads * step_);              // [heads][step]
  AlignedFloats logits_ = floats(p_.heads * logits_step_);  // [heads][logits_step]
  std::vector<int64_t> key_at_ = std::vector<int64_t>(static_cast<size_t>(block_ + keys_ahead));
  std::vector<int64_t> value_at_ = std::vector<int64_t>(static_cast<size_t>(block_));
  float *out_ = nullptr, *max_ = nullptr, *sum_ = nullptr;
};

}  // namespace ejk::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
