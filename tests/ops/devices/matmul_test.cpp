// SPDX-License-Identifier: Apache-2.0
// Matrix products on devices, as tensors: ranks, transposes, batches, biases, what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ejk/ops/grouped_matmul.h>
#include <ejk/ops/matmul.h>

#include "ops/common.h"

namespace ejk::ops {
namespace {

using ops_test::guessing;
using ops_test::normals;

class DeviceMatmul : public testing::Test {
 protected:
  void SetUp() override {
    if (devices("opencl").empty()) GTEST_SKIP() << why_no_devices(Platform::opencl);
  }
  const Device& device() const { return devices("opencl").at(0); }
  static Tensor rounded(const Tensor& t) {
    Tensor to = Tensor::of<BFloat16>(t.shape());
    for (int64_t i = 0; i < t.size(); ++i) to.data<BFloat16>()[i] = BFloat16(t.data<float>()[i]);
    return to;
  }
  // The same call on the CPU and on the device.
  void expect_same(const Tensor& a, const Tensor& b, MatmulOptions options = {}) const {
    const Tensor here = matmul(guessing(), a, b, options);
    if (options.bias) options.bias = options.bias->to(device());
    const Tensor there = matmul(guessing(), a.to(device()), b.to(device()), options);
    EXPECT_EQ(&there.device(), &device());
    ops_test::expect_near(there.to(cpu_device()), here,
                          options.result == DType::bfloat16 ? 0.1f : 1e-4f);
  }
  void expect_same_gradients(const Tensor& a, const Tensor& b, MatmulOptions options = {}) const {
    const auto [here, pull] = matmul_vjp(guessing(), a, b, options);
    if (options.bias) options.bias = options.bias->to(device());
    const auto [there, pull_there] =
        matmul_vjp(guessing(), a.to(device()), b.to(device()), options);
    Tensor dc = normals(here.shape(), 9);
    if (options.result == DType::bfloat16) dc = rounded(dc);
    const MatmulGradients expected = pull(dc), found = pull_there(dc.to(device()));
    const float tolerance = a.dtype() == DType::bfloat16 ? 0.1f : 1e-4f;
    ops_test::expect_near(found.a.to(cpu_device()), expected.a, tolerance);
    ops_test::expect_near(found.b.to(cpu_device()), expected.b, tolerance);
    ASSERT_EQ(found.bias.has_value(), expected.bias.has_value());
    if (found.bias) ops_test::expect_near(found.bias->to(cpu_device()), *expected.bias, tolerance);
  }
};

TEST_F(DeviceMatmul, TakesEveryShape) {
  for (const auto& [m, n, k] : std::initializer_list<std::array<int64_t, 3>>{
           {1, 1, 1}, {3, 129, 513}, {260, 130, 600}, {0, 3, 2}, {3, 0, 2}, {3, 2, 0}})
    expect_same(normals({m, k}, 1), normals({k, n}, 2));
}

TEST_F(DeviceMatmul, TakesTypesBatchesAndBiases) {
  const Tensor a = normals({3, 10, 20}, 1), b = normals({3, 20, 40}, 2), bias = normals({40}, 3);
  const Tensor one_a = normals({1, 10, 20}, 4), one_b = normals({20, 40}, 5);
  expect_same(a, b, {.bias = bias});
  expect_same(one_a, b);
  expect_same(a, one_b);
  expect_same(rounded(a), rounded(b), {.bias = rounded(bias)});
  expect_same(rounded(a), rounded(b), {.result = DType::bfloat16});
}

TEST_F(DeviceMatmul, CopiesWhatLiesInAnotherOrder) {
  const Tensor a = normals({20, 10}, 1), b = normals({40, 20}, 2);
  expect_same(a, b, {.transpose_a = true, .transpose_b = true});
  expect_same(rounded(normals({2, 300, 7}, 3)), rounded(normals({2, 5, 300}, 4)),
              {.transpose_a = true, .transpose_b = true});
}

TEST_F(DeviceMatmul, HasGradients) {
  const Tensor a = normals({3, 10, 20}, 1), b = normals({3, 20, 40}, 2), bias = normals({40}, 3);
  const Tensor one_a = normals({1, 10, 20}, 4), one_b = normals({20, 40}, 5);
  expect_same_gradients(a, b, {.bias = bias});
  expect_same_gradients(one_a, b);
  expect_same_gradients(a, one_b);
  expect_same_gradients(rounded(a), rounded(b), {.bias = rounded(bias)});
  expect_same_gradients(rounded(one_a), rounded(b), {.result = DType::bfloat16});
  expect_same_gradients(normals({20, 10}, 6), normals({40, 20}, 7),
                        {.transpose_a = true, .transpose_b = true});
}

TEST_F(DeviceMatmul, RefusesWhatItCannotWorkWith) {
  const Tensor a = normals({4, 4}, 1), there = a.to(device());
  EXPECT_THAT(
      ops_test::refusal([&] { matmul(guessing(), there, a); }),
      testing::AllOf(testing::StartsWith("[matmul] given a on opencl|"),
                     testing::HasSubstr(", b on cpu|"),
                     testing::EndsWith("; needed: all on one device; copy them with to(device)")));
  EXPECT_THAT(ops_test::refusal([&] { matmul_into(guessing(), there, there, there); }),
              testing::HasSubstr("a c that overlaps a"));
}

TEST_F(DeviceMatmul, HasGroupsOfRows) {
  const std::vector<int32_t> numbers{5, 0, 30, 2};
  const Tensor sizes = Tensor::of<int32_t>({4}, std::span<const int32_t>(numbers));
  constexpr int64_t rows = 40, k = 20, n = 40;
  for (const auto& [in, result] : {std::pair{DType::float32, DType::float32},
                                   {DType::bfloat16, DType::float32},
                                   {DType::bfloat16, DType::bfloat16}}) {
    const bool is_short = in == DType::bfloat16;
    Tensor a = normals({rows, k}, 1), b = normals({4, k, n}, 2), dc = normals({rows, n}, 3);
    if (is_short) a = rounded(a), b = rounded(b);
    if (result == DType::bfloat16) dc = rounded(dc);
    const auto [c, pull] = grouped_matmul_vjp(guessing(), a, b, sizes, result);
    const auto [c_there, pull_there] =
        grouped_matmul_vjp(guessing(), a.to(device()), b.to(device()), sizes.to(device()), result);
    ops_test::expect_near(c_there.to(cpu_device()), c, result == DType::bfloat16 ? 0.3f : 1e-4f);
    ops_test::expect_near(
        grouped_matmul(guessing(), a.to(device()), b.to(device()), sizes.to(device()), result)
            .to(cpu_device()),
        c, result == DType::bfloat16 ? 0.3f : 1e-4f);
    const auto [da, db] = pull(dc);
    const auto [da_there, db_there] = pull_there(dc.to(device()));
    ops_test::expect_near(da_there.to(cpu_device()), da, is_short ? 0.1f : 1e-4f);
    ops_test::expect_near(db_there.to(cpu_device()), db, is_short ? 0.1f : 1e-4f);
  }
}

}  // namespace
}  // namespace ejk::ops
