// SPDX-License-Identifier: Apache-2.0
// The gradient of attention: weights are made again from the saved sums, block by block of keys.
//
// As in forward.cpp, logits have queries along the vectors. With w the weights, g the cotangent of
// the output o, and r = w * (v g^T - sum(g * o)), for each block of keys and of queries:
//   dv += w g,  dk += r q,  dq^T += k^T r.
#include "ops/flash_attention/problem.h"

#include <deque>
#include <vector>

#include "ops/common/parts.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/flash_attention/backward.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h

#include <hwy/highway.h>

#include "ops/flash_attention/rows_inl.h"
#include "ops/flash_attention/tile_inl.h"

HWY_BEFORE_NAMESPACE();
namespace ejk::ops::HWY_NAMESPACE {

// One head after the other.
class HeadGradient {
 public:
  explicit HeadGradient(const Gradient& gradient) : g_(gradient) {}

  void run(int64_t batch, int64_t head) {
    batch_ = batch, head_ = head, kv_head_ = head / p_.heads_per_kv_head();
    load_queries();
    for (int64_t first = 0; first < p_.keys; first += keys_in_block_) key_block(first);
    store_dq();
  }

 private:
  static constexpr int64_t width = max_vectors * lanes;  // of a panel of queries

  float* panel(const AlignedFloats& of, int64_t index) const {
    return of.get() + index * p_.dim * width;
  }
  int64_t rows_of_panel(int64_t index) const { return std::min(width, p_.queries - index * width); }

  void load_queries() {
    const int64_t count = panels_ * width;
    std::fill_n(dq_.get(), panels_ * p_.dim * width, 0.f);
    for (int64_t i = 0; i < count; ++i) {
      float *q = q_rows_.get() + i * step_, *g = g_rows_.get() + i * step_;
      std::fill_n(q, step_, 0.f), std::fill_n(g, step_, 0.f);
      lse_[static_cast<size_t>(i)] = delta_[static_cast<size_t>(i)] = 0;
      if (i >= p_.queries) continue;
      load(p_.q, p_.q.offset(batch_, i, head_), p_.dim, 1.f, q);
      load(g_.dout, g_.dout.offset(batch_, i, head_), p_.dim, 1.f, g);
      load(g_.out, g_.out.offset(batch_, i, head_), p_.dim, 1.f, row_.get());
      float delta = 0;
      for (int64_t h = 0; h < p_.dim; ++h) delta += g[h] * row_[static_cast<size_t>(h)];
      delta_[static_cast<size_t>(i)] = delta;
      lse_[static_cast<size_t>(i)] = g_.lse[(batch_ * p_.heads + head_) * p_.queries + i];
    }
    const Floats d;
    const Vector factor = hn::Set(d, logit_factor(p_));
    for (int64_t j = 0; j < panels_; ++j) {
      transpose(q_rows_.get() + j * width * step_, step_, width, p_.dim, panel(q_, j), width);
      transpose(g_rows_.get() + j * width * step_, step_, width, p_.dim, panel(cotangent_, j),
                width);
      float* q = panel(q_, j);
      for (int64_t i = 0; i < p_.dim * width; i += lanes)
        hn::Store(hn::Mul(hn::Load(d, q + i), factor), d, q + i);
      find_seen(j);
    }
  }

  void find_seen(int64_t j) {
    KeyRange any{p_.keys, 0}, all{0, p_.keys};
    const int64_t first = j * width, rows = rows_of_panel(j);
    for (int64_t i = 0; i < rows; ++i) {
      KeyRange seen = p_.seen_by(batch_, first + i);
      if (seen.empty()) seen = {0, 0};
      else any = {std::min(any.begin, seen.begin), std::max(any.end, seen.end)};
      all = {std::max(all.begin, seen.begin), std::min(all.end, seen.end)};
      begin_[static_cast<size_t>(first + i)] = static_cast<int32_t>(seen.begin);
      end_[static_cast<size_t>(first + i)] = static_cast<int32_t>(seen.end);
    }
    for (int64_t i = rows; i < width; ++i) {  // all zeros, so it does not matter
      begin_[static_cast<size_t>(first + i)] = 0;
      end_[static_cast<size_t>(first + i)] = static_cast<int32_t>(p_.keys);
    }
    seen_[static_cast<size_t>(j)] = any;
    seen_by_all_[static_cast<size_t>(j)] = all;
  }

  void key_block(int64_t first) {
    const int64_t count = std::min(keys_in_block_, p_.keys - first);
    for (int64_t i = 0; i < count; ++i) {
      load(p_.k, p_.k.offset(batch_, first + i, kv_head_), p_.dim, 1.f, keys_.get() + i * step_);
      load(p_.v, p_.v.offset(batch_, first + i, kv_head_), p_.dim, 1.f, values_.get() + i * step_);
    }
    std::fill_n(dk_.get(), count * step_, 0.f);
    std::fill_n(dv_.get(), count * step_, 0.f);
    for (int64_t j = 0; j < panels_; j += panels_in_block_)
      query_block(first, count, j, std::min(j + panels_in_block_, panels_));
    store_key_block(first, count);
  }

  // Panels [from, to) against the keys of the block. Where every query sees every key, products
  // over queries take all panels at once, else panel by panel, with the keys that each sees.
  void query_block(int64_t first, int64_t count, int64_t from, int64_t to) {
    bool together = true;
    for (int64_t j = from; j < to; ++j) {
      const KeyRange all = seen_by_all_[static_cast<size_t>(j)];
      together = together && all.begin <= first && all.end >= first + count;
    }
    for (int64_t j = from; j < to; ++j) {
      const KeyRange seen = seen_[static_cast<size_t>(j)];
      const KeyRange range{std::max(seen.begin, first), std::min(seen.end, first + count)};
      if (range.empty()) continue;
      const int64_t column = (j - from) * width;
      const int64_t vectors = (rows_of_panel(j) + lanes - 1) / lanes;
      if (vectors == 1) against_keys<1>(first, range, j, column, together);
      else if (max_vectors == 2 || vectors == 2) against_keys<2>(first, range, j, column, together);
      else against_keys<max_vectors>(first, range, j, column, together);
    }
    if (together)
      add_to_keys(0, count, from * width, 0,
                  std::min(to * width, round_up(p_.queries, lanes)) - from * width);
  }

  template <int Vectors>
  void against_keys(int64_t first, KeyRange range, int64_t j, int64_t column, bool together) {
    const int64_t at = range.begin - first, count = range.end - range.begin;
    const float* keys = keys_.get() + at * step_;
    float* weights = weights_.get() + at * block_width_ + column;
    float* change = change_.get() + at * block_width_ + column;
    multiply<Vectors, Left::rows, Into::set>(keys, step_, panel(q_, j), width, p_.dim, weights,
                                             block_width_, count);
    multiply<Vectors, Left::rows, Into::set>(values_.get() + at * step_, step_,
                                             panel(cotangent_, j), width, p_.dim, change,
                                             block_width_, count);
    if (together) weigh<Vectors, false>(range, j, weights, change);
    else weigh<Vectors, true>(range, j, weights, change);
    multiply<Vectors, Left::columns, Into::add>(keys, step_, change, block_width_, count,
                                                panel(dq_, j), width, p_.dim);
    if (!together) add_to_keys(at, count, j * width, column, Vectors * lanes);
  }

  // Logits become weights, products of values and cotangents the change of the logits.
  template <int Vectors, bool Masked>
  void weigh(KeyRange range, int64_t j, float* weights, float* change) {
    const Floats d;
    const Vector cap = hn::Set(d, p_.softcap * log2_e), one = hn::Set(d, 1.f);
    for (int64_t c = 0; c < Vectors * lanes; c += lanes) {
      const Vector lse = hn::Load(d, lse_.get() + j * width + c);
      const Vector delta = hn::Load(d, delta_.get() + j * width + c);
      float *weight_at = weights + c, *change_at = change + c;
      for (int64_t key = range.begin; key < range.end;
           ++key, weight_at += block_width_, change_at += block_width_) {
        Vector logit = hn::Load(d, weight_at), slope = one;
        if (p_.softcap != 0) {
          const Vector part = tanh(logit);
          slope = hn::NegMulAdd(part, part, one);
          logit = hn::Mul(part, cap);
        }
        Vector weight = exp2_up_to_127(d, hn::Sub(logit, lse));
        if constexpr (Masked)
          weight = hn::IfThenElseZero(
              sees(begin_.get() + j * width + c, end_.get() + j * width + c, key), weight);
        Vector changed = hn::Mul(weight, hn::Sub(hn::Load(d, change_at), delta));
        if (p_.softcap != 0) changed = hn::Mul(changed, slope);
        hn::Store(weight, d, weight_at);
        hn::Store(changed, d, change_at);
      }
    }
  }

  // dv += weights g, dk += change q, for `count` keys and `depth` queries.
  void add_to_keys(int64_t key, int64_t count, int64_t query, int64_t column, int64_t depth) {
    const int64_t from = key * block_width_ + column;
    const int64_t columns = round_up(p_.dim, lanes);
    multiply_wide<Left::rows, Into::add>(weights_.get() + from, block_width_,
                                         g_rows_.get() + query * step_, step_, depth,
                                         dv_.get() + key * step_, step_, count, columns);
    multiply_wide<Left::rows, Into::add>(change_.get() + from, block_width_,
                                         q_rows_.get() + query * step_, step_, depth,
                                         dk_.get() + key * step_, step_, count, columns);
  }

  void store_key_block(int64_t first, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      float *dk = dk_.get() + i * step_, *dv = dv_.get() + i * step_;
      for (int64_t h = 0; h < p_.dim; ++h) dk[h] *= p_.scale;
      if (g_.shared_dk != nullptr) {
        const int64_t at = ((batch_ * p_.heads + head_) * p_.keys + first + i) * p_.dim;
        std::copy_n(dk, p_.dim, g_.shared_dk + at);
        std::copy_n(dv, p_.dim, g_.shared_dv + at);
      } else {
        store(dk, p_.dim, g_.dk, g_.dk.offset(batch_, first + i, head_));
        store(dv, p_.dim, g_.dv, g_.dv.offset(batch_, first + i, head_));
      }
    }
  }

  void store_dq() {
    for (int64_t j = 0; j < panels_; ++j) {
      transpose(panel(dq_, j), width, p_.dim, rows_of_panel(j), rows_.get(), step_);
      for (int64_t i = 0; i < rows_of_panel(j); ++i) {
        float* row = rows_.get() + i * step_;
        for (int64_t h = 0; h < p_.dim; ++h) row[h] *= p_.scale;
        store(row, p_.dim, g_.dq, g_.dq.offset(batch_, j * width + i, head_));
      }
    }
  }

  const Gradient& g_;
  const AttentionProblem& p_ = g_.p;
  const int64_t panels_ = (p_.queries + width - 1) / width;
  const int64_t panels_in_block_ = std::min((g_.q_block + width - 1) / width, panels_);
  const int64_t keys_in_block_ = std::min(g_.k_block, std::max<int64_t>(p_.keys, 1));
  const int64_t step_ = round_up(row_step(p_.dim), lanes);
  const int64_t block_width_ = panels_in_block_ * width;
  const int64_t of_rows_ = panels_ * width * step_, of_panels_ = panels_ * p_.dim * width;
  // [queries][step]: q and the cotangent
  AlignedFloats q_rows_ = floats(of_rows_), g_rows_ = floats(of_rows_);
  // The same and dq, transposed: panels of [dim][width]
  AlignedFloats q_ = floats(of_panels_), cotangent_ = floats(of_panels_), dq_ = floats(of_panels_);
  AlignedFloats lse_ = floats(panels_ * width), delta_ = floats(panels_ * width);  // [queries]
  AlignedFloats row_ = floats(step_), rows_ = floats(width * step_);  // one row, rows of a panel
  const int64_t of_keys_ = keys_in_block_ * step_, of_weights_ = keys_in_block_ * block_width_;
  // [keys of a block][step]
  AlignedFloats keys_ = floats(of_keys_), values_ = floats(of_keys_);
  AlignedFloats dk_ = floats(of_keys_), dv_ = floats(of_keys_);
  // [keys of a block][queries of a block]
  AlignedFloats weights_ = floats(of_weights_), change_ = floats(of_weights_);
  // [queries]: the keys that each sees
  Aligned<int32_t> begin_ = aligned<int32_t>(panels_ * width + 1);
  Aligned<int32_t> end_ = aligned<int32_t>(panels_ * width + 1);
  // By any query of a panel, by all of them
  std::vector<KeyRange> seen_ = std::vector<KeyRange>(static_cast<size_t>(panels_));
  std::vector<KeyRange> seen_by_all_ = seen_;
  int64_t batch_ = 0, head_ = 0, kv_head_ = 0;
};

void backward(const Gradient& g, int threads) {
  const int64_t heads = g.p.batch * g.p.heads, parts = parts_for(heads, threads);
  std::deque<HeadGradient> workers;
  for (int64_t i = 0; i < parts; ++i) workers.emplace_back(g);
  in_numbered_parts(heads, parts, [&](int64_t part, int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i)
      workers[static_cast<size_t>(part)].run(i / g.p.heads, i % g.p.heads);
  });
}

// Sums over the heads that share a kv head, in their order.
void add_up_heads(const Gradient& g, int threads) {
  const AttentionProblem& p = g.p;
  const int64_t group = p.heads_per_kv_head();
  const int64_t keys = p.batch * p.kv_heads * p.keys, parts = parts_for(keys, threads);
  const int64_t step = round_up(p.dim, 64);  // no two threads write to one cache line
  const AlignedFloats sums = floats(parts * step);
  in_numbered_parts(keys, parts, [&](int64_t part, int64_t first, int64_t last) {
    float* const sum = sums.get() + part * step;
    for (int64_t i = first; i < last; ++i) {
      const int64_t key = i % p.keys, kv_head = i / p.keys % p.kv_heads,
                    batch = i / p.keys / p.kv_heads;
      const auto add_up = [&](const float* from, const Rows& to) {
        std::fill_n(sum, p.dim, 0.f);
        for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
          const float* row = from + ((batch * p.heads + head) * p.keys + key) * p.dim;
          for (int64_t h = 0; h < p.dim; ++h) sum[h] += row[h];
        }
        store(sum, p.dim, to, to.offset(batch, key, kv_head));
      };
      add_up(g.shared_dk, g.dk);
      add_up(g.shared_dv, g.dv);
    }
  });
}

}  // namespace ejk::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ejk::ops {

HWY_EXPORT(backward);
HWY_EXPORT(add_up_heads);

void attention_backward(const AttentionProblem& problem, int q_block, int k_block, int threads,
                        const Rows& out, const float* lse, const Rows& dout, const Rows& dq,
                        const Rows& dk, const Rows& dv) {
  if (problem.batch == 0 || problem.heads == 0 || problem.dim == 0) return;
  // Then there is nothing to add to the zeros.
  if (problem.queries == 0 || problem.keys == 0) return;
  AlignedFloats shared_dk, shared_dv;
  if (problem.heads != problem.kv_heads) {
    const int64_t size = problem.batch * problem.heads * problem.keys * problem.dim;
    shared_dk = floats(size), shared_dv = floats(size);
  }
  const Gradient gradient{problem, q_block,         k_block,        out, lse, dout, dq, dk,
                          dv,      shared_dk.get(), shared_dv.get()};
  HWY_DYNAMIC_DISPATCH(backward)(gradient, threads);
  if (shared_dk) HWY_DYNAMIC_DISPATCH(add_up_heads)(gradient, threads);
}

}  // namespace ejk::ops
#endif
