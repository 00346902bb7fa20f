// SPDX-License-Identifier: Apache-2.0
// Checks the arguments of an attention and makes the problem of them.
#pragma once

#include <array>
#include <cmath>
#include <string_view>

#include "base/format.h"
#include "ops/common/overlap.h"
#include "ops/common/refuse.h"
#include "ops/flash_attention/problem.h"

namespace ejk::ops {

inline void check_attention_dtype(std::string_view op, const Tensor& q, const Tensor& k,
                                  const Tensor& v) {
  if ((q.dtype() != DType::float32 && q.dtype() != DType::bfloat16) || k.dtype() != q.dtype() ||
      v.dtype() != q.dtype())
    refuse(op, fmt::format("{}, {}, {}", described("q", q), described("k", k), described("v", v)),
           "all three float32 or all three bfloat16");
}

// A scale, a cap: `positive` or any finite number.
inline void check_number(std::string_view op, std::string_view name, float value, bool positive) {
  if (!std::isfinite(value) || (positive && value <= 0))
    refuse(op, fmt::format("{} = {}", name, value),
           positive ? "a positive finite number" : "a finite number");
}
inline void check_window(std::string_view op, std::string_view name,
                         const std::optional<int64_t>& value) {
  if (value && *value < 0) refuse(op, fmt::format("{} = {}", name, *value), "0 or more");
}

inline void check_lengths(std::string_view op, std::string_view name,
                          std::span<const int32_t> lengths, int64_t batch, int64_t longest) {
  if (static_cast<int64_t>(lengths.size()) != batch)
    refuse(op, fmt::format("{} lengths in {}", lengths.size(), name),
           fmt::format("one per batch element: {}", batch));
  for (const int32_t length : lengths)
    if (length < 0 || length > longest)
      refuse(op, fmt::format("a length of {} in {}", length, name),
             fmt::format("lengths from 0 to {}", longest));
}

// A tensor whose rows lie behind each other in memory: itself, or a packed copy.
inline Tensor with_packed_rows(const Tensor& t) {
  return t.shape().back() <= 1 || t.strides().back() == 1 ? t : t.clone();
}

// [batch, position, head, dim], the last stride 1.
inline Rows rows_of(const AnyView& v) {
  Rows rows{v.data, 0, 0, 0, v.dtype == DType::bfloat16};
  if (!v.strides.empty())
    rows.batch_stride = v.strides[0], rows.position_stride = v.strides[1],
    rows.head_stride = v.strides[2];
  else
    rows.head_stride = v.shape[3], rows.position_stride = v.shape[2] * rows.head_stride,
    rows.batch_stride = v.shape[1] * rows.position_stride;
  return rows;
}
inline Rows rows_of(const Tensor& t) { return rows_of(t.any()); }

// An array with strides, of up to four axes, for overlap.h. Axes that it does not have are of size
// 1.
template <class T>
struct Elements {
  using element_type = T;
  static constexpr int rank = 4;
  const void* data;
  std::array<int64_t, rank> shape, strides;

  explicit Elements(const AnyView& v) : data(v.data) {
    shape.fill(1), strides.fill(1);
    int64_t packed = 1;
    for (size_t d = v.shape.size(), to = rank; d-- > 0;) {
      shape[--to] = v.shape[d];
      strides[to] = v.strides.empty() ? packed : v.strides[d];
      packed *= v.shape[d];
    }
  }
  int64_t size() const { return shape[0] * shape[1] * shape[2] * shape[3]; }
};

// For two arrays of one type, float32 or bfloat16.
inline void check_apart(std::string_view op, const AnyView& out, std::string_view name,
                        const AnyView& in) {
  const bool shared = out.dtype == DType::float32
                          ? overlap(Elements<float>(out), Elements<float>(in))
                          : overlap(Elements<BFloat16>(out), Elements<BFloat16>(in));
  if (shared) refuse(op, fmt::format("an output that overlaps {}", name), "memory of its own");
}
inline void check_apart_from_itself(std::string_view op, const AnyView& out) {
  if (out.dtype == DType::float32 ? overlaps_itself(Elements<float>(out))
                                  : overlaps_itself(Elements<BFloat16>(out)))
    refuse(op, "an output whose elements overlap each other", "a place for each element");
}

}  // namespace ejk::ops
