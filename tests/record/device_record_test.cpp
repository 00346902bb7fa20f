// SPDX-License-Identifier: Apache-2.0
// Calls whose arrays live on a device: what is kept of them, and arguments made again there.
#include <ejk/record.h>

#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ejk/detail/sketch.h>
#include <ejk/ejk.h>

#include "fake_device.h"
#include "store_fixture.h"

using ejk::DeviceView;
using ejk::Tensor;
using ejk::detail::RebuiltData;
using ejk::detail::sketch_array;
using testing::Each;
using testing::ElementsAreArray;
using testing::HasSubstr;
using testing::SizeIs;

namespace {

template <class T>
Tensor counted(int64_t size) {
  Tensor out = Tensor::of<T>({size});
  std::iota(out.data<T>(), out.data<T>() + size, T{3});
  return out;
}

template <class T>
std::vector<T> host_elements(const Tensor& tensor) {
  const Tensor host = tensor.to(ejk::cpu_device());
  return {host.data<T>(), host.data<T>() + host.size()};
}

struct Doubled {
  static constexpr std::string_view op_id = "doubled", version = "1";
  struct Config {
    int block = 1;
  };
  void run_gpu(const Config&, DeviceView<const float, 1> x,
               ejk::Out<DeviceView<float, 1>> y) const {
    std::ranges::transform(fakes::elements(x), fakes::elements(*y).begin(),
                           [](float v) { return 2 * v; });
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }
};

TEST(DeviceSketch, IsThatOfTheSameElementsOnTheCpu) {
  fakes::FakeGpu gpu;
  for (const Tensor& host : {counted<float>(100), counted<int32_t>(100'000), counted<uint8_t>(7)})
    EXPECT_EQ(sketch_array(host.to(gpu.device).any(), ejk::Role::input),
              sketch_array(host.any(), ejk::Role::input));
}

TEST(DeviceSketch, ReadsSomeOfManyNumbersAndAllOfManyIntegers) {
  fakes::FakeGpu gpu;
  const Tensor numbers = counted<float>(1'000'000).to(gpu.device);
  const Tensor integers = counted<int32_t>(1'000'000).to(gpu.device);
  gpu.memory.take_log();
  const ejk::Value sketch = sketch_array(numbers.any(), ejk::Role::input);
  EXPECT_THAT(gpu.memory.take_log(), testing::AllOf(SizeIs(16), Each("read")));
  EXPECT_EQ(sketch.find("data")->find("min")->as_double(), 3);  // the first and the last element
  EXPECT_EQ(sketch.find("data")->find("max")->as_double(), 1'000'002);
  const ejk::Value all = sketch_array(integers.any(), ejk::Role::input);
  EXPECT_THAT(gpu.memory.take_log(), ElementsAreArray({"read"}));
  EXPECT_EQ(all.find("data")->find("max")->as_int(), 1'000'002);
}

TEST(DeviceSketch, ArgumentsAreMadeAgainOnTheirDeviceWithTheSameElements) {
  fakes::FakeGpu gpu;
  const ejk::Value sketch = sketch_array(counted<float>(50).any(), ejk::Role::input);
  RebuiltData there({}, &gpu.device), here;
  const auto view = ejk::detail::rebuild<DeviceView<const float, 1>>(sketch, there);
  const auto tensor = ejk::detail::rebuild<Tensor>(sketch, there);
  const auto host = ejk::detail::rebuild<std::span<const float>>(sketch, here);
  EXPECT_EQ(view.device, &gpu.device);
  EXPECT_THAT(fakes::elements(view), ElementsAreArray(host));
  EXPECT_THAT(host_elements<float>(tensor), ElementsAreArray(host));
  // What a kernel for devices takes from the CPU stays there.
  EXPECT_THAT(ejk::detail::rebuild<std::span<const float>>(sketch, there), ElementsAreArray(host));
}

TEST(DeviceSketch, AStridedArrayIsNotMadeAgainOnADevice) {
  fakes::FakeGpu gpu;
  ejk::Value sketch = sketch_array(counted<float>(6).any(), ejk::Role::input);
  sketch["strides"] = ejk::Value(ejk::Value::Array{2});
  RebuiltData there({}, &gpu.device);
  try {
    there.array_at_home(sketch);
    FAIL();
  } catch (const ejk::Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("not packed"));
  }
}

TEST(DeviceRecord, KeepsTheDeviceThePlatformAndWhatTheElementsAreLike) {
  fakes::FakeGpu gpu;
  const Tensor x = counted<float>(10).to(gpu.device), y = counted<float>(10).to(gpu.device);
  const ejk::testing::Scratch scratch;
  const std::string folder = scratch.path();
  {
    ejk::SelectorOptions options;
    options.recording = std::make_shared<ejk::Recording>(folder);
    const ejk::Executor executor(std::move(options));
    executor(Doubled{}, x, y);
    executor(Doubled{}, x, y);
  }
  EXPECT_EQ(host_elements<float>(y)[9], 24);
  const auto all = ejk::read_recorded(folder);
  ASSERT_THAT(all, SizeIs(1));
  const auto& [device, ops] = *all.begin();
  EXPECT_EQ(device, gpu.device.fingerprint);
  const ejk::RecordedCall& call = ops.at("doubled@v1").begin()->second;
  EXPECT_EQ(call.platform, ejk::Platform::opencl);
  EXPECT_EQ(call.calls, 2);
  EXPECT_EQ(call.arguments.as_array()[0], sketch_array(counted<float>(10).any(), ejk::Role::input));
  EXPECT_EQ(call.arguments.as_array()[1].find("data"), nullptr);  // only written
}

}  // namespace
