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

}  // namespace
}  // namespace ejk
