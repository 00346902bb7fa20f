// SPDX-License-Identifier: Apache-2.0
// Calls with arrays on devices: where they run, what their keys are, what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fake_device.h"

namespace ejk {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

std::string refusal(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::invalid_argument);
    return e.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

Executor heuristics_only() {
  SelectorOptions options;
  options.policy = AutotunePolicy{.allow_autotune = false};
  return Executor(std::move(options));
}

std::vector<float> values(const Tensor& t) {
  const Tensor here = t.to(cpu_device());
  return {here.data<float>(), here.data<float>() + here.size()};
}

using In = DeviceView<const float, 1>;
using InOut = DeviceView<float, 1>;

struct Tile {
  int by = 0;
};

// y = by * x, so that the config can be seen.
void scale(int by, std::span<const float> x, std::span<float> y) {
  for (size_t i = 0; i < x.size(); ++i) y[i] = static_cast<float>(by) * x[i];
}
struct Scale {
  static constexpr std::string_view op_id = "scale";
  struct Config {
    int by = 2;
  };
  static inline int guesses = 0;
  void run(const Config& c, std::span<const float> x, std::span<float> y) const {
    scale(c.by, x, y);
  }
  void run_gpu(const Tile& c, In x, InOut y) const {
    scale(c.by, fakes::elements(x), fakes::elements(y));
  }
  Config heuristic_cfg(const Invocation&) const { return {}; }
  Tile heuristic_cfg_gpu(const Invocation& inv) const {
    ++guesses;
    return {10 + inv.device->index};
  }
};

const Tensor two = Tensor::of<float>({2}, std::vector<float>{1, 2});

TEST(DeviceCalls, RunWhereTheArraysLive) {
  fakes::FakeGpu gpu, cuda(Platform::cuda, 3);
  const Executor e = heuristics_only();
  const Tensor x = two.clone(), y = two.clone();
  e(Scale{}, x, y);
  EXPECT_THAT(values(y), ElementsAre(2, 4));
  const Tensor gx = two.to(gpu.device), gy = two.to(gpu.device);
  e(Scale{}, gx, gy);
  EXPECT_THAT(values(gy), ElementsAre(10, 20));
  const Tensor cx = two.to(cuda.device), cy = two.to(cuda.device);
  e(Scale{}, cx.any(), cy.any());
  EXPECT_THAT(values(cy), ElementsAre(13, 26));
  e(Scale{}, device_view<float, 1>(gx), gy.to(gpu.device));
  EXPECT_THAT(values(gy), ElementsAre(10, 20));
  e(Scale{}, device_view<float, 1>(cx), device_view<float, 1>(cy));
  EXPECT_THAT(values(cy), ElementsAre(13, 26));
}

TEST(DeviceCalls, AreKnownByTheirDevice) {
  fakes::FakeGpu gpu;
  const Executor e = heuristics_only();
  const Tensor x = two.to(gpu.device), y = two.to(gpu.device);
  const Invocation there = e.describe(Scale{}, x, y), here = e.describe(Scale{}, two, two.clone());
  EXPECT_EQ(there.device, &gpu.device);
  EXPECT_EQ(there.platform, Platform::opencl);
  EXPECT_EQ(here.device, &cpu_device());
  EXPECT_EQ(here.platform, Platform::cpu);
  EXPECT_EQ(there.spec(), here.spec()) << "the device stands beside the text, not in it";
  EXPECT_EQ(e.label(Scale{}, x, y), e.label(Scale{}, two, two.clone()));
  EXPECT_EQ(there.words, e.describe(Scale{}, device_view<float, 1>(x), y).words);
}

TEST(DeviceCalls, TwoDevicesDoNotShareWarmEntries) {
  fakes::FakeGpu first(Platform::opencl, 0), second(Platform::opencl, 1);
  second.device.fingerprint = "opencl|another|1";
  const Executor e = heuristics_only();
  Scale::guesses = 0;
  for (int i = 0; i < 3; ++i)
    for (const fakes::FakeGpu* gpu : {&first, &second}) {
      const Tensor x = two.to(gpu->device), y = two.to(gpu->device);
      e(Scale{}, x, y);
      EXPECT_THAT(values(y), ElementsAre(10 + gpu->device.index, 2 * (10 + gpu->device.index)));
    }
  EXPECT_EQ(Scale::guesses, 2) << "once for each, then warm";
  const Tensor a = two.to(first.device), b = two.to(second.device);
  EXPECT_NE(e.describe(Scale{}, a, a).words, e.describe(Scale{}, b, b).words);
}

struct Shift {  // y = x + by
  static constexpr std::string_view op_id = "shift";
  using Config = Tile;
  using Line = std::span<const float>;
  void run(const Config&, Line x, std::optional<Line> by, std::span<float> y) const {
    for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] + (by ? (*by)[i] : 0);
  }
  void run_gpu(const Config& c, In x, std::optional<In> by, InOut y) const {
    run(c, fakes::elements(x), by ? std::optional<Line>(fakes::elements(*by)) : std::nullopt,
        fakes::elements(y));
  }
  Config heuristic_cfg(const Invocation&) const { return {}; }
};

TEST(DeviceCalls, WithAViewOfTheCpuBesideTensorsRunOnTheCpu) {
  fakes::FakeGpu gpu;
  const Executor e = heuristics_only();
  const Tensor y = two.clone(), gx = two.to(gpu.device), gy = two.to(gpu.device);
  const std::optional<Shift::Line> none, some(std::span(two.data<float>(), 2));
  e(Shift{}, two, none, y);
  EXPECT_THAT(values(y), ElementsAre(1, 2));
  e(Shift{}, Tile{}, two, some, y);
  EXPECT_THAT(values(y), ElementsAre(2, 4));
  EXPECT_THAT(refusal([&] { e(Shift{}, gx, none, gy); }),
              HasSubstr("given float32[2] on opencl, needed float32 of rank 1 on cpu"));
  e(Shift{}, gx, std::optional(gx), gy);
  EXPECT_THAT(values(gy), ElementsAre(2, 4)) << "an optional tensor goes where it lives";
}

// The key leaves all arrays out; what is unkeyed still has a device.
struct ByKey {
  static constexpr std::string_view op_id = "by_key";
  int run_gpu(const Tile& c, In, Unkeyed<std::optional<In>>) const { return c.by; }
  int key(In, const Unkeyed<std::optional<In>>&) const { return 0; }
  Tile heuristic_cfg_gpu(const Invocation& inv) const { return {inv.device->index}; }
};
struct OnlyUnkeyed {
  static constexpr std::string_view op_id = "only_unkeyed";
  int run_gpu(const Tile& c, Unkeyed<In>) const { return c.by; }
  Tile heuristic_cfg_gpu(const Invocation& inv) const { return {inv.device->index}; }
};

TEST(DeviceCalls, HaveADeviceWhateverTheKeyLeavesOut) {
  fakes::FakeGpu first(Platform::opencl, 0), second(Platform::opencl, 1);
  second.device.fingerprint = "opencl|another|1";
  const Executor e = heuristics_only();
  for (int i = 0; i < 2; ++i)
    for (const fakes::FakeGpu* gpu : {&first, &second}) {
      const Tensor x = two.to(gpu->device);
      EXPECT_EQ(e(ByKey{}, x, std::nullopt), gpu->device.index);
      EXPECT_EQ(e(OnlyUnkeyed{}, x), gpu->device.index);
    }
}

TEST(DeviceCalls, RefuseMixedDevices) {
  fakes::FakeGpu first(Platform::opencl, 0), second(Platform::opencl, 1), cuda(Platform::cuda);
  const Executor e = heuristics_only();
  const Tensor a = two.to(first.device), b = two.to(second.device), c = two.to(cuda.device);
  EXPECT_EQ(refusal([&] { e(Scale{}, a, b); }),
            "[scale] argument 1 lives on opencl 1 and argument 0 on opencl 0; copy one of them "
            "with to(device)");
  EXPECT_EQ(refusal([&] { e(Scale{}, a, c); }),
            "[scale] argument 1 lives on cuda 0 and argument 0 on opencl 0; copy one of them with "
            "to(device)");
  EXPECT_EQ(refusal([&] { e(Scale{}, a, two); }),
            "[scale] argument 1 lives on cpu and argument 0 on opencl 0; copy one of them with "
            "to(device)");
  EXPECT_EQ(refusal([&] { e(Scale{}, two, a); }),
            "[scale] argument 0 lives on cpu and argument 1 on opencl 0; copy one of them with "
            "to(device)");
  EXPECT_EQ(refusal([&] { e(Scale{}, Tile{1}, a, b); }),
            "[scale] argument 1 lives on opencl 1 and argument 0 on opencl 0; copy one of them "
            "with to(device)")
      << "also with a config";
  const auto compiled = e.compile<Platform::opencl>(Scale{}, a, a);
  EXPECT_THAT(refusal([&] { compiled(a, b); }), StartsWith("[scale] argument 1 lives on opencl 1"));
  EXPECT_THAT(refusal([&] { compiled(two, two); }),
              StartsWith("[scale] argument 0 lives on cpu and this call is for opencl; "));
  AnyView unknown = a.any();
  unknown.device = nullptr;
  EXPECT_EQ(
      refusal([&] { e(Scale{}, unknown, unknown); }),
      "[scale] argument 0: given float32[2] on opencl without its device; set AnyView::device");
}

struct Nested {
  static constexpr std::string_view op_id = "nested";
  using Pair = std::pair<std::optional<In>, std::vector<In>>;
  int run_opencl(const Tile& c, Pair, Named<"y", Out<InOut>>) const { return c.by; }
  Tile heuristic_cfg_opencl(const Invocation& inv) const { return {inv.device->index}; }
};

TEST(DeviceCalls, FindArraysInsideOfArguments) {
  fakes::FakeGpu first(Platform::opencl, 4), second(Platform::opencl, 5);
  const Executor e = heuristics_only();
  const Tensor x = two.to(first.device), z = two.to(second.device);
  const In in = device_view<float, 1>(x), other = device_view<float, 1>(z);
  EXPECT_EQ(e(Nested{}, Nested::Pair(in, {in}), kw("y", x)), 4);
  EXPECT_EQ(e(Nested{}, Nested::Pair(std::nullopt, {other}), kw("y", z)), 5);
  EXPECT_EQ(refusal([&] { e(Nested{}, Nested::Pair(in, {in}), kw("y", z)); }),
            "[nested] argument \"y\" lives on opencl 5 and argument 0 on opencl 4; copy one of "
            "them with to(device)");
  EXPECT_THAT(refusal([&] { e(Nested{}, Nested::Pair(in, {other}), kw("y", x)); }),
              StartsWith("[nested] argument 0 lives on opencl 5 and argument 0 on opencl 4"));
}

struct OnlyOpenCl {
  static constexpr std::string_view op_id = "only_opencl";
  int run_opencl(const Tile&, const Tensor& x) const { return x.device().index; }
  int run(const Tile&, const Tensor&) const { return -1; }
  using Config = Tile;
  Tile heuristic_cfg(const Invocation&) const { return {}; }
};
struct OnlyHere {
  static constexpr std::string_view op_id = "only_here";
  using Config = Tile;
  int run(const Tile&, const Tensor&) const { return -1; }
  Tile heuristic_cfg(const Invocation&) const { return {}; }
};
struct OnlyThere {
  static constexpr std::string_view op_id = "only_there";
  int run_gpu(const Tile&, AnyView) const { return 1; }
  Tile heuristic_cfg_gpu(const Invocation&) const { return {}; }
};

TEST(DeviceCalls, NeedARunForThePlatform) {
  fakes::FakeGpu gpu(Platform::opencl, 2), cuda(Platform::cuda);
  const Executor e = heuristics_only();
  EXPECT_EQ(e(OnlyOpenCl{}, two), -1);
  EXPECT_EQ(e(OnlyOpenCl{}, two.to(gpu.device)), 2);
  EXPECT_EQ(refusal([&] { e(OnlyOpenCl{}, two.to(cuda.device)); }),
            "[only_opencl] argument 0 lives on cuda 0, and the kernel has no run_cuda; add it, or "
            "copy the arrays with to(device)");
  EXPECT_EQ(e(OnlyHere{}, two), -1);
  EXPECT_EQ(refusal([&] { e(OnlyHere{}, two.to(gpu.device)); }),
            "[only_here] argument 0: given float32[2] on opencl, needed float32 of rank 1 on cpu: "
            "it does not live in CPU memory");
  EXPECT_EQ(e(OnlyThere{}, two.to(cuda.device)), 1);
  EXPECT_EQ(refusal([&] { e(OnlyThere{}, two); }),
            "[only_there] the arrays live on cpu, and the kernel has no run; add it, or copy the "
            "arrays with to(device)");
}

TEST(DeviceCalls, TakeTheConfigOfTheirPlatform) {
  fakes::FakeGpu gpu;
  const Executor e = heuristics_only();
  const Tensor x = two.to(gpu.device), y = two.to(gpu.device), here = two.clone();
  e(Scale{}, Tile{7}, x, y);
  EXPECT_THAT(values(y), ElementsAre(7, 14));
  e(Scale{}, {.by = 3}, two, here);
  EXPECT_THAT(values(here), ElementsAre(3, 6));
  EXPECT_THAT(refusal([&] { e(Scale{}, {.by = 3}, x, y); }),
              StartsWith("[scale] got a ejk::{anonymous}::Scale::Config for arrays on opencl 0; "
                         "expected a ejk::{anonymous}::Tile"));
  EXPECT_THAT(refusal([&] { e(Scale{}, Tile{}, two, here); }),
              StartsWith("[scale] got a ejk::{anonymous}::Tile for arrays on cpu; "));
  e(Scale{}, {.by = 8}, device_view<float, 1>(x), y);
  EXPECT_THAT(values(y), ElementsAre(8, 16)) << "views say which";
}

TEST(DeviceCalls, GiveConfigsOfThePlatformThatIsNamed) {
  fakes::FakeGpu gpu;
  const Executor e = heuristics_only();
  const Tensor x = two.to(gpu.device), y = two.to(gpu.device);
  EXPECT_EQ(e.choose_config(Scale{}, two, two.clone()).config.by, 2);
  EXPECT_EQ(e.choose_config<Platform::opencl>(Scale{}, x, y).config.by, 10);
  EXPECT_EQ(e.choose_config(Scale{}, device_view<float, 1>(x), y).config.by, 10)
      << "one config on all devices";
  EXPECT_EQ(refusal([&] { e.choose_config(Scale{}, x, y); }),
            "[scale] argument 0 lives on opencl 0, and this is typed for cpu; name the platform, "
            "as in tune<ejk::Platform::opencl>(...)");
  EXPECT_THAT(refusal([&] { e.compile(Scale{}, x, y); }), StartsWith("[scale] argument 0 lives"));
  e.compile<Platform::opencl>(Scale{}, x, y)(x, y);
  EXPECT_THAT(values(y), ElementsAre(10, 20));
  EXPECT_THAT(refusal([&] { e.choose_config<Platform::cuda>(Scale{}, x, y); }),
              StartsWith("[scale] argument 0 lives on opencl 0 and this call is for cuda; "));
}

// As dlpack.h declares it.
struct DLDevice {
  int32_t device_type, device_id;
};
struct DLDataType {
  uint8_t code, bits;
  uint16_t lanes;
};
struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};

TEST(DeviceCalls, TakeDlpackArraysOfDevicesThatAreListed) {
  int64_t shape[] = {2};
  constexpr int opencl = 4;
  DLTensor array{nullptr, {opencl, 99}, 1, {2, 32, 1}, shape, nullptr, 0};
  EXPECT_EQ(refusal([&] { detail::any_view_of(array); }),
            "got a DLPack array on opencl 99, which is not listed here; `ejk devices` lists what "
            "is");
  if (devices(Platform::opencl).empty())
    GTEST_SKIP() << "no OpenCL here: " << why_no_devices(Platform::opencl);
  const Device& device = devices(Platform::opencl)[0];
  const Tensor there = Tensor::of<float>({4}, std::vector<float>{1, 2, 3, 4}).to(device);
  array.data = there.any().data, array.device.device_id = 0, array.byte_offset = sizeof(float);
  const AnyView view = detail::any_view_of(array);
  EXPECT_EQ(view.device, &device);
  EXPECT_EQ(view.platform, Platform::opencl);
  EXPECT_THAT(values(Tensor::around(view)), ElementsAre(2, 3));
}

// y = by x x, on tensors. Where forward ran is seen in the residuals: 1 on the CPU, 100 on devices.
Tensor elementwise(const Tensor& like, const std::function<float(size_t)>& f) {
  std::vector<float> out(static_cast<size_t>(like.size()));
  for (size_t i = 0; i < out.size(); ++i) out[i] = f(i);
  return Tensor::of<float>(like.shape(), std::span(out)).to(like.device());
}
struct Square {
  static constexpr std::string_view op_id = "square";
  struct Config {
    int by = 1;
  };
  struct Residuals {
    Tensor factor;
  };
  using Forwarded = std::pair<Tensor, Residuals>;
  static Tensor times(float by, const Tensor& a, const Tensor& b) {
    const auto x = values(a), y = values(b);
    return elementwise(a, [&](size_t i) { return by * x[i] * y[i]; });
  }
  static Forwarded forward(int by, float mark, const Tensor& x) {
    return {times(static_cast<float>(by), x, x),
            {elementwise(x, [&](size_t) { return mark * static_cast<float>(by); })}};
  }

  Tensor run(const Config& c, const Tensor& x) const { return forward(c.by, 1, x).first; }
  Tensor run_gpu(const Tile& c, const Tensor& x) const { return forward(c.by, 100, x).first; }
  Forwarded fwd_with_residuals(const Config& c, const Tensor& x) const {
    return forward(c.by, 1, x);
  }
  Forwarded fwd_with_residuals_gpu(const Tile& c, const Tensor& x) const {
    return forward(c.by, 100, x);
  }
  std::tuple<Tensor> vjp(const Config&, const Residuals& r, const Tensor&, const Tensor& dy,
                         const Tensor& x) const {
    return times(2, times(1, r.factor, x), dy);
  }
  std::tuple<Tensor> vjp_gpu(const Tile&, const Residuals& r, const Tensor&, const Tensor& dy,
                             const Tensor& x) const {
    return times(2, times(1, r.factor, x), dy);
  }
  Config heuristic_cfg(const Invocation&) const { return {}; }
  Tile heuristic_cfg_gpu(const Invocation& inv) const { return {3 + inv.device->index}; }
};

TEST(DeviceGradients, AreMadeWhereTheArraysLive) {
  fakes::FakeGpu gpu, cuda(Platform::cuda, 4);
  const Executor e = heuristics_only();
  for (const auto& [device, factor] :
       {std::pair(&cpu_device(), 1.f), {&gpu.device, 300.f}, {&cuda.device, 700.f}}) {
    const Tensor x = two.to(*device),
                 dy = Tensor::of<float>({2}, std::vector<float>{1, 10}).to(*device);
    const auto [y, pull] = e.vjp(Square{}, x);
    const float by = factor > 1 ? factor / 100 : 1;
    EXPECT_THAT(values(y), ElementsAre(by, 4 * by));
    const auto [dx] = pull(dy);
    EXPECT_THAT(values(dx), ElementsAre(2 * factor, 40 * factor));
    EXPECT_EQ(&dx.device(), device) << "gradients stay where the arrays are";
    EXPECT_EQ(&y.device(), device);
  }
}

// As it is for one platform and as it is for both: the first comes first.
struct SquareOnEach : Square {
  static constexpr std::string_view op_id = "square_on_each";
  std::tuple<Tensor> vjp_opencl(const Tile&, const Residuals&, const Tensor&,
                                const Tensor& dy) const {
    return dy;
  }
  Forwarded fwd_with_residuals_cuda(const Tile& c, const Tensor& x) const {
    return forward(c.by, 1000, x);
  }
};

TEST(DeviceGradients, ComeFromTheHooksOfTheirPlatformFirst) {
  fakes::FakeGpu gpu, cuda(Platform::cuda);
  const Executor e = heuristics_only();
  const Tensor x = two.to(gpu.device), z = two.to(cuda.device);
  EXPECT_THAT(values(std::get<0>(e.vjp(SquareOnEach{}, x).second(x))), ElementsAre(1, 2));
  EXPECT_THAT(values(std::get<0>(e.vjp(SquareOnEach{}, z).second(z))), ElementsAre(6000, 24000));
}

// Views as parameters and cotangents; run writes, so there is no output. No gradient on the CPU.
struct Written {
  static constexpr std::string_view op_id = "written";
  using Config = Tile;
  using Y = Out<InOut>;
  void run(const Config&, std::span<const float> x, std::span<float> y) const { scale(1, x, y); }
  void run_gpu(const Config& c, In x, Y y) const {
    scale(c.by, fakes::elements(x), fakes::elements(*y));
  }
  float fwd_with_residuals_gpu(const Config& c, In x, Y y) const {
    run_gpu(c, x, y);
    return fakes::elements(*y)[0];
  }
  Tensor vjp_gpu(const Config&, float residual, In dy) const {
    Tensor dx(DType::float32, {dy.shape[0]}, *dy.device);
    scale(static_cast<int>(residual), fakes::elements(dy),
          fakes::elements(device_view<float, 1>(dx)));
    return dx;
  }
  Config heuristic_cfg(const Invocation&) const { return {5}; }
};

TEST(DeviceGradients, TakeViews) {
  fakes::FakeGpu gpu, cuda(Platform::cuda);
  const Executor e = heuristics_only();
  for (const fakes::FakeGpu* there : {&gpu, &cuda}) {
    const Tensor x = two.to(there->device), y = two.to(there->device);
    const In dy = device_view<float, 1>(x);
    EXPECT_THAT(values(e.vjp(Written{}, x, y).second(dy)), ElementsAre(5, 10));
    EXPECT_THAT(values(y), ElementsAre(5, 10));
    EXPECT_THAT(values(e.vjp(Written{}, dy, y).second(dy)), ElementsAre(5, 10));
    EXPECT_THAT(values(e.vjp(Written{}, x, y).second(x)), ElementsAre(5, 10)) << "a tensor as dy";
  }
  const Tensor x = two.to(gpu.device), y = two.to(gpu.device);
  EXPECT_THAT(values(e.vjp<Platform::opencl>(Written{}, x, y).second(device_view<float, 1>(x))),
              ElementsAre(5, 10));
  const Tensor here = two.clone();
  EXPECT_EQ(refusal([&] { e.vjp(Written{}, two, here); }),
            "[written] the arrays live on cpu, and the kernel has no gradient there; add "
            "fwd_with_residuals and vjp, or copy the arrays with to(device)");
}

// The hooks for all platforms take arrays of the CPU.
struct OnlyHereBack {
  static constexpr std::string_view op_id = "only_here_back";
  using Config = Tile;
  float run(const Config&, std::span<const float> x) const { return x[0]; }
  float run_gpu(const Config&, In) const { return 0; }
  std::pair<float, float> fwd_with_residuals(const Config&, std::span<const float> x) const {
    return {x[0], x[1]};
  }
  float vjp(const Config&, float residual, float dy) const { return residual * dy; }
  Config heuristic_cfg(const Invocation&) const { return {}; }
};

TEST(DeviceGradients, AreRefusedWhereTheKernelHasNone) {
  fakes::FakeGpu first, second(Platform::opencl, 1);
  const Executor e = heuristics_only();
  EXPECT_EQ(e.vjp(OnlyHereBack{}, two).second(3.f), 6);
  const Tensor x = two.to(first.device), y = two.to(second.device);
  EXPECT_EQ(refusal([&] { e.vjp(OnlyHereBack{}, x); }),
            "[only_here_back] argument 0 lives on opencl 0, and the kernel has no gradient there; "
            "add fwd_with_residuals_opencl and vjp_opencl, or copy the arrays with to(device)");
  EXPECT_EQ(refusal([&] { e.vjp(Written{}, x, y); }),
            "[written] argument 1 lives on opencl 1 and argument 0 on opencl 0; copy one of them "
            "with to(device)");
}

// On the CPU with a cotangent of another type.
struct TwoCotangents {
  static constexpr std::string_view op_id = "two_cotangents";
  using Config = Tile;
  float run(const Config&, std::span<const float> x) const { return x[0]; }
  float run_gpu(const Config&, In) const { return 0; }
  std::pair<float, float> fwd_with_residuals(const Config&, std::span<const float>) const {
    return {};
  }
  std::pair<float, float> fwd_with_residuals_gpu(const Config&, In) const { return {}; }
  int vjp(const Config&, float, std::string_view) const { return 1; }
  int vjp_gpu(const Config&, float, In) const { return 2; }
  Config heuristic_cfg(const Invocation&) const { return {}; }
};

TEST(DeviceGradients, SayWhichCotangentTheyTake) {
  fakes::FakeGpu gpu;
  const Executor e = heuristics_only();
  const Tensor x = two.to(gpu.device);
  const auto there = e.vjp(TwoCotangents{}, x).second;
  EXPECT_EQ(there(device_view<float, 1>(x)), 2);
  EXPECT_EQ(refusal([&] { there(std::string_view("dy")); }),
            "[two_cotangents] got a cotangent of type std::basic_string_view<char>; expected what "
            "the kernel's "
            "vjp on opencl takes, where the arguments live");
  EXPECT_EQ(e.vjp(TwoCotangents{}, two).second(std::string_view("dy")), 1);
}

// Forward is right with every config, the gradient only with the first.
struct WrongBack : Square {
  static constexpr std::string_view op_id = "wrong_back";
  Tensor run_gpu(const Tile&, const Tensor& x) const { return times(1, x, x); }
  Forwarded fwd_with_residuals_gpu(const Tile& c, const Tensor& x) const {
    return {times(1, x, x), forward(c.by, 1, x).second};
  }
  Tile heuristic_cfg_gpu(const Invocation&) const { return {1}; }
  std::vector<Tile> candidate_cfgs_gpu(const Invocation&) const { return {{1}, {2}}; }
};

TEST(DeviceGradients, AreComparedWhereATuningMeasuresThem) {
  fakes::FakeGpu gpu;
  const Tensor x = two.to(gpu.device);
  const auto kind_of_second = [&](bool backward) {
    SelectorOptions options;
    options.policy = AutotunePolicy{.validate_backward = backward};
    const auto tuned = Executor(std::move(options)).tune<Platform::opencl>(WrongBack{}, x);
    return tuned.entry.candidates.at(1).kind;
  };
  EXPECT_EQ(kind_of_second(true), "wrong");
  EXPECT_EQ(kind_of_second(false), "");
}

Tensor rows_of(std::vector<float> elements, const Device& device) {
  const auto rows = static_cast<int64_t>(elements.size() / 2);
  return Tensor::of<float>({rows, 2}, std::span<const float>(elements)).to(device);
}

TEST(DeviceBatches, RunTheElementsOfAnArrayWhereItLives) {
  fakes::FakeGpu gpu;
  const Executor e = heuristics_only();
  const Tensor x = rows_of({1, 2, 3, 4, 5, 6}, gpu.device), y = x.clone(),
               across = Tensor::of<float>({2, 3}).to(gpu.device);
  Scale::guesses = 0;
  vmap_with_config(e, Scale{}, 0, 0)(x, y);
  EXPECT_THAT(values(y), ElementsAre(10, 20, 30, 40, 50, 60));
  EXPECT_EQ(Scale::guesses, 1) << "one choice for all";
  pmap_with_config(e, Scale{})(y, y.sliced(0, 0, 3));
  EXPECT_THAT(values(y), ElementsAre(100, 200, 300, 400, 500, 600));
  vmap_with_config(e, Scale{}, 0, -1)(x, across);
  EXPECT_THAT(values(across), ElementsAre(10, 30, 50, 20, 40, 60)) << "by a packed copy of each";
  const Tensor shared = two.to(gpu.device);
  vmap_with_config(e, Scale{}, none, 0)(shared, x.sliced(0, 1, 3));
  EXPECT_THAT(values(x), ElementsAre(1, 2, 10, 20, 10, 20));
}

struct Firsts {  // returns something on every platform
  static constexpr std::string_view op_id = "firsts";
  using Config = Tile;
  float run(const Config&, std::span<const float> x) const { return x[0]; }
  float run_gpu(const Config& c, In x) const {
    return fakes::elements(x)[0] + static_cast<float>(c.by);
  }
  Config heuristic_cfg(const Invocation& inv) const { return {100 * (1 + inv.device->index)}; }
};

TEST(DeviceBatches, RunTheElementsOfListsOnTheirDevicesWithOneChoiceForEach) {
  fakes::FakeGpu first, second(Platform::opencl, 1);
  second.device.fingerprint = "opencl|another|1";
  const Executor e = heuristics_only();
  std::vector<Tensor> x, y;
  for (int i = 0; i < 5; ++i) {
    const Device& device = i % 2 == 0 ? first.device : second.device;
    x.push_back(rows_of({static_cast<float>(i), 1}, device).reshaped({2}));
    y.push_back(two.to(device));
  }
  Scale::guesses = 0;
  first.memory.take_log(), second.memory.take_log();
  pmap_with_config(e, Scale{}, 0, 0)(x, y);
  EXPECT_EQ(Scale::guesses, 2);
  for (fakes::FakeGpu* gpu : {&first, &second})
    EXPECT_THAT(gpu->memory.take_log(), ElementsAre("wait", "wait"))
        << "for what the caller has begun, and for the elements";
  for (size_t i = 0; i < 5; ++i) {
    const float by = i % 2 == 0 ? 10 : 11;
    EXPECT_THAT(values(y[i]), ElementsAre(by * static_cast<float>(i), by));
  }
  EXPECT_THAT(pmap_with_config(e, Firsts{}, 0)(x), ElementsAre(100, 201, 102, 203, 104));
}

TEST(DeviceBatches, RefuseArraysThatCannotBeBatched) {
  fakes::FakeGpu first, second(Platform::opencl, 1);
  const Executor e = heuristics_only();
  const Tensor x = two.to(first.device), y = two.to(second.device);
  const std::vector<Tensor> both{x, y};
  EXPECT_EQ(refusal([&] { vmap_with_config(e, Scale{}, 0, 0)(both, both); }),
            "[scale] got elements on opencl 0 and on opencl 1; expected all on one device; call "
            "pmap_with_config, or copy them with to(device)");
  EXPECT_EQ(refusal([&] {
              pmap_with_config(e, Scale{}, 0, 0)(both, std::vector{y, x});
            }),
            "[scale] argument 1 lives on opencl 1 and argument 0 on opencl 0; copy one of them "
            "with to(device)");
  EXPECT_EQ(refusal([&] { pmap_with_config(e, Scale{}, none, 0)(x, both); }),
            "[scale] argument 1 lives on opencl 1 and argument 0 on opencl 0; copy one of them "
            "with to(device)");
  EXPECT_THAT(refusal([&] {
                pmap_with_config(e, Scale{}, 0, 0)(std::vector{x, two}, both);
              }),
              StartsWith("[scale] argument 0"));
}

}  // namespace
}  // namespace ejk
