// SPDX-License-Identifier: Apache-2.0
// Rounded sizes, by themselves and in keys.
#include <ejk/bucket.h>

#include <cstdint>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fakes.h"

namespace ejk {
namespace {

TEST(Bucket, IsTheNextPowerOfTwo) {
  EXPECT_EQ(bucket(0), 0);
  EXPECT_EQ(bucket(1), 1);
  EXPECT_EQ(bucket(2), 2);
  EXPECT_EQ(bucket(3), 4);
  EXPECT_EQ(bucket(1025), 2048);
  EXPECT_EQ(bucket(int64_t{1} << 62), int64_t{1} << 62);
  constexpr int64_t most = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(bucket(most), most);
}

TEST(Bucket, IsTheNextBoundAndBeyondTheLargestThatOneDoubled) {
  EXPECT_EQ(bucket(0, {64, 100}), 0);
  EXPECT_EQ(bucket(1, {64, 100}), 64);
  EXPECT_EQ(bucket(64, {64, 100}), 64);
  EXPECT_EQ(bucket(65, {64, 100}), 100);
  EXPECT_EQ(bucket(65, {100, 64}), 100);
  EXPECT_EQ(bucket(101, {64, 100}), 200);
  EXPECT_EQ(bucket(401, {64, 100}), 800);
  EXPECT_EQ(bucket(3, {-5, 0}), 4);
}

TEST(Bucket, ArraysKeepTypeAndRank) {
  float data[1];
  const View<const float, 2> view{data, {3, 70}};
  EXPECT_EQ(bucketed(view).shape, (std::array<int64_t, 2>{4, 128}));
  EXPECT_EQ(bucketed(view, {64}).shape, (std::array<int64_t, 2>{64, 128}));
  EXPECT_EQ(bucketed(view).data, nullptr);
  EXPECT_EQ(bucketed(std::span<const float>(data)).shape, (std::array<int64_t, 1>{1}));
  EXPECT_EQ(bucketed(std::vector<double>(5)).shape, (std::array<int64_t, 1>{8}));
  EXPECT_EQ(bucketed(Out(View<float, 1>{data, {9}})).shape, (std::array<int64_t, 1>{16}));
}

TEST(Bucket, StridedViewsStayPackedOrStrided) {
  using Strided = StridedView<float, 2>;
  const Strided packed = bucketed(Strided(View<float, 2>{nullptr, {5, 5}}));
  EXPECT_EQ(packed.strides, (std::array<int64_t, 2>{8, 1}));
  const Strided transposed = bucketed(Strided(nullptr, {5, 5}, {1, 5}));
  EXPECT_EQ(transposed.strides, (std::array<int64_t, 2>{1, 8}));
  EXPECT_EQ(bucketed(Strided(nullptr, {5, 5}, {-6, 1})).strides, (std::array<int64_t, 2>{-8, 1}));
  EXPECT_EQ(bucketed(Strided(nullptr, {1000, 1000}, {1008, 1})).strides,
            (std::array<int64_t, 2>{2048, 1}))
      << "1024 would be packed";
}

struct Rounded {
  static constexpr std::string_view op_id = "rounded";
  struct Config {
    int64_t tile = 1;
  };
  int64_t run(const Config& c, std::span<const float>, View<float, 2>) const { return c.tile; }
  auto key(std::span<const float> x, View<float, 2> y) const {
    return std::tuple(bucketed(x), bucketed(y, {10}));
  }
  bool is_valid(const Config& c, const Invocation& inv) const {
    return c.tile <= inv.args[0].shape[0];
  }
  Config heuristic_cfg(const Invocation& inv) const { return {inv.args[0].shape[0]}; }
};

TEST(Bucket, CallsOfOneBucketShareAKeyAndAChoiceThatFitsThem) {
  fakes::Setup setup;
  const Executor executor(setup.options());
  std::vector<float> six(6), seven(7), nine(9);
  auto rows = [](int64_t n) { return Tensor::of<float>({n, 3}); };
  auto spec = [&](const auto& x, int64_t n) {
    return executor.describe(Rounded{}, x, rows(n)).spec();
  };
  EXPECT_EQ(spec(six, 1), spec(seven, 10));
  EXPECT_NE(spec(six, 1), spec(nine, 1));
  EXPECT_NE(spec(six, 1), spec(six, 11));
  EXPECT_EQ(executor(Rounded{}, six, rows(1)), 6);
  EXPECT_EQ(executor(Rounded{}, seven, rows(2)), 6) << "one choice for the bucket";
  EXPECT_EQ(executor(Rounded{}, std::vector<float>(5), rows(2)), 5) << "six does not fit";
  EXPECT_EQ(executor(Rounded{}, seven, rows(2)), 6);
}

struct Six : Rounded {
  static constexpr std::string_view op_id = "six";
  std::vector<Config> candidate_cfgs(const Invocation&) const { return {{6}}; }
};

// Three calls of one bucket, which are warm with their heuristics before 6 is tuned.
class WarmBucket : public ::testing::Test {
 protected:
  Executor executor_with(AutotunePolicy policy) {
    auto options = setup.options();
    options.on_event = nullptr;
    options.policy = policy;
    setup.tuner->pick = 0;
    return Executor(options);
  }
  // Twice: the second time they are warm.
  static void expect_tiles(const Executor& executor, int64_t for_six, int64_t for_five,
                           int64_t for_seven) {
    for (int repeat = 0; repeat < 2; ++repeat) {
      EXPECT_EQ(executor(Six{}, std::vector<float>(6), rows), for_six);
      EXPECT_EQ(executor(Six{}, std::vector<float>(5), rows), for_five);
      EXPECT_EQ(executor(Six{}, std::vector<float>(7), rows), for_seven);
    }
  }
  static inline const Tensor rows = Tensor::of<float>({2, 3});
  fakes::Setup setup;
};

TEST_F(WarmBucket, ATakeoverLeavesCallsAloneThatItsConfigDoesNotFit) {
  const Executor executor =
      executor_with({.cache_miss_fallback = Fallback::background, .background_share = 0});
  expect_tiles(executor, 6, 5, 5);
  EXPECT_EQ(executor.chain().idle(60), 0U);
  EXPECT_EQ(setup.tuner->asked, 1);
  expect_tiles(executor, 6, 5, 6);
}

TEST_F(WarmBucket, ATuningByHandIsForAllCallsThatItFits) {
  const Executor executor = executor_with({.allow_autotune = false});
  expect_tiles(executor, 6, 5, 5);
  executor.tune(Six{}, std::vector<float>(6), rows);
  expect_tiles(executor, 6, 5, 6);
}

}  // namespace
}  // namespace ejk
