// SPDX-License-Identifier: Apache-2.0
// Attention against its references: random shapes, strides, element types, options, configs and
// every instruction set that runs here.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include <ejk/ejk.h>
#include <ejk/ops/decode_attention.h>
#include <ejk/ops/flash_attention.h>

#include "ops/common.h"

namespace {

using ejk::BFloat16;
using ejk::DType;
using ejk::Tensor;
using ejk::ops::AttentionOptions;
using ejk::ops::FlashAttention;
using ops_test::values;
using Order = ejk::ops::DecodeConfig::Order;

class OnEveryInstructionSet : public testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};
INSTANTIATE_TEST_SUITE_P(, OnEveryInstructionSet, testing::ValuesIn(ops_test::targets()),
                         [](const auto& set) { return std::string(hwy::TargetName(set.param)); });

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}
  int64_t from_to(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(engine_);
  }
  bool chance(int percent) { return from_to(0, 99) < percent; }
  float normal() { return std::normal_distribution<float>()(engine_); }

  // Of this shape, sometimes a view of something larger or with other axes outside.
  Tensor tensor(DType dtype, const std::vector<int64_t>& shape) {
    std::vector<int> order{0, 1, 2, 3};
    if (chance(40)) std::swap(order[1], order[2]);
    if (chance(15)) std::swap(order[3], order[1]);
    const int64_t extra = chance(30) ? from_to(1, 5) : 0, step = chance(10) ? 2 : 1;
    std::vector<int64_t> memory(4);
    for (size_t i = 0; i < 4; ++i) memory[static_cast<size_t>(order[i])] = shape[i];
    memory[3] = memory[3] * step + extra;
    Tensor t(dtype, memory);
    for (int64_t i = 0; i < t.size(); ++i) {
      if (dtype == DType::float32) t.data<float>()[i] = normal();
      else t.data<BFloat16>()[i] = BFloat16(normal());
    }
    std::vector<int64_t> wanted(4);
    for (size_t i = 0; i < 4; ++i) wanted[static_cast<size_t>(order[i])] = shape[i];
    return t.sliced(3, extra, extra + wanted[3] * step, step).transposed(order);
  }

 private:
  std::mt19937 engine_;
};

struct Case {
  DType dtype;
  int64_t batch, queries, keys, kv_heads, group, dim;
  AttentionOptions options;
  FlashAttention::Config config;
  Tensor q, k, v;

  explicit Case(Random& r, int64_t longest, int64_t widest)
      : dtype(r.chance(30) ? DType::bfloat16 : DType::float32),
        batch(r.from_to(1, 2)),
        queries(r.from_to(1, longest)),
        keys(r.from_to(1, longest)),
        kv_heads(r.from_to(1, 2)),
        group(r.chance(50) ? 1 : r.from_to(2, 5)),
        dim(r.from_to(1, widest)) {
    options.causal = r.chance(40);
    if (r.chance(30)) options.window_left = r.from_to(0, keys);
    if (r.chance(20)) options.window_right = r.from_to(0, keys);
    if (r.chance(30)) options.softcap = 0.5f + static_cast<float>(r.from_to(0, 30));
    if (r.chance(30)) options.scale = 0.3f;
    for (int64_t b = 0; b < batch; ++b) options.query_seq_lengths.push_back(length(r, queries));
    for (int64_t b = 0; b < batch; ++b) options.key_value_seq_lengths.push_back(length(r, keys));
    if (r.chance(70)) options.query_seq_lengths.clear();
    if (r.chance(60)) options.key_value_seq_lengths.clear();
    const auto size = [&] { return static_cast<int>(r.from_to(1, r.chance(50) ? 20 : 200)); };
    config = {.fwd = {.q_blocksize = size(), .kv_blocksize = size()},
              .bwd = {.q_blocksize = size(), .kv_blocksize = size()},
              .threads = static_cast<int>(r.from_to(1, 3))};
    q = r.tensor(dtype, {batch, queries, kv_heads * group, dim});
    k = r.tensor(dtype, {batch, keys, kv_heads, dim});
    v = r.tensor(dtype, {batch, keys, kv_heads, dim});
  }
  static int32_t length(Random& r, int64_t longest) {
    return static_cast<int32_t>(r.from_to(0, longest));
  }
  std::string text() const {
    return "q " + ejk::shape_text(q.shape()) + " k " + ejk::shape_text(k.shape()) + " " +
           std::string(ejk::dtype_name(dtype)) + " causal " + std::to_string(options.causal) +
           " window " + std::to_string(options.window_left.value_or(-1)) + " " +
           std::to_string(options.window_right.value_or(-1)) + " cap " +
           std::to_string(options.softcap.value_or(0)) + " " + ejk::to_json(config);
  }
};

TEST_P(OnEveryInstructionSet, FlashForwardIsTheReference) {
  for (unsigned seed = 0; seed < 150; ++seed) {
    Random random(seed);
    const Case c(random, seed % 3 == 0 ? 150 : 30, seed % 5 == 0 ? 270 : 40);
    const auto found = values(FlashAttention{}.run(c.config, c.q, c.k, c.v, c.options));
    const auto expected = values(FlashAttention{}.reference(c.q, c.k, c.v, c.options));
    const float tolerance = c.dtype == DType::float32 ? 1e-5f : 0.02f;
    for (size_t i = 0; i < found.size(); ++i)
      ASSERT_NEAR(found[i], expected[i], tolerance)
          << "seed " << seed << " at " << i << ": " << c.text();
  }
}

TEST_P(OnEveryInstructionSet, FlashDoesNotDependOnTheNumberOfThreads) {
  for (unsigned seed = 1000; seed < 1020; ++seed) {
    Random random(seed);
    Case c(random, 100, 40);
    std::vector<std::vector<float>> first;
    for (const int threads : {1, 2, 3, 7}) {
      c.config.threads = threads;
      const FlashAttention kernel;
      const auto [out, residuals] = kernel.fwd_with_residuals(c.config, c.q, c.k, c.v, c.options);
      const auto [dq, dk, dv] = kernel.vjp(c.config, residuals, out, out, c.q, c.k, c.v, c.options);
      const std::vector<std::vector<float>> all{values(out), values(dq), values(dk), values(dv)};
      if (threads == 1) first = all;
      else ASSERT_EQ(all, first) << "seed " << seed << ", " << threads << " threads: " << c.text();
    }
  }
}

TEST_P(OnEveryInstructionSet, DecodeIsTheReferencePlainAndPaged) {
  for (unsigned seed = 3000; seed < 3150; ++seed) {
    Random r(seed);
    const DType dtype = r.chance(30) ? DType::bfloat16 : DType::float32;
    const int64_t batch = r.from_to(1, 3), kv_heads = r.from_to(1, seed % 2 == 0 ? 11 : 3);
    const int64_t group = r.chance(40) ? 1 : r.from_to(2, 7);
    const int64_t dim = r.from_to(1, seed % 5 == 0 ? 270 : 40);
    const int64_t page_size = r.from_to(1, 20), pages = r.from_to(1, 12), most = r.from_to(1, 6);
    const int64_t positions = seed % 10 == 0 ? 1 : r.from_to(1, 200);
    ejk::ops::DecodeOptions options;
    if (r.chance(30)) options.window_left = r.from_to(0, 40);
    if (r.chance(30)) options.softcap = 5.f;
    if (r.chance(30)) options.scale = 0.3f;
    const ejk::ops::DecodeConfig config{
        .splits = static_cast<int>(r.from_to(1, 5)),
        .k_block = static_cast<int>(r.from_to(1, 150)),
        .threads = static_cast<int>(r.from_to(1, 3)),
        .order = r.chance(75) ? Order::by_position : Order::by_head};
    const auto lengths = [&](int64_t longest) {
      std::vector<int32_t> all;
      for (int64_t b = 0; b < batch; ++b)
        all.push_back(static_cast<int32_t>(r.from_to(0, longest)));
      return all;
    };
    const Tensor q = r.tensor(dtype, {batch, 1, kv_heads * group, dim}).selected(1, 0);
    const float tolerance = dtype == DType::float32 ? 1e-5f : 0.02f;
    const auto expect_equal = [&](const Tensor& found, const Tensor& expected, const char* which) {
      const auto a = values(found), b = values(expected);
      for (size_t i = 0; i < a.size(); ++i)
        ASSERT_NEAR(a[i], b[i], tolerance)
            << which << ", seed " << seed << " at " << i << ": q " << ejk::shape_text(q.shape())
            << " " << ejk::dtype_name(dtype) << " " << ejk::to_json(config);
    };

    const ejk::ops::DecodeAttention plain;
    const Tensor k = r.tensor(dtype, {batch, positions, kv_heads, dim});
    const Tensor v = r.tensor(dtype, {batch, positions, kv_heads, dim});
    const auto filled = r.chance(80) ? lengths(positions) : std::vector<int32_t>{};
    const Tensor out = plain.run(config, q, k, v, filled, options);
    expect_equal(out, plain.reference(q, k, v, filled, options), "plain");
    auto other_threads = config;
    other_threads.threads = 5;
    ASSERT_EQ(values(plain.run(other_threads, q, k, v, filled, options)), values(out));

    const ejk::ops::PagedDecodeAttention paged;
    const Tensor k_pages = r.tensor(dtype, {pages, page_size, kv_heads, dim});
    const Tensor v_pages = r.tensor(dtype, {pages, page_size, kv_heads, dim});
    const Tensor table = Tensor::of<int32_t>({batch, most});
    for (int64_t i = 0; i < table.size(); ++i)
      table.data<int32_t>()[i] = static_cast<int32_t>(r.from_to(0, pages - 1));
    const auto in_pages = lengths(most * page_size);
    expect_equal(paged.run(config, q, k_pages, v_pages, table, in_pages, options),
                 paged.reference(q, k_pages, v_pages, table, in_pages, options), "paged");
  }
}

// sum(out * dout) of the definition in float64, for finite differences.
class Definition {
 public:
  Definition(const Case& c, const Tensor& dout)
      : c_(c), q(doubles(c.q)), k(doubles(c.k)), v(doubles(c.v)), dout_(doubles(dout)) {}

  double operator()() const {
    double sum = 0;
    const int64_t heads = c_.kv_heads * c_.group;
    const double scale = c_.options.scale ? static_cast<double>(*c_.options.scale)
                                          : 1 / std::sqrt(static_cast<double>(c_.dim));
    for (int64_t b = 0; b < c_.batch; ++b)
      for (int64_t t = 0; t < c_.queries; ++t)
        for (int64_t n = 0; n < heads; ++n) {
          const int64_t row = ((b * c_.queries + t) * heads + n) * c_.dim;
          double total = 0, weighted = 0;
          for (int64_t s = 0; s < c_.keys; ++s) {
            if (!sees(b, t, s)) continue;
            const int64_t key = ((b * c_.keys + s) * c_.kv_heads + n / c_.group) * c_.dim;
            double logit = 0, value = 0;
            for (int64_t d = 0; d < c_.dim; ++d) {
              logit += at(q, row + d) * at(k, key + d);
              value += at(dout_, row + d) * at(v, key + d);
            }
            logit *= scale;
            if (c_.options.softcap) {
              const double cap = static_cast<double>(*c_.options.softcap);
              logit = cap * std::tanh(logit / cap);
            }
            total += std::exp(logit), weighted += std::exp(logit) * value;
          }
          if (total > 0) sum += weighted / total;
        }
    return sum;
  }

 private:
  static double at(const std::vector<double>& of, int64_t i) { return of[static_cast<size_t>(i)]; }
  static std::vector<double> doubles(const Tensor& t) {
    const auto floats = values(t);
    return {floats.begin(), floats.end()};
  }
  bool sees(int64_t b, int64_t t, int64_t s) const {
    const AttentionOptions& o = c_.options;
    const auto index = static_cast<size_t>(b);
    if (!o.query_seq_lengths.empty() && t >= o.query_seq_lengths[index]) return false;
    if (!o.key_value_seq_lengths.empty() && s >= o.key_value_seq_lengths[index]) return false;
    if (o.causal && s > t) return false;
    if (o.window_left && s < t - *o.window_left) return false;
    return !o.window_right || s <= t + *o.window_right;
  }

  const Case& c_;

 public:
  std::vector<double> q, k, v;

 private:
  std::vector<double> dout_;
};

TEST_P(OnEveryInstructionSet, FlashGradientsAreFiniteDifferences) {
  for (unsigned seed = 2000; seed < 2040; ++seed) {
    Random random(seed);
    Case c(random, seed % 4 == 0 ? 90 : 12, seed % 5 == 0 ? 40 : 9);
    const Tensor dout = random.tensor(c.dtype, c.q.shape());
    const FlashAttention kernel;
    const auto [out, residuals] = kernel.fwd_with_residuals(c.config, c.q, c.k, c.v, c.options);
    const auto [dq, dk, dv] = kernel.vjp(c.config, residuals, out, dout, c.q, c.k, c.v, c.options);
    Definition f(c, dout);
    const auto check = [&](const char* name, std::vector<double>& x, const Tensor& gradient) {
      const auto found = values(gradient);
      for (int tries = 0; tries < 8; ++tries) {
        const auto i = static_cast<size_t>(random.from_to(0, static_cast<int64_t>(x.size()) - 1));
        const double kept = x[i], step = 1e-5;
        x[i] = kept + step;
        const double above = f();
        x[i] = kept - step;
        const double below = f();
        x[i] = kept;
        const double expected = (above - below) / (2 * step);
        const double tolerance = c.dtype == DType::float32 ? 2e-5 : 0.03;
        ASSERT_NEAR(found[i], expected, tolerance * (1 + std::abs(expected)))
            << name << "[" << i << "], seed " << seed << ": " << c.text();
      }
    };
    check("dq", f.q, dq);
    check("dk", f.k, dk);
    check("dv", f.v, dv);
  }
}

}  // namespace
