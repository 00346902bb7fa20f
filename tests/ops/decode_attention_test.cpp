// SPDX-License-Identifier: Apache-2.0
// decode_attention, plain and paged: known answers, lengths, pages, and what they refuse.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include <ejk/ejk.h>
#include <ejk/ops/decode_attention.h>
#include <ejk/ops/flash_attention.h>

#include "ops/common.h"

namespace {

using ejk::Tensor;
using ejk::ops::DecodeAttention;
using ejk::ops::DecodeOptions;
using ejk::ops::PagedDecodeAttention;
using Order = ejk::ops::DecodeConfig::Order;
using ops_test::expect_near;
using ops_test::normals;
using ops_test::refusal;
using testing::HasSubstr;

// A cache, and the same cache cut into pages of 4 that lie in another order.
struct Cache {
  Tensor q = normals({2, 4, 5}, 1);
  Tensor k = normals({2, 10, 2, 5}, 2), v = normals({2, 10, 2, 5}, 3);
  Tensor k_pages = Tensor::of<float>({7, 4, 2, 5}), v_pages = Tensor::of<float>({7, 4, 2, 5});
  Tensor table = Tensor::of<int32_t>({2, 3}, std::vector<int32_t>{6, 1, 3, 0, 5, 2});
  std::vector<int32_t> lengths{10, 7};

  Cache() {
    for (int64_t b = 0; b < 2; ++b)
      for (int64_t s = 0; s < 10; ++s) {
        const int64_t page = table.data<int32_t>()[b * 3 + s / 4];
        const int64_t from = (b * 10 + s) * 10, to = (page * 4 + s % 4) * 10;
        std::copy_n(k.data<float>() + from, 10, k_pages.data<float>() + to);
        std::copy_n(v.data<float>() + from, 10, v_pages.data<float>() + to);
      }
  }
};

TEST(DecodeAttention, IsTheLastRowOfCausalAttention) {
  const Cache c;
  const Tensor q4 = c.q.reshaped({2, 1, 4, 5});
  const Tensor flash = ejk::ops::FlashAttention{}.reference(q4, c.k, c.v, {});
  expect_near(DecodeAttention{}.run({}, c.q, c.k, c.v, {}, {}), flash.reshaped({2, 4, 5}));
}

TEST(DecodeAttention, PagesGiveWhatThePlainCacheGives) {
  const Cache c;
  const auto scope = ejk::policy_override({.allow_autotune = false});
  for (const DecodeOptions& options : {DecodeOptions{}, DecodeOptions{.window_left = 3},
                                       DecodeOptions{.softcap = 2.f, .scale = 1.f}}) {
    const Tensor plain = ejk::ops::decode_attention(c.q, c.k, c.v, c.lengths, options);
    expect_near(plain, DecodeAttention{}.reference(c.q, c.k, c.v, c.lengths, options));
    expect_near(
        ejk::ops::decode_attention_paged(c.q, c.k_pages, c.v_pages, c.table, c.lengths, options),
        plain);
  }
}

TEST(DecodeAttention, IsTunedOverItsCandidates) {
  const Cache c;
  const ejk::Executor executor(ejk::SelectorOptions{});
  executor.tune(DecodeAttention{}, c.q, c.k, c.v, c.lengths, DecodeOptions{});
  executor.tune(PagedDecodeAttention{}, c.q, c.k_pages, c.v_pages, c.table, c.lengths,
                DecodeOptions{});
  const ejk::Invocation inv =
      executor.describe(DecodeAttention{}, c.q, c.k, c.v, c.lengths, DecodeOptions{});
  const Tensor expected = DecodeAttention{}.reference(c.q, c.k, c.v, c.lengths, {});
  for (const auto& config : DecodeAttention{}.candidate_cfgs(inv).configs()) {
    EXPECT_TRUE(DecodeAttention{}.is_valid(config, inv));
    expect_near(DecodeAttention{}.run(config, c.q, c.k, c.v, c.lengths, {}), expected);
  }
}

Order guessed_order(const Tensor& q, const Tensor& k, const Tensor& v) {
  return ops_test::guessing()
      .choose_config(DecodeAttention{}, q, k, v, std::span<const int32_t>{}, DecodeOptions{})
      .config.order;
}

TEST(DecodeAttention, ManyKeyHeadsAreReadInTheOrderInWhichTheyLie) {
  const auto guess = [](int64_t heads, int64_t kv_heads) {
    const Tensor cache = normals({2, 3, kv_heads, 4}, 2);
    return guessed_order(normals({2, heads, 4}, 1), cache, cache);
  };
  EXPECT_EQ(guess(8, 8), Order::by_position);
  EXPECT_EQ(guess(32, 8), Order::by_position);
  EXPECT_EQ(guess(40, 8), Order::by_head);
  EXPECT_EQ(guess(1, 1), Order::by_head);
}

TEST(DecodeAttention, HeadsThatLieApartAreReadOneAfterTheOther) {
  const Tensor q = normals({2, 5, 4}, 1), k = normals({2, 9, 5, 4}, 2),
               v = normals({2, 9, 5, 4}, 3);
  const Tensor apart = normals({2, 5, 9, 4}, 4).transposed({0, 2, 1, 3});
  EXPECT_EQ(guessed_order(q, k, v), Order::by_position);
  EXPECT_EQ(guessed_order(q, apart, v), Order::by_head);
  EXPECT_EQ(guessed_order(q, k, apart), Order::by_head);
  for (const auto& [keys, values] : {std::pair{apart, v}, {k, apart}, {apart, apart}})
    expect_near(DecodeAttention{}.run({.order = Order::by_position}, q, keys, values, {}, {}),
                DecodeAttention{}.reference(q, keys, values, {}, {}));
}

TEST(DecodeAttention, BothOrdersAreCandidatesWhereTheyDiffer) {
  const auto orders = [](int64_t kv_heads) {
    const Tensor q = normals({2, 4, 5}, 1), cache = normals({2, 10, kv_heads, 5}, 2);
    const ejk::Invocation inv = ops_test::guessing().describe(
        DecodeAttention{}, q, cache, cache, std::span<const int32_t>{}, DecodeOptions{});
    std::set<Order> found;
    for (const auto& config : DecodeAttention{}.candidate_cfgs(inv).configs())
      found.insert(config.order);
    return found;
  };
  EXPECT_THAT(orders(1), testing::ElementsAre(Order::by_head));
  EXPECT_THAT(orders(2), testing::ElementsAre(Order::by_head, Order::by_position));
}

TEST(DecodeAttention, WindowOfNothingIsTheLastValue) {
  const Cache c;
  const Tensor out = DecodeAttention{}.run({}, c.q, c.k, c.v, c.lengths, {.window_left = 0});
  for (int64_t head = 0; head < 4; ++head)
    for (int64_t d = 0; d < 5; ++d)
      EXPECT_NEAR(out.data<float>()[20 + head * 5 + d],
                  c.v.data<float>()[((10 + 6) * 2 + head / 2) * 5 + d], 1e-6f);
}

TEST(DecodeAttention, SequencesOfLengthZeroGiveZeros) {
  const Cache c;
  const std::vector<int32_t> lengths{0, 3};
  for (const int splits : {1, 3})
    for (const Order order : {Order::by_head, Order::by_position}) {
      const Tensor out =
          DecodeAttention{}.run({.splits = splits, .order = order}, c.q, c.k, c.v, lengths, {});
      for (int64_t i = 0; i < 40; ++i) EXPECT_EQ(out.data<float>()[i] == 0, i < 20) << i;
    }
}

TEST(DecodeAttention, EmptyInputsGiveEmptyOrZeroOutputs) {
  const auto size = [](std::vector<int64_t> q, std::vector<int64_t> k) {
    return DecodeAttention{}.run({}, normals(q, 1), normals(k, 2), normals(k, 3), {}, {}).size();
  };
  EXPECT_EQ(size({0, 2, 3}, {0, 4, 2, 3}), 0);
  EXPECT_EQ(size({1, 0, 3}, {1, 4, 0, 3}), 0);
  EXPECT_EQ(size({1, 2, 0}, {1, 4, 2, 0}), 0);
  const Tensor none = normals({1, 0, 1, 3}, 1);
  const Tensor out = DecodeAttention{}.run({}, normals({1, 2, 3}, 1), none, none, {}, {});
  for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(out.data<float>()[i], 0);
}

class InEitherOrder : public testing::TestWithParam<Order> {};
INSTANTIATE_TEST_SUITE_P(, InEitherOrder, testing::Values(Order::by_head, Order::by_position),
                         [](const auto& order) {
                           return order.param == Order::by_head ? "by_head" : "by_position";
                         });

TEST_P(InEitherOrder, ElementsBeyondALengthAreNotRead) {
  Cache c;
  const ejk::ops::DecodeConfig config{.order = GetParam()};
  const Tensor clean = DecodeAttention{}.run(config, c.q, c.k, c.v, c.lengths, {});
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (int64_t s = 7; s < 10; ++s)
    for (int64_t i = 0; i < 10; ++i)
      c.k.data<float>()[(10 + s) * 10 + i] = c.v.data<float>()[(10 + s) * 10 + i] = nan;
  expect_near(DecodeAttention{}.run(config, c.q, c.k, c.v, c.lengths, {}), clean, 0);
  c.table.data<int32_t>()[3 + 2] = -17;  // sequence 1 has 7 positions: two pages
  expect_near(PagedDecodeAttention{}.run(config, c.q, c.k_pages, c.v_pages, c.table, c.lengths, {}),
              clean);
}

TEST_P(InEitherOrder, InfiniteLogitsGiveWhatSoftmaxGives) {
  const float infinity = std::numeric_limits<float>::infinity();
  const auto one = [](float logit_0, float logit_1) {
    const Tensor q = Tensor::of<float>({1, 1, 1}, std::vector<float>{1});
    const Tensor k = Tensor::of<float>({1, 2, 1, 1}, std::vector<float>{logit_0, logit_1});
    const Tensor v = Tensor::of<float>({1, 2, 1, 1}, std::vector<float>{4, 8});
    ejk::ops::DecodeConfig config{.order = GetParam()};
    const float whole = DecodeAttention{}.run(config, q, k, v, {}, {}).data<float>()[0];
    const auto expect_same = [&] {
      const float found = DecodeAttention{}.run(config, q, k, v, {}, {}).data<float>()[0];
      EXPECT_TRUE(whole == found || (std::isnan(whole) && std::isnan(found)));
    };
    config.splits = 2;
    expect_same();
    config.splits = 1, config.k_block = 1;
    expect_same();
    return whole;
  };
  EXPECT_EQ(one(-infinity, 0), 8);
  EXPECT_EQ(one(0, -infinity), 4);
  EXPECT_TRUE(std::isnan(one(infinity, 0)));
  EXPECT_TRUE(std::isnan(one(-infinity, -infinity)));
  EXPECT_TRUE(std::isnan(one(0, std::numeric_limits<float>::quiet_NaN())));
  EXPECT_NEAR(one(2e38f, 2e38f), 6, 1e-6f);
}

// sum(dout * reference), which changes by the gradient.
double loss(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& dout,
            std::span<const int32_t> lengths, const DecodeOptions& options) {
  const Tensor out = DecodeAttention{}.reference(q, k, v, lengths, options);
  double sum = 0;
  for (int64_t i = 0; i < out.size(); ++i)
    sum += double{out.data<float>()[i]} * double{dout.data<float>()[i]};
  return sum;
}

TEST(DecodeAttention, GradientsAreThoseOfTheReference) {
  const Cache c;
  const Tensor dout = normals({2, 4, 5}, 4);
  for (const DecodeOptions& options : {DecodeOptions{}, DecodeOptions{.window_left = 3},
                                       DecodeOptions{.softcap = 1.5f, .scale = 0.7f}}) {
    const auto differences = [&](const Tensor& changed) {
      Tensor found(changed.dtype(), changed.shape());
      constexpr float step = 1.f / 64;
      for (int64_t i = 0; i < changed.size(); ++i) {
        float& element = changed.data<float>()[i];
        const float before = element;
        element = before + step;
        const double above = loss(c.q, c.k, c.v, dout, c.lengths, options);
        element = before - step;
        const double below = loss(c.q, c.k, c.v, dout, c.lengths, options);
        element = before;
        found.data<float>()[i] = static_cast<float>((above - below) / (2 * step));
      }
      return found;
    };
    const Tensor by_q = differences(c.q), by_k = differences(c.k), by_v = differences(c.v);
    ops_test::on_every_target([&] {
      for (const int threads : {1, 3}) {
        const auto [dq, dk, dv] = DecodeAttention{}.vjp({.threads = threads}, {}, dout, c.q, c.k,
                                                        c.v, c.lengths, options);
        expect_near(dq, by_q, 1e-3f), expect_near(dk, by_k, 1e-3f), expect_near(dv, by_v, 1e-3f);
      }
    });
  }
}

TEST(DecodeAttention, GradientsOfSharedPagesAreSums) {
  const Cache c;
  const Tensor dout = normals({2, 4, 5}, 4);
  // Both sequences are the first one's pages.
  const Tensor table = Tensor::of<int32_t>({2, 3}, std::vector<int32_t>{6, 1, 3, 6, 1, 3});
  const Tensor k = Tensor::of<float>({2, 10, 2, 5}), v = Tensor::of<float>({2, 10, 2, 5});
  for (int64_t b = 0; b < 2; ++b) {
    std::copy_n(c.k.data<float>(), 100, k.data<float>() + b * 100);
    std::copy_n(c.v.data<float>(), 100, v.data<float>() + b * 100);
  }
  const auto [dq, dk, dv] = DecodeAttention{}.vjp({}, {}, dout, c.q, k, v, c.lengths, {});
  for (const int threads : {1, 2}) {
    const auto [paged_dq, dk_pages, dv_pages] = PagedDecodeAttention{}.vjp(
        {.threads = threads}, {}, dout, c.q, c.k_pages, c.v_pages, table, c.lengths, {});
    expect_near(paged_dq, dq);
    for (int64_t page = 0; page < 7; ++page)
      for (int64_t row = 0; row < 4; ++row)
        for (int64_t i = 0; i < 10; ++i) {
          const int64_t at = page == 6 ? row : page == 1 ? 4 + row : page == 3 ? 8 + row : 10;
          const auto sum = [&](const Tensor& d) {
            return at < 10 ? d.data<float>()[at * 10 + i] + d.data<float>()[(10 + at) * 10 + i] : 0;
          };
          EXPECT_NEAR(dk_pages.data<float>()[(page * 4 + row) * 10 + i], sum(dk), 1e-5f);
          EXPECT_NEAR(dv_pages.data<float>()[(page * 4 + row) * 10 + i], sum(dv), 1e-5f);
        }
  }
}

TEST(DecodeAttention, AMaskedPositionHasNoGradientAndIsNotRead) {
  Cache c;
  const std::vector<int32_t> lengths{0, 7};
  const Tensor dout = normals({2, 4, 5}, 4);
  for (const auto& t : {c.k, c.v}) {
    std::fill_n(t.data<float>(), 100, std::numeric_limits<float>::quiet_NaN());
    std::fill_n(t.data<float>() + 170, 30, std::numeric_limits<float>::quiet_NaN());
  }
  const auto [dq, dk, dv] = DecodeAttention{}.vjp({}, {}, dout, c.q, c.k, c.v, lengths, {});
  for (int64_t i = 0; i < 40; ++i) EXPECT_EQ(dq.data<float>()[i] == 0, i < 20) << i;
  for (int64_t i = 0; i < 200; ++i) {
    EXPECT_EQ(dk.data<float>()[i] == 0, i < 100 || i >= 170) << i;
    EXPECT_EQ(dv.data<float>()[i] == 0, i < 100 || i >= 170) << i;
  }
}

TEST(DecodeAttention, GradientsComeThroughTheExecutorInTheTypesOfTheArguments) {
  const auto small = [](const Tensor& t) {
    Tensor out(ejk::DType::bfloat16, t.shape());
    for (int64_t i = 0; i < t.size(); ++i)
      out.data<ejk::BFloat16>()[i] = ejk::BFloat16(t.data<float>()[i]);
    return out;
  };
  const Cache c;
  const Tensor dout = normals({2, 4, 5}, 4);
  const auto [out, pull] =
      ops_test::guessing().vjp(DecodeAttention{}, c.q, c.k, c.v, c.lengths, DecodeOptions{});
  const auto [dq, dk, dv] = pull(dout);
  const auto [small_dq, small_dk, small_dv] =
      DecodeAttention{}.vjp({}, {}, small(dout), small(c.q), small(c.k), small(c.v), c.lengths, {});
  EXPECT_EQ(small_dk.dtype(), ejk::DType::bfloat16);
  expect_near(small_dq, dq, 3e-2f), expect_near(small_dk, dk, 3e-2f);
  expect_near(small_dv, dv, 3e-2f);
  EXPECT_THAT(refusal([&] {
                DecodeAttention{}.vjp({}, {}, normals({2, 4, 6}, 1), c.q, c.k, c.v, {}, {});
              }),
              HasSubstr("dout of the shape and type of q"));
}

TEST(DecodeAttention, RefusesWhatItCannotWorkWith) {
  const Cache c;
  const auto plain = [&](const Tensor& q, const Tensor& k, const Tensor& v,
                         std::vector<int32_t> lengths = {}, DecodeOptions options = {}) {
    return refusal([&] { ejk::ops::decode_attention(q, k, v, lengths, options); });
  };
  EXPECT_EQ(plain(normals({2, 1, 4, 5}, 1), c.k, c.v),
            "[decode_attention] given q float32[2, 1, 4, 5], k float32[2, 10, 2, 5], v float32[2, "
            "10, 2, 5]; needed: q[batch, heads, dim], k and v[batch, positions, kv_heads, dim]");
  EXPECT_THAT(plain(normals({3, 4, 5}, 1), c.k, c.v), HasSubstr("one number of batch elements"));
  EXPECT_THAT(plain(normals({2, 3, 5}, 1), c.k, c.v), HasSubstr("a multiple of those of k and v"));
  EXPECT_THAT(plain(c.q, c.k, normals({2, 9, 2, 5}, 1)), HasSubstr("k and v of one shape"));
  EXPECT_THAT(plain(normals({2, 4, 6}, 1), c.k, c.v), HasSubstr("one dim for q, k and v"));
  EXPECT_THAT(plain(Tensor::of<int32_t>({2, 4, 5}), c.k, c.v), HasSubstr("all three float32"));
  EXPECT_THAT(plain(c.q, c.k, c.v, {1}), HasSubstr("1 lengths in lengths"));
  EXPECT_THAT(plain(c.q, c.k, c.v, {1, 11}), HasSubstr("a length of 11 in lengths"));
  EXPECT_THAT(plain(c.q, c.k, c.v, {}, {.window_left = -2}), HasSubstr("window_left = -2"));
  EXPECT_THAT(plain(c.q, c.k, c.v, {}, {.softcap = -1.f}), HasSubstr("softcap = -1"));
  EXPECT_THAT(refusal([&] { DecodeAttention{}.run({.splits = 0}, c.q, c.k, c.v, {}, {}); }),
              HasSubstr("config.splits = 0"));
  EXPECT_THAT(refusal([&] { DecodeAttention{}.write({}, c.q, c.k, c.v, {}, c.q.any(), {}); }),
              HasSubstr("an output that overlaps q"));

  const auto paged = [&](const Tensor& table, std::vector<int32_t> lengths) {
    return refusal(
        [&] { ejk::ops::decode_attention_paged(c.q, c.k_pages, c.v_pages, table, lengths); });
  };
  EXPECT_EQ(paged(c.table, {10, 13}),
            "[paged_decode_attention] given a length of 13 in lengths; needed: lengths from 0 to "
            "12");
  EXPECT_THAT(paged(c.table, {}), HasSubstr("0 lengths in lengths; needed: one per batch element"));
  EXPECT_THAT(paged(Tensor::of<float>({2, 3}), {1, 1}), HasSubstr("block_table int32[batch"));
  for (const int32_t entry : {-1, 7, std::numeric_limits<int32_t>::max()}) {
    const Tensor table = c.table.clone();
    table.data<int32_t>()[1] = entry;
    EXPECT_EQ(paged(table, {5, 4}),
              "[paged_decode_attention] given block_table[0, 1] = " + std::to_string(entry) +
                  " within a length of 5; needed: a page from 0 to 6");
  }
}

}  // namespace
