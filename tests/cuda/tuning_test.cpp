// SPDX-License-Identifier: Apache-2.0
// Tunings on CUDA devices, on the emulated driver: bad configs end in workers.
#include <algorithm>
#include <functional>
#include <numeric>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cuda/emulated_cuda.h"
#include "device_tunings.h"
#include "guard/guard.h"
#include "platform/backend.h"
#include "platform/program_cache.h"

namespace ejk::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const Device& device() { return devices(Platform::cuda).at(0); }

TEST(CudaTunings, RejectEachBadConfigAsWhatItIs) {
  EXPECT_TRUE(in_new_process([] {
    const EmulatedCuda emulation;
    const Tuned tuned = tune(device(), Twice{}, bad_configs());
    EXPECT_EQ(tuned.guard, "child") << tuned.warnings;
    EXPECT_EQ(tuned.kind_of({8}), "");
    EXPECT_EQ(tuned.kind_of({16, Act::is_endless}), "timed_out");
    EXPECT_EQ(tuned.kind_of({16, Act::is_wild}), "crashed") << tuned.why_of({16, Act::is_wild});
    EXPECT_EQ(tuned.kind_of({16, Act::is_wrong}), "wrong");
    EXPECT_EQ(tuned.kind_of({16, Act::is_no_code}), "unbuildable");
    EXPECT_THAT(tuned.why_of({16, Act::is_no_code}), HasSubstr("error"));
    EXPECT_EQ(tuned.kind_of({16, Act::writes_beside}), "out_of_bounds");
    EXPECT_EQ(tuned.kind_of({1 << 20}), "invalid_launch");
    EXPECT_EQ(tuned.kind_of({4}), "");
    EXPECT_GT(tuned.compile_seconds, 0);
    EXPECT_EQ(tuned.clock, "device");
    EXPECT_EQ(device().backend->programs().counts().built, 0) << "workers do that";
  }));
}

struct Spilling {
  static constexpr std::string_view op_id = "spilling";
  struct Config {
    int group = 16, spilled_bytes = 0;
  };
  static inline std::vector<std::pair<int, bool>> runs_here;  // groups, and whether they spill
  static constexpr Source source{"spilling.cl", R"(
    __kernel EJK_GROUP(GROUP, 1, 1)
    void copy(int n, __global const float* restrict x, __global float* y) {
      const int i = get_global_id(0);
      if (i < n) y[i] = x[i];
    })"};
  void run_gpu(const Config& c, DeviceView<const float, 1> x, Out<DeviceView<float, 1>> y) const {
    if (getpid() == host) runs_here.emplace_back(c.group, c.spilled_bytes > 0);
    launch(source, "copy", c, {.groups = {ceil_div(x.size(), c.group)}, .items = {c.group}},
           static_cast<int>(x.size()), x, y.view);
  }
  Config heuristic_cfg(const Invocation&) const { return {}; }
  auto candidate_cfgs(const Invocation&) const {
    std::vector<int> groups(32);
    std::iota(groups.begin(), groups.end(), 1);
    return space<Config>().param(&Config::group, groups).param(&Config::spilled_bytes, {0, 64});
  }
};

void wait_for_programs(size_t count) {
  const std::string place = std::string(getenv("EJKERNEL_PERSISTENT_CACHE_DIR")) + "/programs";
  wait_until([&] { return files_below(place).size() >= count; }, "programs in " + place);
}

TEST(CudaTunings, TryLastWhatSpillsRegisters) {
  EXPECT_TRUE(in_new_process([] {
    const EmulatedCuda emulation;
    const Tensor x = floats(10, device()), y = floats(10, device());
    const std::tuple<DeviceView<const float, 1>, Out<DeviceView<float, 1>>> params{
        device_view<const float, 1>(x), device_view<float, 1>(y)};
    const Spilling kernel;
    detail::TypedTrial<detail::Plan<Spilling, Context::plain, Platform::cuda>> trial(kernel, params,
                                                                                     false);
    detail::GuardLimits limits;
    limits.compilers = 2;
    detail::Guard guard(trial, limits);
    ASSERT_EQ(guard.start_worker(), "");
    std::vector<AnyConfig> configs;
    for (const Spilling::Config c : {Spilling::Config{16}, {8, 64}, {8}, {4}})
      configs.push_back(make_config(c));
    std::vector<size_t> order;
    guard.run(configs, [&](size_t index, const detail::Finding& finding) {
      EXPECT_TRUE(finding.passed()) << finding.why;
      order.push_back(index);
      if (index == 0) wait_for_programs(configs.size());  // others compile them meanwhile
      return true;
    });
    EXPECT_THAT(order, ElementsAre(0, 2, 3, 1));
  }));
}

// Of a search: what it was told at their first runs counts, in whichever process they were
// compiled.
TEST(CudaTunings, MeasureLastWhatSpillsRegisters) {
  EXPECT_TRUE(in_new_process([] {
    const EmulatedCuda emulation;
    SelectorOptions options;
    options.policy = patient();
    options.policy->budget_evaluations = 9;
    options.tuner = std::make_shared<Tuner>(TunerOptions{.strategy = "random"});
    const Tensor x = floats(10, device()), y = floats(10, device());
    Executor(std::move(options)).tune<Platform::cuda>(Spilling{}, x, y);
    std::vector<std::pair<int, bool>> measured;  // without the heuristic
    for (const auto& run : Spilling::runs_here)
      if (run != std::pair(16, false) && std::ranges::find(measured, run) == measured.end())
        measured.push_back(run);
    ASSERT_EQ(measured.size(), 8u);
    // The first one alone, to see how long compilers take.
    const auto spills = [](const auto& run) { return run.second; };
    const auto batch = std::span(measured).subspan(1);
    EXPECT_TRUE(std::ranges::is_partitioned(batch, std::not_fn(spills)));
    EXPECT_TRUE(std::ranges::any_of(batch, spills) && !std::ranges::all_of(batch, spills));
  }));
}

}  // namespace
}  // namespace ejk::testing
