// SPDX-License-Identifier: Apache-2.0
// The library without OpenCL and CUDA: the CPU works, and what is left out says so. This program is
// linked with what a build without them has in their place.
#include <span>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ejk/ejk.h>
#include <ejk/gpu.h>

namespace ejk {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Twice {
  static constexpr std::string_view op_id = "twice";
  struct Config {
    int block = 4;
  };
  struct GpuConfig {
    int group = 16;
  };
  static constexpr Source source{"twice.cl", R"(
    __kernel EJK_GROUP(GROUP, 1, 1)
    void twice(int n, __global const float* restrict x, __global float* restrict y) {
      const int i = get_global_id(0);
      if (i < n) y[i] = 2.f * x[i];
    })"};
  void run(const Config&, std::span<const float> x, Out<std::span<float>> y) const {
    for (size_t i = 0; i < x.size(); ++i) (*y)[i] = 2 * x[i];
  }
  void run_gpu(const GpuConfig& c, DeviceView<const float, 1> x,
               Out<DeviceView<float, 1>> y) const {
    launch(source, "twice", c, {.groups = {ceil_div(x.size(), c.group)}, .items = {c.group}},
           static_cast<int>(x.size()), x, y.view);
  }
  Config heuristic_cfg(const Invocation&) const { return {}; }
  GpuConfig heuristic_cfg_gpu(const Invocation&) const { return {}; }
  std::vector<Config> candidate_cfgs(const Invocation&) const { return {{1}, {4}}; }
  std::vector<GpuConfig> candidate_cfgs_gpu(const Invocation&) const { return {{16}, {32}}; }
};

TEST(WithoutPlatforms, AKernelThatHasThemTooRunsOnTheCpu) {
  const std::vector<float> x{1, 2, 3};
  std::vector<float> y(3);
  const Executor executor;
  executor.tune(Twice{}, x, y);
  executor(Twice{}, x, y);
  EXPECT_THAT(y, ElementsAre(2, 4, 6));
}

TEST(WithoutPlatforms, OnlyTheCpuIsListed) { EXPECT_THAT(devices(), ElementsAre(&cpu_device())); }

TEST(WithoutPlatforms, AskingForOneSaysHowToHaveIt) {
  for (const auto& [platform, option] :
       {std::pair{Platform::opencl, "-DEJK_OPENCL=ON"}, {Platform::cuda, "-DEJK_CUDA=ON"}}) {
    EXPECT_THAT(why_no_devices(platform),
                AllOf(HasSubstr("this libejk was built without it"), HasSubstr(option)));
    try {
      devices(platform).at(0);
      ADD_FAILURE() << "there is one";
    } catch (const DeviceError& error) {
      EXPECT_EQ(error.device_kind(), DeviceError::Kind::absent);
      EXPECT_THAT(error.what(), HasSubstr(option));
    }
  }
}

}  // namespace
}  // namespace ejk
