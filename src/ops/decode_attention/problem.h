// SPDX-License-Identifier: Apache-2.0
// A decoding call after its arguments were checked.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>

#include <ejk/ops/decode_attention.h>

#include "ops/flash_attention/problem.h"

namespace ejk::ops {

struct DecodeProblem {
  Rows q;     // [batch, -, head]
  Rows k, v;  // [sequence or page, position in it, kv head]
  int64_t batch = 0, heads = 0, kv_heads = 0, dim = 0;
  int64_t positions = 0;                 // of each sequence
  const int32_t* lengths = nullptr;      // nullptr: all positions
  const int32_t* block_table = nullptr;  // nullptr: no pages
  int64_t table_stride = 0, page_size = 0;
  float scale = 1;
  float softcap = 0;  // 0: none
  int64_t left = 0;   // of the window; at least positions if there is none

  int64_t heads_per_kv_head() const { return heads / kv_heads; }
  KeyRange seen(int64_t sequence) const {
    const int64_t length = lengths != nullptr ? lengths[sequence] : positions;
    return {std::max<int64_t>(0, length - 1 - left), length};
  }
  // Where a position of a sequence lies in k or v, for kv head 0.
  int64_t offset(const Rows& rows, int64_t sequence, int64_t position) const {
    if (block_table == nullptr) return rows.offset(sequence, position, 0);
    const int64_t page = block_table[sequence * table_stride + position / page_size];
    return rows.offset(page, position % page_size, 0);
  }
};

// Throw Error(invalid_argument) for what the kernels do not take. Tables on a device are not read.
void check_decode(std::string_view op, const Tensor& q, const Tensor& k, const Tensor& v,
                  std::span<const int32_t> lengths, const DecodeOptions& options);
void check_paged_decode(std::string_view op, const Tensor& q, const Tensor& k, const Tensor& v,
                        const Tensor& table, std::span<const int32_t> lengths,
                        const DecodeOptions& options);

// Whether the heads of a position are neighbours in memory.
inline bool side_by_side(const Rows& rows) { return rows.head_stride <= rows.position_stride; }

// All of config is positive.
void decode_forward(const DecodeProblem& problem, const DecodeConfig& config, const Rows& out);

// The cotangent of the output, and where gradients go: dq as q; dk and dv, float32, as k and v.
struct DecodeCotangents {
  Rows dout, dq, dk, dv;
};
// Writes dq and adds to dk and dv.
void decode_backward(const DecodeProblem& problem, int threads, const DecodeCotangents& cotangents);

// The same as decode_forward in float64, one head after the other.
void decode_reference(const DecodeProblem& problem, const Rows& out);

}  // namespace ejk::ops
