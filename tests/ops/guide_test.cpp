// SPDX-License-Identifier: Apache-2.0
// The code of docs/ on the built-in operations; tests/docs_test.py checks that the two are
// the same.
#include <gtest/gtest.h>

#include <ejk/ejk.h>
#include <ejk/ops.h>

#include "fakes.h"
#include "ops/common.h"

namespace {

using ops_test::expect_near;
using ops_test::guessing;
using ops_test::normals;

TEST(OpsGuide, TensorsGoThroughTheDefaultExecutor) {
  const auto no_tuning = ejk::policy_override({.allow_autotune = false});
  const ejk::Tensor x = normals({4, 64}, 1), weight = normals({64}, 2), w = normals({64, 96}, 3);

  const ejk::Tensor h = ejk::ops::rms_norm(x, weight);
  const ejk::Tensor y = ejk::ops::matmul(h, w);                         // float32 [4, 96]
  const ejk::Tensor z = ejk::ops::matmul(y, w, {.transpose_b = true});  // [4, 64]

  EXPECT_EQ(y.shape(), (std::vector<int64_t>{4, 96}));
  EXPECT_EQ(z.shape(), x.shape());
}

TEST(OpsGuide, KernelsRunByAnyExecutorOnMemoryOfTheCaller) {
  const ejk::Executor& executor = guessing();
  std::vector<float> logits(6 * 100, 1.f), weights(6 * 100);

  const ejk::StridedView<const float, 2> in{logits.data(), {6, 100}, {100, 1}};
  const ejk::StridedView<float, 2> out{weights.data(), {6, 100}, {100, 1}};
  executor(ejk::ops::Softmax<float>{}, in, 1.f, out);

  EXPECT_NEAR(weights[123], 0.01f, 1e-7f);
}

TEST(OpsGuide, GradientsComeWithTheResult) {
  const ejk::Executor& executor = guessing();
  const ejk::Tensor a = normals({3, 5}, 1), b = normals({5, 2}, 2), dc = normals({3, 2}, 3);

  const auto [c, pull] = ejk::ops::matmul_vjp(executor, a, b);
  const ejk::ops::MatmulGradients gradients = pull(dc);

  expect_near(gradients.a, ejk::ops::matmul(executor, dc, b, {.transpose_b = true}), 1e-5f);
}

TEST(OpsGuide, AConfigOfOnesOwn) {
  const ejk::Tensor q = normals({1, 9, 2, 8}, 1), k = normals({1, 9, 1, 8}, 2);

  ejk::ops::FlashAttention::Config config;
  config.fwd = {.q_blocksize = 192, .kv_blocksize = 256};
  config.threads = 2;
  const ejk::Tensor out = guessing()(ejk::ops::FlashAttention{}, config, q, k, k,
                                     ejk::ops::AttentionOptions{.causal = true});

  expect_near(out, ejk::ops::FlashAttention{}.reference(q, k, k, {.causal = true}));
}

TEST(OpsGuide, RecordedCallsAreTunedElsewhere) {
  const fakes::TempDir place;
  ejk::SelectorOptions options;
  options.persistent = std::make_shared<ejk::PersistentCache>(place.path() + "/store");
  ejk::ConfigSelectorChain selector(options);
  const std::string folder = place.path() + "/recorded";

  ejk::ops::register_kernels();  // once, in the program that tunes
  const auto result = ejk::autotune_recorded(selector, {.folder = folder, .budget_seconds = 60});

  EXPECT_FALSE(result.note.empty()) << "nothing was recorded";
}

}  // namespace
