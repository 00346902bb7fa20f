// SPDX-License-Identifier: Apache-2.0
// The operations as CUDA kernels on the emulated driver, which finds races, divergent barriers and
// what is read or written beside memory.
#include <gtest/gtest.h>

#include <ejk/ops/grouped_matmul.h>
#include <ejk/ops/matmul.h>

#include "cuda/emulated_cuda.h"
#include "ops/common.h"
#include "ops/common/device_case.h"
#include "ops/devices/frame.h"

namespace device_ops {
namespace {

// A new driver for each test, as an error stays for good. Threads keep kernels, so nothing is
// closed.
const ejk::Device& opened() {
  const auto& platform = *new ejk::detail::OpenedPlatform(ejk::detail::open_cuda());
  if (platform.devices.empty()) throw std::runtime_error(platform.why_none);
  return platform.devices[0];
}

class OnEmulatedCuda : public testing::TestWithParam<ejk::ops::DeviceOp> {
 protected:
  EmulatedCuda emulation;
};

TEST_P(OnEmulatedCuda, EveryConfigGivesWhatTheReferenceGives) {
  const Findings findings = check(GetParam(), opened());
  EXPECT_GE(findings.runs, 6);
  for (const std::string& problem : findings.problems) ADD_FAILURE() << problem;
  EXPECT_EQ(emulation.finding(), "");
}

INSTANTIATE_TEST_SUITE_P(Ops, OnEmulatedCuda, testing::ValuesIn(ejk::ops::device_ops),
                         [](const auto& op) { return std::string(op.param.name); });

// The sources again, with what only gradients ask of them: matrices that lie transposed, types that
// differ, a depth in groups.
TEST(GradientsOnEmulatedCuda, AreThoseOfTheCpu) {
  using ejk::DType;
  using ejk::Tensor;
  EmulatedCuda emulation;
  const ejk::Device& device = opened();
  const ejk::Executor& executor = ops_test::guessing();
  const std::vector<int32_t> numbers{5, 0, 12};
  const Tensor sizes = Tensor::of<int32_t>({3}, std::span<const int32_t>(numbers));
  for (const auto& [in, result] : {std::pair{DType::float32, DType::float32},
                                   {DType::bfloat16, DType::float32},
                                   {DType::bfloat16, DType::bfloat16}}) {
    const auto some = [](DType dtype, std::vector<int64_t> shape, unsigned seed) {
      return dtype == DType::float32
                 ? ejk::ops::random_tensor<float>(std::move(shape), seed)
                 : ejk::ops::random_tensor<ejk::BFloat16>(std::move(shape), seed);
    };
    const float tolerance = in == DType::bfloat16 ? 0.3f : 1e-4f;
    const auto expect_near = [&](const Tensor& there, const Tensor& here) {
      ops_test::expect_near(there.to(ejk::cpu_device()), here, tolerance);
    };

    const Tensor a = some(in, {1, 9, 20}, 1), b = some(in, {2, 20, 35}, 2),
                 bias = some(in, {35}, 3);
    const auto here = ejk::ops::matmul_vjp(executor, a, b, {.bias = bias, .result = result});
    const auto there = ejk::ops::matmul_vjp(executor, a.to(device), b.to(device),
                                            {.bias = bias.to(device), .result = result});
    const Tensor dc = some(result, {2, 9, 35}, 4);
    const auto expected = here.second(dc), found = there.second(dc.to(device));
    expect_near(there.first, here.first);
    expect_near(found.a, expected.a);
    expect_near(found.b, expected.b);
    expect_near(*found.bias, *expected.bias);

    const Tensor rows = some(in, {19, 20}, 5), matrices = some(in, {3, 20, 35}, 6);
    const auto grouped = ejk::ops::grouped_matmul_vjp(executor, rows, matrices, sizes, result);
    const auto grouped_there = ejk::ops::grouped_matmul_vjp(
        executor, rows.to(device), matrices.to(device), sizes.to(device), result);
    const Tensor dy = some(result, {19, 35}, 7);
    const auto [drows, dmatrices] = grouped.second(dy);
    const auto [drows_there, dmatrices_there] = grouped_there.second(dy.to(device));
    expect_near(drows_there, drows);
    expect_near(dmatrices_there, dmatrices);
  }
  EXPECT_EQ(emulation.finding(), "");
}

class SpoiltOnEmulatedCuda : public testing::TestWithParam<std::pair<ejk::ops::DeviceOp, Control>> {
 protected:
  EmulatedCuda emulation;
};

TEST_P(SpoiltOnEmulatedCuda, IsFound) {
  const auto& [op, control] = GetParam();
  ejk::Device device = opened();
  auto& backend = *new SpoilingBackend(*device.backend, control);
  device.backend = &backend;
  bool is_found = false;
  try {
    is_found = !check(op, device, Until::first_problem).problems.empty();
  } catch (const ejk::Error&) {  // nothing works there any more
    is_found = emulation.finding() != "";
  }
  EXPECT_GT(backend.changed, 0) << "nothing to spoil";
  EXPECT_TRUE(is_found);
}

INSTANTIATE_TEST_SUITE_P(Ops, SpoiltOnEmulatedCuda,
                         testing::ValuesIn(controlled_ops(ejk::Platform::cuda)), [](const auto& p) {
                           return std::string(p.param.first.name) + "_" +
                                  std::string(p.param.second.name);
                         });

}  // namespace
}  // namespace device_ops
