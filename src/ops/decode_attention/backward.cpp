// SPDX-License-Identifier: Apache-2.0
// The gradient of attention of one query: its weights are made again, then the cache is gone
// through once for values and once for keys.
//
// With w the weights, g the cotangent of the output, and r = w * (v g - sum(w * (v g))):
//   dv += w g,  dk += scale r q,  dq += scale r k.
#include "ops/decode_attention/problem.h"

#include <deque>

#include "ops/common/parts.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/decode_attention/backward.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h

#include <hwy/highway.h>

#include "ops/flash_attention/rows_inl.h"

HWY_BEFORE_NAMESPACE();
namespace ejk::ops::HWY_NAMESPACE {

// One sequence and kv head after the other. Rows of copies have zeros behind their end.
class DecodeGradient {
 public:
  DecodeGradient(const DecodeProblem& problem, const DecodeCotangents& cotangents)
      : p_(problem), c_(cotangents) {}

  void run(int64_t sequence, int64_t kv_head) {
    sequence_ = sequence, kv_head_ = kv_head, seen_ = p_.seen(sequence);
    for (int64_t h = 0; h < group_; ++h) {
      const int64_t head = kv_head * group_ + h;
      load(p_.q, p_.q.offset(sequence, 0, head), p_.dim, logit_factor(p_), q_.get() + h * step_);
      load(c_.dout, c_.dout.offset(sequence, 0, head), p_.dim, 1.f, g_.get() + h * step_);
    }
    std::fill_n(dq_.get(), group_ * step_, 0.f);
    if (!seen_.empty()) {
      make_logits();
      for (int64_t h = 0; h < group_; ++h) softmax(h);
      values();
      for (int64_t h = 0; h < group_; ++h) make_change(h);
      // q was loaded with a factor, which is taken off again with the scale put on.
      keys(p_.softcap != 0 ? p_.softcap : 1 / log2_e);
    }
    for (int64_t h = 0; h < group_; ++h)
      store(dq_.get() + h * step_, p_.dim, c_.dq, c_.dq.offset(sequence, 0, kv_head * group_ + h));
  }

 private:
  static AlignedFloats zeros(int64_t count) {
    AlignedFloats made = floats(count);
    std::fill_n(made.get(), count, 0.f);
    return made;
  }
  int64_t at(const Rows& rows, int64_t position) const {
    return p_.offset(rows, sequence_, position) + kv_head_ * rows.head_stride;
  }
  // The element of a line for a position that is seen.
  float& element(const AlignedFloats& lines, int64_t head, int64_t position) const {
    return lines[static_cast<size_t>(head * line_ + position - seen_.begin)];
  }
  float dot(const float* a, const float* b) const {
    const Floats d;
    Vector sum = hn::Zero(d);
    for (int64_t i = 0; i < step_; i += lanes)
      sum = hn::MulAdd(hn::Load(d, a + i), hn::Load(d, b + i), sum);
    return sum_of_lanes(sum);
  }
  void add(float factor, const float* from, float* to) const {
    const Floats d;
    const Vector factors = hn::Set(d, factor);
    for (int64_t i = 0; i < step_; i += lanes)
      hn::Store(hn::MulAdd(factors, hn::Load(d, from + i), hn::Load(d, to + i)), d, to + i);
  }

  void make_logits() {
    for (int64_t s = seen_.begin; s < seen_.end; ++s) {
      load(p_.k, at(p_.k, s), p_.dim, 1.f, row_.get());
      for (int64_t h = 0; h < group_; ++h)
        element(weights_, h, s) = dot(q_.get() + h * step_, row_.get());
    }
  }

  // Logits of a head become its weights; slopes are those of the cap.
  void softmax(int64_t head) {
    const Floats d;
    float *line = weights_.get() + head * line_, *slopes = slopes_.get() + head * line_;
    const int64_t count = seen_.end - seen_.begin, padded = round_up(count, lanes);
    for (int64_t i = 0; i < padded; i += lanes) {
      Vector slope = hn::Set(d, 1.f);
      if (p_.softcap != 0) {
        const Vector capped = tanh(hn::Load(d, line + i));
        slope = hn::NegMulAdd(capped, capped, slope);
        hn::Store(hn::Mul(hn::Set(d, p_.softcap * log2_e), capped), d, line + i);
      }
      hn::Store(slope, d, slopes + i);
    }
    std::fill(line + count, line + padded, minus_infinity);
    Vector max = hn::Load(d, line);
    for (int64_t i = lanes; i < padded; i += lanes) max = hn::Max(max, hn::Load(d, line + i));
    max = hn::MaxOfLanes(d, max);
    Vector sum = hn::Zero(d);
    for (int64_t i = 0; i < padded; i += lanes) {
      const Vector weight = exp2_up_to_127(d, hn::Sub(hn::Load(d, line + i), max));
      hn::Store(weight, d, line + i);
      sum = hn::Add(sum, weight);
    }
    const Vector inverse = hn::Div(hn::Set(d, 1.f), hn::SumOfLanes(d, sum));
    for (int64_t i = 0; i < padded; i += lanes)
      hn::Store(hn::Mul(hn::Load(d, line + i), inverse), d, line + i);
  }

  // dv; and what the weights' cotangents are.
  void values() {
    for (int64_t s = seen_.begin; s < seen_.end; ++s) {
      load(p_.v, at(p_.v, s), p_.dim, 1.f, row_.get());
      load(c_.dv, at(c_.dv, s), p_.dim, 1.f, sum_.get());
      for (int64_t h = 0; h < group_; ++h) {
        const float* g = g_.get() + h * step_;
        element(change_, h, s) = dot(g, row_.get());
        add(element(weights_, h, s), g, sum_.get());
      }
      store(sum_.get(), p_.dim, c_.dv, at(c_.dv, s));
    }
  }

  // Cotangents of weights become those of logits before the cap.
  void make_change(int64_t head) {
    const int64_t count = seen_.end - seen_.begin;
    const float *weights = weights_.get() + head * line_, *slopes = slopes_.get() + head * line_;
    float* change = change_.get() + head * line_;
    float mean = 0;
    for (int64_t i = 0; i < count; ++i) mean += weights[i] * change[i];
    for (int64_t i = 0; i < count; ++i) change[i] = weights[i] * (change[i] - mean) * slopes[i];
  }

  void keys(float factor_of_q) {
    for (int64_t s = seen_.begin; s < seen_.end; ++s) {
      load(p_.k, at(p_.k, s), p_.dim, 1.f, row_.get());
      load(c_.dk, at(c_.dk, s), p_.dim, 1.f, sum_.get());
      for (int64_t h = 0; h < group_; ++h) {
        const float change = element(change_, h, s);
        add(change * p_.scale, row_.get(), dq_.get() + h * step_);
        add(change * factor_of_q, q_.get() + h * step_, sum_.get());
      }
      store(sum_.get(), p_.dim, c_.dk, at(c_.dk, s));
    }
  }

  const DecodeProblem& p_;
  const DecodeCotangents& c_;
  const int64_t group_ = p_.heads_per_kv_head(), step_ = round_up(p_.dim, lanes);
  const int64_t line_ = round_up(std::max<int64_t>(p_.positions, 1), lanes);
  // [group][step]
  AlignedFloats q_ = zeros(group_ * step_), g_ = zeros(group_ * step_), dq_ = zeros(group_ * step_);
  AlignedFloats row_ = zeros(step_), sum_ = zeros(step_);
  // [group][line]
  AlignedFloats weights_ = zeros(group_ * line_), slopes_ = zeros(group_ * line_);
  AlignedFloats change_ = zeros(group_ * line_);
  int64_t sequence_ = 0, kv_head_ = 0;
  KeyRange seen_;
};

void decode_gradient(const DecodeProblem& p, int threads, const DecodeCotangents& cotangents) {
  // Sequences may share pages, kv heads share nothing.
  const int64_t sequences = p.block_table != nullptr ? 1 : p.batch;
  const int64_t pieces = p.kv_heads * sequences, parts = parts_for(pieces, threads);
  std::deque<DecodeGradient> gradients;
  for (int64_t i = 0; i < parts; ++i) gradients.emplace_back(p, cotangents);
  in_numbered_parts(pieces, parts, [&](int64_t part, int64_t begin, int64_t end) {
    auto& gradient = gradients[static_cast<size_t>(part)];
    for (int64_t i = begin; i < end; ++i)
      for (int64_t b = i % sequences; b < p.batch; b += sequences) gradient.run(b, i / sequences);
  });
}

}  // namespace ejk::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ejk::ops {

HWY_EXPORT(decode_gradient);

void decode_backward(const DecodeProblem& problem, int threads,
                     const DecodeCotangents& cotangents) {
  if (problem.batch == 0 || problem.heads == 0 || problem.dim == 0) return;
  HWY_DYNAMIC_DISPATCH(decode_gradient)(problem, threads, cotangents);
}

}  // namespace ejk::ops
#endif
