// SPDX-License-Identifier: Apache-2.0
// rms_norm, layer_norm and softmax of random shapes, strides, configs and instruction sets: outputs
// against the references, gradients against differences of the same functions in double precision.
#include <ejk/ops.h>

#include <functional>
#include <vector>

#include "ops/common.h"
#include "ops/rows.h"

namespace ejk::ops {
namespace {

using rows::close;
using rows::Matrix;
using rows::Random;
using rows::random_layout;

constexpr float eps = 1e-3f;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int cases = 40;
#else
constexpr int cases = 300;
#endif

int64_t any_of(Random& random, std::initializer_list<int64_t> most) {
  const int64_t limit = most.begin()[random() % most.size()];
  return static_cast<int64_t>(random() % static_cast<uint64_t>(limit));
}
RowConfig random_config(Random& random) {
  const auto flip = [&] { return random() % 2 == 0; };
  const auto threads = [&] { return static_cast<int>(1 + random() % 3); };
  return {threads(), flip(), flip(), {threads(), flip()}};
}
template <class T>
std::optional<std::span<const T>> perhaps(Random& random, const Matrix<T>& line) {
  return random() % 3 == 0 ? std::nullopt : std::optional(line.line());
}

template <class T>
class NormsOf : public testing::Test {};
using ElementTypes = testing::Types<float, BFloat16>;
TYPED_TEST_SUITE(NormsOf, ElementTypes);

TYPED_TEST(NormsOf, OutputsAreThoseOfTheReferences) {
  using T = TypeParam;
  ops_test::on_every_target([] {
    Random random(11);
    for (int i = 0; i < cases && !testing::Test::HasFailure(); ++i) {
      SCOPED_TRACE(i);
      const int64_t r = any_of(random, {2, 8, 40}), c = any_of(random, {4, 50, 300});
      auto x = random_layout<T>(random, r, c), out = random_layout<T>(random, r, c);
      Matrix<T> wanted(r, c), weight(1, c), bias(1, c);
      x.fill_normal(random, 2, 1), weight.fill_normal(random), bias.fill_normal(random);
      const RowConfig config = random_config(random);
      const auto w = perhaps(random, weight), b = perhaps(random, bias);

      RmsNorm<T>{}.run(config, x.in(), w, eps, out.view());
      RmsNorm<T>{}.reference(x.in(), w, eps, wanted.view());
      EXPECT_TRUE(close<T>(out.in(), wanted.in())) << "rms_norm";
      LayerNorm<T>{}.run(config, x.in(), w, b, eps, out.view());
      LayerNorm<T>{}.reference(x.in(), w, b, eps, wanted.view());
      EXPECT_TRUE(close<T>(out.in(), wanted.in())) << "layer_norm";
      const float scale = random() % 2 == 0 ? 1.f : 0.7f;
      Softmax<T>{}.run(config, x.in(), scale, out.view());
      Softmax<T>{}.reference(x.in(), scale, wanted.view());
      EXPECT_TRUE(close<T>(out.in(), wanted.in(), rows::type_tolerance<T>, 1e-3)) << "softmax";
    }
  });
}

// ---- gradients ------------------------------------------------------------------------------

using Numbers = std::vector<double>;

template <class T>
Numbers numbers(const StridedView<const T, 2>& m) {
  Numbers all;
  for (int64_t r = 0; r < m.shape[0]; ++r)
    for (int64_t c = 0; c < m.shape[1]; ++c) all.push_back(double{static_cast<float>(m(r, c))});
  return all;
}
template <class T>
Numbers numbers(const Tensor& t) {
  Numbers all;
  for (int64_t i = 0; i < t.size(); ++i) all.push_back(double{static_cast<float>(t.data<T>()[i])});
  return all;
}

// The derivatives of f by each of the numbers it is given by reference.
Numbers differences(Numbers& at, const std::function<double()>& f) {
  constexpr double step = 1e-5;
  Numbers gradient;
  for (double& v : at) {
    const double here = v;
    v = here + step;
    const double above = f();
    v = here - step;
    gradient.push_back((above - f()) / (2 * step));
    v = here;
  }
  return gradient;
}

testing::AssertionResult near(const Numbers& got, const Numbers& wanted, double tolerance) {
  if (got.size() != wanted.size()) return testing::AssertionFailure() << "sizes differ";
  for (size_t i = 0; i < got.size(); ++i)
    if (!(std::abs(got[i] - wanted[i]) <= tolerance * (1 + std::abs(wanted[i]))))
      return testing::AssertionFailure()
             << "element " << i << ": " << got[i] << " instead of " << wanted[i];
  return testing::AssertionSuccess();
}

// Each normalises one row of n numbers in place.
void rms_norm_row(double* row, size_t n, const Numbers& weight) {
  double squares = 0;
  for (size_t c = 0; c < n; ++c) squares += row[c] * row[c];
  for (size_t c = 0; c < n; ++c)
    row[c] = row[c] / std::sqrt(squares / static_cast<double>(n) + double{eps}) * weight[c];
}
void layer_norm_row(double* row, size_t n, const Numbers& weight, const Numbers& bias) {
  double mean = 0, variance = 0;
  for (size_t c = 0; c < n; ++c) mean += row[c] / static_cast<double>(n);
  for (size_t c = 0; c < n; ++c) variance += (row[c] - mean) * (row[c] - mean);
  const double deviation = std::sqrt(variance / static_cast<double>(n) + double{eps});
  for (size_t c = 0; c < n; ++c) row[c] = (row[c] - mean) / deviation * weight[c] + bias[c];
}
void softmax_row(double* row, size_t n, double scale) {
  double total = 0;
  for (size_t c = 0; c < n; ++c) total += row[c] = std::exp(scale * row[c]);
  for (size_t c = 0; c < n; ++c) row[c] /= total;
}

TYPED_TEST(NormsOf, GradientsAreThoseOfDifferences) {
  using T = TypeParam;
  const double tolerance = std::is_same_v<T, float> ? 1e-4 : 3e-2;
  ops_test::on_every_target([&] {
    Random random(12);
    for (int i = 0; i < cases / 20 && !testing::Test::HasFailure(); ++i) {
      SCOPED_TRACE(i);
      const int64_t r = 1 + any_of(random, {3, 20}), c = 1 + any_of(random, {4, 20});
      const auto n = static_cast<size_t>(c);
      auto x = random_layout<T>(random, r, c), dy = random_layout<T>(random, r, c);
      Matrix<T> weight(1, c), bias(1, c), out(r, c);
      x.fill_normal(random), dy.fill_normal(random);
      weight.fill_normal(random), bias.fill_normal(random);
      const RowConfig config = random_config(random);
      const auto w = perhaps(random, weight), b = perhaps(random, bias);
      Numbers xs = numbers(x.in()), dys = numbers(dy.in());
      Numbers ws = w ? numbers(weight.in()) : Numbers(n, 1);
      Numbers bs = b ? numbers(bias.in()) : Numbers(n);
      const auto loss_of = [&](const std::function<void(double*)>& normalise) {
        return [&, normalise] {
          double loss = 0;
          Numbers ys = xs;
          for (size_t row = 0; row < static_cast<size_t>(r); ++row) normalise(&ys[row * n]);
          for (size_t at = 0; at < ys.size(); ++at) loss += ys[at] * dys[at];
          return loss;
        };
      };
      {
        const RmsNorm<T> kernel;
        const auto [y, kept] = kernel.fwd_with_residuals(config, x.in(), w, eps, out.view());
        const auto [dx, dw] = kernel.vjp(config, kept, dy.in(), x.in(), w, eps, out.view());
        const auto loss = loss_of([&](double* row) { rms_norm_row(row, n, ws); });
        EXPECT_TRUE(near(numbers<T>(dx), differences(xs, loss), tolerance)) << "rms_norm";
        ASSERT_EQ(dw.has_value(), w.has_value());
        const auto expect_near = [&](const Tensor& got, Numbers& by) {
          EXPECT_TRUE(near(numbers<T>(got), differences(by, loss), tolerance)) << "rms_norm";
        };
        if (w) expect_near(*dw, ws);
      }
      {
        const LayerNorm<T> kernel;
        const auto [y, kept] = kernel.fwd_with_residuals(config, x.in(), w, b, eps, out.view());
        const auto [dx, dw, db] = kernel.vjp(config, kept, dy.in(), x.in(), w, b, eps, out.view());
        const auto loss = loss_of([&](double* row) { layer_norm_row(row, n, ws, bs); });
        EXPECT_TRUE(near(numbers<T>(dx), differences(xs, loss), tolerance)) << "layer_norm";
        ASSERT_EQ(dw.has_value(), w.has_value());
        const auto expect_near = [&](const Tensor& got, Numbers& by) {
          EXPECT_TRUE(near(numbers<T>(got), differences(by, loss), tolerance)) << "layer_norm";
        };
        if (w) expect_near(*dw, ws);
        ASSERT_EQ(db.has_value(), b.has_value());
        if (b) expect_near(*db, bs);
      }
      {
        const Softmax<T> kernel;
        const float scale = random() % 2 == 0 ? 1.f : 1.5f;
        const auto [y, kept] = kernel.fwd_with_residuals(config, x.in(), scale, out.view());
        const auto [dx] = kernel.vjp(config, kept, y, dy.in(), x.in(), scale, out.view());
        const auto loss = loss_of([&](double* row) { softmax_row(row, n, double{scale}); });
        EXPECT_TRUE(near(numbers<T>(dx), differences(xs, loss), tolerance)) << "softmax";
      }
    }
  });
}

}  // namespace
}  // namespace ejk::ops
