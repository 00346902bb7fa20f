// SPDX-License-Identifier: Apache-2.0
// What the operations over rows promise of unusual numbers, on OpenCL devices; gradients by an
// executor; what is refused there.
#include <cmath>
#include <limits>
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ejk/executor.h>
#include <ejk/ops/layer_norm.h>
#include <ejk/ops/rms_norm.h>
#include <ejk/ops/softmax.h>

#include "ops/common.h"

namespace ejk::ops {
namespace {

using ops_test::floats;
using ops_test::guessing;
using ops_test::normals;
using ops_test::refusal;
using testing::HasSubstr;

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

class RowsOnOpenCl : public testing::Test {
 protected:
  void SetUp() override {
    if (devices("opencl").empty()) GTEST_SKIP() << why_no_devices(Platform::opencl);
    device = &devices("opencl")[0];
  }
  // The result with a group of one item, with one of many, and with the row in registers.
  template <class F>
  void with_configs(const Tensor& x, const F& run) {
    for (const RowGpuConfig config :
         {RowGpuConfig{1, 1, 4, false}, {32, 2, 2, false}, {1, 2, 16, true}}) {
      SCOPED_TRACE(config.group);
      const Tensor there = x.to(*device), out(x.dtype(), x.shape(), *device);
      run(config, device_view<const float, 2>(there), device_view<float, 2>(out),
          [&] { return out.to(cpu_device()); });
    }
  }
  const Device* device = nullptr;
};

// Equal up to rounding; NaN equals NaN.
void expect_same(const Tensor& got, const Tensor& wanted) {
  for (int64_t i = 0; i < got.size(); ++i) {
    const float a = got.data<float>()[i], b = wanted.data<float>()[i];
    EXPECT_TRUE(std::isnan(b) ? std::isnan(a) : std::abs(a - b) <= 3e-6f * (1 + std::abs(b)))
        << a << " instead of " << b << " at " << i;
  }
}

// Rows of 5: usual, with a NaN, with infinities, huge, tiny, zeros.
Tensor unusual_rows() {
  return floats({7, 5}, {1,      2,      3,        4,     5,          //
                         1,      nan,    3,        4,     5,          //
                         1,      2,      infinity, 4,     5,          //
                         1,      2,      3,        4,     -infinity,  //
                         1e38f,  -2e37f, 3e37f,    1e37f, 0,          //
                         1e-30f, 2e-30f, -3e-30f,  0,     4e-30f,     //
                         0,      0,      0,        0,     0});
}

TEST_F(RowsOnOpenCl, RmsNormIsRightForUnusualNumbers) {
  const Tensor x = unusual_rows();
  for (const float eps : {0.f, 1e-5f}) {
    Tensor wanted = Tensor::of<float>(x.shape());
    RmsNorm<float>{}.reference(x.strided<const float, 2>(), std::nullopt, eps,
                               wanted.strided<float, 2>());
    EXPECT_EQ(std::isnan(wanted.data<float>()[30]), eps == 0) << "a row of zeros";
    with_configs(x, [&](const auto& config, const auto& in, const auto& out, const auto& result) {
      RmsNorm<float>{}.run_gpu(config, in, std::nullopt, eps, out);
      expect_same(result(), wanted);
    });
  }
}

TEST_F(RowsOnOpenCl, LayerNormIsRightForUnusualNumbers) {
  const Tensor x = unusual_rows();
  for (const float eps : {0.f, 1e-5f}) {
    Tensor wanted = Tensor::of<float>(x.shape());
    LayerNorm<float>{}.reference(x.strided<const float, 2>(), std::nullopt, std::nullopt, eps,
                                 wanted.strided<float, 2>());
    with_configs(x, [&](const auto& config, const auto& in, const auto& out, const auto& result) {
      LayerNorm<float>{}.run_gpu(config, in, std::nullopt, std::nullopt, eps, out);
      expect_same(result(), wanted);
    });
  }
}

TEST_F(RowsOnOpenCl, AMeanFarFromZeroCostsLayerNormNoAccuracy) {
  Tensor x = normals({2, 1000}, 1), wanted = Tensor::of<float>({2, 1000});
  for (int64_t i = 0; i < x.size(); ++i) x.data<float>()[i] += 3e4f;
  LayerNorm<float>{}.reference(x.strided<const float, 2>(), {}, {}, 1e-5f,
                               wanted.strided<float, 2>());
  const Tensor there = x.to(*device), out(x.dtype(), x.shape(), *device);
  LayerNorm<float>{}.run_gpu({32, 1, 4, false}, device_view<const float, 2>(there), {}, {}, 1e-5f,
                             device_view<float, 2>(out));
  expect_same(out.to(cpu_device()), wanted);
}

TEST_F(RowsOnOpenCl, SoftmaxIsRightForUnusualNumbers) {
  const Tensor x = floats({5, 5}, {1,         2,         3,         4,         5,            //
                                   1,         nan,       3,         4,         5,            //
                                   1,         2,         infinity,  4,         5,            //
                                   -infinity, 2,         -1000,     90,        89,           //
                                   -infinity, -infinity, -infinity, -infinity, -infinity});  //
  Tensor wanted = Tensor::of<float>(x.shape());
  Softmax<float>{}.reference(x.strided<const float, 2>(), 2, wanted.strided<float, 2>());
  with_configs(x, [&](const auto& config, const auto& in, const auto& out, const auto& result) {
    Softmax<float>{}.run_gpu(config, in, 2, out);
    expect_same(result(), wanted);
    for (const int64_t c : {0, 2}) EXPECT_EQ(result().template data<float>()[15 + c], 0);
  });
}

TEST_F(RowsOnOpenCl, AnOutputMayBeTheInputItself) {
  const Tensor x = normals({3, 37}, 2);
  for (const RowGpuConfig config : {RowGpuConfig{1, 1, 4, false}, {32, 1, 2, false}}) {
    const Tensor there = x.clone().to(*device);
    Softmax<float>{}.run_gpu(config, device_view<const float, 2>(there), 1,
                             device_view<float, 2>(there));
    ops_test::expect_near(there.to(cpu_device()), softmax(x));
  }
}

TEST_F(RowsOnOpenCl, FunctionsOnTensorsRunWhereTheTensorsAre) {
  const Tensor x = normals({2, 3, 21}, 3), w = normals({21}, 4);
  const Tensor y = rms_norm(x.to(*device), w.to(*device));
  EXPECT_EQ(&y.device(), device);
  ops_test::expect_near(y.to(cpu_device()), rms_norm(x, w));
  EXPECT_THAT(refusal([&] { rms_norm(x.to(*device), w); }), HasSubstr("both on one device"));
}

TEST_F(RowsOnOpenCl, GradientsAreThoseOfTheCpu) {
  const Tensor x = normals({19, 45}, 5), w = normals({45}, 6), dy = normals({19, 45}, 7);
  Tensor out = Tensor::of<float>({19, 45});
  const auto [y, pull] = guessing().vjp(RmsNorm<float>{}, x.strided<const float, 2>(),
                                        std::optional(w.view<const float, 1>().span()), 1e-5f,
                                        out.strided<float, 2>());
  const auto [dx, dw] = pull(dy.strided<const float, 2>());
  const Tensor x_there = x.to(*device), w_there = w.to(*device), dy_there = dy.to(*device),
               out_there = out.to(*device);
  const auto [y_there, pull_there] = guessing().vjp(
      RmsNorm<float>{}, device_view<const float, 2>(x_there),
      std::optional(device_view<const float, 1>(w_there)), 1e-5f, device_view<float, 2>(out_there));
  const auto [dx_there, dw_there] = pull_there(device_view<const float, 2>(dy_there));
  EXPECT_EQ(&dx_there.device(), device);
  ops_test::expect_near(out_there.to(cpu_device()), out);
  ops_test::expect_near(dx_there.to(cpu_device()), dx, 1e-5f);
  ops_test::expect_near(dw_there->to(cpu_device()), *dw, 3e-5f);
}

// The caller does not name a device: the arrays do.
template <class K, class... Arguments>
auto gradients_of_tensors(const Tensor& x, const Tensor& dy, const Tensor& out,
                          const Arguments&... arguments) {
  return guessing().vjp(K{}, x, arguments..., out).second(dy);
}

TEST_F(RowsOnOpenCl, GradientsOfTensorsAreMadeWhereTheyLive) {
  const Tensor x = normals({19, 45}, 5), w = normals({45}, 6), dy = normals({19, 45}, 7),
               out = x.clone(), there = x.to(*device), dy_there = dy.to(*device),
               out_there = x.to(*device);
  const std::optional weight(w), weight_there(w.to(*device));
  const auto compare = [&](const Tensor& got, const Tensor& wanted) {
    EXPECT_EQ(&got.device(), device);
    ops_test::expect_near(got.to(cpu_device()), wanted, 3e-5f);
  };
  {
    const auto [dx, dw] = gradients_of_tensors<RmsNorm<float>>(x, dy, out, weight, 1e-5f);
    const auto [dx_there, dw_there] =
        gradients_of_tensors<RmsNorm<float>>(there, dy_there, out_there, weight_there, 1e-5f);
    compare(out_there, out);
    compare(dx_there, dx);
    compare(*dw_there, *dw);
  }
  {
    const auto [dx, dw, db] =
        gradients_of_tensors<LayerNorm<float>>(x, dy, out, weight, weight, 1e-5f);
    const auto [dx_there, dw_there, db_there] = gradients_of_tensors<LayerNorm<float>>(
        there, dy_there, out_there, weight_there, weight_there, 1e-5f);
    compare(dx_there, dx);
    compare(*dw_there, *dw);
    compare(*db_there, *db);
  }
  {
    const auto [dx] = gradients_of_tensors<Softmax<float>>(x, dy, out, 0.5f);
    const auto [dx_there] = gradients_of_tensors<Softmax<float>>(there, dy_there, out_there, 0.5f);
    compare(dx_there, dx);
    EXPECT_THAT(refusal([&] { gradients_of_tensors<Softmax<float>>(there, dy, out_there, 0.5f); }),
                HasSubstr("[softmax] argument \"dy\""));
  }
}

TEST_F(RowsOnOpenCl, NothingIsDoneWhereThereIsNothing) {
  for (const auto& [r, c] : {std::pair<int64_t, int64_t>{0, 5}, {5, 0}}) {
    const Tensor x = Tensor::of<float>({r, c}).to(*device), w = Tensor::of<float>({c}).to(*device);
    const auto [y, pull] = guessing().vjp(RmsNorm<float>{}, device_view<const float, 2>(x),
                                          std::optional(device_view<const float, 1>(w)), 1e-5f,
                                          device_view<float, 2>(x));
    const auto [dx, dw] = pull(device_view<const float, 2>(x));
    EXPECT_EQ(dx.shape(), (std::vector<int64_t>{r, c}));
    const Tensor sums = dw->to(cpu_device());
    for (int64_t i = 0; i < c; ++i) EXPECT_EQ(sums.data<float>()[i], 0);
  }
}

TEST_F(RowsOnOpenCl, ArgumentsThatDoNotFitAreRefused) {
  const Tensor x = normals({4, 6}, 8).to(*device), out = x.clone(),
               small = normals({4, 5}, 9).to(*device);
  const auto in = device_view<const float, 2>(x);
  const auto to = device_view<float, 2>(out);
  const auto run = [&](const RowGpuConfig& config, const auto& y) {
    return refusal([&] { RmsNorm<float>{}.run_gpu(config, in, std::nullopt, 1e-5f, y); });
  };
  EXPECT_EQ(run({}, device_view<float, 2>(small)),
            "[rms_norm] given x[4, 6], out[4, 5]; needed: x[rows, columns], out[rows, columns]");
  EXPECT_THAT(run({.group = 3}, to), HasSubstr("group = 3"));
  EXPECT_THAT(run({.width = 32}, to), HasSubstr("width up to 16"));
  EXPECT_THAT(run({.rows = 0}, to), HasSubstr("positive rows"));
  const Tensor large = normals({9, 6}, 10).to(*device);
  const auto below = device_view<const float, 2>(large.sliced(0, 0, 4));
  EXPECT_THAT(refusal([&] {
                RmsNorm<float>{}.run_gpu({}, below, std::nullopt, 1e-5f,
                                         device_view<float, 2>(large.sliced(0, 1, 5)));
              }),
              HasSubstr("an out that overlaps x"));
  EXPECT_THAT(refusal([&] { Softmax<float>{}.run_gpu({}, in, -1, to); }), HasSubstr("scale = -1"));
}

TEST_F(RowsOnOpenCl, ConfigsFitTheDevice) {
  const Tensor x = normals({4, 6}, 11).to(*device), out = x.clone();
  const Invocation call = guessing().describe(Softmax<float>{}, device_view<const float, 2>(x), 1.f,
                                              device_view<float, 2>(out));
  const Softmax<float> kernel;
  EXPECT_EQ(kernel.heuristic_cfg_gpu(call).group, 1) << "a CPU";
  Device gpu = *device;
  gpu.identity["kind"] = "gpu";
  gpu.limits.group_items = 128;
  Invocation there = call;
  there.device = &gpu;
  EXPECT_TRUE(kernel.is_valid(kernel.heuristic_cfg_gpu(there), there));
  for (const RowGpuConfig& config : kernel.candidate_cfgs_gpu(there).configs()) {
    EXPECT_GE(config.group, 32);
    EXPECT_LE(config.group, 128);
  }
  EXPECT_FALSE(kernel.is_valid(RowGpuConfig{.group = 256}, there));
}

}  // namespace
}  // namespace ejk::ops
