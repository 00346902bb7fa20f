// SPDX-License-Identifier: Apache-2.0
// Root-mean-square normalisation of rows, forward and backward.
#include <ejk/ops/rms_norm.h>

#include <cmath>
#include <limits>

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
struct RmsNormRows {
  RowsIn<T> x;
  const T* weight;  // nullptr: none
  float eps;
  RowsOut<T> out;
  float* scales;  // of all rows; nullptr: not asked for
  int64_t columns;
  bool streamed, ahead;
};

template <class T>
struct RmsNormGradientRows {
  RowsIn<T> dy, x;
  const T* weight;
  const float* scales;  // of all rows
  RowsOut<T> dx;
  float* dweight;  // of these rows, zeros before; nullptr: no weight
  int64_t columns;
  bool streamed;
};

}  // namespace
}  // namespace ejk::ops
#endif

HWY_BEFORE_NAMESPACE();
namespace ejk::ops {
namespace HWY_NAMESPACE {

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
    if (rows.streamed) walk_streamed(out, rows.columns, write);
    else walk(rows.columns, write);
    rows.out.done(row);
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
  if (first == last) return;
  if (can_stream_ahead(rows)) rms_norm_rows_ahead(rows, first, last);
  else rms_norm_rows_in_turn(rows, first, last);
  if (rows.streamed) hwy::FlushStream();
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
    if (rows.streamed) walk_streamed(dx, rows.columns, write);
    else walk(rows.columns, write);
    rows.dx.done(row);
  }
  if (rows.streamed) hwy::FlushStream();
}

void rms_norm_f32(const RmsNormRows<float>& rows, int64_t first, int64_t last) {
  rms_norm_rows(rows, first, last);
}
void rms_norm_bf16(const RmsNormRows<BFloat16>& rows, int64_t first, int64_t last) {
  rms_norm_rows(rows, first, last);
}
void rms_norm_gradient_f32(const RmsNormGradientRows<float>& rows, int64_t first, int64_t last) {
  rms_norm_gradient_rows(rows, first, last);
}
void rms_norm_gradient_bf16(const RmsNormGradientRows<BFloat16>& rows, int64_t first,
                            int64_t last) {
  rms_norm_gradient_rows(rows, first, last);
}

}  // namespace HWY_NAMESPACE
}  // namespace ejk::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <ejk/executor.h>

#include "ops/common/over_last_axis.h"
#include "ops/common/row_checks.h"
#include "ops/common/row_config.h"

namespace ejk::ops {

HWY_EXPORT(rms_norm_f32);
HWY_EXPORT(rms_norm_bf16);
HWY_EXPORT(rms_norm_gradient_f32);
HWY_EXPORT(rms_norm_gradient_bf16);

namespace {

constexpr std::string_view op = "rms_norm";

void run_rows(const RmsNormRows<float>& rows, int64_t first, int64_t last) {
  HWY_DYNAMIC_DISPATCH(rms_norm_f32)(rows, first, last);
}
void run_rows(const RmsNormRows<BFloat16>& rows, int64_t first, int64_t last) {
  HWY_DYNAMIC_DISPATCH(rms_norm_bf16)(rows, first, last);
}
void run_rows(const RmsNormGradientRows<float>& rows, int64_t first, int64_t last) {
  HWY_DYNAMIC_DISPATCH(rms_norm_gradient_f32)(rows, first, last);
}
void run_rows(const RmsNormGradientRows<BFloat16>& rows, int64_t first, int64_t last) {
  HWY_DYNAMIC_DISPATCH(rms_norm_gradient_bf16)(rows, first, last);
}

template <class T>
void forward(const RowConfig& config, const StridedView<const T, 2>& x,
             const std::optional<std::span<const T>>& weight, float eps,
             const StridedView<T, 2>& out, float* scales) {
  check_row_config(op, config);
  check_rows<T>(op, x, {{"weight", weight}}, out);
  const int64_t rows = x.shape[0], columns = x.shape[1];
  const int64_t parts = parts_for(rows, config.threads);
  const RowBuffers<T> x_copies(!adjacent(x), parts, columns);
  const RowBuffers<T> out_copies(!adjacent(out), parts, columns);
  in_numbered_parts(rows, parts, [&](int64_t part, int64_t first, int64_t last) {
    run_rows(RmsNormRows<T>{{x, x_copies[part]},
                            weight ? weight->data() : nullptr,
                            eps,
                            {out, out_copies[part]},
                            scales,
                            columns,
                            config.streamed && adjacent(out),
                            config.ahead && adjacent(x)},
             first, last);
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
  check_row_config(op, config);
  check_cotangent(op, x, dy);
  const int64_t rows = x.shape[0], columns = x.shape[1];
  Tensor dx = Tensor::of<T>({rows, columns});
  const auto dx_view = dx.strided<T, 2>();
  const int64_t group = rows_per_group(rows), groups = (rows + group - 1) / group;
  Tensor sums = Tensor::of<float>({weight ? groups : 0, columns});
  const int64_t parts = parts_for(groups, config.backward.threads);
  const RowBuffers<T> dy_copies(!adjacent(dy), parts, columns);
  const RowBuffers<T> x_copies(!adjacent(x), parts, columns);
  in_numbered_parts(groups, parts, [&](int64_t part, int64_t first, int64_t last) {
    for (int64_t g = first; g < last; ++g)
      run_rows(RmsNormGradientRows<T>{{dy, dy_copies[part]},
                                      {x, x_copies[part]},
                                      weight ? weight->data() : nullptr,
                                      residuals.scales.data(),
                                      {dx_view, nullptr},
                                      weight ? sums.data<float>() + g * columns : nullptr,
                                      columns,
                                      config.backward.streamed},
               g * group, std::min(rows, (g + 1) * group));
  });
  std::optional<Tensor> dweight;
  if (weight) dweight = column_sums<T>(sums);
  return {std::move(dx), std::move(dweight)};
}

template <class T>
RowConfig RmsNorm<T>::heuristic_cfg(const Invocation& inv) const {
  return heuristic_row_config(inv);
}
template <class T>
Space<RowConfig> RmsNorm<T>::candidate_cfgs(const Invocation& inv) const {
  return row_config_space(inv);
}
template <class T>
bool RmsNorm<T>::is_valid(const Config& config, const Invocation&) const {
  return row_config_is_valid(config);
}

template struct RmsNorm<float>;
template struct RmsNorm<BFloat16>;

Tensor rms_norm(const Tensor& x, const std::optional<Tensor>& weight, float eps) {
  return over_last_axis(
      op, x, [&]<class T>(const StridedView<const T, 2>& rows, const StridedView<T, 2>& out) {
        const ColumnTensor<T> per_column(op, "weight", x, weight);
        default_executor()(RmsNorm<T>{}, rows, per_column.line(), eps, out);
      });
}

}  // namespace ejk::ops
#endif
