// SPDX-License-Identifier: Apache-2.0
// Attention of one query: the cache is read once, in the order in which it lies in memory, for all
// heads that share it.
#include "ops/decode_attention/problem.h"

#include <deque>
#include <vector>

#include "ops/common/parts.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/decode_attention/decode.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h

#include <hwy/highway.h>

#include "ops/flash_attention/rows_inl.h"

HWY_BEFORE_NAMESPACE();
namespace ejk::ops {
namespace HWY_NAMESPACE {

inline constexpr int keys_at_once = 4;
inline constexpr int heads_at_once = 4;
// The processor alone does not ask for memory early enough: keys are asked for so many positions
// before they are needed, values while logits are made.
inline constexpr int64_t keys_ahead = 16;

// The sums of four vectors.
HWY_INLINE void sums_of_four(V32 a, V32 b, V32 c, V32 e, float* to) {
#if HWY_TARGET == HWY_SCALAR
  to[0] = hn::GetLane(a), to[1] = hn::GetLane(b), to[2] = hn::GetLane(c), to[3] = hn::GetLane(e);
#else
  const F32 d;
  const hn::RepartitionToWide<F32> dw;
  const auto ab = hn::BitCast(
      dw, hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b)));
  const auto ce = hn::BitCast(
      dw, hn::Add(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e)));
  // Every 128 bits: parts of the four sums.
  const V32 parts = hn::Add(hn::BitCast(d, hn::InterleaveLower(dw, ab, ce)),
                            hn::BitCast(d, hn::InterleaveUpper(dw, ab, ce)));
  const auto fold = [](auto tag, auto v, auto self, float* into) HWY_ATTR {
    if constexpr (hn::MaxLanes(tag) == 4) hn::StoreU(v, tag, into);
    else {
      const hn::Half<decltype(tag)> half;
      self(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)), self, into);
    }
  };
  fold(d, parts, fold, to);
#endif
}

// The vector at `column` of a row of `dim` elements, zeros behind its end.
template <class T>
HWY_INLINE V32 load_part(const T* row, int64_t column, int64_t dim) {
  if (column + vector_size <= dim) return load_row(row + column);
  T rest[lanes] = {};
  std::copy(row + column, row + dim, rest);
  return load_row(rest);
}

// One part of one sequence.
template <class T>
class Decoder {
 public:
  Decoder(const DecodeProblem& problem, int64_t block)
      : p_(problem),
        block_(std::min(block, std::max<int64_t>(problem.positions, 1))),
        step_(round_up(p_.dim, vector_size)),
        logits_step_(round_up(block_, std::max<int64_t>(vector_size, keys_at_once))),
        q_(floats(p_.heads * step_)),
        logits_(floats(p_.heads * logits_step_)),
        key_at_(static_cast<size_t>(block_ + keys_ahead)),
        value_at_(static_cast<size_t>(block_)) {}

  // out [heads][step] gets sums of weights times values; max and sum [heads] what they are
  // relative to and the sums of weights.
  void run(int64_t sequence, KeyRange range, float* out, float* max, float* sum) {
    out_ = out, max_ = max, sum_ = sum;
    std::fill_n(out, p_.heads * step_, 0.f);
    std::fill_n(max, p_.heads, minus_infinity);
    std::fill_n(sum, p_.heads, 0.f);
    if (range.empty()) return;
    std::fill_n(q_.get(), p_.heads * step_, 0.f);
    const float factor = p_.softcap != 0 ? p_.scale / p_.softcap : p_.scale * log2_e;
    for (int64_t n = 0; n < p_.heads; ++n)
      load(p_.q, p_.q.offset(sequence, 0, n), p_.dim, factor, q_.get() + n * step_);
    // Heads of a position that are neighbours in memory are read together.
    const bool together = p_.k.head_stride <= p_.k.position_stride;
    const int64_t at_once = together ? p_.kv_heads : 1;
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
      int64_t g = 0;
      const auto go = [&]<int Heads>() {
        dot_products<Heads>(rows, head * group + g, i);
        g += Heads;
      };
      while (g + heads_at_once <= group) go.template operator()<heads_at_once>();
      if (g + 2 <= group) go.template operator()<2>();
      if (g < group) go.template operator()<1>();
    }
  }

  template <int Heads>
  HWY_INLINE void dot_products(const T* const* rows, int64_t head, int64_t i) {
    const F32 d;
    V32 sum[Heads][keys_at_once];
#pragma GCC unroll 4
    for (int h = 0; h < Heads; ++h)
#pragma GCC unroll 4
      for (int j = 0; j < keys_at_once; ++j) sum[h][j] = hn::Zero(d);
    const auto add = [&](int64_t c, const V32* keys) HWY_ATTR {
#pragma GCC unroll 4
      for (int h = 0; h < Heads; ++h) {
        const V32 q = hn::Load(d, q_.get() + (head + h) * step_ + c);
#pragma GCC unroll 4
        for (int j = 0; j < keys_at_once; ++j) sum[h][j] = hn::MulAdd(q, keys[j], sum[h][j]);
      }
    };
    int64_t c = 0;
    V32 keys[keys_at_once];
    for (; c + vector_size <= p_.dim; c += vector_size) {
#pragma GCC unroll 4
      for (int j = 0; j < keys_at_once; ++j) keys[j] = load_row(rows[j] + c);
      add(c, keys);
    }
    if (c < p_.dim) {
      for (int j = 0; j < keys_at_once; ++j) keys[j] = load_part(rows[j], c, p_.dim);
      add(c, keys);
    }
#pragma GCC unroll 4
    for (int h = 0; h < Heads; ++h)
      sums_of_four(sum[h][0], sum[h][1], sum[h][2], sum[h][3],
                   logits_.get() + (head + h) * logits_step_ + i);
  }

  // Logits of a head become weights relative to the largest one so far.
  void softmax(int64_t head, int64_t count) {
    const F32 d;
    float* logits = logits_.get() + head * logits_step_;
    const int64_t padded = round_up(count, vector_size);
    if (p_.softcap != 0)
      for (int64_t i = 0; i < padded; i += vector_size)
        hn::Store(hn::Mul(hn::Set(d, p_.softcap * log2_e), tanh(hn::Load(d, logits + i))), d,
                  logits + i);
    std::fill(logits + count, logits + padded, minus_infinity);
    V32 max = hn::Set(d, max_[head]);
    for (int64_t i = 0; i < padded; i += vector_size) max = hn::Max(max, hn::Load(d, logits + i));
    const float old = max_[head], largest = hn::GetLane(hn::MaxOfLanes(d, max));
    max_[head] = largest;
    // So far nothing but -inf: 0 instead keeps the weights at 0.
    const V32 base = hn::Set(d, largest == minus_infinity ? 0.f : largest);
    V32 sum = hn::Zero(d);
    for (int64_t i = 0; i < padded; i += vector_size) {
      const V32 weight = exp2_up_to_127(d, hn::Sub(hn::Load(d, logits + i), base));
      hn::Store(weight, d, logits + i);
      sum = hn::Add(sum, weight);
    }
    const V32 factor = exp2_up_to_127(d, hn::Sub(hn::Set(d, old), base));
    sum_[head] = sum_[head] * hn::GetLane(factor) + hn::GetLane(hn::SumOfLanes(d, sum));
    float* out = out_ + head * step_;
    for (int64_t c = 0; c < step_; c += vector_size)
      hn::Store(hn::Mul(hn::Load(d, out + c), factor), d, out + c);
  }

  void add_values(int64_t kv_head, int64_t begin, int64_t end) {
    const int64_t group = p_.heads_per_kv_head();
    int64_t g = 0;
    const auto go = [&]<int Heads>() {
      int64_t c = 0;
      const auto columns = [&]<int Vectors>() {
        for (; c + Vectors * vector_size <= p_.dim; c += Vectors * vector_size)
          add_values<Heads, Vectors>(kv_head, kv_head * group + g, begin, end, c);
      };
      if constexpr (Heads == 1) columns.template operator()<8>();
      columns.template operator()<4>();
      columns.template operator()<2>();
      for (; c < p_.dim; c += vector_size)
        add_values<Heads, 1>(kv_head, kv_head * group + g, begin, end, c);
      g += Heads;
    };
    while (g + heads_at_once <= group) go.template operator()<heads_at_once>();
    if (g + 2 <= group) go.template operator()<2>();
    if (g < group) go.template operator()<1>();
  }

  template <int Heads, int Vectors>
  HWY_INLINE void add_values(int64_t kv_head, int64_t head, int64_t begin, int64_t end,
                             int64_t column) {
    const F32 d;
    V32 sum[Heads][Vectors];
    float* out = out_ + head * step_ + column;
#pragma GCC unroll 4
    for (int h = 0; h < Heads; ++h)
#pragma GCC unroll 8
      for (int j = 0; j < Vectors; ++j) sum[h][j] = hn::Load(d, out + h * step_ + j * vector_size);
    for (int64_t i = begin; i < end; ++i) {
      const T* row = value_row(i, kv_head) + column;
      V32 values[Vectors];
#pragma GCC unroll 8
      for (int j = 0; j < Vectors; ++j)
        values[j] =
            Vectors == 1 ? load_part(row, 0, p_.dim - column) : load_row(row + j * vector_size);
#pragma GCC unroll 4
      for (int h = 0; h < Heads; ++h) {
        const V32 weight = hn::Set(d, logits_[static_cast<size_t>((head + h) * logits_step_ + i)]);
#pragma GCC unroll 8
        for (int j = 0; j < Vectors; ++j) sum[h][j] = hn::MulAdd(weight, values[j], sum[h][j]);
      }
    }
#pragma GCC unroll 4
    for (int h = 0; h < Heads; ++h)
#pragma GCC unroll 8
      for (int j = 0; j < Vectors; ++j) hn::Store(sum[h][j], d, out + h * step_ + j * vector_size);
  }

  const DecodeProblem& p_;
  int64_t block_, step_, logits_step_;
  AlignedFloats q_, logits_;  // [heads][step], [heads][logits_step]
  std::vector<int64_t> key_at_, value_at_;
  float *out_ = nullptr, *max_ = nullptr, *sum_ = nullptr;
};

// Parts of a sequence, put together and written.
void join(const DecodeProblem& p, int64_t sequence, int64_t splits, int64_t step, const float* outs,
          const float* maxima, const float* sums, const Rows& out) {
  const F32 d;
  const bool blind = p.seen(sequence).empty();
  const AlignedFloats row = floats(step);
  for (int64_t n = 0; n < p.heads; ++n) {
    float largest = minus_infinity;
    for (int64_t s = 0; s < splits; ++s) largest = std::max(largest, maxima[s * p.heads + n]);
    float total = 0;
    std::fill_n(row.get(), step, 0.f);
    for (int64_t s = 0; s < splits; ++s) {
      const float max = maxima[s * p.heads + n];
      const V32 factor = max == minus_infinity ? hn::Zero(d)
                                               : exp2_up_to_127(d, hn::Set(d, max - largest));
      total += sums[s * p.heads + n] * hn::GetLane(factor);
      const float* from = outs + (s * p.heads + n) * step;
      for (int64_t c = 0; c < step; c += vector_size)
        hn::Store(hn::MulAdd(hn::Load(d, from + c), factor, hn::Load(d, row.get() + c)), d,
                  row.get() + c);
    }
    const V32 inverse = hn::Set(d, blind ? 0.f : 1.f / total);
    for (int64_t c = 0; c < step; c += vector_size)
      hn::Store(hn::Mul(hn::Load(d, row.get() + c), inverse), d, row.get() + c);
    store(row.get(), p.dim, out, out.offset(sequence, 0, n));
  }
}

template <class T>
void decode_as(const DecodeProblem& p, const DecodeConfig& config, const Rows& out) {
  const int64_t splits = std::min<int64_t>(config.splits, std::max<int64_t>(p.positions, 1));
  const int64_t pieces = p.batch * splits, parts = parts_for(pieces, config.threads);
  std::deque<Decoder<T>> decoders;
  for (int64_t i = 0; i < parts; ++i) decoders.emplace_back(p, config.k_block);
  const int64_t step = decoders.front().step();
  const AlignedFloats outs = floats(pieces * p.heads * step);
  const AlignedFloats maxima = floats(pieces * p.heads), sums = floats(pieces * p.heads);
  in_numbered_parts(pieces, parts, [&](int64_t part, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const KeyRange all = p.seen(i / splits);
      const int64_t size = (std::max<int64_t>(all.end - all.begin, 0) + splits - 1) / splits;
      const int64_t first = all.begin + i % splits * size;
      decoders[static_cast<size_t>(part)].run(
          i / splits, {first, std::min(first + size, all.end)}, outs.get() + i * p.heads * step,
          maxima.get() + i * p.heads, sums.get() + i * p.heads);
    }
  });
  for (int64_t b = 0; b < p.batch; ++b)
    join(p, b, splits, step, outs.get() + b * splits * p.heads * step,
         maxima.get() + b * splits * p.heads, sums.get() + b * splits * p.heads, out);
}

void decode(const DecodeProblem& p, const DecodeConfig& config, const Rows& out) {
  if (p.k.bf16) decode_as<BFloat16>(p, config, out);
  else decode_as<float>(p, config, out);
}

}  // namespace HWY_NAMESPACE
}  // namespace ejk::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ejk::ops {

HWY_EXPORT(decode);

void decode_forward(const DecodeProblem& problem, const DecodeConfig& config, const Rows& out) {
  if (problem.batch == 0 || problem.heads == 0 || problem.dim == 0) return;
  HWY_DYNAMIC_DISPATCH(decode)(problem, config, out);
}

}  // namespace ejk::ops
#endif
