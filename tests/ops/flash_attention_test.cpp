// SPDX-License-Identifier: Apache-2.0
// flash_attention: known answers, the edges of its masks, its gradient, and what it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include <ejk/ejk.h>
#include <ejk/ops/flash_attention.h>

#include "ops/common.h"

namespace {

using ejk::Tensor;
using ejk::ops::AttentionOptions;
using ejk::ops::FlashAttention;
using ops_test::expect_near;
using ops_test::normals;
using ops_test::refusal;

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

struct Inputs {
  Tensor q, k, v;
  Inputs(int64_t batch, int64_t queries, int64_t keys, int64_t heads, int64_t kv_heads, int64_t dim)
      : q(normals({batch, queries, heads, dim}, 1)),
        k(normals({batch, keys, kv_heads, dim}, 2)),
        v(normals({batch, keys, kv_heads, dim}, 3)) {}
  Tensor run(const AttentionOptions& options = {},
             const FlashAttention::Config& config = {}) const {
    return FlashAttention{}.run(config, q, k, v, options);
  }
  Tensor reference(const AttentionOptions& options = {}) const {
    return FlashAttention{}.reference(q, k, v, options);
  }
};

TEST(FlashAttention, WeighsTwoValuesAsSoftmaxDoes) {
  const Tensor q = Tensor::of<float>({1, 1, 1, 1}, std::vector<float>{1});
  const Tensor k = Tensor::of<float>({1, 2, 1, 1}, std::vector<float>{0, std::log(3.f)});
  const Tensor v = Tensor::of<float>({1, 2, 1, 1}, std::vector<float>{4, 8});
  EXPECT_NEAR(FlashAttention{}.run({}, q, k, v, {}).data<float>()[0], 0.25f * 4 + 0.75f * 8, 1e-6f);
}

TEST(FlashAttention, IsReachableThroughTheDefaultExecutor) {
  const Inputs in(1, 9, 7, 2, 1, 5);
  const auto scope = ejk::policy_override({.allow_autotune = false});
  expect_near(ejk::ops::flash_attention(in.q, in.k, in.v), in.reference(), 1e-6f);
  AttentionOptions options;
  options.causal = true;
  expect_near(ejk::ops::flash_attention(in.q, in.k, in.v, options), in.reference(options), 1e-6f);
}

TEST(FlashAttention, IsTunedOverItsCandidates) {
  const Inputs in(1, 100, 130, 2, 1, 8);
  const ejk::Executor executor(ejk::SelectorOptions{});
  const auto tuned = executor.tune(FlashAttention{}, in.q, in.k, in.v, AttentionOptions{});
  EXPECT_TRUE(tuned.config.fwd.q_blocksize.has_value());
  expect_near(executor(FlashAttention{}, in.q, in.k, in.v, AttentionOptions{}), in.reference(),
              1e-6f);
}

TEST(FlashAttention, CandidatesAreRightAndDoNotRepeatBlocksBeyondTheSequence) {
  const Inputs in(1, 70, 70, 1, 1, 8);
  const ejk::Executor executor(ejk::SelectorOptions{});
  const ejk::Invocation inv =
      executor.describe(FlashAttention{}, in.q, in.k, in.v, AttentionOptions{});
  const auto configs = FlashAttention{}.candidate_cfgs(inv).configs();
  EXPECT_EQ(configs.size(), 4 * ejk::thread_counts().size());
  for (const auto& config : configs) {
    EXPECT_TRUE(FlashAttention{}.is_valid(config, inv));
    expect_near(in.run({}, config), in.reference(), 1e-6f);
  }
}

TEST(FlashAttention, CausalCountsFromTheStartAlsoWhereLengthsDiffer) {
  for (const auto& [queries, keys] : {std::pair{5, 9}, {9, 5}}) {
    const Inputs in(1, queries, keys, 1, 1, 4);
    AttentionOptions options;
    options.causal = true;
    const Tensor out = in.run(options);
    for (int64_t d = 0; d < 4; ++d)  // the first query sees the first key only
      EXPECT_NEAR(out.data<float>()[d], in.v.data<float>()[d], 1e-6f);
    expect_near(out, in.reference(options), 1e-6f);
  }
}

TEST(FlashAttention, WindowOfNothingIsTheDiagonal) {
  const Inputs in(2, 40, 40, 2, 2, 3);
  AttentionOptions options;
  options.window_left = options.window_right = 0;
  expect_near(in.run(options), in.v, 1e-6f);
}

TEST(FlashAttention, QueriesThatSeeNothingGiveZeros) {
  const Inputs in(2, 6, 4, 1, 1, 3);
  AttentionOptions options;
  options.query_seq_lengths = {2, 6};
  options.key_value_seq_lengths = {4, 0};
  const Tensor out = in.run(options);
  for (int64_t i = 0; i < out.size(); ++i) {
    const bool sees = i < 2 * 3;  // batch element 0, queries 0 and 1
    EXPECT_EQ(out.data<float>()[i] == 0, !sees) << i;
  }
  options = {};
  options.window_left = 0;  // query 5 sees keys from 5 on, of 4
  const Tensor windowed = in.run(options);
  for (int64_t d = 0; d < 3; ++d) EXPECT_EQ(windowed.data<float>()[5 * 3 + d], 0);
}

TEST(FlashAttention, EmptyInputsGiveEmptyOrZeroOutputs) {
  for (const auto& shape : std::vector<std::array<int64_t, 6>>{
           {0, 3, 3, 1, 1, 4}, {1, 0, 3, 1, 1, 4}, {1, 3, 3, 0, 0, 4}, {1, 3, 3, 1, 1, 0}}) {
    const auto [b, t, s, n, k, h] = shape;
    const Inputs in(b, t, s, n, k, h);
    EXPECT_EQ(in.run().size(), 0);
    const auto [out, residuals] = FlashAttention{}.fwd_with_residuals({}, in.q, in.k, in.v, {});
    const auto [dq, dk, dv] = FlashAttention{}.vjp({}, residuals, out, out, in.q, in.k, in.v, {});
    EXPECT_EQ(dq.shape(), in.q.shape());
    EXPECT_EQ(dk.shape(), in.k.shape());
    for (int64_t i = 0; i < dv.size(); ++i) EXPECT_EQ(dv.data<float>()[i], 0);
  }
  const Inputs no_keys(1, 3, 0, 2, 1, 4);
  const Tensor out = no_keys.run();
  ASSERT_EQ(out.size(), 24);
  for (int64_t i = 0; i < 24; ++i) EXPECT_EQ(out.data<float>()[i], 0);
}

TEST(FlashAttention, LargeLogitsDoNotOverflow) {
  Inputs in(1, 20, 300, 1, 1, 4);
  for (int64_t i = 0; i < in.q.size(); ++i) in.q.data<float>()[i] *= 1e4f;
  const Tensor out = in.run({}, {.fwd = {.q_blocksize = 16, .kv_blocksize = 32}});
  for (int64_t i = 0; i < out.size(); ++i) ASSERT_TRUE(std::isfinite(out.data<float>()[i]));
  expect_near(out, in.reference(), 2e-3f);  // logits of 1e4 have an ulp of 1e-3
}

TEST(FlashAttention, AMaskedKeyDoesNotReachAQuery) {
  for (const float bad : {nan, infinity, -infinity}) {
    Inputs in(1, 50, 50, 1, 1, 5);
    AttentionOptions options;
    options.causal = true;
    const Tensor clean = in.run(options);
    for (int64_t d = 0; d < 5; ++d) {
      in.k.data<float>()[30 * 5 + d] = bad;
      in.v.data<float>()[30 * 5 + d] = bad;
    }
    for (const int block : {7, 16, 128}) {
      const Tensor out = in.run(options, {.fwd = {.q_blocksize = block, .kv_blocksize = block}});
      for (int64_t i = 0; i < 30 * 5; ++i)
        ASSERT_NEAR(out.data<float>()[i], clean.data<float>()[i], 1e-6f) << bad << " at " << i;
      for (int64_t i = 30 * 5; i < 50 * 5 && std::isnan(bad); ++i)
        ASSERT_TRUE(std::isnan(out.data<float>()[i])) << i;
    }
    options = {};
    options.key_value_seq_lengths = {30};
    for (int64_t i = 0; i < 50 * 5; ++i)
      ASSERT_TRUE(std::isfinite(in.run(options).data<float>()[i])) << i;
  }
}

TEST(FlashAttention, InfiniteLogitsGiveWhatSoftmaxGives) {
  const auto one = [](float logit_0, float logit_1) {
    const Tensor q = Tensor::of<float>({1, 1, 1, 1}, std::vector<float>{1});
    const Tensor k = Tensor::of<float>({1, 2, 1, 1}, std::vector<float>{logit_0, logit_1});
    const Tensor v = Tensor::of<float>({1, 2, 1, 1}, std::vector<float>{4, 8});
    const FlashAttention::Config key_by_key{.fwd = {.kv_blocksize = 1}};
    const float found = FlashAttention{}.run({}, q, k, v, {}).data<float>()[0];
    const float by_key = FlashAttention{}.run(key_by_key, q, k, v, {}).data<float>()[0];
    EXPECT_TRUE(found == by_key || (std::isnan(found) && std::isnan(by_key)));
    return found;
  };
  EXPECT_EQ(one(-infinity, 0), 8);
  EXPECT_EQ(one(0, -infinity), 4);
  EXPECT_TRUE(std::isnan(one(infinity, 0)));
  EXPECT_TRUE(std::isnan(one(0, infinity)));
  EXPECT_TRUE(std::isnan(one(-infinity, -infinity)));
  EXPECT_TRUE(std::isnan(one(nan, 0)));
  EXPECT_TRUE(std::isnan(one(0, nan)));
}

TEST(FlashAttention, WritesIntoStridedMemoryAndOnlyThere) {
  const Inputs in(2, 10, 12, 2, 1, 6);
  for (const std::vector<int>& order : {std::vector<int>{0, 2, 1, 3}, {3, 2, 1, 0}, {0, 1, 2, 3}}) {
    std::vector<int64_t> shape(4);
    for (size_t i = 0; i < 4; ++i) shape[static_cast<size_t>(order[i])] = in.q.shape()[i];
    const Tensor memory = Tensor::of<float>(shape);
    const Tensor out = memory.transposed(order);
    ASSERT_EQ(out.shape(), in.q.shape());
    FlashAttention{}.write({}, in.q, in.k, in.v, out.any(), {});
    expect_near(out.clone(), in.reference(), 1e-6f);
  }
  const Tensor wide = Tensor::of<float>({2, 10, 2, 12});
  FlashAttention{}.write({}, in.q, in.k, in.v, wide.sliced(3, 0, 6).any(), {});
  const Tensor rest = wide.sliced(3, 6, 12).clone();
  for (int64_t i = 0; i < rest.size(); ++i) EXPECT_EQ(rest.data<float>()[i], 0);
}

TEST(FlashAttention, GradientOfOneKeyIsTheCotangentOfItsValue) {
  const Inputs in(1, 3, 1, 1, 1, 2);
  const Tensor dout = normals({1, 3, 1, 2}, 5);
  const auto [out, pull] = ejk::ops::flash_attention_vjp(in.q, in.k, in.v);
  const auto [dq, dk, dv] = pull(dout);
  for (int64_t d = 0; d < 2; ++d) {
    const float* g = dout.data<float>();
    EXPECT_NEAR(dv.data<float>()[d], g[d] + g[2 + d] + g[4 + d], 1e-6f);
    EXPECT_NEAR(dk.data<float>()[d], 0, 1e-6f);
  }
  for (int64_t i = 0; i < 6; ++i) EXPECT_NEAR(dq.data<float>()[i], 0, 1e-6f);
}

TEST(FlashAttention, BackwardIsTunedWhenAskedFor) {
  const Inputs in(1, 60, 60, 2, 2, 8);
  const ejk::Executor executor(ejk::SelectorOptions{});
  const auto scope = ejk::policy_override({.validate_backward = true});
  const auto tuned = executor.tune(FlashAttention{}, in.q, in.k, in.v, AttentionOptions{});
  EXPECT_TRUE(tuned.config.bwd.q_blocksize.has_value());
}

TEST(FlashAttention, KeysCountMasksAndNotNumbers) {
  const Inputs in(1, 4, 4, 1, 1, 4);
  const ejk::Executor executor(ejk::SelectorOptions{});
  const auto label = [&](const AttentionOptions& options) {
    return executor.label(FlashAttention{}, in.q, in.k, in.v, options);
  };
  AttentionOptions scaled, causal, capped, windowed, lengths, other_lengths;
  scaled.scale = 2.f;
  causal.causal = true;
  capped.softcap = 3.f;
  windowed.window_left = 2;
  lengths.key_value_seq_lengths = {2};
  other_lengths.key_value_seq_lengths = {3};
  EXPECT_EQ(label(scaled), label({}));
  EXPECT_NE(label(causal), label({}));
  EXPECT_NE(label(capped), label({}));
  EXPECT_NE(label(windowed), label({}));
  EXPECT_NE(label(lengths), label({}));
  EXPECT_EQ(label(lengths), label(other_lengths));
}

TEST(FlashAttention, RefusesWhatItCannotWorkWith) {
  using testing::AllOf;
  using testing::HasSubstr;
  using testing::StartsWith;
  const Inputs in(2, 3, 4, 4, 2, 5);
  const auto with = [&](const Tensor& q, const Tensor& k, const Tensor& v,
                        AttentionOptions options = {}) {
    return refusal([&] { ejk::ops::flash_attention(q, k, v, options); });
  };
  EXPECT_EQ(with(normals({3, 4, 5}, 1), in.k, in.v),
            "[flash_attention] given q float32[3, 4, 5], k float32[2, 4, 2, 5], v float32[2, 4, 2, "
            "5]; needed: q[batch, queries, heads, dim], k and v[batch, keys, kv_heads, dim]");
  EXPECT_THAT(with(in.q, in.k, normals({2, 4, 2, 6}, 1)), HasSubstr("k and v of one shape"));
  EXPECT_THAT(with(normals({1, 3, 4, 5}, 1), in.k, in.v), HasSubstr("one number of batch"));
  EXPECT_THAT(with(normals({2, 3, 4, 6}, 1), in.k, in.v), HasSubstr("one dim for q, k and v"));
  EXPECT_THAT(with(normals({2, 3, 3, 5}, 1), in.k, in.v), HasSubstr("a multiple of those of k"));
  EXPECT_THAT(with(Tensor(ejk::DType::float64, {2, 3, 4, 5}), in.k, in.v),
              HasSubstr("all three float32 or all three bfloat16"));
  EXPECT_THAT(with(Tensor(ejk::DType::bfloat16, {2, 3, 4, 5}), in.k, in.v),
              HasSubstr("all three float32 or all three bfloat16"));

  AttentionOptions options;
  options.query_seq_lengths = {1};
  EXPECT_EQ(with(in.q, in.k, in.v, options),
            "[flash_attention] given 1 lengths in query_seq_lengths; needed: one per batch "
            "element: 2");
  options = {};
  options.key_value_seq_lengths = {1, 5};
  EXPECT_EQ(with(in.q, in.k, in.v, options),
            "[flash_attention] given a length of 5 in key_value_seq_lengths; needed: lengths from "
            "0 to 4");
  options = {};
  options.window_left = -1;
  EXPECT_THAT(with(in.q, in.k, in.v, options), HasSubstr("window_left = -1; needed: 0 or more"));
  options = {};
  options.softcap = 0.f;
  EXPECT_THAT(with(in.q, in.k, in.v, options), HasSubstr("softcap = 0; needed: a positive"));
  options = {};
  options.scale = nan;
  EXPECT_THAT(with(in.q, in.k, in.v, options), HasSubstr("scale = nan; needed: a finite number"));

  EXPECT_THAT(refusal([&] { in.run({}, {.fwd = {.q_blocksize = 0}}); }),
              HasSubstr("config.fwd.q_blocksize = 0; needed: a positive number"));
  EXPECT_THAT(refusal([&] { in.run({}, {.threads = -1}); }), HasSubstr("config.threads = -1"));
  const FlashAttention kernel;
  const auto write = [&](const Tensor& out) {
    return refusal([&] { kernel.write({}, in.q, in.k, in.v, out.any(), {}); });
  };
  EXPECT_EQ(write(in.q),
            "[flash_attention] given an output that overlaps q; needed: memory of its own");
  const std::vector<int64_t> same_rows{60, 0, 5, 1};
  EXPECT_THAT(refusal([&] {
                const Tensor memory = normals({200}, 1);
                kernel.write({}, in.q, in.k, in.v,
                             {memory.any().data, ejk::DType::float32, ejk::Platform::cpu,
                              in.q.shape(), same_rows, true},
                             {});
              }),
              HasSubstr("an output whose elements overlap each other"));
  EXPECT_THAT(write(in.k), HasSubstr("out of the shape and type of q"));
  const Tensor both = normals({2, 3, 4, 9}, 1);
  EXPECT_THAT(refusal([&] {
                kernel.write({}, both.sliced(3, 0, 5), in.k, in.v, both.sliced(3, 4, 9).any(), {});
              }),
              HasSubstr("overlaps q"));
  EXPECT_THAT(refusal([&] {
                const auto [out, residuals] = kernel.fwd_with_residuals({}, in.q, in.k, in.v, {});
                kernel.vjp({}, residuals, out, in.k, in.q, in.k, in.v, {});
              }),
              AllOf(StartsWith("[flash_attention] given out"), HasSubstr("dout of the shape")));
}

}  // namespace
