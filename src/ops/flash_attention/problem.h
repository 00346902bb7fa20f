// SPDX-License-Identifier: Apache-2.0
// An attention call after its arguments were checked: pointers, sizes, strides, which keys are
// seen.
#pragma once

#include <algorithm>
#include <cstdint>

#include <ejk/ops/flash_attention.h>
#include <ejk/tensor.h>

namespace ejk::ops {

// Rows of `dim` neighbouring elements, at [batch, position, head]. Strides in elements.
struct Rows {
  void* data = nullptr;
  int64_t batch_stride = 0, position_stride = 0, head_stride = 0;
  bool bf16 = false;

  int64_t offset(int64_t batch, int64_t position, int64_t head) const {
    return batch * batch_stride + position * position_stride + head * head_stride;
  }
  // One element by its offset, for the references.
  double get(int64_t at) const {
    return bf16 ? static_cast<float>(static_cast<const BFloat16*>(data)[at])
                : static_cast<const float*>(data)[at];
  }
  void put(int64_t at, double value) const {
    if (bf16) static_cast<BFloat16*>(data)[at] = BFloat16(static_cast<float>(value));
    else static_cast<float*>(data)[at] = static_cast<float>(value);
  }
};

// Keys that a query sees: [begin, end).
struct KeyRange {
  int64_t begin = 0, end = 0;
  bool empty() const { return begin >= end; }
};

struct AttentionProblem {
  Rows q, k, v;
  int64_t batch = 0, queries = 0, keys = 0, heads = 0, kv_heads = 0, dim = 0;
  float scale = 1;
  float softcap = 0;  // 0: none
  bool causal = false;
  int64_t left = 0, right = 0;  // of the window; at least queries + keys if there is none
  const int32_t* query_lengths = nullptr;
  const int32_t* key_lengths = nullptr;

  int64_t heads_per_kv_head() const { return heads / kv_heads; }
  KeyRange seen_by(int64_t batch_index, int64_t query) const {
    if (query_lengths != nullptr && query >= query_lengths[batch_index]) return {};
    const int64_t length = key_lengths != nullptr ? key_lengths[batch_index] : keys;
    const int64_t ahead = causal ? std::min<int64_t>(right, 0) : right;
    return {std::max<int64_t>(0, query - left), std::min(length, query + ahead + 1)};
  }
};

// Throws Error(invalid_argument) for what FlashAttention does not take.
void check_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                     const AttentionOptions& options);
AttentionProblem attention_problem(const Tensor& q, const Tensor& k, const Tensor& v,
                                   const AttentionOptions& options);

// Writes out and, if it is given, lse [batch, heads, queries]. q_block and k_block are positive.
void attention_forward(const AttentionProblem& problem, int q_block, int k_block, int threads,
                       const Rows& out, float* lse);

// Writes the gradients, which must hold zeros, from dout, out and the lse of the forward pass.
void attention_backward(const AttentionProblem& problem, int q_block, int k_block, int threads,
                        const Rows& out, const float* lse, const Rows& dout, const Rows& dq,
                        const Rows& dk, const Rows& dv);

// What the gradient is made from and where it goes.
struct Gradient {
  const AttentionProblem& p;
  int64_t q_block, k_block;
  const Rows& out;
  const float* lse;
  const Rows &dout, &dq, &dk, &dv;
  // Of heads that share a kv head: [batch * heads][keys][dim] each, summed up in the end.
  float *shared_dk, *shared_dv;
};

// The same as attention_forward in float64, one query after the other.
void attention_reference(const AttentionProblem& problem, const Rows& out);

}  // namespace ejk::ops
