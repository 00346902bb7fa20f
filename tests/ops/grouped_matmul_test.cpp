// SPDX-License-Identifier: Apache-2.0
// grouped_matmul: each row with the matrix of its group.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>

#include <ejk/ops.h>

#include "ops/common.h"
#include "ops/random_arrays.h"

namespace {

using ejk::BFloat16;
using ejk::DType;
using ejk::StridedView;
using ejk::Tensor;
using ejk::ops::grouped_matmul;
using ejk::ops::GroupedMatmul;
using ejk::ops::MatmulBlocking;
using ejk::testing::Strided;
using ejk::testing::up_to;
using ops_test::floats;
using ops_test::guessing;
using ops_test::on_every_target;
using ops_test::refusal;
using ops_test::values;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

Tensor sizes(std::vector<int32_t> values) {
  return Tensor::of<int32_t>({static_cast<int64_t>(values.size())},
                             std::span<const int32_t>(values));
}

TEST(GroupedMatmul, EveryRowMeetsTheMatrixOfItsGroupAndTheRestIsZero) {
  const Tensor a = floats({5, 2}, {1, 1, 1, 2, 1, 3, 1, 4, 1, 5});
  const Tensor b = floats({3, 2, 1}, {1, 10, 9, 9, 100, 1000});
  const Tensor c = grouped_matmul(guessing(), a, b, sizes({2, 0, 2}));
  EXPECT_EQ(c.shape(), (std::vector<int64_t>{5, 1}));
  EXPECT_THAT(values(c), ElementsAre(11, 21, 3100, 4100, 0));
}

TEST(GroupedMatmul, GoesThroughTheDefaultExecutor) {
  const auto scope = ejk::policy_override({.allow_autotune = false});
  const Tensor c = grouped_matmul(floats({1, 1}, {2}), floats({1, 1, 1}, {3}), sizes({1}));
  EXPECT_THAT(values(c), ElementsAre(6));
}

TEST(GroupedMatmul, NothingToDoIsDone) {
  EXPECT_EQ(grouped_matmul(guessing(), Tensor::of<float>({0, 2}), Tensor::of<float>({1, 2, 3}),
                           sizes({0}))
                .shape(),
            (std::vector<int64_t>{0, 3}));
  EXPECT_THAT(values(grouped_matmul(guessing(), floats({1, 1}, {2}), Tensor::of<float>({0, 1, 2}),
                                    sizes({}))),
              ElementsAre(0, 0));
  EXPECT_THAT(values(grouped_matmul(guessing(), Tensor::of<float>({2, 0}),
                                    Tensor::of<float>({1, 0, 1}), sizes({2}))),
              ElementsAre(0, 0));
}

TEST(GroupedMatmul, RefusesWhatDoesNotFitAndSaysWhatIsNeeded) {
  const Tensor a = Tensor::of<float>({4, 2}), b = Tensor::of<float>({2, 2, 3});
  const auto with = [&](const Tensor& x, const Tensor& y, const Tensor& s,
                        DType result = DType::float32) {
    return refusal([&] { grouped_matmul(guessing(), x, y, s, result); });
  };
  EXPECT_THAT(
      with(a, b, sizes({1, 2, 1})),
      AllOf(HasSubstr("[grouped_matmul] given a[4, 2], b[2, 2, 3], group_sizes[3], c[4, 3]"),
            HasSubstr("needed: a[rows, k], b[groups, k, n], group_sizes[groups]")));
  EXPECT_THAT(with(a, b, sizes({3, 2})), HasSubstr("group_sizes that add up to 5, a[4, 2]"));
  EXPECT_THAT(with(a, b, sizes({3, -1})), HasSubstr("group_sizes[1] = -1; needed: no negative"));
  EXPECT_THAT(with(a, b, sizes({2147483647, 2147483647})), HasSubstr("add up to 4294967294"));
  EXPECT_THAT(with(a, a, sizes({1, 1})), HasSubstr("b float32[4, 2]"));
  EXPECT_THAT(with(a, b, Tensor::of<int64_t>({2})), HasSubstr("group_sizes of packed int32"));
  EXPECT_THAT(with(a, b, sizes({1, 1}), DType::bfloat16), HasSubstr("result bfloat16"));
  EXPECT_THAT(refusal([&] {
                GroupedMatmul<float>{}.run({}, a.strided<float, 2>(), b.strided<float, 3>(),
                                           std::vector<int32_t>{1, 1},
                                           a.sliced(1, 0, 2).strided<float, 2>());
              }),
              HasSubstr("[grouped_matmul] given"));
}

MatmulBlocking any_blocking(std::mt19937& random) {
  const std::array packs{MatmulBlocking::Pack::none, MatmulBlocking::Pack::b,
                         MatmulBlocking::Pack::a_and_b};
  return {.pack = packs[static_cast<size_t>(up_to(random, 2))],
          .kc = static_cast<int>(1 + up_to(random, 40)),
          .mc = static_cast<int>(1 + up_to(random, 40)),
          .nc = static_cast<int>(1 + up_to(random, 150)),
          .vectors = static_cast<int>(1 + up_to(random, 3)),
          .threads = static_cast<int>(1 + up_to(random, 2))};
}

template <class In, class Result>
void check_forward_and_gradient(std::mt19937& random) {
  const int64_t groups = up_to(random, 4), k = up_to(random, 30), n = up_to(random, 60);
  std::vector<int32_t> counts;
  int64_t rows = 0;
  for (int64_t g = 0; g < groups; ++g)
    counts.push_back(static_cast<int32_t>(up_to(random, 3) == 0 ? 0 : up_to(random, 20))),
        rows += counts.back();
  const int64_t all = rows + up_to(random, 2);
  const Strided<In, 2> a(random, {all, k}, up_to(random, 1) == 0);
  const Strided<In, 3> b(random, {groups, k, n}, up_to(random, 1) == 0);
  const Strided<Result, 2> c(random, {all, n}), dc(random, {all, n});
  typename GroupedMatmul<In, Result>::Config config{any_blocking(random), any_blocking(random),
                                                    any_blocking(random)};
  const GroupedMatmul<In, Result> kernel;
  kernel.run(config, a, b, counts, c.view);
  const std::vector<Result> first = c.memory;
  config.forward.threads = 5;
  kernel.run(config, a, b, counts, c.view);
  ASSERT_TRUE(first == c.memory) << "threads change the result";
  const StridedView<const Result, 2> dy = dc;
  const auto [da, db] = kernel.vjp(config, {}, dy, a, b, counts, c.view);

  const auto number = [](auto x) { return double{static_cast<float>(x)}; };
  const auto near = [&]<class T>(T found, double expected, int64_t terms) {
    const double rounding = std::is_same_v<T, float> ? 0 : std::abs(expected) / 200;
    ASSERT_NEAR(number(found), expected, 5e-7 * double(terms + 1) + rounding);
  };
  std::vector<double> expected_db(static_cast<size_t>(groups * k * n));
  int64_t row = 0;
  for (int64_t g = 0; g < groups; ++g)
    for (int32_t r = 0; r < counts[static_cast<size_t>(g)]; ++r, ++row) {
      for (int64_t j = 0; j < n; ++j) {
        double sum = 0;
        for (int64_t i = 0; i < k; ++i) {
          sum += number(a.view(row, i)) * number(b.view(g, i, j));
          expected_db[static_cast<size_t>((g * k + i) * n + j)] +=
              number(a.view(row, i)) * number(dc.view(row, j));
        }
        near(c.view(row, j), sum, k);
      }
      for (int64_t i = 0; i < k; ++i) {
        double sum = 0;
        for (int64_t j = 0; j < n; ++j) sum += number(dc.view(row, j)) * number(b.view(g, i, j));
        near(da.template data<In>()[row * k + i], sum, n);
      }
    }
  for (; row < all; ++row) {
    for (int64_t j = 0; j < n; ++j) ASSERT_EQ(number(c.view(row, j)), 0);
    for (int64_t i = 0; i < k; ++i) ASSERT_EQ(number(da.template data<In>()[row * k + i]), 0);
  }
  for (size_t i = 0; i < expected_db.size(); ++i)
    near(db.template data<In>()[i], expected_db[i], 20);
}

TEST(GroupedMatmul, AnyShapeLayoutAndConfigGivesTheProductsAndTheirGradients) {
  on_every_target([] {
    std::mt19937 random(1);
    for (int i = 0; i < 25 && !testing::Test::HasFatalFailure(); ++i) {
      check_forward_and_gradient<float, float>(random);
      check_forward_and_gradient<BFloat16, float>(random);
      check_forward_and_gradient<BFloat16, BFloat16>(random);
    }
  });
}

TEST(GroupedMatmul, TuningComparesWithTheReference) {
  Tensor a = Tensor::of<float>({13, 37}), b = Tensor::of<float>({3, 37, 19});
  std::iota(a.data<float>(), a.data<float>() + a.size(), 1.f);
  std::iota(b.data<float>(), b.data<float>() + b.size(), 1.f);
  const Tensor c = Tensor::of<float>({13, 19}), counts = sizes({4, 0, 8});
  ejk::SelectorOptions options;
  options.policy = ejk::AutotunePolicy{.budget_seconds = 2};
  const auto tuned = ejk::Executor(options).tune(
      GroupedMatmul<float>{}, a.strided<float, 2>(), b.strided<float, 3>(),
      std::span<const int32_t>(counts.data<int32_t>(), 3), c.strided<float, 2>());
  EXPECT_NE(tuned.entry.outcome, ejk::Outcome::failed);
  for (const auto& m : tuned.entry.candidates)
    EXPECT_NE(m.status, "rejected") << m.why << ejk::stable_json(m.config);
}

TEST(GroupedMatmul, GradientsOfTensorsHaveTheirShapes) {
  const Tensor a = floats({2, 1}, {2, 3}), b = floats({2, 1, 2}, {1, 2, 3, 4});
  const auto [c, pull] = ejk::ops::grouped_matmul_vjp(guessing(), a, b, sizes({1, 1}));
  EXPECT_THAT(values(c), ElementsAre(2, 4, 9, 12));
  const auto [da, db] = pull(floats({2, 2}, {1, 1, 1, 10}));
  EXPECT_THAT(values(da), ElementsAre(3, 43));
  EXPECT_THAT(values(db), ElementsAre(2, 2, 3, 30));
  EXPECT_THAT(refusal([&, p = pull] {
                p(floats({1, 2}, {1, 1}));
              }),
              HasSubstr("[grouped_matmul] given dc float32[1, 2]"));
}

}  // namespace
