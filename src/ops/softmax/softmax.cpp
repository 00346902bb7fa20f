// SPDX-License-Identifier: Apache-2.0
// Softmax of rows, forward and backward.
#include <ejk/ops/softmax.h>

#include <cmath>
#include <limits>
#include <type_traits>

#include "ops/common/rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/softmax/softmax.cpp"
#include <hwy/foreach_target.h>
// After it, as it is included again for each instruction set.
#include "ops/common/row_vectors_inl.h"
#include "ops/simd/exp_inl.h"

#ifndef EJK_OPS_SOFTMAX_ONCE
#define EJK_OPS_SOFTMAX_ONCE
namespace ejk::ops {
namespace {

template <class T>
struct SoftmaxRows : ForwardRows<T> {
  float scale;
  float* exps;  // room for a row of them; nullptr: they are kept where the output goes
};

// x is the output.
template <class T>
struct SoftmaxGradientRows : GradientRows<T> {
  float scale;
};

}  // namespace
}  // namespace ejk::ops
#endif

HWY_BEFORE_NAMESPACE();
namespace ejk::ops::HWY_NAMESPACE {

// A NaN may or may not be seen: it is in the exponentials in any case. In the same walk also(at) is
// called for each vector, which At says how to put.
template <class At, class T, class Also, class... Ahead>
HWY_INLINE float largest(const T* row, int64_t columns, Also also, Ahead... ahead) {
  const Vector least = all(-std::numeric_limits<float>::infinity());
  const OneSum found = fold<At>(
      columns, OneSum{least},
      [&](auto at, OneSum& s) HWY_ATTR {
        s.a = hn::Max(s.a, at.or_else(at(row), least));
        also(at);
      },
      [](OneSum& s, const OneSum& o) HWY_ATTR { s.a = hn::Max(s.a, o.a); }, ahead...);
  return hn::GetLane(hn::MaxOfLanes(Floats(), found.a));
}
template <class T>
HWY_INLINE float largest(const T* row, int64_t columns) {
  return largest<Whole>(row, columns, [](auto) HWY_ATTR {});
}

// exp(scale (x - most)), one vector of a row after the other. A scale of 1 is usual, and worth a
// multiplication less.
template <bool scale_is_1>
class Exponentials {
 public:
  Exponentials(float most, float scale)
      : most_(all(most)), scale_(all(scale)), total_(hn::Zero(Floats())) {}

  // Puts those of x, which lies at `at` of a row, into exps.
  template <class At>
  HWY_INLINE void operator()(At at, Vector x, float* exps) {
    const Vector below = hn::Sub(x, most_);
    const Vector e = exp_up_to_88(Floats(), scale_is_1 ? below : hn::Mul(below, scale_));
    at.as_usual().put(e, exps);
    total_ = hn::Add(total_, at.or_else(e, hn::Zero(Floats())));
  }
  HWY_INLINE float total() const { return sum_of_lanes(total_); }

 private:
  Vector most_, scale_;
  Vector total_;  // one is enough: it waits less than the exponentials take
};

// One row after the other.
template <class T>
HWY_INLINE void softmax_rows_in_turn(const SoftmaxRows<T>& rows, int64_t first, int64_t last) {
  const int64_t columns = rows.columns;
  for (int64_t row = first; row < last; ++row) {
    const T* x = rows.x[row];
    T* out = rows.out[row];
    float* exps = rows.exps;
    if constexpr (std::is_same_v<T, float>) exps = exps == nullptr ? out : exps;
    const T* soon = rows.ahead ? rows.x.next(row) : x;  // to ask for x again costs nothing
    Exponentials<false> exponentials(largest(x, columns), rows.scale);
    walk(columns, [&](auto at) HWY_ATTR {
      fetch(soon, at.column);
      exponentials(at, at(x), exps);
    });
    const Vector factor = all(1 / exponentials.total());
    const auto write = [&](auto at) HWY_ATTR { at.put(hn::Mul(at(exps), factor), out); };
    write_row(rows.out, row, rows.columns, rows.streamed, write);
  }
}

// Three rows at a time: while one is written, exponentials of the next are computed, the largest of
// the one after that is found, and the one behind is fetched, so that memory never waits. Nothing
// changes by a bit.
template <bool scale_is_1, class T>
HWY_NOINLINE EJK_FLATTEN void softmax_rows_ahead(const SoftmaxRows<T>& rows, int64_t first,
                                                 int64_t last) {
  const int64_t columns = rows.columns;
  const auto x = [&](int64_t row) HWY_ATTR { return rows.x.in_place(std::min(row, last - 1)); };
  float* const exps = rows.exps;
  Exponentials<scale_is_1> begin(largest(x(first), columns), rows.scale);
  walk(columns, [&](auto at) HWY_ATTR { begin(at, at(x(first)), exps); });
  float total = begin.total(), most = largest(x(first + 1), columns);
  for (int64_t row = first; row < last; ++row) {
    T* out = rows.out[row];
    const Vector factor = all(1 / total);
    const auto write = [&](auto at) HWY_ATTR { at.put(hn::Mul(at(exps), factor), out); };
    if (row + 1 == last) {
      walk_streamed(out, columns, write);
      break;
    }
    const T *next = x(row + 1), *after = x(row + 2), *soon = x(row + 3);
    Exponentials<scale_is_1> exponentials(most, rows.scale);
    most = largest<WholeStreamed>(
        after, columns,
        [&](auto at) HWY_ATTR {
          const Vector x_next = at(next);
          write(at);
          exponentials(at, x_next, exps);  // in the place of those that were written
        },
        soon, next, after, exps);
    total = exponentials.total();
  }
}

template <class T>
HWY_INLINE void softmax_rows(const SoftmaxRows<T>& rows, int64_t first, int64_t last) {
  if (rows.columns == 0) return;
  if (!can_stream_ahead(rows)) softmax_rows_in_turn(rows, first, last);
  else if (rows.scale == 1) softmax_rows_ahead<true>(rows, first, last);
  else softmax_rows_ahead<false>(rows, first, last);
}

// dx = scale y (dy - sum(dy y)).
template <class T>
HWY_INLINE void softmax_gradient_rows(const SoftmaxGradientRows<T>& rows, int64_t first,
                                      int64_t last) {
  const Vector scale = all(rows.scale);
  for (int64_t row = first; row < last; ++row) {
    const T *y = rows.x[row], *dy = rows.dy[row];
    T* dx = rows.dx[row];
    const Vector total = all(sum(
        rows.columns, [&](auto at, Vector s) HWY_ATTR { return hn::MulAdd(at(dy), at(y), s); }));
    const auto write = [&](auto at) HWY_ATTR {
      at.put(hn::Mul(hn::Mul(scale, at(y)), hn::Sub(at(dy), total)), dx);
    };
    write_row(rows.dx, row, rows.columns, rows.streamed, write);
  }
}

EJK_ROWS_OF_THIS_SET(SoftmaxRows, softmax_rows)
EJK_ROWS_OF_THIS_SET(SoftmaxGradientRows, softmax_gradient_rows)

}  // namespace ejk::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <ejk/executor.h>

#include "ops/common/over_last_axis.h"
#include "ops/common/over_rows.h"
#include "ops/softmax/scale.h"

namespace ejk::ops {

namespace {

constexpr std::string_view op = "softmax";

EJK_RUN_ROWS(SoftmaxRows, softmax_rows)
EJK_RUN_ROWS(SoftmaxGradientRows, softmax_gradient_rows)

}  // namespace

template <class T>
void Softmax<T>::run(const Config& config, const In& x, float scale, const Result& result) const {
  const StridedView<T, 2>& out = *result;
  check_row_config(op, config);
  check_rows<T>(op, x, {}, out);
  check_scale(op, scale);
  const bool apart = (config.streamed && adjacent(out)) || !std::is_same_v<T, float>;
  const RowBuffers<float> exps(apart, parts_for(x.shape[0], config.threads), x.shape[1]);
  forward_in_parts(
      config, x, out, [&](const auto& rows, int64_t part, int64_t first, int64_t last) {
        run_rows(SoftmaxRows<T>{rows, scale, apart ? exps[part] : nullptr}, first, last);
      });
}

template <class T>
void Softmax<T>::reference(const In& x, float scale, const Result& out) const {
  check_rows<T>(op, x, {}, *out);
  check_scale(op, scale);
  const int64_t columns = x.shape[1];
  std::vector<double> exps(static_cast<size_t>(columns));
  for (int64_t row = 0; row < x.shape[0]; ++row) {
    double most = -std::numeric_limits<double>::infinity(), total = 0;
    for (int64_t c = 0; c < columns; ++c) most = std::max(most, as_double(x(row, c)));
    for (int64_t c = 0; c < columns; ++c)
      total += exps[static_cast<size_t>(c)] =
          std::exp((as_double(x(row, c)) - most) * double{scale});
    for (int64_t c = 0; c < columns; ++c)
      (*out)(row, c) = T(static_cast<float>(exps[static_cast<size_t>(c)] / total));
  }
}

template <class T>
auto Softmax<T>::fwd_with_residuals(const Config& config, const In& x, float scale,
                                    const Result& out) const -> std::pair<In, Residuals> {
  run(config, x, scale, out);
  return {In(*out), Residuals{}};
}

template <class T>
std::tuple<Tensor> Softmax<T>::vjp(const Config& config, const Residuals&, const In& y,
                                   const In& dy, const In&, float scale, const Result&) const {
  const int64_t count = std::max<int64_t>(y.shape[0], 1);
  const int64_t threads = std::max<int64_t>(config.backward.threads, 1);
  return gradient_in_groups(op, config, dy, y, (count + threads - 1) / threads,
                            [&](const auto& rows, int64_t, int64_t first, int64_t last) {
                              run_rows(SoftmaxGradientRows<T>{rows, scale}, first, last);
                            });
}

template struct Softmax<float>;
template struct Softmax<BFloat16>;

Tensor softmax(const Tensor& x, float scale) {
  return over_last_axis(op, x, [&]<class T>(const auto& rows, const auto& out) {
    default_executor()(Softmax<T>{}, rows, scale, out);
  });
}

}  // namespace ejk::ops
#endif
