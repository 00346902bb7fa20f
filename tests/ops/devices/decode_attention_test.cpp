// SPDX-License-Identifier: Apache-2.0
// decode_attention on OpenCL devices: plain and in pages, every option, and what it refuses.
#include "ops/devices/decode_attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ejk/ejk.h>

namespace ops_test {
namespace {

using ejk::Tensor;

class DecodeOnOpenCl : public testing::Test {
 protected:
  void SetUp() override {
    if (ejk::devices("opencl").empty()) GTEST_SKIP() << why_no_devices(ejk::Platform::opencl);
  }
  static const ejk::Device& device() { return ejk::devices("opencl").at(0); }
};

TEST_F(DecodeOnOpenCl, GivesWhatTheReferenceGives) { check_decode(device()); }

TEST_F(DecodeOnOpenCl, DoesNotReadPagesThatDoNotExist) { check_decode_without_a_page(device()); }

TEST_F(DecodeOnOpenCl, IsReachableThroughTheDefaultExecutor) {
  const auto scope = ejk::policy_override({.allow_autotune = false});
  const Tensor q = normals({2, 4, 11}, 1), k = normals({2, 300, 2, 11}, 2),
               v = normals({2, 300, 2, 11}, 3);
  const Tensor gq = q.to(device()), gk = k.to(device()), gv = v.to(device());
  const std::vector<int32_t> lengths{300, 17};
  const Tensor there = ejk::ops::decode_attention(gq, gk, gv, lengths);
  EXPECT_EQ(&there.device(), &device());
  expect_near(there.to(ejk::cpu_device()), ejk::ops::decode_attention(q, k, v, lengths));
  expect_near(ejk::ops::decode_attention(gq, gk, gv).to(ejk::cpu_device()),
              ejk::ops::decode_attention(q, k, v));
  const Tensor table = integers({2, 1}, {1, 0});
  expect_near(ejk::ops::decode_attention_paged(gq, gk, gv, table.to(device()), lengths)
                  .to(ejk::cpu_device()),
              ejk::ops::decode_attention_paged(q, k, v, table, lengths));
}

TEST_F(DecodeOnOpenCl, RefusesWhatItDoesNotTake) {
  const Tensor q = normals({2, 4, 11}, 1).to(device()), k = normals({2, 9, 2, 11}, 2).to(device());
  const std::span<const int32_t> none;
  EXPECT_EQ(refusal([&] { DecodeAttention{}.run_gpu({.bk = 6}, q, k, k, none, {}); }),
            "[decode_attention] given a config with group = 1, heads = 1, bk = 6, width = 4, "
            "splits = 1 for dim 11; needed: powers of two for group and width, bk a multiple of "
            "width, and no more than fits the device");
  const std::vector<int32_t> short_by_one{3};
  EXPECT_EQ(refusal([&] { DecodeAttention{}.run_gpu({}, q, k, k, short_by_one, {}); }),
            "[decode_attention] given 1 lengths in lengths; needed: one per batch element: 2");
  EXPECT_THAT(refusal([&] { guessing().vjp(DecodeAttention{}, q, k, k, none, DecodeOptions{}); }),
              testing::HasSubstr("the kernel has no gradient there"));
}

TEST_F(DecodeOnOpenCl, HasSpacesThatItsGuessIsIn) {
  const Tensor q = normals({1, 8, 64}, 1).to(device()),
               k = normals({1, 1000, 2, 64}, 1).to(device());
  const std::span<const int32_t> none;
  ejk::Invocation inv = guessing().describe(DecodeAttention{}, q, k, k, none, DecodeOptions{});
  ejk::Device gpu = device();
  gpu.identity["kind"] = "gpu";
  gpu.limits = {1024, 48 << 10, 1, 80};
  for (const ejk::Device* on : {&device(), static_cast<const ejk::Device*>(&gpu)}) {
    inv.device = on;
    const auto space = DecodeAttention{}.candidate_cfgs_gpu(inv);
    EXPECT_GT(space.size(), 40u);
    EXPECT_TRUE(space.contains(DecodeAttention{}.heuristic_cfg_gpu(inv)));
  }
}

}  // namespace
}  // namespace ops_test
