// SPDX-License-Identifier: Apache-2.0
// flash_attention on OpenCL devices: every option, both ways, its gradient, and what it refuses.
#include "ops/devices/flash_attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ejk/ejk.h>

namespace ops_test {
namespace {

using ejk::Tensor;

class FlashOnOpenCl : public testing::Test {
 protected:
  void SetUp() override {
    if (ejk::devices("opencl").empty()) GTEST_SKIP() << why_no_devices(ejk::Platform::opencl);
  }
  static const ejk::Device& device() { return ejk::devices("opencl").at(0); }
};

TEST_F(FlashOnOpenCl, GivesWhatTheReferenceAndTheCpusGradientGive) { check_flash(device()); }

TEST_F(FlashOnOpenCl, KeepsOutWhatIsNotSeen) { check_flash_with_infinities(device()); }

TEST_F(FlashOnOpenCl, IsReachableThroughTheDefaultExecutor) {
  const auto scope = ejk::policy_override({.allow_autotune = false});
  const Tensor q = normals({1, 19, 2, 10}, 1), k = normals({1, 23, 1, 10}, 2),
               v = normals({1, 23, 1, 10}, 3);
  const Tensor gq = q.to(device()), gk = k.to(device()), gv = v.to(device());
  const Tensor there = ejk::ops::flash_attention(gq, gk, gv, {.causal = true});
  EXPECT_EQ(&there.device(), &device());
  expect_near(there.to(ejk::cpu_device()), ejk::ops::flash_attention(q, k, v, {.causal = true}));
  const auto [out, pull] = ejk::ops::flash_attention_vjp(q, k, v);
  const auto [dq, dk, dv] = pull(q);
  const auto [there_out, there_pull] = ejk::ops::flash_attention_vjp(gq, gk, gv);
  const auto [there_dq, there_dk, there_dv] = there_pull(gq);
  expect_near(there_out.to(ejk::cpu_device()), out);
  expect_near(there_dq.to(ejk::cpu_device()), dq, 1e-5f);
  expect_near(there_dk.to(ejk::cpu_device()), dk, 1e-5f);
  expect_near(there_dv.to(ejk::cpu_device()), dv, 1e-5f);
}

TEST_F(FlashOnOpenCl, TakesArraysWithStridesAndWithoutElements) {
  const GpuConfig config = flash_configs()[0];
  const Tensor wide = normals({1, 9, 2, 10}, 1);
  const Tensor q = wide.to(device()).sliced(1, 0, 9, 2), k = wide.to(device());
  expect_near(FlashAttention{}.run_gpu(config, q, k, k, {}).to(ejk::cpu_device()),
              FlashAttention{}.reference(wide.sliced(1, 0, 9, 2), wide, wide, {}), 3e-6f);
  const Tensor none(ejk::DType::float32, {1, 0, 2, 10}, device());
  EXPECT_EQ(FlashAttention{}.run_gpu(config, none, k, k, {}).shape(), none.shape());
  EXPECT_THAT(values(FlashAttention{}.run_gpu(config, k, none, none, {}).to(ejk::cpu_device())),
              testing::Each(0.f));
}

TEST_F(FlashOnOpenCl, RefusesBlocksThatCannotRun) {
  const Tensor q = normals({1, 4, 1, 10}, 1).to(device());
  GpuConfig config = flash_configs()[0];
  config.fwd.bk = 25;
  EXPECT_EQ(refusal([&] { FlashAttention{}.run_gpu(config, q, q, q, {}); }),
            "[flash_attention] given a direct config with bq = 0, bk = 25, tq = 1, tk = 4, width = "
            "4 for dim 10; needed: blocks that are multiples of what is in registers, and fit the "
            "device");
  const ejk::Invocation inv = guessing().describe(FlashAttention{}, q, q, q, AttentionOptions{});
  EXPECT_FALSE(FlashAttention{}.is_valid(config, inv));
  EXPECT_TRUE(FlashAttention{}.is_valid(flash_configs()[0], inv));
  EXPECT_TRUE(FlashAttention{}.is_valid(FlashAttention{}.heuristic_cfg_gpu(inv), inv));
  EXPECT_THAT(
      refusal([&] { FlashAttention{}.run_gpu(flash_configs()[0], q, q, q, {.scale = NAN}); }),
      testing::StartsWith("[flash_attention] given scale = nan"));
}

TEST_F(FlashOnOpenCl, HasSpacesThatItsGuessIsIn) {
  const Tensor q = normals({1, 64, 1, 64}, 1).to(device());
  ejk::Invocation inv = guessing().describe(FlashAttention{}, q, q, q, AttentionOptions{});
  ejk::Device gpu = device();
  gpu.identity["kind"] = "gpu";
  gpu.limits = {1024, 48 << 10, 1, 80};
  for (const ejk::Device* on : {&device(), static_cast<const ejk::Device*>(&gpu)}) {
    inv.device = on;
    for (const bool backward : {false, true}) {
      inv.backward = backward;
      const auto space = FlashAttention{}.candidate_cfgs_gpu(inv);
      EXPECT_GT(space.size(), 40u);
      EXPECT_TRUE(space.contains(FlashAttention{}.heuristic_cfg_gpu(inv)));
    }
  }
}

}  // namespace
}  // namespace ops_test
