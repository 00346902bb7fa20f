// SPDX-License-Identifier: Apache-2.0
// Batches on two OpenCL devices.
#include <algorithm>
#include <cstdlib>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ejk/ejk.h>
#include <ejk/gpu.h>

namespace ejk {
namespace {

using testing::ElementsAreArray;

struct Saxpy {  // y += alpha x
  static constexpr std::string_view op_id = "batched_saxpy";
  struct Config {
    int group = 4;
  };
  static constexpr Source source{R"(
    __kernel EJK_GROUP(GROUP, 1, 1)
    void saxpy(int n, float alpha, __global const float* restrict x, __global float* restrict y) {
      const int at = get_global_id(0);
      if (at < n) y[at] = fma(alpha, x[at], y[at]);
    })"};
  // How often each device was asked for a guess.
  static inline std::map<const Device*, int> guesses;

  void run_gpu(const Config& c, Unkeyed<float> alpha, DeviceView<const float, 1> x,
               DeviceView<float, 1> y) const {
    launch(source, "saxpy", c, {.groups = {ceil_div(y.size(), c.group)}, .items = {c.group}},
           static_cast<int>(y.size()), alpha.value, x, y);
  }
  Config heuristic_cfg(const Invocation& inv) const {
    ++guesses[inv.device];
    return {4 << inv.device->index};
  }
};

class OpenClBatches : public testing::Test {
 protected:
  void SetUp() override {
    ::setenv("POCL_DEVICES", "pthread basic", 0);
    if (devices(Platform::opencl).empty())
      GTEST_SKIP() << "no OpenCL here: " << why_no_devices(Platform::opencl);
    Saxpy::guesses.clear();
  }
  static Executor heuristics_only() {
    SelectorOptions options;
    options.policy = AutotunePolicy{.allow_autotune = false};
    return Executor(std::move(options));
  }
  static Tensor filled(std::vector<int64_t> shape, float value) {
    Tensor out = Tensor::of<float>(std::move(shape));
    std::fill_n(out.data<float>(), out.size(), value);
    return out;
  }
  static std::vector<float> values(const Tensor& t) {
    const Tensor here = t.to(cpu_device());
    return {here.data<float>(), here.data<float>() + here.size()};
  }
};

TEST_F(OpenClBatches, ElementsOfAnArrayRunInItsMemory) {
  const Device& device = devices(Platform::opencl).at(0);
  const Executor e = heuristics_only();
  const Tensor x = filled({7, 33}, 2).to(device), y = filled({7, 33}, 1).to(device);
  vmap_with_config(e, Saxpy{}, none, 0, 0)(3.f, x, y.sliced(0, 0, 7));
  EXPECT_THAT(values(y), ElementsAreArray(std::vector<float>(7 * 33, 7)));
  EXPECT_EQ(Saxpy::guesses[&device], 1);
}

TEST_F(OpenClBatches, ElementsOfListsRunOnBothDevices) {
  const DeviceList all = devices(Platform::opencl);
  if (all.size() < 2) GTEST_SKIP() << "only PoCL can be told to have several devices";
  const Executor e = heuristics_only();
  std::vector<Tensor> x, y;
  for (int i = 0; i < 6; ++i) {
    const Device& device = all.at(static_cast<size_t>(i % 2));
    x.push_back(filled({1000}, static_cast<float>(i)).to(device));
    y.push_back(filled({1000}, 1).to(device));
  }
  // What the calling thread has begun comes before, what it begins afterwards behind the elements.
  for (size_t i = 0; i < x.size(); ++i) e(Saxpy{}, 1.f, x[i], y[i]);
  Saxpy::guesses.clear();
  pmap_with_config(e, Saxpy{}, none, 0, 0)(10.f, x, y);
  for (size_t i = 0; i < x.size(); ++i) e(Saxpy{}, 100.f, x[i], y[i]);
  for (size_t i = 0; i < x.size(); ++i)
    EXPECT_THAT(values(y[i]),
                ElementsAreArray(std::vector<float>(1000, 1 + 111 * static_cast<float>(i))));
  EXPECT_EQ(Saxpy::guesses[&all.at(0)], 1);
  EXPECT_EQ(Saxpy::guesses[&all.at(1)], 1);
  EXPECT_THROW(vmap_with_config(e, Saxpy{}, none, 0, 0)(1.f, x, y), Error);
}

}  // namespace
}  // namespace ejk
