// SPDX-License-Identifier: Apache-2.0
// softmax: what it computes, what it refuses, its gradient. What it shares with rms_norm is tested
// there.
#include <ejk/ops/softmax.h>

#include <ejk/executor.h>
#include <gmock/gmock.h>

#include "ops/common.h"
#include "ops/rows.h"

namespace ejk::ops {
namespace {

using ops_test::refusal;
using rows::close;
using rows::Matrix;
using rows::same_bits;
using testing::HasSubstr;
using testing::StartsWith;

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

template <class T>
class SoftmaxOf : public testing::Test {};
using ElementTypes = testing::Types<float, BFloat16>;
TYPED_TEST_SUITE(SoftmaxOf, ElementTypes);

TYPED_TEST(SoftmaxOf, EveryLengthOfARowIsRight) {
  using T = TypeParam;
  rows::Random random(1);
  for (int64_t columns = 1; columns < 140; ++columns)
    for (float scale : {1.f, 0.3f}) {
      Matrix<T> x(3, columns), out(3, columns), wanted(3, columns);
      x.fill_normal(random, 3);
      Softmax<T>{}.run({}, x.in(), scale, out.view());
      Softmax<T>{}.reference(x.in(), scale, wanted.view());
      ASSERT_TRUE(close<T>(out.in(), wanted.in(), rows::type_tolerance<T>, 1e-3));
    }
}

TYPED_TEST(SoftmaxOf, NoConfigChangesABit) {
  using T = TypeParam;
  rows::Random random(2);
  for (int64_t columns : {64, 77, 96}) {
    Matrix<T> x(37, columns), out(37, columns), other(37, columns);
    x.fill_normal(random);
    Softmax<T>{}.run({}, x.in(), 1, out.view());
    for (int threads : {1, 2, 3, 50})
      for (bool streamed : {false, true})
        for (bool ahead : {false, true}) {
          other.fill([](auto, auto) { return nan; });
          Softmax<T>{}.run({threads, streamed, ahead}, x.in(), 1, other.view());
          EXPECT_TRUE(same_bits<T>(out.in(), other.in()))
              << threads << ' ' << streamed << ' ' << ahead;
        }
  }
}

// The second element's share of a row [0, x] is the logistic function: exp with nothing around it.
TEST(Softmax, ExponentialsAreRightToTheLastBits) {
  ops_test::on_every_target([] {
    constexpr int64_t count = 20000;
    Matrix<float> x(count, 2), out(count, 2);
    x.fill([](int64_t r, int64_t c) {
      return c == 0 ? 0.f : -87.3f * static_cast<float>(r) / static_cast<float>(count);
    });
    Softmax<float>{}.run({}, x.in(), 1, out.view());
    double worst = 0;
    for (int64_t r = 0; r < count; ++r) {
      const double e = std::exp(double{x(r, 1)}), wanted = e / (1 + e);
      worst = std::max(worst, std::abs(double{out(r, 1)} - wanted) / wanted);
    }
    EXPECT_LT(worst, 3.2e-7);  // of exp 2e-7, of a sum, an inverse and a product 6e-8 each at most
    EXPECT_GT(worst, 1e-8);
  });
}

TEST(Softmax, AnElementFarBelowTheLargestBecomesExactlyZero) {
  for (int64_t columns : {4, 70})
    for (float low : {-infinity, -1e30f, -1e4f, -88.f}) {
      Matrix<float> x(1, columns), out(1, columns);
      x.fill([&](int64_t, int64_t c) { return c == 1 ? 0.f : low; });
      Softmax<float>{}.run({}, x.in(), 1, out.view());
      for (int64_t c = 0; c < columns; ++c) EXPECT_EQ(out(0, c), c == 1 ? 1 : 0) << low;
    }
}

TEST(Softmax, NothingOverflows) {
  Matrix<float> x(2, 3), out(2, 3);
  x.fill([](int64_t r, int64_t c) { return r == 0 ? 3e38f : c == 0 ? -3e38f : 3e38f; });
  Softmax<float>{}.run({}, x.in(), 5, out.view());
  EXPECT_NEAR(out(0, 0), 1. / 3, 1e-7);
  EXPECT_EQ(out(1, 0), 0);
  EXPECT_EQ(out(1, 1), 0.5);
}

TEST(Softmax, NanPlusInfinityAndNothingButMinusInfinityMakeNanOfTheirRow) {
  ops_test::on_every_target([] {
    for (int64_t columns : {1, 3, 67})
      for (int64_t where = 0; where < columns; where += 2) {
        Matrix<float> x(4, columns), out(4, columns);
        x.fill([&](int64_t r, int64_t c) {
          if (r == 2) return -infinity;
          return r == 3 || c != where ? 1.f : r == 0 ? nan : infinity;
        });
        Softmax<float>{}.run({}, x.in(), 1, out.view());
        for (int64_t c = 0; c < columns; ++c) {
          for (int64_t r = 0; r < 3; ++r) EXPECT_TRUE(std::isnan(out(r, c))) << r << ' ' << c;
          EXPECT_TRUE(std::isfinite(out(3, c)));
        }
      }
  });
}

TEST(Softmax, NothingIsDoneWhereThereIsNothing) {
  const Softmax<float> kernel;
  for (auto [r, c] : {std::pair<int64_t, int64_t>{0, 5}, {5, 0}, {0, 0}})
    for (bool streamed : {false, true}) {
      Matrix<float> x(r, c), out(r, c);
      const RowConfig config{1, streamed, true};
      const auto [y, residuals] = kernel.fwd_with_residuals(config, x.in(), 1, out.view());
      const auto [dx] = kernel.vjp(config, residuals, y, y, x.in(), 1, out.view());
      EXPECT_EQ(dx.shape(), (std::vector<int64_t>{r, c}));
    }
}

TEST(Softmax, AnOutputMayBeTheInputItself) {
  rows::Random random(4);
  for (int64_t columns : {35, 64})
    for (bool streamed : {false, true}) {
      Matrix<float> x(5, columns), out(5, columns);
      x.fill_normal(random);
      Softmax<float>{}.run({}, x.in(), 1, out.view());
      Softmax<float>{}.run({2, streamed, true}, x.in(), 1, x.view());
      EXPECT_TRUE(same_bits<float>(x.in(), out.in()));
    }
}

TEST(Softmax, ArgumentsThatDoNotFitAreRefused) {
  Matrix<float> x(4, 6), out(4, 6);
  for (float scale : {0.f, -1.f, nan, infinity})
    EXPECT_THAT(refusal([&] { Softmax<float>{}.run({}, x.in(), scale, out.view()); }),
                HasSubstr("; needed: a positive finite scale"));
  const StridedView<float, 2> shifted(x.view().data + 1, {3, 6}, {6, 1});
  const StridedView<const float, 2> in(x.view().data, {3, 6}, {6, 1});
  EXPECT_THAT(refusal([&] { Softmax<float>{}.run({}, in, 1, shifted); }),
              StartsWith("[softmax] given an out that overlaps x; needed: "));
  EXPECT_THAT(refusal([&] { softmax(Tensor::of<int32_t>({3})); }),
              StartsWith("[softmax] given x of int32; needed: float32 or bfloat16"));
}

TEST(Softmax, GradientsDoNotDependOnThreads) {
  rows::Random random(5);
  const Softmax<float> kernel;
  Matrix<float> x(50, 33), dy(50, 33), out(50, 33);
  x.fill_normal(random), dy.fill_normal(random);
  const auto gradient = [&](RowConfig config) {
    const auto [y, residuals] = kernel.fwd_with_residuals(config, x.in(), 2, out.view());
    return std::get<0>(kernel.vjp(config, residuals, y, dy.in(), x.in(), 2, out.view()));
  };
  const Tensor dx = gradient({});
  for (int threads : {2, 3, 7})
    EXPECT_TRUE(same_bits(dx, gradient({1, false, false, {threads, threads == 3}})));
}

TEST(Softmax, TensorsGoThroughTheDefaultExecutor) {
  const auto no_tuning = policy_override({.allow_autotune = false});
  Tensor x = Tensor::of<float>({2, 3, 4});
  const Tensor out = softmax(x, 0.5f);
  EXPECT_EQ(out.shape(), x.shape());
  for (int64_t i = 0; i < out.size(); ++i) EXPECT_EQ(out.data<float>()[i], 0.25f);
}

}  // namespace
}  // namespace ejk::ops
