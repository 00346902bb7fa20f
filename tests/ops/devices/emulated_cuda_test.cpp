// SPDX-License-Identifier: Apache-2.0
// The operations as CUDA kernels on the emulated driver, which finds races, divergent barriers and
// what is read or written beside memory.
#include <algorithm>
#include <cstdlib>

#include <gtest/gtest.h>

#include <ejk/ops/matmul.h>

#include "cuda/emulated_cuda.h"
#include "ops/common/device_case.h"
#include "ops/devices/frame.h"
#include "ops/matmul/device_product.h"

namespace device_ops {
namespace {

// The host's compiler takes more than a second for a config.
const bool has_few_samples = setenv("EJK_TEST_SAMPLES", "1", 0) == 0;

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

// ---- more groups than CUDA takes along the second and third axis
// ----------------------------------

class ManyGroupsOnEmulatedCuda : public testing::Test {
 protected:
  static constexpr int64_t most_of_an_axis = 65535;

  // c[batch, 1, n] = a[batch, 1, 1] b[batch, 1, n] with a group of one item for each element.
  void expect_product(int64_t batch, int64_t n) {
    using Kernel = ejk::ops::Matmul<float>;
    const ejk::Tensor a = ejk::ops::random_tensor<float>({batch, 1, 1}, 1),
                      b = ejk::ops::random_tensor<float>({batch, 1, n}, 2),
                      c = ejk::Tensor::of<float>({batch, 1, n});
    const ejk::Tensor a_there = a.to(device), b_there = b.to(device), c_there = c.to(device);
    const Kernel::GpuConfig config{
        .forward = {.bm = 1, .bn = 1, .bk = 1, .tm = 1, .tn = 1, .width = 1},
        .grad_a = {},
        .grad_b = {}};
    Kernel{}.run_gpu(config, ejk::device_view<const float, 3>(a_there),
                     ejk::device_view<const float, 3>(b_there), std::nullopt,
                     ejk::Out(ejk::device_view<float, 3>(c_there)));
    const ejk::Tensor found = c_there.to(ejk::cpu_device());
    int64_t wrong = 0;
    for (int64_t i = 0; i < batch * n; ++i)
      wrong += found.data<float>()[i] != a.data<float>()[i / n] * b.data<float>()[i];
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(emulation.finding(), "");
  }

  EmulatedCuda emulation;
  const ejk::Device& device = opened();
};

TEST_F(ManyGroupsOnEmulatedCuda, AreMatricesOfABatch) {
  for (const int64_t batch : {most_of_an_axis + 1, most_of_an_axis + 2}) expect_product(batch, 1);
}

TEST_F(ManyGroupsOnEmulatedCuda, AreColumns) { expect_product(1, most_of_an_axis + 1); }

TEST_F(ManyGroupsOnEmulatedCuda, AreMatricesToTranspose) {
  const ejk::Tensor from = ejk::ops::random_tensor<float>({most_of_an_axis + 1, 1, 2}, 1),
                    there = from.to(device),
                    turned(ejk::DType::float32, {most_of_an_axis + 1, 2, 1}, device);
  ejk::ops::transpose_on_device("matmul", most_of_an_axis + 1, 1, 2, ejk::DType::float32,
                                ejk::ops::device_array(there), ejk::ops::device_array(turned));
  const ejk::Tensor found = turned.to(ejk::cpu_device());
  EXPECT_TRUE(
      std::equal(from.data<float>(), from.data<float>() + from.size(), found.data<float>()));
}

class SpoiltOnEmulatedCuda : public testing::TestWithParam<std::pair<ejk::ops::DeviceOp, Control>> {
 protected:
  EmulatedCuda emulation;
};

TEST_P(SpoiltOnEmulatedCuda, IsFound) {
  const auto& [op, control] = GetParam();
  ejk::Device device = opened();
  const SpoilingBackend& spoiling = spoil(device, control);
  bool is_found = false;
  try {
    is_found = !check(op, device, Until::first_problem).problems.empty();
  } catch (const ejk::Error&) {  // nothing works there any more
    is_found = emulation.finding() != "";
  }
  EXPECT_GT(spoiling.changed, 0) << "nothing to spoil";
  EXPECT_TRUE(is_found);
}

INSTANTIATE_TEST_SUITE_P(Ops, SpoiltOnEmulatedCuda,
                         testing::ValuesIn(controlled_ops(ejk::Platform::cuda)), [](const auto& p) {
                           return std::string(p.param.first.name) + "_" +
                                  std::string(p.param.second.name);
                         });

}  // namespace
}  // namespace device_ops
