// SPDX-License-Identifier: Apache-2.0
// Layer normalisation of rows, forward and backward.
#include <ejk/ops/layer_norm.h>

#include <cmath>

#include "ops/common/rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/layer_norm/layer_norm.cpp"
#include <hwy/foreach_target.h>
// After it, as it is included again for each instruction set.
#include "ops/common/row_vectors_inl.h"

#ifndef EJK_OPS_LAYER_NORM_ONCE
#define EJK_OPS_LAYER_NORM_ONCE
namespace ejk::ops {
namespace {

RowMoments moments_of(double mean, double variance, float eps) {
  const auto rounded = static_cast<float>(mean);
  return {rounded, static_cast<float>(mean - double{rounded}),
          static_cast<float>(1 / std::sqrt(variance + double{eps}))};
}

// For rows whose sums leave the range of float.
template <class T>
RowMoments moments_in_double(const T* row, int64_t columns, float eps) {
  const auto n = static_cast<double>(columns);
  const auto at = [row](int64_t c) { return double{static_cast<float>(row[c])}; };
  double mean = 0, variance = 0;
  for (int64_t c = 0; c < columns; ++c) mean += at(c) / n;
  for (int64_t c = 0; c < columns; ++c) variance += (at(c) - mean) * (at(c) - mean) / n;
  return moments_of(mean, variance, eps);
}

template <class T>
struct LayerNormRows : ForwardRows<T> {
  const T *weight, *bias;  // nullptr: none
  float eps;
  RowMoments* moments;  // of all rows; nullptr: not asked for
};

template <class T>
struct LayerNormGradientRows : GradientRows<T> {
  const T* weight;
  const RowMoments* moments;  // of all rows
  float *dweight, *dbias;     // of these rows, zeros before; nullptr: not asked for
};

}  // namespace
}  // namespace ejk::ops
#endif

HWY_BEFORE_NAMESPACE();
namespace ejk::ops::HWY_NAMESPACE {

// The mean first, up to its rounding ...
template <class T>
HWY_INLINE float near_mean_of(const T* row, int64_t columns) {
  return sum(columns, [&](auto at, Vector s) HWY_ATTR { return hn::Add(s, at(row)); }) /
         static_cast<float>(columns);
}

// ... then sums of the differences from it and of their squares, which also correct it.
template <class At, class T>
HWY_INLINE void add_differences(At at, const T* row, Vector near_mean, TwoSums& s) {
  const Vector d = hn::Sub(at.or_else(at(row), near_mean), near_mean);
  s.a = hn::Add(s.a, d);
  s.b = hn::MulAdd(d, d, s.b);
}
HWY_INLINE void join_differences(TwoSums& s, const TwoSums& o) {
  s.a = hn::Add(s.a, o.a);
  s.b = hn::Add(s.b, o.b);
}

template <class T>
HWY_INLINE RowMoments moments_of_row(const T* row, int64_t columns, float near_mean,
                                     const TwoSums& differences, float eps) {
  const auto n = static_cast<double>(columns);
  const double shift = double{sum_of_lanes(differences.a)} / n;
  const double variance = double{sum_of_lanes(differences.b)} / n - shift * shift;
  if (!std::isfinite(variance) || variance + double{eps} < 1e-30)
    return moments_in_double(row, columns, eps);
  return moments_of(double{near_mean} + shift, variance, eps);
}
template <class T>
HWY_INLINE RowMoments moments_of_row(const T* row, int64_t columns, float eps) {
  const float near_mean = near_mean_of(row, columns);
  const TwoSums differences = fold(
      columns, TwoSums{hn::Zero(Floats()), hn::Zero(Floats())},
      [&](auto at, TwoSums& s) HWY_ATTR { add_differences(at, row, all(near_mean), s); },
      [](TwoSums& s, const TwoSums& o) HWY_ATTR { join_differences(s, o); });
  return moments_of_row(row, columns, near_mean, differences, eps);
}

struct Normalised {
  Vector mean, rest, scale;
  explicit Normalised(const RowMoments& m)
      : mean(all(m.mean)), rest(all(m.rest_of_mean)), scale(all(m.scale)) {}
  HWY_INLINE Vector operator()(Vector x) const {
    return hn::Mul(hn::Sub(hn::Sub(x, mean), rest), scale);
  }
};

// One row after the other.
template <class T>
HWY_INLINE void layer_norm_rows_in_turn(const LayerNormRows<T>& rows, int64_t first, int64_t last) {
  const T *weight = rows.weight, *bias = rows.bias;
  for (int64_t row = first; row < last; ++row) {
    const T* x = rows.x[row];
    T* out = rows.out[row];
    const RowMoments moments = moments_of_row(x, rows.columns, rows.eps);
    if (rows.moments != nullptr) rows.moments[row] = moments;
    const Normalised normalised(moments);
    const T* soon = rows.ahead ? rows.x.next(row) : x;  // to ask for x again costs nothing
    const auto write = [&](auto at) HWY_ATTR {
      fetch(soon, at.column);
      Vector v = normalised(at(x));
      if (weight != nullptr) v = hn::Mul(v, at(weight));
      if (bias != nullptr) v = hn::Add(v, at(bias));
      at.put(v, out);
    };
    write_row(rows.out, row, rows.columns, rows.streamed, write);
  }
}

// What is summed of two rows in one walk.
struct SumsAhead {
  TwoSums differences;
  Vector total;
};

// Three rows at a time: while one is written, the differences of the next are summed, the mean of
// the one after that is found, and the one behind is fetched, so that memory never waits. The sums
// are the same to the bit.
template <class T>
HWY_NOINLINE EJK_FLATTEN void layer_norm_rows_ahead(const LayerNormRows<T>& rows, int64_t first,
                                                    int64_t last) {
  const T *weight = rows.weight, *bias = rows.bias;
  const int64_t columns = rows.columns;
  const auto x_of = [&](int64_t row) HWY_ATTR { return rows.x.in_place(std::min(row, last - 1)); };
  RowMoments moments = moments_of_row(x_of(first), columns, rows.eps);
  float near_mean = near_mean_of(x_of(first + 1), columns);
  for (int64_t row = first; row < last; ++row) {
    const T* x = x_of(row);
    T* out = rows.out[row];
    if (rows.moments != nullptr) rows.moments[row] = moments;
    const Normalised normalised(moments);
    const auto write = [&](auto at) HWY_ATTR {
      Vector v = normalised(at(x));
      if (weight != nullptr) v = hn::Mul(v, at(weight));
      if (bias != nullptr) v = hn::Add(v, at(bias));
      at.put(v, out);
    };
    if (row + 1 == last) {
      walk_streamed(out, columns, write);
      break;
    }
    const T *next = x_of(row + 1), *after = x_of(row + 2), *soon = x_of(row + 3);
    const Vector zero = hn::Zero(Floats()), centre = all(near_mean);
    const SumsAhead sums = fold<WholeStreamed>(
        columns, SumsAhead{{zero, zero}, zero},
        [&](auto at, SumsAhead& s) HWY_ATTR {
          add_differences(at, next, centre, s.differences);
          s.total = hn::Add(s.total, at(after));
          write(at);
        },
        [](SumsAhead& s, const SumsAhead& o) HWY_ATTR {
          join_differences(s.differences, o.differences);
          s.total = hn::Add(s.total, o.total);
        },
        soon, next, after);
    moments = moments_of_row(next, columns, near_mean, sums.differences, rows.eps);
    near_mean = sum_of_lanes(sums.total) / static_cast<float>(columns);
  }
}

template <class T>
HWY_INLINE void layer_norm_rows(const LayerNormRows<T>& rows, int64_t first, int64_t last) {
  if (can_stream_ahead(rows)) layer_norm_rows_ahead(rows, first, last);
  else layer_norm_rows_in_turn(rows, first, last);
}

// With g = dy weight and x^ = (x - mean) scale: dx = scale (g - mean(g) - x^ mean(g x^)),
// dweight = sum of dy x^, dbias = sum of dy.
template <class T>
HWY_INLINE void layer_norm_gradient_rows(const LayerNormGradientRows<T>& rows, int64_t first,
                                         int64_t last) {
  const T* weight = rows.weight;
  const auto n = static_cast<float>(rows.columns);
  for (int64_t row = first; row < last; ++row) {
    const T *dy = rows.dy[row], *x = rows.x[row];
    T* dx = rows.dx[row];
    const Normalised normalised(rows.moments[row]);
    const auto g = [&](auto at) HWY_ATTR {
      return weight == nullptr ? at(dy) : hn::Mul(at(dy), at(weight));
    };
    const TwoSums sums = fold(
        rows.columns, TwoSums{hn::Zero(Floats()), hn::Zero(Floats())},
        [&](auto at, TwoSums& s) HWY_ATTR {
          const Vector of_at = g(at);  // zero behind the last column
          s.a = hn::Add(s.a, of_at);
          s.b = hn::MulAdd(of_at, normalised(at(x)), s.b);
        },
        [](TwoSums& s, const TwoSums& o) HWY_ATTR {
          s.a = hn::Add(s.a, o.a);
          s.b = hn::Add(s.b, o.b);
        });
    const Vector mean_g = all(sum_of_lanes(sums.a) / n), mean_gx = all(sum_of_lanes(sums.b) / n);
    if (rows.dweight != nullptr)
      walk(rows.columns, [&](auto at) HWY_ATTR {
        at.put(hn::MulAdd(at(dy), normalised(at(x)), at(rows.dweight)), rows.dweight);
      });
    if (rows.dbias != nullptr)
      walk(rows.columns,
           [&](auto at) HWY_ATTR { at.put(hn::Add(at(dy), at(rows.dbias)), rows.dbias); });
    const auto write = [&](auto at) HWY_ATTR {
      const Vector centred = hn::Sub(g(at), mean_g);
      at.put(hn::Mul(normalised.scale, hn::NegMulAdd(normalised(at(x)), mean_gx, centred)), dx);
    };
    write_row(rows.dx, row, rows.columns, rows.streamed, write);
  }
}

EJK_ROWS_OF_THIS_SET(LayerNormRows, layer_norm_rows)
EJK_ROWS_OF_THIS_SET(LayerNormGradientRows, layer_norm_gradient_rows)

}  // namespace ejk::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <ejk/executor.h>

#include "ops/common/over_last_axis.h"
#include "ops/common/over_rows.h"

namespace ejk::ops {

namespace {

constexpr std::string_view op = "layer_norm";

EJK_RUN_ROWS(LayerNormRows, layer_norm_rows)
EJK_RUN_ROWS(LayerNormGradientRows, layer_norm_gradient_rows)

template <class T>
void forward(const RowConfig& config, const StridedView<const T, 2>& x,
             const std::optional<std::span<const T>>& weight,
             const std::optional<std::span<const T>>& bias, float eps, const StridedView<T, 2>& out,
             RowMoments* moments) {
  check_row_config(op, config);
  check_rows<T>(op, x, {{"weight", weight}, {"bias", bias}}, out);
  forward_in_parts(config, x, out, [&](const auto& rows, int64_t, int64_t first, int64_t last) {
    run_rows(LayerNormRows<T>{rows, data_or_null(weight), data_or_null(bias), eps, moments}, first,
             last);
  });
}

}  // namespace

template <class T>
void LayerNorm<T>::run(const Config& config, const In& x, const PerColumn& weight,
                       const PerColumn& bias, float eps, const Result& out) const {
  forward(config, x, weight, bias, eps, *out, nullptr);
}

template <class T>
void LayerNorm<T>::reference(const In& x, const PerColumn& weight, const PerColumn& bias, float eps,
                             const Result& out) const {
  check_rows<T>(op, x, {{"weight", weight}, {"bias", bias}}, *out);
  const int64_t columns = x.shape[1];
  const auto n = static_cast<double>(columns);
  for (int64_t row = 0; row < x.shape[0]; ++row) {
    double mean = 0, variance = 0;
    for (int64_t c = 0; c < columns; ++c) mean += as_double(x(row, c)) / n;
    for (int64_t c = 0; c < columns; ++c)
      variance += (as_double(x(row, c)) - mean) * (as_double(x(row, c)) - mean) / n;
    const double scale = 1 / std::sqrt(variance + double{eps});
    for (int64_t c = 0; c < columns; ++c)
      (*out)(row, c) =
          T(static_cast<float>((as_double(x(row, c)) - mean) * scale * element_or(1, weight, c) +
                               element_or(0, bias, c)));
  }
}

template <class T>
auto LayerNorm<T>::fwd_with_residuals(const Config& config, const In& x, const PerColumn& weight,
                                      const PerColumn& bias, float eps, const Result& out) const
    -> std::pair<In, Residuals> {
  Residuals residuals{
      std::vector<RowMoments>(static_cast<size_t>(std::max<int64_t>(x.shape[0], 0)))};
  forward(config, x, weight, bias, eps, *out, residuals.moments.data());
  return {In(*out), std::move(residuals)};
}

template <class T>
std::tuple<Tensor, std::optional<Tensor>, std::optional<Tensor>> LayerNorm<T>::vjp(
    const Config& config, const Residuals& residuals, const In& dy, const In& x,
    const PerColumn& weight, const PerColumn& bias, float, const Result&) const {
  const ColumnSums of_weight(weight.has_value(), x.shape[0], x.shape[1]);
  const ColumnSums of_bias(bias.has_value(), x.shape[0], x.shape[1]);
  Tensor dx = gradient_in_groups(
      op, config, dy, x, rows_per_group(x.shape[0]),
      [&](const auto& rows, int64_t group, int64_t first, int64_t last) {
        run_rows(LayerNormGradientRows<T>{rows, data_or_null(weight), residuals.moments.data(),
                                          of_weight[group], of_bias[group]},
                 first, last);
      });
  return {std::move(dx), of_weight.total<T>(), of_bias.total<T>()};
}

template struct LayerNorm<float>;
template struct LayerNorm<BFloat16>;

Tensor layer_norm(const Tensor& x, const std::optional<Tensor>& weight,
                  const std::optional<Tensor>& bias, float eps) {
  return over_last_axis(op, x, [&]<class T>(const auto& rows, const auto& out) {
    const ColumnTensor<T> weights(op, "weight", x, weight), biases(op, "bias", x, bias);
    default_executor()(LayerNorm<T>{}, rows, weights.line_of(rows), biases.line_of(rows), eps, out);
  });
}

}  // namespace ejk::ops
#endif
