// SPDX-License-Identifier: Apache-2.0
// layer_norm: what it computes, what it refuses, its gradient. What it shares with rms_norm is
// tested there.
#include <ejk/ops/layer_norm.h>

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
class LayerNormOf : public testing::Test {};
using ElementTypes = testing::Types<float, BFloat16>;
TYPED_TEST_SUITE(LayerNormOf, ElementTypes);

TYPED_TEST(LayerNormOf, EveryLengthOfARowIsRight) {
  using T = TypeParam;
  using PerColumn = typename LayerNorm<T>::PerColumn;
  rows::Random random(1);
  for (int64_t columns = 1; columns < 140; ++columns) {
    Matrix<T> x(3, columns), weight(1, columns), bias(1, columns), out(3, columns),
        wanted(3, columns);
    x.fill_normal(random, 2, 1), weight.fill_normal(random), bias.fill_normal(random);
    for (int given = 0; given < 4; ++given) {
      const PerColumn w = given % 2 == 1 ? PerColumn(weight.line()) : std::nullopt;
      const PerColumn b = given / 2 == 1 ? PerColumn(bias.line()) : std::nullopt;
      LayerNorm<T>{}.run({}, x.in(), w, b, 1e-5f, out.view());
      LayerNorm<T>{}.reference(x.in(), w, b, 1e-5f, wanted.view());
      ASSERT_TRUE(close<T>(out.in(), wanted.in())) << given;
    }
  }
}

TYPED_TEST(LayerNormOf, NoConfigChangesABit) {
  using T = TypeParam;
  rows::Random random(2);
  for (int64_t columns : {64, 77}) {
    Matrix<T> x(37, columns), weight(1, columns), out(37, columns), other(37, columns);
    x.fill_normal(random), weight.fill_normal(random);
    LayerNorm<T>{}.run({}, x.in(), weight.line(), weight.line(), 1e-5f, out.view());
    for (int threads : {1, 2, 3, 50})
      for (bool streamed : {false, true})
        for (bool ahead : {false, true}) {
          other.fill([](auto, auto) { return nan; });
          LayerNorm<T>{}.run({threads, streamed, ahead}, x.in(), weight.line(), weight.line(),
                             1e-5f, other.view());
          EXPECT_TRUE(same_bits<T>(out.in(), other.in()))
              << threads << ' ' << streamed << ' ' << ahead;
        }
  }
}

TEST(LayerNorm, RowsGetMeanZeroAndVarianceOne) {
  Matrix<float> x(1, 4), out(1, 4);
  x.fill([](int64_t, int64_t c) { return c < 2 ? 5 : 9; });
  LayerNorm<float>{}.run({}, x.in(), {}, {}, 0, out.view());
  EXPECT_EQ(out(0, 0), -1);
  EXPECT_EQ(out(0, 3), 1);
}

TEST(LayerNorm, AMeanFarFromZeroCostsNoAccuracy) {
  rows::Random random(3);
  Matrix<float> x(4, 1000), out(4, 1000), wanted(4, 1000);
  x.fill_normal(random, 1, 3e4f);
  LayerNorm<float>{}.run({}, x.in(), {}, {}, 1e-5f, out.view());
  LayerNorm<float>{}.reference(x.in(), {}, {}, 1e-5f, wanted.view());
  EXPECT_TRUE(close<float>(out.in(), wanted.in()));
}

TEST(LayerNorm, SumsMayLeaveTheRangeOfFloat) {
  for (float size : {1e-30f, 1e-22f, 1e22f, 1e38f}) {
    Matrix<float> x(1, 19), out(1, 19), wanted(1, 19);
    x.fill([size](int64_t, int64_t c) { return size * (static_cast<float>(c) / 19); });
    LayerNorm<float>{}.run({}, x.in(), {}, {}, 0, out.view());
    LayerNorm<float>{}.reference(x.in(), {}, {}, 0, wanted.view());
    EXPECT_TRUE(std::isfinite(wanted(0, 3)));
    EXPECT_TRUE(close<float>(out.in(), wanted.in())) << size;
  }
}

TEST(LayerNorm, NanInfinityAndEqualElementsWithoutEpsMakeNanOfTheirRow) {
  for (int64_t columns : {3, 64}) {
    Matrix<float> x(5, columns), out(5, columns);
    x.fill([&](int64_t r, int64_t c) {
      if (r == 4) return 7.f;
      if (c != 1 || r == 0) return static_cast<float>(c);
      return r == 1 ? nan : r == 2 ? infinity : -infinity;
    });
    LayerNorm<float>{}.run({}, x.in(), {}, {}, 0, out.view());
    for (int64_t c = 0; c < columns; ++c) {
      EXPECT_TRUE(std::isfinite(out(0, c)));
      for (int64_t r = 1; r < 5; ++r) EXPECT_TRUE(std::isnan(out(r, c))) << r;
    }
    LayerNorm<float>{}.run({}, x.in(), {}, {}, 1e-5f, out.view());
    EXPECT_EQ(out(4, 0), 0);
  }
}

TEST(LayerNorm, NothingIsDoneWhereThereIsNothing) {
  const LayerNorm<float> kernel;
  for (auto [r, c] : {std::pair<int64_t, int64_t>{0, 5}, {5, 0}, {0, 0}}) {
    Matrix<float> x(r, c), line(1, c), out(r, c);
    const auto [y, residuals] =
        kernel.fwd_with_residuals({}, x.in(), line.line(), line.line(), 1e-5f, out.view());
    const auto [dx, dweight, dbias] =
        kernel.vjp({}, residuals, x.in(), x.in(), line.line(), line.line(), 1e-5f, out.view());
    EXPECT_EQ(dx.shape(), (std::vector<int64_t>{r, c}));
    for (int64_t i = 0; i < c; ++i) EXPECT_EQ(dweight->data<float>()[i], 0);
    EXPECT_EQ(dbias->shape(), std::vector<int64_t>{c});
  }
}

TEST(LayerNorm, AnOutputMayBeTheInputItself) {
  rows::Random random(4);
  Matrix<float> x(5, 35), out(5, 35);
  x.fill_normal(random);
  LayerNorm<float>{}.run({}, x.in(), {}, {}, 1e-5f, out.view());
  LayerNorm<float>{}.run({2, true, true}, x.in(), {}, {}, 1e-5f, x.view());
  EXPECT_TRUE(same_bits<float>(x.in(), out.in()));
}

TEST(LayerNorm, ArgumentsThatDoNotFitAreRefused) {
  Matrix<float> x(4, 6), bias(1, 5), out(4, 6);
  EXPECT_EQ(
      refusal([&] { LayerNorm<float>{}.run({}, x.in(), {}, bias.line(), 1e-5f, out.view()); }),
      "[layer_norm] given x[4, 6], bias[5], out[4, 6]; needed: x[rows, columns], "
      "bias[columns], out[rows, columns]");
  EXPECT_THAT(refusal([&] { LayerNorm<float>{}.run({}, x.in(), {}, x.line(), 1e-5f, x.view()); }),
              HasSubstr("an out that overlaps bias"));
  EXPECT_THAT(refusal([&] {
                layer_norm(Tensor::of<float>({3, 2}), {}, Tensor::of<BFloat16>({2}));
              }),
              StartsWith("[layer_norm] given x[3, 2] of float32, bias[2] of bfloat16; needed: "));
}

TEST(LayerNorm, GradientsDoNotDependOnThreads) {
  rows::Random random(5);
  const LayerNorm<float> kernel;
  Matrix<float> x(150, 33), weight(1, 33), dy(150, 33), out(150, 33);
  x.fill_normal(random), weight.fill_normal(random), dy.fill_normal(random);
  const auto gradients = [&](RowConfig config) {
    const auto [y, residuals] =
        kernel.fwd_with_residuals(config, x.in(), weight.line(), weight.line(), 1e-5f, out.view());
    return kernel.vjp(config, residuals, dy.in(), x.in(), weight.line(), weight.line(), 1e-5f,
                      out.view());
  };
  const auto [dx, dweight, dbias] = gradients({});
  for (int threads : {2, 3, 7}) {
    const auto [other, other_weight, other_bias] =
        gradients({1, false, false, {threads, threads == 3}});
    EXPECT_TRUE(same_bits(dx, other));
    EXPECT_TRUE(same_bits(*dweight, *other_weight));
    EXPECT_TRUE(same_bits(*dbias, *other_bias));
  }
}

TEST(LayerNorm, TensorsGoThroughTheDefaultExecutor) {
  const auto no_tuning = policy_override({.allow_autotune = false});
  Tensor x = Tensor::of<BFloat16>({2, 2, 2}), weight = Tensor::of<BFloat16>({2});
  for (int64_t i = 0; i < 8; ++i) x.data<BFloat16>()[i] = BFloat16(static_cast<float>(i));
  weight.data<BFloat16>()[0] = weight.data<BFloat16>()[1] = BFloat16(2.f);
  const Tensor out = layer_norm(x, weight, weight, 0);
  for (int64_t i = 0; i < 8; ++i)
    EXPECT_EQ(static_cast<float>(out.data<BFloat16>()[i]), i % 2 == 0 ? 0 : 4);
}

}  // namespace
}  // namespace ejk::ops
