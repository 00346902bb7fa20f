// SPDX-License-Identifier: Apache-2.0
// matmul: tensors in, a tensor out; what it refuses; what it does at the edges.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include <ejk/ops.h>

#include "fakes.h"
#include "ops/common.h"
#include "ops/random_arrays.h"

namespace {

using ejk::BFloat16;
using ejk::DType;
using ejk::Tensor;
using ejk::ops::matmul;
using ejk::ops::Matmul;
using ejk::ops::MatmulBlocking;
using ejk::ops::MatmulOptions;
using ops_test::floats;
using ops_test::guessing;
using ops_test::on_every_target;
using ops_test::refusal;
using ops_test::values;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

const float inf = std::numeric_limits<float>::infinity();
const float nan = std::numeric_limits<float>::quiet_NaN();

Tensor counting(std::vector<int64_t> shape) {
  Tensor t = Tensor::of<float>(std::move(shape));
  std::iota(t.data<float>(), t.data<float>() + t.size(), 1.f);
  return t;
}
Tensor shortened(const Tensor& t) {
  Tensor out = Tensor::of<BFloat16>(t.shape());
  const std::vector<float> from = values(t);
  for (size_t i = 0; i < from.size(); ++i) out.data<BFloat16>()[i] = BFloat16(from[i]);
  return out;
}
Tensor product(const Tensor& a, const Tensor& b, const MatmulOptions& options = {}) {
  return matmul(guessing(), a, b, options);
}

TEST(Matmul, MultipliesTwoMatrices) {
  const Tensor c =
      product(floats({2, 3}, {1, 2, 3, 4, 5, 6}), floats({3, 2}, {1, 0, 0, 1, 10, 20}));
  EXPECT_EQ(c.shape(), (std::vector<int64_t>{2, 2}));
  EXPECT_THAT(values(c), ElementsAre(31, 62, 64, 125));
}

TEST(Matmul, GoesThroughTheDefaultExecutor) {
  const auto scope = ejk::policy_override({.allow_autotune = false});
  EXPECT_THAT(values(matmul(floats({1, 2}, {1, 2}), floats({2, 1}, {3, 4}))), ElementsAre(11));
}

TEST(Matmul, TransposesAndStridesAreViews) {
  const Tensor a = counting({5, 7}), b = counting({7, 3});
  const std::vector<float> expected = values(product(a, b));
  const Tensor at = a.transposed({1, 0}).clone(), bt = b.transposed({1, 0}).clone();
  EXPECT_EQ(values(product(at, b, {.transpose_a = true})), expected);
  EXPECT_EQ(values(product(a, bt, {.transpose_b = true})), expected);
  EXPECT_EQ(values(product(at, bt, {.transpose_a = true, .transpose_b = true})), expected);
  EXPECT_EQ(values(product(at.transposed({1, 0}), bt.transposed({1, 0}))), expected);
  Tensor wide = Tensor::of<float>({10, 21});
  for (int64_t i = 0; i < 5; ++i)
    for (int64_t k = 0; k < 7; ++k)
      wide.data<float>()[2 * i * 21 + 3 * k] = a.data<float>()[i * 7 + k];
  EXPECT_EQ(values(product(wide.sliced(0, 0, 10, 2).sliced(1, 0, 21, 3), b)), expected);
}

TEST(Matmul, AddsABias) {
  const Tensor c = product(floats({2, 1}, {1, 2}), floats({1, 2}, {10, 20}),
                           {.bias = floats({2}, {0.5f, -0.5f})});
  EXPECT_THAT(values(c), ElementsAre(10.5f, 19.5f, 20.5f, 39.5f));
}

TEST(Matmul, MultipliesBatchesAndSharesABatchOfOne) {
  const Tensor a = counting({3, 2, 4}), b = counting({3, 4, 5});
  const Tensor c = product(a, b);
  EXPECT_EQ(c.shape(), (std::vector<int64_t>{3, 2, 5}));
  for (int64_t i = 0; i < 3; ++i)
    EXPECT_EQ(values(c.selected(0, i)), values(product(a.selected(0, i), b.selected(0, i))));
  const Tensor shared = product(a, b.selected(0, 1));
  for (int64_t i = 0; i < 3; ++i)
    EXPECT_EQ(values(shared.selected(0, i)), values(product(a.selected(0, i), b.selected(0, 1))));
  const Tensor other = product(a.sliced(0, 2, 3), b);
  for (int64_t i = 0; i < 3; ++i)
    EXPECT_EQ(values(other.selected(0, i)), values(product(a.selected(0, 2), b.selected(0, i))));
}

TEST(Matmul, BFloat16IsSummedAsFloat) {
  // In bfloat16, 256 + 1 is 256.
  const Tensor a = shortened(floats({1, 3}, {256, 1, 1})), b = shortened(floats({3, 1}, {1, 1, 1}));
  const Tensor wide = product(a, b), narrow = product(a, b, {.result = DType::bfloat16});
  EXPECT_EQ(wide.dtype(), DType::float32);
  EXPECT_THAT(values(wide), ElementsAre(258));
  EXPECT_EQ(narrow.dtype(), DType::bfloat16);
  EXPECT_THAT(values(narrow), ElementsAre(258));
}

TEST(Matmul, TheTypeOfTheResultIsPartOfTheKey) {
  const Tensor a = shortened(counting({1, 2, 2}));
  const Tensor wide = Tensor::of<float>({1, 2, 2}), narrow = Tensor::of<BFloat16>({1, 2, 2});
  using View = ejk::StridedView<const BFloat16, 3>;
  const View v = a.strided<BFloat16, 3>();
  const auto key = [&](const auto& kernel, const auto& c) {
    return guessing().describe(kernel, v, v, std::nullopt, c).call_key();
  };
  EXPECT_NE(key(Matmul<BFloat16>{}, wide.strided<float, 3>()),
            key(Matmul<BFloat16, BFloat16>{}, narrow.strided<BFloat16, 3>()));
}

TEST(Matmul, EmptySizesGiveEmptyResultsZerosOrTheBias) {
  EXPECT_EQ(product(Tensor::of<float>({0, 3}), Tensor::of<float>({3, 2})).shape(),
            (std::vector<int64_t>{0, 2}));
  EXPECT_EQ(product(Tensor::of<float>({2, 3}), Tensor::of<float>({3, 0})).shape(),
            (std::vector<int64_t>{2, 0}));
  EXPECT_EQ(product(Tensor::of<float>({0, 2, 3}), Tensor::of<float>({0, 3, 2})).shape(),
            (std::vector<int64_t>{0, 2, 2}));
  const Tensor a = Tensor::of<float>({2, 0}), b = Tensor::of<float>({0, 2});
  EXPECT_THAT(values(product(a, b)), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(values(product(a, b, {.bias = floats({2}, {3, 4})})), ElementsAre(3, 4, 3, 4));
}

TEST(Matmul, NanAndInfinityPropagateAndZeroTimesInfinityIsNan) {
  on_every_target([] {
    for (const int64_t n : {1, 3, 16, 33, 70})
      for (const auto pack : {MatmulBlocking::Pack::none, MatmulBlocking::Pack::a_and_b})
        for (const bool transposed : {false, true}) {
          Tensor a = counting({1, 3, 5}), b = counting({1, 5, n}), c = Tensor::of<float>({1, 3, n});
          a.data<float>()[1 * 5 + 2] = 0;
          b.data<float>()[2 * n + n - 1] = inf;  // times 3, 0, 13
          a.data<float>()[2 * 5 + 4] = nan;
          if (transposed) b = b.transposed({0, 2, 1}).clone().transposed({0, 2, 1});
          Matmul<float>{}.run({{.pack = pack}, {}, {}}, a.strided<float, 3>(),
                              b.strided<float, 3>(), {}, c.strided<float, 3>());
          const float* out = c.data<float>();
          EXPECT_EQ(out[n - 1], inf);
          EXPECT_TRUE(std::isnan(out[n + n - 1])) << "0 * inf";
          for (int64_t j = 0; j < n; ++j) EXPECT_TRUE(std::isnan(out[2 * n + j]));
          for (int64_t j = 0; j + 1 < n; ++j) {
            EXPECT_TRUE(std::isfinite(out[j]));
            EXPECT_TRUE(std::isfinite(out[n + j]));
          }
        }
  });
}

TEST(Matmul, WritesIntoPartOfAnotherTensor) {
  const Tensor all = Tensor::of<float>({2, 5});
  ejk::ops::matmul_into(guessing(), all.sliced(1, 1, 5, 2), floats({2, 1}, {1, 2}),
                        floats({1, 2}, {10, 20}));
  EXPECT_THAT(values(all), ElementsAre(0, 10, 0, 20, 0, 0, 20, 0, 40, 0));
}

TEST(Matmul, RefusesWhatDoesNotFitAndSaysWhatIsNeeded) {
  EXPECT_THAT(refusal([] {
                product(counting({2, 3}), counting({4, 5}));
              }),
              AllOf(HasSubstr("[matmul] given a float32[2, 3], b float32[4, 5]"),
                    HasSubstr("needed: a[batch or 1, m, k], b[batch or 1, k, n]")));
  EXPECT_THAT(refusal([] { product(counting({2}), counting({2, 2})); }), HasSubstr("rank 2 or 3"));
  EXPECT_THAT(refusal([] {
                product(counting({2, 2, 2}), counting({3, 2, 2}));
              }),
              HasSubstr("[matmul] given a float32[2, 2, 2], b float32[3, 2, 2]"));
  EXPECT_THAT(refusal([] {
                product(counting({2, 2}), shortened(counting({2, 2})));
              }),
              HasSubstr("needed: all of float32 or all of bfloat16"));
  EXPECT_THAT(refusal([] {
                product(Tensor::of<double>({2, 2}), Tensor::of<double>({2, 2}));
              }),
              HasSubstr("a float64[2, 2]"));
  EXPECT_THAT(refusal([] {
                product(counting({2, 2}), counting({2, 2}), {.result = DType::bfloat16});
              }),
              HasSubstr("result bfloat16; needed: a float32 result"));
  EXPECT_THAT(refusal([] {
                product(counting({2, 2}), counting({2, 2}), {.bias = counting({3})});
              }),
              HasSubstr("bias[3]"));
  EXPECT_THAT(
      refusal([] {
        ejk::ops::matmul_into(guessing(), counting({2}), counting({2, 2}), counting({2, 2}));
      }),
      HasSubstr("needed: a c of rank 2"));
  EXPECT_THAT(
      refusal([] {
        ejk::ops::matmul_into(guessing(), counting({2, 3}), counting({2, 2}), counting({2, 2}));
      }),
      HasSubstr("c[1, 2, 3]"));
}

TEST(Matmul, RefusesAResultThatSharesMemory) {
  const Tensor a = counting({4, 4}), b = counting({4, 4});
  const auto into = [&](const Tensor& c) {
    return refusal([&] { ejk::ops::matmul_into(guessing(), c, a, b); });
  };
  EXPECT_THAT(into(a), HasSubstr("[matmul] given a c that overlaps a; needed: a c that shares"));
  EXPECT_THAT(into(b), HasSubstr("overlaps b"));
  EXPECT_THAT(into(b.transposed({1, 0})), HasSubstr("overlaps b"));
  const ejk::StridedView<float, 3> all_at_one_place(Tensor::of<float>({1}).data<float>(), {1, 4, 4},
                                                    {0, 0, 0});
  EXPECT_THAT(refusal([&] {
                Matmul<float>{}.run({}, a.reshaped({1, 4, 4}).strided<float, 3>(),
                                    b.reshaped({1, 4, 4}).strided<float, 3>(), {},
                                    all_at_one_place);
              }),
              HasSubstr("whose elements overlap"));
  // Side by side in one larger matrix is no overlap.
  const Tensor wide = counting({4, 8});
  const Tensor right = wide.sliced(1, 4, 8), left = wide.sliced(1, 0, 4);
  const std::vector<float> expected = values(product(right, b));
  ejk::ops::matmul_into(guessing(), left, right, b);
  EXPECT_EQ(values(left), expected);
}

TEST(Matmul, RefusesConfigsThatItDoesNotKnow) {
  const Tensor a = counting({1, 2, 2}), c = Tensor::of<float>({1, 2, 2});
  const auto with = [&](const MatmulBlocking& blocking) {
    return refusal([&] {
      Matmul<float>{}.run({blocking, {}, {}}, a.strided<float, 3>(), a.strided<float, 3>(), {},
                          c.strided<float, 3>());
    });
  };
  for (const MatmulBlocking& bad :
       {MatmulBlocking{.kc = 0}, MatmulBlocking{.mc = -1}, MatmulBlocking{.nc = 0},
        MatmulBlocking{.vectors = 5}, MatmulBlocking{.threads = 0},
        MatmulBlocking{.kc = 1 << 20, .nc = 1 << 20},
        MatmulBlocking{.pack = static_cast<MatmulBlocking::Pack>(7)}})
    EXPECT_THAT(with(bad), HasSubstr("[matmul] given config.forward = {"));
}

TEST(Matmul, EveryCandidateAndTheHeuristicAreValid) {
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{
           {1, 64, 64}, {9, 3, 5}, {300, 700, 900}, {1, 1, 1}, {5000, 1, 40}, {2, 0, 3}}) {
    const Tensor a = Tensor::of<float>({1, shape[0], shape[2]}),
                 b = Tensor::of<float>({1, shape[2], shape[1]});
    const Tensor c = Tensor::of<float>({1, shape[0], shape[1]});
    const Matmul<float> kernel;
    ejk::Invocation inv = guessing().describe(kernel, a.strided<float, 3>(), b.strided<float, 3>(),
                                              std::nullopt, c.strided<float, 3>());
    EXPECT_TRUE(kernel.is_valid(kernel.heuristic_cfg(inv), inv));
    for (const bool backward : {false, true}) {
      inv.backward = backward;
      const auto space = kernel.candidate_cfgs(inv);
      EXPECT_GT(space.size(), 0u);
      for (const uint64_t point : space.sample(std::min<uint64_t>(space.size(), 50), 1))
        EXPECT_TRUE(kernel.is_valid(space[point], inv)) << ejk::to_json(space[point]);
    }
  }
}

// Parts of a product may be packed in another way than the whole would be; each has scratch memory
// of its own beside that of the others.
TEST(Matmul, PartsOfAProductDoNotDisturbEachOther) {
  struct Case {
    int64_t m, n, k;
    MatmulBlocking blocking;
  };
  using Pack = MatmulBlocking::Pack;
  constexpr int runs = sanitized ? 5 : 20;
  on_every_target([] {
    for (const auto& [m, n, k, blocking] : {
             Case{192, 24, 512, {Pack::a_and_b, 128, 96, 512, 1, 4}},
             Case{192, 24, 512, {Pack::a_and_b, 128, 96, 512, 2, 4}},
             Case{192, 8, 4096, {Pack::a_and_b, 4096, 96, 512, 1, 2}},
             Case{192, 32, 4096, {Pack::a_and_b, 4096, 96, 512, 4, 2}},
             Case{400, 24, 300, {Pack::b, 512, 96, 512, 2, 4}},
         }) {
      std::mt19937 random(1);
      const ejk::testing::Strided<float, 3> a(random, {1, m, k}, true), b(random, {1, k, n}, true);
      const auto with = [&](const MatmulBlocking& chosen) {
        const Tensor c = Tensor::of<float>({1, m, n});
        Matmul<float>{}.run({chosen, {}, {}}, a, b, std::nullopt, c.strided<float, 3>());
        return values(c);
      };
      MatmulBlocking alone = blocking;
      alone.threads = 1;
      const std::vector<float> expected = with(alone);
      for (int i = 0; i < runs; ++i)
        ASSERT_EQ(with(blocking), expected) << m << 'x' << n << 'x' << k;
    }
  });
}

TEST(Matmul, TuningRunsItsCandidatesBetweenClosedPages) {
  // Sizes that fill no tile: a candidate that read or wrote beside its arrays would be rejected.
  const Tensor a = counting({1, 13, 37}), b = counting({1, 37, 35}),
               c = Tensor::of<float>({1, 13, 35});
  ejk::SelectorOptions options;
  options.policy = ejk::AutotunePolicy{.budget_seconds = 3};
  const ejk::Executor tuning(options);
  const auto tuned = tuning.tune(Matmul<float>{}, a.strided<float, 3>(), b.strided<float, 3>(),
                                 std::nullopt, c.strided<float, 3>());
  EXPECT_NE(tuned.entry.outcome, ejk::Outcome::failed);
  for (const auto& m : tuned.entry.candidates)
    EXPECT_NE(m.status, "rejected") << m.why << ejk::stable_json(m.config);
}

TEST(Matmul, GradientsHaveTheShapesOfTheArguments) {
  const Tensor a = counting({7, 5}), b = counting({3, 7}), bias = counting({3});
  const MatmulOptions options{.transpose_a = true, .transpose_b = true, .bias = bias};
  const auto [c, pull] = ejk::ops::matmul_vjp(guessing(), a, b, options);
  EXPECT_EQ(values(c), values(product(a, b, options)));
  const Tensor dc = counting({5, 3});
  const auto g = pull(dc);
  EXPECT_EQ(values(g.a), values(product(b, dc, {.transpose_a = true, .transpose_b = true})));
  EXPECT_EQ(values(g.b), values(product(dc, a, {.transpose_a = true, .transpose_b = true})));
  EXPECT_EQ(g.a.shape(), a.shape());
  EXPECT_EQ(g.b.shape(), b.shape());
  EXPECT_THAT(values(*g.bias),
              ElementsAre(1 + 4 + 7 + 10 + 13, 2 + 5 + 8 + 11 + 14, 3 + 6 + 9 + 12 + 15));
  EXPECT_THAT(refusal([&] {
                pull(counting({3, 5}));
              }),
              HasSubstr("[matmul] given dc float32[3, 5]"));
}

TEST(Matmul, GradientsOfWhatServesABatchAreSums) {
  const Tensor a = counting({2, 3, 4}), b = counting({4, 2}), dc = counting({2, 3, 2});
  const auto g = ejk::ops::matmul_vjp(guessing(), a, b).second(dc);
  EXPECT_EQ(g.b.shape(), b.shape());
  const auto part = [&](int64_t i) {
    return values(product(a.selected(0, i), dc.selected(0, i), {.transpose_a = true}));
  };
  const std::vector<float> first = part(0), second = part(1), sum = values(g.b);
  for (size_t i = 0; i < sum.size(); ++i) EXPECT_EQ(sum[i], first[i] + second[i]);
}

TEST(Matmul, ForwardAndBackwardCanBeTunedTogether) {
  const Tensor a = counting({1, 20, 30}), b = counting({1, 30, 10}),
               c = Tensor::of<float>({1, 20, 10});
  ejk::SelectorOptions options;
  options.policy = ejk::AutotunePolicy{.validate_backward = true, .budget_seconds = 1};
  std::vector<std::string> warnings;
  options.on_warning = [&](const std::string& message) { warnings.push_back(message); };
  const ejk::Executor tuning(options);
  const auto va = a.strided<float, 3>(), vb = b.strided<float, 3>();
  const auto tuned = tuning.tune(Matmul<float>{}, va, vb, std::nullopt, c.strided<float, 3>());
  EXPECT_NE(tuned.entry.outcome, ejk::Outcome::failed);  // of a second of noise nothing may follow
  EXPECT_THAT(warnings, ::testing::IsEmpty());           // the gradient was timed
}

}  // namespace
