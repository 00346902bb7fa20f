// SPDX-License-Identifier: Apache-2.0
// Root-mean-square normalisation of rows, forward and backward.
#include <ejk/ops/rms_norm.h>

#include <cmath>

#include "ops/common/rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/rms_norm/rms_norm.cpp"
#include <hwy/foreach_target.h>
// After it, as it is included again for each instruction set.
#include "ops/common/row_vectors_inl.h"

#ifndef EJK_OPS_RMS_NORM_ONCE
#define EJK_OPS_RMS_NORM_ONCE
namespace ejk::ops {
namespace {

// 1 / sqrt(mean + eps). Where the squares left the range of float, they are summed again in double.
template <class T>
float scale_of(const T* row, int64_t columns, float sum_of_squares, float eps) {
  const auto n = static_cast<double>(columns);
  double mean = double{sum_of_squares} / n;
  if (!std::isfinite(mean) || mean + double{eps} < 1e-30) {
    mean = 0;
    for (int64_t c = 0; c < columns; ++c) {
      const double v = double{static_cast<float>(row[c])};
      mean += v * v / n;
    }
  }
  return static_cast<float>(1 / std::sqrt(mean + double{eps}));
}

template <class T>
struct RmsNormRows : ForwardRows<T> {
  const T* weight;  // nullptr: none
  float eps;
  float* scales;  // of all rows; nullptr: not asked for
};

template <class T>
struct RmsNormGradientRows : GradientRows<T> {
  const T* weight;
  const float* scales;  // of all rows
  float* dweight;       // of these rows, zeros before; nullptr: no weight
};

}  // namespace
}  // namespace ejk::ops
#endif

HWY_BEFORE_NAMESPACE();
namespace ejk::ops::HWY_NAMESPACE {

template <class T>
HWY_INLINE float sum_of_squares(const T* row, int64_t columns) {
  return sum(columns, [&](auto at, Vector s) HWY_ATTR {
    const Vector v = at(row);
    return hn::MulAdd(v, v, s);
  });
}

// One row after the other.
template <class T>
HWY_INLINE void rms_norm_rows_in_turn(const RmsNormRows<T>& rows, int64_t first, int64_t last) {
  const T* weight = rows.weight;
  for (int64_t row = first; row < last; ++row) {
    const T* x = rows.x[row];
    T* out = rows.out[row];
    const float scale = scale_of(x, rows.columns, sum_of_squares(x, rows.columns), rows.eps);
    if (rows.scales != nullptr) rows.scales[row] = scale;
    const T* soon = rows.ahead ? rows.x.next(row) : x;  // to ask for x again costs nothing
    const auto write = [&](auto at) HWY_ATTR {
      fetch(soon, at.column);
      const Vector v = hn::Mul(at(x), all(scale));
      at.put(weight == nullptr ? v : hn::Mul(v, at(weight)), out);
    };
    write_row(rows.out, row, rows.columns, rows.streamed, write);
  }
}

// The squares of a row are summed while the row before is written and the row behind is fetched, so
// that memory never waits. The sums are the same to the bit.
template <class T>
HWY_NOINLINE EJK_FLATTEN void rms_norm_rows_ahead(const RmsNormRows<T>& rows, int64_t first,
                                                  int64_t last) {
  const T* weight = rows.weight;
  const int64_t columns = rows.columns;
  float squares = sum_of_squares(rows.x.in_place(first), columns);
  for (int64_t row = first; row < last; ++row) {
    const T* x = rows.x.in_place(row);
    T* out = rows.out[row];
    const float scale = scale_of(x, columns, squares, rows.eps);
    if (rows.scales != nullptr) rows.scales[row] = scale;
    const auto write = [&](auto at) HWY_ATTR {
      const Vector v = hn::Mul(at(x), all(scale));
      at.put(weight == nullptr ? v : hn::Mul(v, at(weight)), out);
    };
    if (row + 1 == last) {
      walk_streamed(out, columns, write);
      break;
    }
    const T *next = rows.x.in_place(row + 1), *soon = rows.x.next(row + 1);
    squares = sum<WholeStreamed>(
        columns,
        [&](auto at, Vector s) HWY_ATTR {
          const Vector v = at(next);
          write(at);
          return hn::MulAdd(v, v, s);
        },
        soon, next);
  }
}

template <class T>
HWY_INLINE void rms_norm_rows(const RmsNormRows<T>& rows, int64_t first, int64_t last) {
  if (can_stream_ahead(rows)) rms_norm_rows_ahead(rows, first, last);
  else rms_norm_rows_in_turn(rows, first, last);
}

// With g = dy weight and x^ = x scale: dx = scale (g - x^ mean(g x^)), dweight = sum of dy x^.
template <class T>
HWY_INLINE void rms_norm_gradient_rows(const RmsNormGradientRows<T>& rows, int64_t first,
                                       int64_t last) {
  const T* weight = rows.weight;
  for (int64_t row = first; row < last; ++row) {
    const T *dy = rows.dy[row], *x = rows.x[row];
    T* dx = rows.dx[row];
    const Vector scale = all(rows.scales[row]);
    const auto g = [&](auto at) HWY_ATTR {
      return weight == nullptr ? at(dy) : hn::Mul(at(dy), at(weight));
    };
    const float products = sum(rows.columns, [&](auto at, Vector s) HWY_ATTR {
      return hn::MulAdd(g(at), hn::Mul(at(x), scale), s);
    });
    const Vector mean = all(products / static_cast<float>(rows.columns));
    if (rows.dweight != nullptr)
      walk(rows.columns, [&](auto at) HWY_ATTR {
        at.put(hn::MulAdd(at(dy), hn::Mul(at(x), scale), at(rows.dweight)), rows.dweight);
      });
    const auto write = [&](auto at) HWY_ATTR {
      const Vector normal = hn::Mul(at(x), scale);
      at.put(hn::Mul(scale, hn::NegMulAdd(normal, mean, g(at))), dx);
    };
    write_row(rows.dx, row, rows.columns, rows.streamed, write);
  }
}

EJK_ROWS_OF_THIS_SET(RmsNormRows, rms_norm_rows)
EJK_ROWS_OF_THIS_SET(RmsNormGradientRows, rms_norm_gradient_rows)

}  // namespace ejk::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <ejk/executor.h>

#include "ops/common/over_last_axis.h"
#include "ops/common/over_rows.h"

namespace ejk::ops {

namespace {

constexpr std::string_view op = "rms_norm";

EJK_RUN_ROWS(RmsNormRows, rms_norm_rows)
EJK_RUN_ROWS(RmsNormGradientRows, rms_norm_gradient_rows)

template <class T>
void forward(const RowConfig& config, const StridedView<const T, 2>& x,
             const std::optional<std::span<const T>>& weight, float eps,
             const StridedView<T, 2>& out, float* scales) {
  check_row_config(op, config);
  check_rows<T>(op, x, {{"weight", weight}}, out);
  forward_in_parts(config, x, out, [&](const auto& rows, int64_t, int64_t first, int64_t last) {
    run_rows(RmsNormRows<T>{rows, data_or_null(weight), eps, scales}, first, last);
  });
}

}  // namespace

template <class T>
void RmsNorm<T>::run(const Config& config, const In& x, const Weight& weight, float eps,
                     const Result& out) const {
  forward(config, x, weight, eps, *out, nullptr);
}

template <class T>
void RmsNorm<T>::reference(const In& x, const Weight& weight, float eps, const Result& out) const {
  check_rows<T>(op, x, {{"weight", weight}}, *out);
  for (int64_t row = 0; row < x.shape[0]; ++row) {
    double sum = 0;
    for (int64_t c = 0; c < x.shape[1]; ++c) sum += as_double(x(row, c)) * as_double(x(row, c));
    const double scale = 1 / std::sqrt(sum / static_cast<double>(x.shape[1]) + double{eps});
    for (int64_t c = 0; c < x.shape[1]; ++c)
      (*out)(row, c) =
          T(static_cast<float>(as_double(x(row, c)) * scale * element_or(1, weight, c)));
  }
}

template <class T>
auto RmsNorm<T>::fwd_with_residuals(const Config& config, const In& x, const Weight& weight,
                                    float eps, const Result& out) const
    -> std::pair<In, Residuals> {
  Residuals residuals{std::vector<float>(static_cast<size_t>(std::max<int64_t>(x.shape[0], 0)))};
  forward(config, x, weight, eps, *out, residuals.scales.data());
  return {In(*out), std::move(residuals)};
}

template <class T>
std::tuple<Tensor, std::optional<Tensor>> RmsNorm<T>::vjp(const Config& config,
                                                          const Residuals& residuals, const In& dy,
                                                          const In& x, const Weight& weight, float,
                                                          const Result&) const {
  const ColumnSums sums(weight.has_value(), x.shape[0], x.shape[1]);
  Tensor dx =
      gradient_in_groups(op, config, dy, x, rows_per_group(x.shape[0]),
                         [&](const auto& rows, int64_t group, int64_t first, int64_t last) {
                           run_rows(RmsNormGradientRows<T>{rows, data_or_null(weight),
                                                           residuals.scales.data(), sums[group]},
                                    first, last);
                         });
  return {std::move(dx), sums.total<T>()};
}

template struct RmsNorm<float>;
template struct RmsNorm<BFloat16>;

Tensor rms_norm(const Tensor& x, const std::optional<Tensor>& weight, float eps) {
  return over_last_axis(op, x, [&]<class T>(const auto& rows, const auto& out) {
    const ColumnTensor<T> per_column(op, "weight", x, weight);
    default_executor()(RmsNorm<T>{}, rows, per_column.line_of(rows), eps, out);
  });
}

}  // namespace ejk::ops
#endif
