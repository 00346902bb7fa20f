// SPDX-License-Identifier: Apache-2.0
// What the operations state by `numerics` is so: configs of one class give the same bits, forward
// and backward.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <initializer_list>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ejk/ops.h>

#include "ops/common.h"
#include "ops/random_arrays.h"

namespace {

using ejk::BFloat16;
using ejk::Out;
using ejk::StridedView;
using ejk::Tensor;
using ejk::testing::Strided;
using ops_test::normals;
using ops_test::on_every_target;
using testing::IsEmpty;

// Runs a sample of a call's candidates, with and without its gradient, and compares the results of
// those that the kernel says are of one class.
class Probe final : public ejk::ConfigChooser {
 public:
  explicit Probe(uint64_t sample) : sample_(sample) {}

  ejk::Choice choose(const ejk::Invocation& call, const ejk::AnyKernel& kernel) override {
    ejk::Invocation inv = call;
    for (const bool backward : {false, true}) {
      inv.backward = backward;
      std::vector<ejk::AnyConfig> configs{*kernel.heuristic_cfg(inv)};
      const auto offered = kernel.candidate_cfgs(inv);
      for (const uint64_t point : ejk::sample_points(*offered, sample_, 1))
        configs.push_back(offered->config(point));
      compare(configs, inv, kernel);
    }
    return {*kernel.heuristic_cfg(call), ejk::Origin::heuristics};
  }

  std::vector<std::string> lies;
  size_t compared = 0, compared_gradients = 0;  // pairs
  bool classes_differ = false;                  // two classes gave other bits, in some call

 private:
  using Bits = std::vector<std::vector<std::byte>>;

  void compare(const std::vector<ejk::AnyConfig>& configs, const ejk::Invocation& inv,
               const ejk::AnyKernel& kernel) {
    struct First {
      std::string config;
      Bits bits;
    };
    std::map<std::string, First> classes;
    const auto trial = kernel.trial(inv);
    for (const ejk::AnyConfig& config : configs) {
      if (!kernel.is_valid(config, inv)) continue;
      const ejk::Value stated = kernel.numerics(config, inv);
      if (stated.is_null()) continue;
      trial->reset();
      trial->run(config);
      Bits bits;
      for (const auto& output : trial->outputs()) bits.push_back(output.bytes);
      const std::string text = ejk::stable_json(config.to_value()), name = ejk::stable_json(stated);
      const auto [first, is_new] = classes.try_emplace(name, text, bits);
      if (is_new) continue;
      ++(inv.backward ? compared_gradients : compared);
      if (first->second.bits != bits)
        lies.push_back(inv.op() + " " + inv.spec() + ": class " + name + " has both " +
                       first->second.config + " and " + text +
                       (inv.backward ? ", with the gradient" : ""));
    }
    for (const auto& [name, first] : classes)
      classes_differ = classes_differ || first.bits != classes.begin()->second.bits;
  }

  uint64_t sample_;
};

// Calls `calls` with executors whose chooser is a Probe, on every instruction set. What kernels
// stated wrongly.
struct Findings {
  std::vector<std::string> lies;
  size_t compared = 0, compared_gradients = 0;
  bool classes_differ = false;
};
Findings probe(uint64_t sample, const auto& calls) {
  Findings all;
  on_every_target([&] {
    const auto chooser = std::make_shared<Probe>(sample);
    calls(ejk::Executor(chooser));
    all.lies.insert(all.lies.end(), chooser->lies.begin(), chooser->lies.end());
    all.compared += chooser->compared, all.compared_gradients += chooser->compared_gradients;
    all.classes_differ = all.classes_differ || chooser->classes_differ;
  });
  return all;
}

// ---- a kernel that lies is found ----------------------------------------------------------------

template <bool Backward>
struct Liar {
  static constexpr std::string_view op_id = "liar";
  struct Config {
    int block = 1;
  };
  float run(const Config& c, float x) const {
    return Backward ? x : x / static_cast<float>(c.block);
  }
  std::pair<float, float> fwd_with_residuals(const Config& c, float x) const {
    return {run(c, x), x};
  }
  std::tuple<float> vjp(const Config& c, float residual, float dy) const {
    return {residual * dy / static_cast<float>(c.block)};
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const { return {{2}, {3}}; }
  int numerics(const Config&) const { return 0; }
};

TEST(Numerics, AKernelThatStatesTooMuchIsFound) {
  const auto lies_of = [](const auto& liar) {
    return probe(9, [&](const ejk::Executor& executor) { executor(liar, 1.F); }).lies;
  };
  EXPECT_FALSE(lies_of(Liar<false>{}).empty());
  EXPECT_FALSE(lies_of(Liar<true>{}).empty());
}

// ---- products -----------------------------------------------------------------------------------

template <class T, int Rank>
StridedView<const T, Rank> input(const Strided<T, Rank>& array) {
  return array;
}

template <class In, class Result>
void multiply_some(const ejk::Executor& executor) {
  struct Sizes {
    int64_t batch, m, n, k;
  };
  std::mt19937 random(3);
  for (const auto& [batch, m, n, k] : std::initializer_list<Sizes>{{1, 3, 5, 300},
                                                                   {1, 1, 70, 530},
                                                                   {1, 33, 1, 270},
                                                                   {2, 17, 3, 140},
                                                                   {1, 40, 37, 290},
                                                                   {3, 5, 19, 33},
                                                                   {1, 9, 300, 13},
                                                                   {1, 65, 8, 520}})
    for (const bool packed : {true, false, false}) {
      const int64_t shared = random() % 2 == 0 ? 1 : batch;
      const Strided<In, 3> a(random, {batch, m, k}, packed), b(random, {shared, k, n}, packed);
      const Strided<Result, 3> c(random, {batch, m, n}, packed);
      executor(ejk::ops::Matmul<In, Result>{}, input(a), input(b), std::nullopt, Out(c.view));
    }
}

TEST(Numerics, ClassesOfMatmulAreTrue) {
  const auto found_for = []<class In, class Result>(const In&, const Result&) {
    return probe(25, multiply_some<In, Result>);
  };
  for (const Findings& found :
       {found_for(0.F, 0.F), found_for(BFloat16(), 0.F), found_for(BFloat16(), BFloat16())}) {
    EXPECT_THAT(found.lies, IsEmpty());
    EXPECT_GT(found.compared, 500U);
    EXPECT_GT(found.compared_gradients, 100U);
    EXPECT_TRUE(found.classes_differ);
  }
}

template <class In, class Result>
void multiply_some_groups(const ejk::Executor& executor) {
  std::mt19937 random(4);
  for (const auto& [n, k] :
       std::initializer_list<std::pair<int64_t, int64_t>>{{5, 300}, {37, 140}, {1, 70}, {70, 270}})
    for (const bool packed : {true, false}) {
      const std::vector<int32_t> sizes{3, 0, 290, 1, 20};
      const Strided<In, 2> a(random, {320, k}, packed);
      const Strided<Result, 2> c(random, {320, n}, packed);
      const Strided<In, 3> b(random, {5, k, n}, packed);
      executor(ejk::ops::GroupedMatmul<In, Result>{}, input(a), input(b),
               std::span<const int32_t>(sizes), Out(c.view));
    }
}

TEST(Numerics, ClassesOfGroupedMatmulAreTrue) {
  const auto found_for = []<class In, class Result>(const In&, const Result&) {
    return probe(25, multiply_some_groups<In, Result>);
  };
  for (const Findings& found :
       {found_for(0.F, 0.F), found_for(BFloat16(), 0.F), found_for(BFloat16(), BFloat16())}) {
    EXPECT_THAT(found.lies, IsEmpty());
    EXPECT_GT(found.compared, 100U);
    EXPECT_GT(found.compared_gradients, 20U);
  }
}

// ---- attention ----------------------------------------------------------------------------------

TEST(Numerics, ClassesOfFlashAttentionAreTrue) {
  const Findings found = probe(24, [](const ejk::Executor& executor) {
    struct Sizes {
      int64_t queries, keys, heads, kv_heads, dim;
    };
    for (const auto& [queries, keys, heads, kv_heads, dim] : std::initializer_list<Sizes>{
             {70, 300, 2, 2, 13}, {203, 203, 4, 2, 16}, {5, 140, 6, 1, 7}}) {
      const Tensor q = normals({1, queries, heads, dim}, 1),
                   k = normals({1, keys, kv_heads, dim}, 2),
                   v = normals({1, keys, kv_heads, dim}, 3);
      for (const ejk::ops::AttentionOptions& options : std::vector<ejk::ops::AttentionOptions>{
               {}, {.causal = true}, {.window_left = 20, .window_right = 3}, {.softcap = 3.f}})
        executor(ejk::ops::FlashAttention{}, q, k, v, options);
      // Seen by no query, but near the masks of some.
      Tensor hidden = v.clone();
      hidden.data<float>()[(keys - 1) * kv_heads * dim] = std::numeric_limits<float>::infinity();
      const auto last = static_cast<int32_t>(keys - 1);
      executor(ejk::ops::FlashAttention{}, q, k, hidden,
               ejk::ops::AttentionOptions{.key_value_seq_lengths = {last}});
    }
  });
  EXPECT_THAT(found.lies, IsEmpty());
  EXPECT_GT(found.compared, 100U);
  EXPECT_TRUE(found.classes_differ);
}

TEST(Numerics, ClassesOfDecodeAttentionAreTrue) {
  const Findings found = probe(200, [](const ejk::Executor& executor) {
    for (const int64_t kv_heads : {1, 2, 4}) {
      const Tensor q = normals({2, 4, 13}, 1), k = normals({2, 700, kv_heads, 13}, 2),
                   v = normals({2, 700, kv_heads, 13}, 3);
      const std::vector<int32_t> lengths{700, 333};
      executor(ejk::ops::DecodeAttention{}, q, k, v, std::span<const int32_t>(lengths),
               ejk::ops::DecodeOptions{});
      const Tensor table = Tensor::of<int32_t>({2, 2}, std::vector<int32_t>{1, 0, 0, 1});
      const std::vector<int32_t> of_pages{1400, 701};
      executor(ejk::ops::PagedDecodeAttention{}, q, k, v, table, std::span<const int32_t>(of_pages),
               ejk::ops::DecodeOptions{});
    }
  });
  EXPECT_THAT(found.lies, IsEmpty());
  EXPECT_GT(found.compared, 50U);
  EXPECT_TRUE(found.classes_differ);
}

// ---- over rows ----------------------------------------------------------------------------------

template <class T>
void work_on_some_rows(const ejk::Executor& executor) {
  std::mt19937 random(5);
  for (const auto& [rows, columns] :
       std::initializer_list<std::pair<int64_t, int64_t>>{{37, 300}, {300, 5}, {1, 1000}})
    for (const bool packed : {true, false}) {
      const Strided<T, 2> x(random, {rows, columns}, packed), y(random, {rows, columns}, packed);
      const std::vector<T> weight(static_cast<size_t>(columns), static_cast<T>(0.7F));
      const StridedView<const T, 2> in = x;
      const auto line = std::optional(std::span<const T>(weight));
      executor(ejk::ops::RmsNorm<T>{}, in, line, 1e-6F, Out(y.view));
      executor(ejk::ops::LayerNorm<T>{}, in, line, line, 1e-6F, Out(y.view));
      executor(ejk::ops::Softmax<T>{}, in, 0.7F, Out(y.view));
    }
}

TEST(Numerics, ClassesOfRowOperationsAreTrue) {
  for (const Findings& found :
       {probe(100, work_on_some_rows<float>), probe(100, work_on_some_rows<BFloat16>)}) {
    EXPECT_THAT(found.lies, IsEmpty());
    EXPECT_GT(found.compared, 100U);
    EXPECT_GT(found.compared_gradients, 100U);
  }
}

}  // namespace
