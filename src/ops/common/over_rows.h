// SPDX-License-Identifier: Apache-2.0
// What operations over rows share around their loops: checks, parts of the rows among threads,
// sums over rows.
#pragma once

#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <ejk/ops/row_config.h>
#include <ejk/tensor.h>

#include "ops/common/overlap.h"
#include "ops/common/refuse.h"
#include "ops/common/row_groups.h"
#include "ops/common/rows.h"

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

inline void check_row_config(std::string_view op, const RowConfig& config) {
  check_positive(op, "threads", config.threads);
  check_positive(op, "backward.threads", config.backward.threads);
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

// Calls f(rows, part, first, last) for parts of the rows, each on a thread of its own.
template <class T, class F>
void forward_in_parts(const RowConfig& config, const StridedView<const T, 2>& x,
                      const StridedView<T, 2>& out, const F& f) {
  const int64_t rows = x.shape[0], columns = x.shape[1];
  const int64_t parts = parts_for(rows, config.threads);
  const RowBuffers<T> x_copies(!adjacent(x), parts, columns);
  const RowBuffers<T> out_copies(!adjacent(out), parts, columns);
  in_numbered_parts(rows, parts, [&](int64_t part, int64_t first, int64_t last) {
    f(ForwardRows<T>{{x, x_copies[part]},
                     {out, out_copies[part]},
                     columns,
                     config.streamed && adjacent(out),
                     config.ahead && adjacent(x)},
      part, first, last);
  });
}

// dx: calls f(rows, group, first, last) for groups of the rows, on some threads.
template <class T, class F>
Tensor gradient_in_groups(std::string_view op, const RowConfig& config,
                          const StridedView<const T, 2>& dy, const StridedView<const T, 2>& x,
                          int64_t group, const F& f) {
  check_row_config(op, config);
  if (dy.shape != x.shape)
    refuse(op, "x" + shape_text(x.shape) + ", dy" + shape_text(dy.shape),
           "x[rows, columns], dy[rows, columns]");
  const int64_t rows = x.shape[0], columns = x.shape[1], groups = (rows + group - 1) / group;
  Tensor dx = Tensor::of<T>({rows, columns});
  const auto dx_view = dx.strided<T, 2>();
  const int64_t parts = parts_for(groups, config.backward.threads);
  const RowBuffers<T> dy_copies(!adjacent(dy), parts, columns);
  const RowBuffers<T> x_copies(!adjacent(x), parts, columns);
  in_numbered_parts(groups, parts, [&](int64_t part, int64_t begin, int64_t end) {
    const GradientRows<T> in_part{{dy, dy_copies[part]},
                                  {x, x_copies[part]},
                                  {dx_view, nullptr},
                                  columns,
                                  config.backward.streamed};
    for (int64_t g = begin; g < end; ++g) f(in_part, g, g * group, std::min(rows, (g + 1) * group));
  });
  return dx;
}

// Sums over rows, if they are asked for.
class ColumnSums {
 public:
  ColumnSums(bool wanted, int64_t rows, int64_t columns) {
    const int64_t group = rows_per_group(rows);
    if (wanted) of_groups_ = Tensor::of<float>({(rows + group - 1) / group, columns});
  }
  // Zeros to add to; nullptr: not asked for.
  float* operator[](int64_t group) const {
    return of_groups_ ? of_groups_->data<float>() + group * of_groups_->shape()[1] : nullptr;
  }
  template <class T>
  std::optional<Tensor> total() const {
    if (!of_groups_) return std::nullopt;
    const auto m = of_groups_->view<const float, 2>();
    Tensor total = Tensor::of<float>({m.shape[1]});
    float* sums = total.data<float>();
    for (int64_t row = 0; row < m.shape[0]; ++row)
      for (int64_t c = 0; c < m.shape[1]; ++c) sums[c] += m.data[row * m.shape[1] + c];
    if constexpr (std::is_same_v<T, float>) return total;
    Tensor rounded = Tensor::of<T>({m.shape[1]});
    for (int64_t c = 0; c < m.shape[1]; ++c) rounded.data<T>()[c] = T(sums[c]);
    return rounded;
  }

 private:
  std::optional<Tensor> of_groups_;
};

template <class T>
const T* data_or_null(const std::optional<std::span<const T>>& line) {
  return line ? line->data() : nullptr;
}

}  // namespace ejk::ops
