// SPDX-License-Identifier: Apache-2.0
// Batches: one choice, elements spread over threads, axes per argument.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <thread>

#include "fakes.h"

namespace {

using ejk::Tensor;
using testing::ElementsAre;
using testing::HasSubstr;

struct Axpy {
  static constexpr std::string_view op_id = "axpy";
  struct Config {
    int block = 1;
  };
  void run(const Config&, float alpha, std::span<const float> x, std::span<float> y) const {
    if (x.size() != y.size())
      throw ejk::Error(ejk::ErrorKind::invalid_argument, "[axpy] sizes differ");
    for (size_t i = 0; i < x.size(); ++i) y[i] += alpha * x[i];
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }
};

struct Sum {
  static constexpr std::string_view op_id = "sum";
  struct Config {
    int block = 1;
  };
  static inline std::atomic<int> batch_runs{0};
  float run(const Config&, std::span<const float> x) const {
    return std::accumulate(x.begin(), x.end(), 0.f);
  }
  float run_batch(const Config& c, std::span<const float> x) const {
    ++batch_runs;
    return run(c, x);
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }
};

struct Trace {
  static constexpr std::string_view op_id = "trace";
  struct Config {};
  float run(const Config&, ejk::StridedView<const float, 2> m) const {
    float sum = 0;
    for (int64_t i = 0; i < std::min(m.shape[0], m.shape[1]); ++i) sum += m(i, i);
    return sum;
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }
};

struct IsPositive {
  static constexpr std::string_view op_id = "is_positive";
  struct Config {};
  bool run(const Config&, float v) const { return v > 0; }
  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }
};

class Batch : public testing::Test {
 protected:
  static Tensor counting(std::vector<int64_t> shape) {
    Tensor t = Tensor::of<float>(std::move(shape));
    std::iota(t.data<float>(), t.data<float>() + t.size(), 0.f);
    return t;
  }
  fakes::Setup setup;
  ejk::Executor executor{setup.options()};
};

TEST_F(Batch, RunsEveryElementWithOneChoice) {
  Tensor x = counting({5, 3}), y = Tensor::of<float>({5, 3});
  ejk::vmap_with_config(executor, Axpy{}, ejk::none, 0, 0)(2.f, x, y);
  for (int64_t i = 0; i < 15; ++i) EXPECT_EQ(y.data<float>()[i], 2 * static_cast<float>(i));
  EXPECT_THAT(setup.events.take(), testing::Contains("heuristics").Times(1));
  EXPECT_EQ(executor.chain().cache().size(), 1u);
}

TEST_F(Batch, AxesMayDifferAndOutputsOnInnerAxesAreWrittenBack) {
  Tensor x = counting({4, 3}), y = Tensor::of<float>({3, 4});
  ejk::vmap_with_config(executor, Axpy{}, ejk::none, 0, 1)(1.f, x, y);
  for (int64_t b = 0; b < 4; ++b)
    for (int64_t i = 0; i < 3; ++i)
      EXPECT_EQ((y.view<float, 2>()(i, b)), (x.view<float, 2>()(b, i)));
  Tensor z = Tensor::of<float>({3, 4});
  ejk::vmap_with_config(executor, Axpy{}, std::vector<ejk::Axis>{ejk::none, 0, -1})(1.f, x, z);
  EXPECT_EQ((z.view<float, 2>()(2, 3)), (y.view<float, 2>()(2, 3)));
}

struct Negate {  // what it reads comes behind what it writes
  static constexpr std::string_view op_id = "negate";
  struct Config {};
  void run(const Config&, std::span<float> y, std::span<const float> x) const {
    std::ranges::transform(x, y.begin(), std::negate{});
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }
};

TEST_F(Batch, CopiesOfInputsAreNotWrittenBack) {
  const Tensor x = counting({2, 3});
  ejk::vmap_with_config(executor, Negate{}, 1, 1).threads(1)(x, x);
  for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(x.data<float>()[i], -static_cast<float>(i));
}

TEST_F(Batch, WithoutAxesArraysAreBatchedAndScalarsShared) {
  Tensor x = counting({2, 3}), y = Tensor::of<float>({2, 3});
  ejk::vmap_with_config(executor, Axpy{})(3.f, x, y);
  EXPECT_EQ(y.data<float>()[5], 15);
}

TEST_F(Batch, ResultsComeInOrderAndTheBatchHookIsUsed) {
  Sum::batch_runs = 0;
  const auto sums = ejk::vmap_with_config(executor, Sum{}, 0)(counting({7, 2}));
  EXPECT_THAT(sums, ElementsAre(1, 5, 9, 13, 17, 21, 25));
  EXPECT_GE(Sum::batch_runs, 7);
}

TEST_F(Batch, ListsAndScalarsCanBeBatched) {
  const std::vector<std::vector<float>> rows{{1, 2}, {3}, {4, 5, 6}};
  EXPECT_THAT(ejk::pmap_with_config(executor, Sum{}, 0)(rows), ElementsAre(3, 3, 15));
  const std::vector<float> values{-1, 2, -3};
  const auto positive = ejk::vmap_with_config(executor, IsPositive{}, 0)(values);
  EXPECT_EQ(positive, (std::vector<bool>{false, true, false}));
}

struct Tile {
  static constexpr std::string_view op_id = "tile";
  struct Config {
    int64_t size = 1;
  };
  int64_t run(const Config& c, std::span<const float>, ejk::Out<std::span<float>>) const {
    return c.size;
  }
  Config heuristic_cfg(const ejk::Invocation& inv) const { return {inv.args[1].shape[0]}; }
};

TEST_F(Batch, ElementsOfAListHaveConfigsForTheirOwnShapes) {
  const std::vector<std::vector<float>> rows(4, {1.f});
  std::vector<float> two(2), one(1);
  const std::vector<std::span<float>> outputs{two, one, two, one};
  EXPECT_THAT(ejk::vmap_with_config(executor, Tile{}, 0, 0)(rows, outputs),
              ElementsAre(2, 1, 2, 1));
  EXPECT_THAT(setup.events.take(), testing::Contains("heuristics").Times(2));
}

TEST_F(Batch, StridedElementsNeedNoCopy) {
  const Tensor m = counting({2, 3, 2});  // element j along the middle axis: m(:, j, :)
  const auto traces = ejk::vmap_with_config(executor, Trace{}, 1)(m);
  EXPECT_THAT(traces, ElementsAre(0 + 7, 2 + 9, 4 + 11));
}

TEST_F(Batch, ElementsAreSpreadOverThreads) {
  struct Where {
    std::mutex mutex;
    std::set<std::thread::id> threads;
  } where;
  ejk::detail::spread(8, 4, [&](int64_t, int64_t) {
    std::lock_guard lock(where.mutex);
    where.threads.insert(std::this_thread::get_id());
  });
  EXPECT_EQ(where.threads.size(), 4u);
  const auto sums = ejk::pmap_with_config(executor, Sum{}, 0).threads(3)(counting({5, 1}));
  EXPECT_THAT(sums, ElementsAre(0, 1, 2, 3, 4));
}

struct Nested {
  static constexpr std::string_view op_id = "batch_nested";
  struct Config {};
  const ejk::Executor* executor = nullptr;
  auto key(float) const { return 0; }
  float run(const Config&, float) const {
    std::vector<float> x(8), y(8);
    (*executor)(fakes::Show{}, x, y);
    return y[0];
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }
};

TEST_F(Batch, CallsInsideElementsSeeTheCallersScopes) {
  std::vector<float> x(8), y(8);
  const auto inv = executor.describe(fakes::Show{}, x, y);
  ejk::ConfigCache cache;
  cache.put(inv.device->fingerprint, inv.op(), inv.call_key(), fakes::Show::Config{100});
  const auto scope = ejk::overlay_cache(cache);
  const std::vector<float> batch(4);
  EXPECT_THAT(ejk::vmap_with_config(executor, Nested{&executor}, 0).threads(4)(batch),
              testing::Each(100));
}

TEST_F(Batch, AnEmptyBatchRunsNothing) {
  EXPECT_TRUE(ejk::vmap_with_config(executor, Sum{}, 0)(Tensor::of<float>({0, 3})).empty());
  EXPECT_EQ(executor.chain().cache().size(), 0u);
}

TEST_F(Batch, WrongAxesAndSizesAreNamed) {
  auto message = [&](auto&& call) -> std::string {
    try {
      call();
    } catch (const ejk::Error& e) {
      EXPECT_EQ(e.kind(), ejk::ErrorKind::invalid_argument);
      return e.what();
    }
    return "no error";
  };
  Tensor x = counting({4, 3}), y = Tensor::of<float>({5, 3});
  EXPECT_THAT(
      message([&] { ejk::vmap_with_config(executor, Axpy{}, ejk::none, 0, 0)(1.f, x, y); }),
      HasSubstr("[axpy] batched argument 2: its batch has 5 elements, an earlier argument's 4"));
  EXPECT_THAT(message([&] { ejk::vmap_with_config(executor, Axpy{}, ejk::none, 2, 0)(1.f, x, y); }),
              HasSubstr("axis 2 of an array of shape [4, 3]"));
  EXPECT_THAT(message([&] { ejk::vmap_with_config(executor, Axpy{}, 0, 0, 0)(1.f, x, y); }),
              HasSubstr("pass ejk::none"));
  EXPECT_THAT(message([&] { ejk::vmap_with_config(executor, Axpy{}, 0, 0)(1.f, x, y); }),
              HasSubstr("2 axes were given for 3 arguments"));
  EXPECT_THAT(
      message([&] { ejk::vmap_with_config(executor, Sum{}, ejk::none)(std::vector<float>{1}); }),
      HasSubstr("no argument is batched"));
  Tensor narrow = Tensor::of<float>({4, 2});
  EXPECT_THAT(
      message([&] { ejk::vmap_with_config(executor, Axpy{}, ejk::none, 0, 0)(1.f, x, narrow); }),
      HasSubstr("[axpy] sizes differ"));
  Tensor ints = Tensor::of<int32_t>({4, 3});
  EXPECT_THAT(message([&] { ejk::vmap_with_config(executor, Sum{}, 0)(ints); }),
              HasSubstr("needed float32"));
}

}  // namespace
