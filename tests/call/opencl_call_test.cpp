// SPDX-License-Identifier: Apache-2.0
// Calls on real OpenCL devices: where they run, and what a tuning there finds.
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ejk/ejk.h>
#include <ejk/gpu.h>

namespace ejk {
namespace {

using testing::Each;
using testing::ElementsAreArray;

// y += alpha x; some configs are wrong in their own way.
struct Saxpy {
  static constexpr std::string_view op_id = "saxpy";
  struct Config {
    int block = 1024;
  };
  struct GpuConfig {
    int group = 16, items = 4;
    int beside = 0;  // elements past the end that are written too
    int skipped = 0;
  };
  static constexpr Source source{R"(
    __kernel EJK_GROUP(GROUP, 1, 1)
    void saxpy(int n, float alpha, __global const float* restrict x, __global float* restrict y) {
      const int first = get_group_id(0) * GROUP * ITEMS + get_local_id(0);
      for (int i = 0; i < ITEMS; ++i) {
        const int at = first + i * GROUP;
        if (at < n - SKIPPED) y[at] = fma(alpha, x[at], y[at]);
      }
      if (first < BESIDE) y[n + first] = 7;
    })"};

  void run(const Config&, Unkeyed<float> alpha, std::span<const float> x,
           std::span<float> y) const {
    reference(alpha, x, y);
  }
  void run_gpu(const GpuConfig& c, Unkeyed<float> alpha, DeviceView<const float, 1> x,
               DeviceView<float, 1> y) const {
    launch(source, "saxpy", c,
           {.groups = {ceil_div(y.size(), c.group * c.items)}, .items = {c.group}},
           static_cast<int>(y.size()), alpha.value, x, y);
  }
  GpuConfig heuristic_cfg_gpu(const Invocation&) const { return {}; }
  std::vector<GpuConfig> candidate_cfgs_gpu(const Invocation&) const {
    return {{}, {1, 64}, {.group = 1 << 20}, {.beside = 3}, {.skipped = 1}};
  }
  void reference(Unkeyed<float> alpha, std::span<const float> x, std::span<float> y) const {
    for (size_t i = 0; i < y.size(); ++i) y[i] += alpha * x[i];
  }
};

Executor executor_that_tunes() {
  SelectorOptions options;
  // Enough for every candidate's compilation, however busy the machine is.
  options.policy = AutotunePolicy{.budget_seconds = 600};
  return Executor(std::move(options));
}

class OpenClCalls : public testing::Test {
 protected:
  void SetUp() override {
    if (devices(Platform::opencl).empty())
      GTEST_SKIP() << "no OpenCL here: " << why_no_devices(Platform::opencl);
  }
};

std::vector<float> values(const Tensor& t) {
  const Tensor here = t.to(cpu_device());
  return {here.data<float>(), here.data<float>() + here.size()};
}

TEST_F(OpenClCalls, RunWhereTheArraysLiveAndAreTunedThere) {
  const std::vector<float> xs{1, 2, 3, 4, 5}, ys{10, 20, 30, 40, 50}, sum{12, 24, 36, 48, 60};
  const Tensor x = Tensor::of<float>({5}, std::span(xs)), y = Tensor::of<float>({5}, std::span(ys));
  const Executor executor = executor_that_tunes();
  for (const Device& device : devices(Platform::opencl)) {
    const Tensor there_x = x.to(device), there_y = y.to(device);
    EXPECT_EQ(executor.describe(Saxpy{}, 2.f, there_x, there_y).device, &device);
    executor(Saxpy{}, 2.f, there_x, there_y);
    EXPECT_THAT(values(there_y), ElementsAreArray(sum)) << "tuned on copies, run once";
    executor(Saxpy{}, 0.f, there_x, there_y);
    EXPECT_THAT(values(there_y), ElementsAreArray(sum)) << "and warm";
    executor(Saxpy{}, Saxpy::GpuConfig{1, 1}, -2.f, there_x, there_y);
    EXPECT_THAT(values(there_y), ElementsAreArray(ys)) << "with a config of its own";
  }
}

TEST_F(OpenClCalls, RejectWhatCannotRunIsWrongOrWritesBeside) {
  const Executor executor = executor_that_tunes();
  for (const Device& device : devices(Platform::opencl)) {
    const Tensor x = Tensor::of<float>({100}, std::vector<float>(100, 1)).to(device), y = x.clone();
    const auto tuned = executor.tune<Platform::opencl>(Saxpy{}, 2.f, x, y);
    EXPECT_EQ(tuned.config.beside + tuned.config.skipped, 0);
    EXPECT_EQ(tuned.entry.id.device, device.fingerprint);
    std::map<std::string, std::string> kinds;
    for (const Measurement& m : tuned.entry.candidates) kinds[to_json(m.config)] = m.kind;
    const auto kind_of = [&](Saxpy::GpuConfig c) {
      return kinds.at(to_json(make_config(c).to_value()));
    };
    EXPECT_EQ(kind_of({}), "");
    EXPECT_EQ(kind_of({1, 64}), "");
    EXPECT_EQ(kind_of({.group = 1 << 20}), "invalid_launch");
    EXPECT_EQ(kind_of({.beside = 3}), "out_of_bounds");
    EXPECT_EQ(kind_of({.skipped = 1}), "wrong");
    EXPECT_THAT(values(y), Each(1.f)) << "a tuning leaves the arguments alone";
  }
}

// y = x x, element by element, and dx = 2 x dy.
struct Square {
  static constexpr std::string_view op_id = "square";
  struct Config {
    int group = 8;
  };
  struct Residuals {
    Tensor twice;
  };
  static constexpr Source source{R"(
    __kernel EJK_GROUP(GROUP, 1, 1)
    void square(int n, __global const float* x, __global float* y, __global float* twice) {
      const int i = get_global_id(0);
      if (i < n) y[i] = x[i] * x[i], twice[i] = 2 * x[i];
    }
    __kernel EJK_GROUP(GROUP, 1, 1)
    void back(int n, __global const float* twice, __global const float* dy, __global float* dx) {
      const int i = get_global_id(0);
      if (i < n) dx[i] = twice[i] * dy[i];
    })"};
  static Grid grid(const Config& c, int64_t n) { return {{ceil_div(n, c.group)}, {c.group}}; }

  Tensor run_gpu(const Config& c, const Tensor& x) const {
    return fwd_with_residuals_gpu(c, x).first;
  }
  std::pair<Tensor, Residuals> fwd_with_residuals_gpu(const Config& c, const Tensor& x) const {
    Tensor y(DType::float32, x.shape(), x.device()), twice(DType::float32, x.shape(), x.device());
    launch(source, "square", c, grid(c, x.size()), static_cast<int>(x.size()),
           device_view<const float, 1>(x), device_view<float, 1>(y), device_view<float, 1>(twice));
    return {y, {twice}};
  }
  std::tuple<Tensor> vjp_gpu(const Config& c, const Residuals& r, const Tensor& dy) const {
    Tensor dx(DType::float32, dy.shape(), dy.device());
    launch(source, "back", c, grid(c, dy.size()), static_cast<int>(dy.size()),
           device_view<const float, 1>(r.twice), device_view<const float, 1>(dy),
           device_view<float, 1>(dx));
    return dx;
  }
  Config heuristic_cfg(const Invocation&) const { return {}; }
};

TEST_F(OpenClCalls, HaveGradients) {
  const Device& device = devices(Platform::opencl)[0];
  const Executor e = executor_that_tunes();
  const Tensor x = Tensor::of<float>({3}, std::vector<float>{1, 2, 3}).to(device);
  const auto [y, pull] = e.vjp(Square{}, x);
  EXPECT_THAT(values(y), testing::ElementsAre(1, 4, 9));
  const Tensor dy = Tensor::of<float>({3}, std::vector<float>{1, 10, 100}).to(device);
  const auto [dx] = pull(dy);
  EXPECT_EQ(&dx.device(), &device);
  EXPECT_THAT(values(dx), testing::ElementsAre(2, 40, 600));
}

}  // namespace
}  // namespace ejk
