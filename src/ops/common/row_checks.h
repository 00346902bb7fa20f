// SPDX-License-Identifier: Apache-2.0
// What operations over rows share around their loops: checks, elements in double, sums of columns.
#pragma once

#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <ejk/tensor.h>

#include "ops/common/overlap.h"
#include "ops/common/refuse.h"

namespace ejk::ops {

template <class T>
double as_double(T element) {
  return double{static_cast<float>(element)};
}

// One number per column, by name; none if it is left out.
template <class T>
using PerColumn = std::pair<std::string_view, std::optional<std::span<const T>>>;

template <class T>
double element_or(double otherwise, const std::optional<std::span<const T>>& line, int64_t column) {
  return line ? as_double((*line)[static_cast<size_t>(column)]) : otherwise;
}

// Whether they are one and the same: each element is read before it is written in its place.
template <class T>
bool same_place(const StridedView<const T, 2>& a, const StridedView<T, 2>& b) {
  return a.data == b.data && a.shape == b.shape && a.strides == b.strides;
}

// x[rows, columns], lines[columns], out[rows, columns], which overlaps nothing or is x itself.
template <class T>
void check_rows(std::string_view op, const StridedView<const T, 2>& x,
                std::initializer_list<PerColumn<T>> lines, const StridedView<T, 2>& out) {
  bool fits = x.shape == out.shape && x.shape[0] >= 0 && x.shape[1] >= 0;
  std::string given = "x" + shape_text(x.shape), needed = "x[rows, columns]";
  for (const auto& [name, line] : lines) {
    if (!line) continue;
    fits = fits && static_cast<int64_t>(line->size()) == x.shape[1];
    given += fmt::format(", {}[{}]", name, line->size());
    needed += fmt::format(", {}[columns]", name);
  }
  if (!fits) refuse(op, given + ", out" + shape_text(out.shape), needed + ", out[rows, columns]");
  if (overlaps_itself(out))
    refuse(op, "out with strides " + shape_text(out.strides) + ", whose elements share memory",
           "an out whose elements are apart");
  if (!same_place(x, out) && overlap(x, out))
    refuse(op, "an out that overlaps x", "an out apart from x, or x itself with its strides");
  for (const auto& [name, line] : lines)
    if (line && overlap(out, StridedView<const T, 1>(line->data(), {x.shape[1]}, {1})))
      refuse(op, fmt::format("an out that overlaps {}", name),
             fmt::format("an out apart from {}", name));
}

template <class T>
void check_cotangent(std::string_view op, const StridedView<const T, 2>& x,
                     const StridedView<const T, 2>& dy) {
  if (dy.shape != x.shape)
    refuse(op, "x" + shape_text(x.shape) + ", dy" + shape_text(dy.shape),
           "x[rows, columns], dy[rows, columns]");
}

// The sums of the columns of a packed matrix, from the first row to the last.
template <class T>
Tensor column_sums(const Tensor& matrix) {
  const auto m = matrix.view<const float, 2>();
  Tensor total = Tensor::of<float>({m.shape[1]});
  float* sums = total.data<float>();
  for (int64_t row = 0; row < m.shape[0]; ++row)
    for (int64_t c = 0; c < m.shape[1]; ++c) sums[c] += m.data[row * m.shape[1] + c];
  if constexpr (std::is_same_v<T, float>) return total;
  Tensor rounded = Tensor::of<T>({m.shape[1]});
  for (int64_t c = 0; c < m.shape[1]; ++c) rounded.data<T>()[c] = T(sums[c]);
  return rounded;
}

}  // namespace ejk::ops
