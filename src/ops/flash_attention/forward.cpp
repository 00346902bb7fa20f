// SPDX-License-Identifier: Apache-2.0
// Attention forward: a block of queries against block after block of keys, softmax on the way.
//
// Everything is worked on transposed, with queries along the vectors: logits are k q^T, so maxima
// and sums of a query need no step across a vector, and neither k nor v has to be transposed.
#include "ops/flash_attention/problem.h"

#include <cmath>
#include <deque>
#include <vector>

#include "ops/common/parts.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/flash_attention/forward.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h

#include <hwy/highway.h>

#include "ops/flash_attention/rows_inl.h"
#include "ops/flash_attention/tile_inl.h"

HWY_BEFORE_NAMESPACE();
namespace ejk::ops::HWY_NAMESPACE {

// Rows of one head of k or v as float32 behind each other, copied block by block when first needed.
class HeadRows {
 public:
  // `blocks`: how many of them are kept at a time.
  HeadRows(const Rows& rows, int64_t dim, int64_t block, int64_t blocks)
      : step(row_step(dim)),
        rows_(rows),
        dim_(dim),
        block_(block),
        data_(floats(blocks * block * step)),
        kept_(static_cast<size_t>(blocks), -1),
        finite_(static_cast<size_t>(blocks), true) {}

  void begin(int64_t batch, int64_t head) {
    batch_ = batch, head_ = head;
    std::fill(kept_.begin(), kept_.end(), -1);
  }

  // The rows of block number `index`, of which `count` exist.
  const float* block(int64_t index, int64_t count) {
    const size_t place = static_cast<size_t>(index) % kept_.size();
    float* to = data_.get() + static_cast<int64_t>(place) * block_ * step;
    if (kept_[place] == index) return to;
    kept_[place] = index;
    const int64_t first = index * block_;
    finite_[place] = rows_.bf16 ? copy<BFloat16>(first, count, to) : copy<float>(first, count, to);
    return to;
  }
  bool finite(int64_t index) const { return finite_[static_cast<size_t>(index) % kept_.size()]; }

  const int64_t step;

 private:
  // Whether all of them are finite numbers.
  template <class T>
  bool copy(int64_t first, int64_t count, float* to) const {
    const Floats d;
    const T* from = static_cast<const T*>(rows_.data) + rows_.offset(batch_, first, head_);
    Vector sum = hn::Zero(d);  // of x * 0
    float rest = 0;
    for (int64_t i = 0; i < count; ++i, from += rows_.position_stride, to += step) {
      // Rows are too far apart for the processor to guess the next one.
      if (i + 6 < count) prefetch_row(from + 6 * rows_.position_stride, dim_);
      int64_t c = 0;
      for (; c + lanes <= dim_; c += lanes) {
        const Vector x = load(from + c);
        sum = hn::MulAdd(x, hn::Zero(d), sum);
        store(x, to + c);
      }
      for (; c < dim_; ++c) rest += (to[c] = static_cast<float>(from[c])) * 0;
    }
    return sum_of_lanes(sum) + rest == 0;
  }

  Rows rows_;
  int64_t dim_, block_, batch_ = 0, head_ = 0;
  AlignedFloats data_;
  std::vector<int64_t> kept_;
  std::vector<bool> finite_;
};

// Up to max_vectors vectors of queries that go through the keys together.
struct Tile {
  int64_t first = 0, count = 0;  // of the rows of the block
  int64_t vectors = 0;
  KeyRange seen;                         // by any of them
  float *q, *out;                        // [dim][width]
  float *max, *sum, *factors;            // [width]
  int32_t *begin, *end;                  // [width]: the keys that each sees
  int64_t fully_from = 0, fully_to = 0;  // keys that all of them see
};

class Forward {
 public:
  Forward(const AttentionProblem& problem, int64_t q_block, int64_t k_block, const Rows& out,
          float* lse)
      : p_(problem),
        out_(out),
        lse_(lse),
        k_block_(std::min(k_block, std::max<int64_t>(problem.keys, 1))) {
    const int64_t group = p_.heads_per_kv_head();
    q_block_ = std::min(round_up(q_block, lanes), round_up(p_.queries * group, lanes));
    if (p_.queries < q_block_) {
      heads_in_block_ = std::min(group, q_block_ / p_.queries);
      blocks_per_head_ = 1;
    } else {
      heads_in_block_ = 1;
      blocks_per_head_ = (p_.queries + q_block_ - 1) / q_block_;
    }
    head_blocks_ = (group + heads_in_block_ - 1) / heads_in_block_;
  }

  void run(int threads) const {
    const int64_t blocks = p_.batch * p_.kv_heads * head_blocks_ * blocks_per_head_;
    const int64_t parts = parts_for(blocks, threads);
    const int64_t key_blocks = (p_.keys + k_block_ - 1) / k_block_;
    const bool once = head_blocks_ * blocks_per_head_ == 1;  // blocks of keys are used
    std::deque<Worker> workers;
    for (int64_t i = 0; i < parts; ++i)
      workers.emplace_back(*this, once ? 1 : std::max<int64_t>(key_blocks, 1));
    in_numbered_parts(blocks, parts, [&](int64_t part, int64_t first, int64_t last) {
      run(workers[static_cast<size_t>(part)], first, last);
    });
  }

 private:
  class Worker;

  void run(Worker& worker, int64_t begin, int64_t end) const {
    const int64_t per_kv_head = head_blocks_ * blocks_per_head_;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t kv = i / per_kv_head, at = i % per_kv_head;
      if (i == begin || at == 0) worker.begin(kv / p_.kv_heads, kv % p_.kv_heads);
      const int64_t head = at / blocks_per_head_ * heads_in_block_;
      worker.block(head, std::min(heads_in_block_, p_.heads_per_kv_head() - head),
                   balanced(at % blocks_per_head_));
    }
  }

  // First, last, second, last but one, ...: with a causal mask, later blocks have more to do, and
  // threads get equal parts of neighbours.
  int64_t balanced(int64_t i) const { return i % 2 == 0 ? i / 2 : blocks_per_head_ - 1 - i / 2; }

  class Worker {
   public:
    Worker(const Forward& f, int64_t kept_blocks)
        : f_(f),
          keys_(p_.k, p_.dim, f.k_block_, kept_blocks),
          values_(p_.v, p_.dim, f.k_block_, kept_blocks) {
      tiles_.reserve(static_cast<size_t>(f.q_block_ / lanes + 1));
    }

    void begin(int64_t batch, int64_t kv_head) {
      batch_ = batch, kv_head_ = kv_head;
      keys_.begin(batch, kv_head);
      values_.begin(batch, kv_head);
    }

    // Queries of `heads` heads of the group from `head` on, in block number `index`.
    void block(int64_t head, int64_t heads, int64_t index) {
      first_head_ = kv_head_ * p_.heads_per_kv_head() + head;
      first_query_ = index * f_.q_block_;
      queries_ = std::min(f_.q_block_, p_.queries - first_query_);
      const int64_t count = heads * queries_;
      std::vector<Tile>& tiles = tiles_;
      tiles.clear();
      float* memory = state_.get();
      KeyRange seen{p_.keys, 0};
      // As few tiles as possible, of about one width.
      const int64_t vectors = (count + lanes - 1) / lanes;
      const int64_t number = (vectors + max_vectors - 1) / max_vectors;
      for (int64_t i = 0; i < number; ++i) {
        const int64_t first = vectors * i / number * lanes;
        const int64_t last = std::min(vectors * (i + 1) / number * lanes, count);
        tiles.push_back(make_tile(first, last - first, memory));
        if (tiles.back().seen.empty()) continue;
        seen.begin = std::min(seen.begin, tiles.back().seen.begin);
        seen.end = std::max(seen.end, tiles.back().seen.end);
      }
      for (int64_t kb = seen.begin / f_.k_block_; kb * f_.k_block_ < seen.end; ++kb)
        for (Tile& tile : tiles) against_keys(tile, kb);
      for (const Tile& tile : tiles) finish(tile);
    }

   private:
    int64_t query_of(int64_t row) const { return first_query_ + row % queries_; }
    int64_t head_of(int64_t row) const { return first_head_ + row / queries_; }
    Tile make_tile(int64_t first, int64_t count, float*& memory) {
      Tile tile;
      tile.first = first, tile.count = count;
      tile.vectors = (count + lanes - 1) / lanes;
      const int64_t width = tile.vectors * lanes;
      const auto take = [&](int64_t size) {
        float* at = memory;
        memory += size;
        return at;
      };
      tile.q = take(p_.dim * width);
      tile.out = take(p_.dim * width);
      tile.max = take(width), tile.sum = take(width), tile.factors = take(width);
      tile.begin = reinterpret_cast<int32_t*>(take(width));
      tile.end = reinterpret_cast<int32_t*>(take(width));
      std::fill_n(tile.out, p_.dim * width, 0.f);
      std::fill_n(tile.max, width, minus_infinity);
      std::fill_n(tile.sum, width, 0.f);

      tile.seen = {p_.keys, 0}, tile.fully_from = 0, tile.fully_to = p_.keys;
      for (int64_t i = 0; i < count; ++i) {
        const KeyRange seen = p_.seen_by(batch_, query_of(first + i));
        tile.begin[i] = static_cast<int32_t>(seen.empty() ? 0 : seen.begin);
        tile.end[i] = static_cast<int32_t>(seen.empty() ? 0 : seen.end);
        tile.fully_from = std::max<int64_t>(tile.fully_from, tile.begin[i]);
        tile.fully_to = std::min<int64_t>(tile.fully_to, tile.end[i]);
        if (seen.empty()) continue;
        tile.seen.begin = std::min(tile.seen.begin, seen.begin);
        tile.seen.end = std::max(tile.seen.end, seen.end);
      }
      if (tile.seen.empty()) return tile;

      const auto at = [&](int64_t row) {
        return p_.q.offset(batch_, query_of(first + row), head_of(first + row));
      };
      for (int64_t i = 0; i < count; ++i) {
        if (i + 6 < count) prefetch_row(p_.q, at(i + 6), p_.dim);
        load(p_.q, at(i), p_.dim, logit_factor(p_), rows_.get() + i * rows_step_);
      }
      // Columns without a query do what the others do, with zeros.
      for (int64_t i = count; i < width; ++i) {
        std::fill_n(rows_.get() + i * rows_step_, p_.dim, 0.f);
        tile.begin[i] = static_cast<int32_t>(tile.seen.begin);
        tile.end[i] = static_cast<int32_t>(tile.seen.end);
      }
      transpose(rows_.get(), rows_step_, width, p_.dim, tile.q, width);
      return tile;
    }

    void against_keys(Tile& tile, int64_t kb) {
      const int64_t first = kb * f_.k_block_;
      const KeyRange range{std::max(tile.seen.begin, first),
                           std::min(tile.seen.end, first + f_.k_block_)};
      if (range.empty()) return;
      if (tile.vectors == 1) against_keys<1>(tile, kb, range);
      else if (max_vectors == 2 || tile.vectors == 2) against_keys<2>(tile, kb, range);
      else against_keys<max_vectors>(tile, kb, range);
    }

    template <int Vectors>
    void against_keys(Tile& tile, int64_t kb, KeyRange range) {
      constexpr int64_t width = Vectors * lanes;
      const int64_t first = kb * f_.k_block_, size = std::min(f_.k_block_, p_.keys - first);
      const float* keys = keys_.block(kb, size) + (range.begin - first) * keys_.step;
      const float* values = values_.block(kb, size) + (range.begin - first) * values_.step;
      const int64_t count = range.end - range.begin;
      const bool masked = range.begin < tile.fully_from || range.end > tile.fully_to;

      multiply<Vectors, Left::rows, Into::set>(keys, keys_.step, tile.q, width, p_.dim,
                                               logits_.get(), width, count);
      if (p_.softcap != 0) cap_logits(p_.softcap, count * width, logits_.get());
      if (masked) hide<Vectors>(tile, range);
      softmax<Vectors>(tile, count);
      if (masked && !values_.finite(kb)) add_seen_values<Vectors>(tile, range, values);
      else
        multiply<Vectors, Left::columns, Into::scale_and_add>(values, values_.step, logits_.get(),
                                                              width, count, tile.out, width, p_.dim,
                                                              tile.factors);
    }

    template <int Vectors>
    void hide(const Tile& tile, KeyRange range) {
      const Floats d;
      float* at = logits_.get();
      for (int64_t key = range.begin; key < range.end; ++key)
        for (int64_t c = 0; c < Vectors * lanes; c += lanes, at += lanes)
          hn::Store(hn::IfThenElse(sees(tile.begin + c, tile.end + c, key), hn::Load(d, at),
                                   hn::Set(d, minus_infinity)),
                    d, at);
    }

    // Logits become weights relative to the largest one so far.
    template <int Vectors>
    void softmax(Tile& tile, int64_t count) {
      const Floats d;
      Vector max[Vectors], sum[Vectors];
      float* at = logits_.get();
#pragma GCC unroll 4
      for (int j = 0; j < Vectors; ++j) max[j] = load(tile.max + j * lanes);
      for (int64_t i = 0; i < count; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < Vectors; ++j, at += lanes) max[j] = hn::Max(max[j], hn::Load(d, at));
#pragma GCC unroll 4
      for (int j = 0; j < Vectors; ++j) {
        const int c = j * lanes;
        const Vector old = load(tile.max + c);
        store(max[j], tile.max + c);
        // So far nothing but -inf: 0 instead keeps the weights at 0.
        max[j] = hn::IfThenZeroElse(hn::Eq(max[j], hn::Set(d, minus_infinity)), max[j]);
        const Vector factor = exp2_up_to_127(d, hn::Sub(old, max[j]));
        store(factor, tile.factors + c);
        sum[j] = hn::Mul(load(tile.sum + c), factor);
      }
      at = logits_.get();
      for (int64_t i = 0; i < count; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < Vectors; ++j, at += lanes) {
          const Vector weight = exp2_up_to_127(d, hn::Sub(hn::Load(d, at), max[j]));
          sum[j] = hn::Add(sum[j], weight);
          hn::Store(weight, d, at);
        }
#pragma GCC unroll 4
      for (int j = 0; j < Vectors; ++j) store(sum[j], tile.sum + j * lanes);
    }

    // The weight of a key that is not seen is 0, but 0 times infinity is NaN.
    template <int Vectors>
    void add_seen_values(Tile& tile, KeyRange range, const float* values) {
      const Floats d;
      constexpr auto width = Vectors * lanes;
      for (int64_t c = 0; c < width; c += lanes) {
        const Vector factor = load(tile.factors + c);
        for (int64_t h = 0; h < p_.dim; ++h) {
          Vector sum = hn::Mul(load(tile.out + h * width + c), factor);
          for (int64_t key = range.begin; key < range.end; ++key) {
            const int64_t i = key - range.begin;
            const Vector term = hn::Mul(hn::Load(d, logits_.get() + i * width + c),
                                        hn::Set(d, values[i * values_.step + h]));
            sum = hn::Add(sum, hn::IfThenElseZero(sees(tile.begin + c, tile.end + c, key), term));
          }
          store(sum, tile.out + h * width + c);
        }
      }
    }

    void finish(const Tile& tile) {
      const Floats d;
      const int64_t width = tile.vectors * lanes;
      for (int64_t c = 0; c < width; c += lanes) {
        const Vector inverse = hn::Div(hn::Set(d, 1.f), load(tile.sum + c));
        for (int64_t h = 0; h < p_.dim; ++h) {
          float* at = tile.out + h * width + c;
          store(hn::Mul(load(at), inverse), at);
        }
      }
      transpose(tile.out, width, p_.dim, tile.count, rows_.get(), rows_step_);
      for (int64_t i = 0; i < tile.count; ++i) {
        const bool blind = tile.begin[i] >= tile.end[i];
        float* row = rows_.get() + i * rows_step_;
        if (blind) std::fill_n(row, p_.dim, 0.f);
        const int64_t query = query_of(tile.first + i), head = head_of(tile.first + i);
        store(row, p_.dim, f_.out_, f_.out_.offset(batch_, query, head));
        if (f_.lse_ != nullptr)
          f_.lse_[(batch_ * p_.heads + head) * p_.queries + query] =
              blind ? 0.f : tile.max[i] + std::log2(tile.sum[i]);
      }
    }

    const Forward& f_;
    const AttentionProblem& p_ = f_.p_;
    HeadRows keys_, values_;
    const int64_t width_ = max_vectors * lanes, rows_step_ = round_up(p_.dim, 4);
    AlignedFloats rows_ = floats(width_ * rows_step_), logits_ = floats(f_.k_block_ * width_);
    AlignedFloats state_ = floats((f_.q_block_ + width_) * (2 * p_.dim + 5));
    std::vector<Tile> tiles_;
    int64_t batch_ = 0, kv_head_ = 0, first_head_ = 0, first_query_ = 0, queries_ = 0;
  };

  const AttentionProblem& p_;
  const Rows& out_;
  float* lse_;
  int64_t k_block_, q_block_, heads_in_block_, blocks_per_head_, head_blocks_;
};

void forward(const AttentionProblem& problem, int q_block, int k_block, int threads,
             const Rows& out, float* lse) {
  Forward(problem, q_block, k_block, out, lse).run(threads);
}

}  // namespace ejk::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ejk::ops {

HWY_EXPORT(forward);

void attention_forward(const AttentionProblem& problem, int q_block, int k_block, int threads,
                       const Rows& out, float* lse) {
  if (problem.batch == 0 || problem.queries == 0 || problem.heads == 0 || problem.dim == 0) return;
  HWY_DYNAMIC_DISPATCH(forward)(problem, q_block, k_block, threads, out, lse);
}

}  // namespace ejk::ops
#endif
