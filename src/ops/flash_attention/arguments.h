// SPDX-License-Identifier: Apache-2.0
// Checks the arguments of an attention and makes the problem of them.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <string>
#include <string_view>

#include "ops/common/refuse.h"
#include "ops/flash_attention/problem.h"

namespace ejk::ops {

// "q float32[1, 2, 3, 4]"
inline std::string described(std::string_view name, const AnyView& v) {
  return fmt::format("{} {}{}", name, dtype_name(v.dtype), shape_text(v.shape));
}
inline std::string described(std::string_view name, const Tensor& t) {
  return described(name, t.any());
}

inline void check_attention_dtype(std::string_view op, const Tensor& q, const Tensor& k,
                                  const Tensor& v) {
  if ((q.dtype() != DType::float32 && q.dtype() != DType::bfloat16) || k.dtype() != q.dtype() ||
      v.dtype() != q.dtype())
    refuse(op,
           fmt::format("{}, {}, {}", described("q", q), described("k", k), described("v", v)),
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

// The bytes that a view reaches: [first, last).
struct Extent {
  const char *first, *last;
};
inline Extent extent_of(const AnyView& v) {
  const auto* data = static_cast<const char*>(v.data);
  if (v.size() == 0) return {data, data};
  const auto bytes = static_cast<int64_t>(dtype_bits(v.dtype) / 8);
  if (v.strides.empty()) return {data, data + v.size() * bytes};
  int64_t low = 0, high = 0;
  for (size_t i = 0; i < v.shape.size(); ++i)
    (v.strides[i] < 0 ? low : high) += (v.shape[i] - 1) * v.strides[i];
  return {data + low * bytes, data + (high + 1) * bytes};
}
// Views that interleave without sharing an element are refused too: who wants that can copy.
inline void check_apart(std::string_view op, const AnyView& out, std::string_view name,
                        const AnyView& in) {
  const Extent a = extent_of(out), b = extent_of(in);
  if (a.first < b.last && b.first < a.last)
    refuse(op, fmt::format("an output that overlaps {}", name), "memory of its own");
}

}  // namespace ejk::ops
