// SPDX-License-Identifier: Apache-2.0
// rms_norm: what it computes, what it refuses, its gradient, its configs.
#include <ejk/ops/rms_norm.h>

#include <ejk/executor.h>
#include <gmock/gmock.h>

#include "ops/common.h"
#include "ops/rows.h"

namespace ejk::ops {
namespace {

using ops_test::guessing;
using ops_test::refusal;
using rows::close;
using rows::Matrix;
using rows::same_bits;
using testing::HasSubstr;
using testing::StartsWith;

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

template <class T>
class RmsNormOf : public testing::Test {};
using ElementTypes = testing::Types<float, BFloat16>;
TYPED_TEST_SUITE(RmsNormOf, ElementTypes);

TYPED_TEST(RmsNormOf, EveryLengthOfARowIsRight) {
  using T = TypeParam;
  rows::Random random(1);
  for (int64_t columns = 1; columns < 140; ++columns) {
    Matrix<T> x(3, columns), weight(1, columns), out(3, columns), wanted(3, columns);
    x.fill_normal(random), weight.fill_normal(random);
    RmsNorm<T>{}.run({}, x.in(), weight.line(), 1e-5f, out.view());
    RmsNorm<T>{}.reference(x.in(), weight.line(), 1e-5f, wanted.view());
    ASSERT_TRUE(close<T>(out.in(), wanted.in()));
    RmsNorm<T>{}.run({}, x.in(), std::nullopt, 1e-5f, out.view());
    RmsNorm<T>{}.reference(x.in(), std::nullopt, 1e-5f, wanted.view());
    ASSERT_TRUE(close<T>(out.in(), wanted.in()));
  }
}

TYPED_TEST(RmsNormOf, NoConfigChangesABit) {
  using T = TypeParam;
  rows::Random random(2);
  for (int64_t columns : {64, 77}) {
    Matrix<T> x(37, columns), weight(1, columns), out(37, columns), other(37, columns);
    x.fill_normal(random), weight.fill_normal(random);
    RmsNorm<T>{}.run({}, x.in(), weight.line(), 1e-5f, out.view());
    for (int threads : {1, 2, 3, 50})
      for (bool streamed : {false, true})
        for (bool ahead : {false, true}) {
          other.fill([](auto, auto) { return nan; });
          RmsNorm<T>{}.run({threads, streamed, ahead}, x.in(), weight.line(), 1e-5f, other.view());
          EXPECT_TRUE(same_bits<T>(out.in(), other.in()))
              << threads << ' ' << streamed << ' ' << ahead;
        }
  }
}

TEST(RmsNorm, RowsAreDividedByTheirRootMeanSquare) {
  Matrix<float> x(2, 2), weight(1, 2), out(2, 2);
  x.fill([](int64_t r, int64_t c) { return r == 0 ? (c == 0 ? 1 : 7) : 0; });
  weight.fill([](int64_t, int64_t c) { return c == 0 ? 10 : 1; });
  RmsNorm<float>{}.run({}, x.in(), weight.line(), 1e-6f, out.view());
  EXPECT_NEAR(out(0, 0), 2.f, 1e-6);
  EXPECT_NEAR(out(0, 1), 1.4f, 1e-6);
  EXPECT_EQ(out(1, 0), 0);
}

TEST(RmsNorm, NanSpreadsOverItsRowAndInfinitiesOnlySilenceTheRest) {
  for (int64_t columns : {3, 64}) {
    Matrix<float> x(4, columns), out(4, columns);
    x.fill([&](int64_t r, int64_t c) { return c != 1 || r == 0 ? 1 : r == 1 ? nan : infinity; });
    x.view()(3, 1) = -infinity;
    RmsNorm<float>{}.run({}, x.in(), std::nullopt, 1e-6f, out.view());
    EXPECT_NEAR(out(0, 0), 1, 1e-6);
    for (int64_t c = 0; c < columns; ++c) {
      EXPECT_TRUE(std::isnan(out(1, c)));
      for (int64_t r : {2, 3}) EXPECT_TRUE(c == 1 ? std::isnan(out(r, c)) : out(r, c) == 0);
    }
  }
}

TEST(RmsNorm, SquaresMayLeaveTheRangeOfFloat) {
  for (float size : {1e-30f, 1e-22f, 1e22f, 1e38f}) {
    Matrix<float> x(1, 19), out(1, 19), wanted(1, 19);
    x.fill([size](int64_t, int64_t c) { return size * (static_cast<float>(c) / 19); });
    RmsNorm<float>{}.run({}, x.in(), std::nullopt, 0, out.view());
    RmsNorm<float>{}.reference(x.in(), std::nullopt, 0, wanted.view());
    EXPECT_TRUE(std::isfinite(wanted(0, 3)));
    EXPECT_TRUE(close<float>(out.in(), wanted.in())) << size;
  }
  Matrix<float> zeros(1, 5), out(1, 5);
  RmsNorm<float>{}.run({}, zeros.in(), std::nullopt, 0, out.view());
  EXPECT_TRUE(std::isnan(out(0, 0)));
}

TEST(RmsNorm, NothingIsDoneWhereThereIsNothing) {
  for (auto [r, c] : {std::pair<int64_t, int64_t>{0, 5}, {5, 0}, {0, 0}}) {
    Matrix<float> x(r, c), weight(1, c), out(r, c);
    const auto [y, pull] =
        guessing().vjp(RmsNorm<float>{}, x.in(), std::optional(weight.line()), 1e-5f, out.view());
    const auto [dx, dweight] = pull(x.in());
    EXPECT_EQ(dx.shape(), (std::vector<int64_t>{r, c}));
    ASSERT_TRUE(dweight.has_value());
    EXPECT_EQ(dweight->shape(), std::vector<int64_t>{c});
    for (int64_t i = 0; i < c; ++i) EXPECT_EQ(dweight->data<float>()[i], 0);
  }
}

TEST(RmsNorm, AnOutputMayBeTheInputItself) {
  rows::Random random(3);
  for (bool streamed : {false, true}) {
    Matrix<float> x(5, 35), out(5, 35);
    x.fill_normal(random);
    RmsNorm<float>{}.run({}, x.in(), std::nullopt, 1e-5f, out.view());
    RmsNorm<float>{}.run({2, streamed, true}, x.in(), std::nullopt, 1e-5f, x.view());
    EXPECT_TRUE(same_bits<float>(x.in(), out.in()));
  }
}

TEST(RmsNorm, HalvesOfTheRowsOfOneMatrixAreApart) {
  rows::Random random(4);
  Matrix<float> both(6, 20), wanted(6, 10);
  both.fill_normal(random);
  const StridedView<const float, 2> left(both.view().data, {6, 10}, {20, 1});
  const StridedView<float, 2> right(both.view().data + 10, {6, 10}, {20, 1});
  RmsNorm<float>{}.reference(left, std::nullopt, 1e-5f, wanted.view());
  RmsNorm<float>{}.run({}, left, std::nullopt, 1e-5f, right);
  EXPECT_TRUE(close<float>(right, wanted.in()));
}

TEST(RmsNorm, ArgumentsThatDoNotFitAreRefused) {
  Matrix<float> x(4, 6), weight(1, 5), out(4, 6), other(4, 5), large(4, 13);
  const auto run = [](auto in, RmsNorm<float>::Weight w, auto to, RowConfig config = {}) {
    return refusal([&] { RmsNorm<float>{}.run(config, in, w, 1e-5f, to); });
  };
  EXPECT_EQ(run(x.in(), {}, other.view()),
            "[rms_norm] given x[4, 6], out[4, 5]; needed: x[rows, columns], out[rows, columns]");
  EXPECT_EQ(run(x.in(), weight.line(), out.view()),
            "[rms_norm] given x[4, 6], weight[5], out[4, 6]; needed: x[rows, columns], "
            "weight[columns], out[rows, columns]");
  EXPECT_THAT(run(x.in(), {}, out.view(), {.threads = 0}),
              StartsWith("[rms_norm] given config.threads = 0; needed: a positive number"));
  // Shifted by a row, by a column, and with other strides.
  float* data = large.view().data;
  const StridedView<const float, 2> in(data, {3, 6}, {13, 1});
  for (const StridedView<float, 2>& to :
       {StridedView<float, 2>(data + 13, {3, 6}, {13, 1}),
        StridedView<float, 2>(data + 5, {3, 6}, {13, 1}),
        StridedView<float, 2>(data, {3, 6}, {13, 2}), StridedView<float, 2>(data, {3, 6}, {6, 1})})
    EXPECT_THAT(run(in, {}, to), StartsWith("[rms_norm] given an out that overlaps x; needed: "));
  EXPECT_THAT(run(in, std::span<const float>(out.view().data + 3, 6),
                  StridedView<float, 2>(out.view().data, {3, 6}, {6, 1})),
              HasSubstr("an out that overlaps weight"));
  EXPECT_THAT(run(in, {}, StridedView<float, 2>(out.view().data, {3, 6}, {0, 1})),
              HasSubstr("out with strides [0, 1], whose elements share memory"));
}

TEST(RmsNorm, GradientsDoNotDependOnThreads) {
  rows::Random random(5);
  Matrix<float> x(150, 33), weight(1, 33), dy(150, 33), out(150, 33);
  x.fill_normal(random), weight.fill_normal(random), dy.fill_normal(random);
  const auto gradients = [&](RowConfig config) {
    const RmsNorm<float> kernel;
    const auto [y, residuals] =
        kernel.fwd_with_residuals(config, x.in(), weight.line(), 1e-5f, out.view());
    return kernel.vjp(config, residuals, dy.in(), x.in(), weight.line(), 1e-5f, out.view());
  };
  const auto [dx, dweight] = gradients({});
  for (int threads : {2, 3, 7}) {
    const auto [other, other_weight] = gradients({1, false, false, {threads, threads == 3}});
    EXPECT_TRUE(same_bits(dx, other));
    EXPECT_TRUE(same_bits(*dweight, *other_weight));
  }
  EXPECT_THAT(refusal([&] {
                const auto [y, pull] =
                    guessing().vjp(RmsNorm<float>{}, x.in(), std::nullopt, 1e-5f, out.view());
                static_cast<void>(pull(weight.in()));
              }),
              StartsWith("[rms_norm] given x[150, 33], dy[1, 33]; needed: "));
}

TEST(RmsNorm, TensorsOfAnyRankGoThroughTheDefaultExecutor) {
  const auto no_tuning = policy_override({.allow_autotune = false});
  rows::Random random(6);
  std::normal_distribution<float> normal;
  Tensor x = Tensor::of<float>({2, 3, 4, 5}), weight = Tensor::of<float>({5});
  for (int64_t i = 0; i < x.size(); ++i) x.data<float>()[i] = normal(random);
  for (int64_t i = 0; i < 5; ++i) weight.data<float>()[i] = normal(random);
  const Tensor all = rms_norm(x, weight);
  EXPECT_EQ(all.shape(), x.shape());
  // Axes that no single stride leads through, rows that are not adjacent, one row.
  const Tensor swapped = rms_norm(x.transposed({1, 0, 2, 3}), weight);
  const Tensor every_other = rms_norm(x.sliced(2, 0, 4, 2), weight);
  const Tensor one = rms_norm(x.selected(0, 1).selected(0, 2).selected(0, 3), weight);
  const auto at = [&](int64_t a, int64_t b, int64_t c, int64_t d) {
    return all.data<float>()[((a * 3 + b) * 4 + c) * 5 + d];
  };
  for (int64_t d = 0; d < 5; ++d) {
    EXPECT_EQ(swapped.data<float>()[((2 * 2 + 1) * 4 + 3) * 5 + d], at(1, 2, 3, d));
    EXPECT_EQ(every_other.data<float>()[((1 * 3 + 2) * 2 + 1) * 5 + d], at(1, 2, 2, d));
    EXPECT_EQ(one.data<float>()[d], at(1, 2, 3, d));
  }
  const Tensor columns = x.transposed({0, 1, 3, 2});
  const Tensor of_columns = rms_norm(columns), packed = rms_norm(columns.clone());
  EXPECT_TRUE(same_bits(of_columns, packed));

  EXPECT_THAT(refusal([&] { rms_norm(x, Tensor::of<float>({4})); }),
              StartsWith("[rms_norm] given x[2, 3, 4, 5] of float32, weight[4] of float32; needed: "
                         "weight[5] of float32"));
  EXPECT_THAT(refusal([&] {
                rms_norm(Tensor::of<double>({2, 2}));
              }),
              StartsWith("[rms_norm] given x of float64; needed: float32 or bfloat16"));
  EXPECT_THAT(refusal([&] { rms_norm(Tensor::of<float>({})); }),
              StartsWith("[rms_norm] given x of rank 0"));
}

TEST(RmsNorm, CandidatesAreTheHeuristicAndItsLikes) {
  Tensor x = Tensor::of<float>({2048, 1024}), out = Tensor::of<float>({2048, 1024});
  const Executor& executor = guessing();
  const RmsNorm<float> kernel;
  Invocation inv = executor.describe(kernel, x, std::nullopt, 1e-5f, out);
  const auto heuristic = kernel.heuristic_cfg(inv);
  EXPECT_TRUE(kernel.candidate_cfgs(inv).index_of(heuristic).has_value());
  EXPECT_TRUE(kernel.is_valid(heuristic, inv));
  EXPECT_FALSE(kernel.is_valid({.backward = {.threads = visible_cores() + 1}}, inv));
  const uint64_t forward = kernel.candidate_cfgs(inv).size();
  inv.backward = true;
  EXPECT_GT(kernel.candidate_cfgs(inv).size(), forward);
  EXPECT_TRUE(kernel.candidate_cfgs(inv).index_of(heuristic).has_value());
}

TEST(RmsNorm, ATuningFindsEveryCandidateRight) {
  SelectorOptions options;
  options.policy = AutotunePolicy{.validate_backward = true, .budget_seconds = 2};
  const Executor executor{std::move(options)};
  rows::Random random(7);
  Matrix<float> x(40, 96), weight(1, 96), out(40, 96);
  x.fill_normal(random), weight.fill_normal(random);
  const auto tuned =
      executor.tune(RmsNorm<float>{}, x.in(), std::optional(weight.line()), 1e-5f, out.view());
  EXPECT_GE(tuned.entry.candidates.size(), 2u);
  for (const Measurement& m : tuned.entry.candidates) EXPECT_NE(m.status, "rejected") << m.why;
}

}  // namespace
}  // namespace ejk::ops
