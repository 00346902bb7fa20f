// SPDX-License-Identifier: Apache-2.0
// Attention of one query: the cache is read once for all heads that share it, in one of two orders.
#include "ops/decode_attention/problem.h"

#include <deque>

#include "ops/common/parts.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/decode_attention/decode.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h

#include <hwy/highway.h>

#include "ops/decode_attention/by_head_inl.h"
#include "ops/decode_attention/by_position_inl.h"

HWY_BEFORE_NAMESPACE();
namespace ejk::ops::HWY_NAMESPACE {

// Parts of a sequence, put together and written.
void join(const DecodeProblem& p, int64_t sequence, int64_t splits, int64_t step, const float* outs,
          const float* maxima, const float* sums, const Rows& out) {
  const Floats d;
  const bool blind = p.seen(sequence).empty();
  const AlignedFloats row = floats(step);
  for (int64_t n = 0; n < p.heads; ++n) {
    float largest = minus_infinity;
    for (int64_t s = 0; s < splits; ++s) largest = std::max(largest, maxima[s * p.heads + n]);
    float total = 0;
    std::fill_n(row.get(), step, 0.f);
    for (int64_t s = 0; s < splits; ++s) {
      const float max = maxima[s * p.heads + n];
      const Vector factor =
          max == minus_infinity ? hn::Zero(d) : exp2_up_to_127(d, hn::Set(d, max - largest));
      total += sums[s * p.heads + n] * hn::GetLane(factor);
      const float* from = outs + (s * p.heads + n) * step;
      for (int64_t c = 0; c < step; c += lanes)
        hn::Store(hn::MulAdd(hn::Load(d, from + c), factor, hn::Load(d, row.get() + c)), d,
                  row.get() + c);
    }
    const Vector inverse = hn::Set(d, blind ? 0.f : 1.f / total);
    for (int64_t c = 0; c < step; c += lanes)
      hn::Store(hn::Mul(hn::Load(d, row.get() + c), inverse), d, row.get() + c);
    store(row.get(), p.dim, out, out.offset(sequence, 0, n));
  }
}

template <class Decoder>
void decode_as(const DecodeProblem& p, const DecodeConfig& config, const Rows& out) {
  const int64_t splits = std::min<int64_t>(config.splits, std::max<int64_t>(p.positions, 1));
  const int64_t pieces = p.batch * splits, parts = parts_for(pieces, config.threads);
  std::deque<Decoder> decoders;
  for (int64_t i = 0; i < parts; ++i) decoders.emplace_back(p, config.k_block);
  const int64_t step = decoders.front().step();
  const AlignedFloats outs = floats(pieces * p.heads * step);
  const AlignedFloats maxima = floats(pieces * p.heads), sums = floats(pieces * p.heads);
  in_numbered_parts(pieces, parts, [&](int64_t part, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const KeyRange all = p.seen(i / splits);
      const int64_t size = (std::max<int64_t>(all.end - all.begin, 0) + splits - 1) / splits;
      const int64_t first = all.begin + i % splits * size;
      decoders[static_cast<size_t>(part)].run(i / splits, {first, std::min(first + size, all.end)},
                                              outs.get() + i * p.heads * step,
                                              maxima.get() + i * p.heads, sums.get() + i * p.heads);
    }
  });
  for (int64_t b = 0; b < p.batch; ++b)
    join(p, b, splits, step, outs.get() + b * splits * p.heads * step,
         maxima.get() + b * splits * p.heads, sums.get() + b * splits * p.heads, out);
}

template <template <class> class Decoder>
void decode_in(const DecodeProblem& p, const DecodeConfig& config, const Rows& out) {
  if (p.k.bf16) decode_as<Decoder<BFloat16>>(p, config, out);
  else decode_as<Decoder<float>>(p, config, out);
}

void decode(const DecodeProblem& p, const DecodeConfig& config, const Rows& out) {
  const bool in_order = side_by_side(p.k) && side_by_side(p.v);
  if (in_order && config.order == DecodeConfig::Order::by_position)
    decode_in<ByPosition>(p, config, out);
  else decode_in<ByHead>(p, config, out);
}

}  // namespace ejk::ops::HWY_NAMESPACE
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
