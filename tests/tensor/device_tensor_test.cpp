// SPDX-License-Identifier: Apache-2.0
// Tensors in the memory of devices: copies there, back and between, and what is refused.
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fake_device.h"

namespace ejk {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::IsEmpty;

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

Tensor counted(std::vector<int64_t> shape) {
  Tensor t = Tensor::of<float>(std::move(shape));
  std::iota(t.data<float>(), t.data<float>() + t.size(), 0.f);
  return t;
}

std::vector<float> values(const Tensor& t) {
  const Tensor here = t.to(cpu_device());
  return {here.data<float>(), here.data<float>() + here.size()};
}

TEST(DeviceTensor, GoesThereAndBack) {
  fakes::FakeGpu gpu;
  {
    const Tensor there = counted({2, 3}).to(gpu.device);
    EXPECT_EQ(&there.device(), &gpu.device);
    EXPECT_FALSE(there.on_cpu());
    EXPECT_EQ(there.any().platform, Platform::opencl);
    EXPECT_EQ(there.any().device, &gpu.device);
    EXPECT_THAT(there.shape(), ElementsAre(2, 3));
    EXPECT_THAT(gpu.memory.take_log(), ElementsAre("write"));
    EXPECT_THAT(values(there), ElementsAre(0, 1, 2, 3, 4, 5));
    EXPECT_THAT(gpu.memory.take_log(), ElementsAre("read"));
    EXPECT_EQ(&there.to(cpu_device()).device(), &cpu_device());
  }
  EXPECT_EQ(gpu.memory.blocks(), 0u) << "its memory is released";
}

TEST(DeviceTensor, IsZeroedWhenMade) {
  fakes::FakeGpu gpu;
  const Tensor t(DType::float32, {3}, gpu.device);
  EXPECT_THAT(gpu.memory.take_log(), ElementsAre("fill"));
  EXPECT_THAT(values(t), ElementsAre(0, 0, 0));
  EXPECT_THAT(values(Tensor(DType::float32, {0}, gpu.device)), IsEmpty());
  EXPECT_TRUE(Tensor(DType::float32, {3}, cpu_device()).on_cpu());
}

TEST(DeviceTensor, SharesItsElementsWhereItIs) {
  fakes::FakeGpu gpu;
  const Tensor there = counted({4}).to(gpu.device);
  gpu.memory.take_log();
  const Tensor same = there.to(gpu.device);
  EXPECT_EQ(same.any().data, there.any().data);
  EXPECT_THAT(gpu.memory.take_log(), IsEmpty());
  const Tensor own = there.clone();
  EXPECT_NE(own.any().data, there.any().data);
  EXPECT_EQ(&own.device(), &gpu.device);
  EXPECT_THAT(gpu.memory.take_log(), ElementsAre("copy")) << "on the device, without zeros first";
  EXPECT_THAT(values(own), ElementsAre(0, 1, 2, 3));
  const Tensor host = counted({4});
  EXPECT_EQ(host.to(cpu_device()).data<float>(), host.data<float>());
}

TEST(DeviceTensor, IsPackedOnTheWay) {
  fakes::FakeGpu gpu;
  const Tensor turned = counted({2, 3}).transposed({1, 0});
  const Tensor there = turned.to(gpu.device);
  EXPECT_TRUE(there.packed());
  EXPECT_THAT(values(there), ElementsAre(0, 3, 1, 4, 2, 5));
  const Tensor turned_there = counted({2, 3}).to(gpu.device).transposed({1, 0});
  EXPECT_FALSE(turned_there.packed());
  EXPECT_THAT(values(turned_there), ElementsAre(0, 3, 1, 4, 2, 5));
  EXPECT_TRUE(turned_there.clone().packed());
  EXPECT_TRUE(turned_there.to(gpu.device).packed());
  EXPECT_THAT(values(turned_there.clone()), ElementsAre(0, 3, 1, 4, 2, 5));
}

TEST(DeviceTensor, PartsBeginAtAnOffset) {
  fakes::FakeGpu gpu;
  const Tensor there = counted({4, 3}).to(gpu.device);
  const Tensor rows = there.sliced(0, 1, 3);
  EXPECT_EQ(rows.any().data, there.any().data);
  EXPECT_EQ(rows.any().offset, 3 * sizeof(float));
  EXPECT_THAT(values(rows), ElementsAre(3, 4, 5, 6, 7, 8));
  EXPECT_THAT(values(there.selected(1, 2)), ElementsAre(2, 5, 8, 11));
  EXPECT_THAT(values(there.sliced(0, 2, 4).reshaped({6})), ElementsAre(6, 7, 8, 9, 10, 11));
  EXPECT_THAT(values(rows.to(gpu.device)), ElementsAre(3, 4, 5, 6, 7, 8));
}

TEST(DeviceTensor, IsWrittenInPartsWithoutTouchingTheRest) {
  fakes::FakeGpu gpu;
  const Tensor there = counted({2, 3}).to(gpu.device), ones = Tensor::of<float>({2});
  copy_elements(ones.any(), there.selected(1, 1).any());
  EXPECT_THAT(values(there), ElementsAre(0, 0, 2, 3, 0, 5));
  copy_elements(ones.to(gpu.device).any(), there.sliced(1, 0, 2).selected(0, 1).any());
  EXPECT_THAT(values(there), ElementsAre(0, 0, 2, 0, 0, 5));
}

TEST(DeviceTensor, GoesFromDeviceToDevice) {
  fakes::FakeGpu first, second(Platform::cuda, 1);
  const Tensor a = counted({5}).to(first.device);
  const Tensor b = a.to(second.device);
  EXPECT_EQ(&b.device(), &second.device);
  EXPECT_THAT(values(b), ElementsAre(0, 1, 2, 3, 4));
}

TEST(DeviceTensor, TakesElementsSmallerThanAByte) {
  fakes::FakeGpu gpu;
  Tensor t(DType::int4, {3});
  static_cast<uint8_t*>(t.any().data)[0] = 0x21;
  static_cast<uint8_t*>(t.any().data)[1] = 0x03;
  const Tensor back = t.to(gpu.device).to(cpu_device());
  EXPECT_EQ(static_cast<uint8_t*>(back.any().data)[0], 0x21);
  EXPECT_EQ(static_cast<uint8_t*>(back.any().data)[1] & 0xF, 0x3);
}

TEST(DeviceTensor, MayBeAroundMemoryOfOthers) {
  fakes::FakeGpu gpu;
  const Tensor owner = counted({6}).to(gpu.device);
  const std::array<int64_t, 1> shape{2};
  AnyView part = owner.any();
  part.shape = shape, part.strides = {}, part.offset = 2 * sizeof(float);
  const Tensor t = Tensor::around(part);
  EXPECT_THAT(values(t), ElementsAre(2, 3));
  part.device = nullptr;
  EXPECT_EQ(refusal([&] { Tensor::around(part); }),
            "[tensor] elements on a device were given without it: set AnyView::device");
  EXPECT_EQ(refusal([&] { copy_elements(part, t.any()); }),
            "[copy_elements] elements on opencl were given without their device: set "
            "AnyView::device");
}

TEST(DeviceTensor, GivesNoAddresses) {
  fakes::FakeGpu gpu(Platform::opencl, 1);
  const Tensor there = counted({2, 3}).to(gpu.device);
  const std::string text =
      "[tensor] elements in CPU memory were asked for, these live on opencl 1: copy them with "
      "to(ejk::cpu_device()) first";
  EXPECT_EQ(refusal([&] { static_cast<void>(there.data<float>()); }), text);
  EXPECT_EQ(refusal([&] { static_cast<void>(there.view<float, 2>()); }), text);
  EXPECT_EQ(refusal([&] { static_cast<void>(there.strided<float, 2>()); }), text);
}

TEST(DeviceTensor, NeedsADeviceThatIsOpened) {
  Device described;
  described.platform = Platform::cuda;
  EXPECT_EQ(refusal([&] { Tensor(DType::float32, {1}, described); }),
            "[device] got cuda 0, which is not opened here; expected a device that ejk::devices() "
            "lists");
}

TEST(DeviceViews, AreOfTensorsOnDevices) {
  fakes::FakeGpu gpu;
  const Tensor there = counted({4, 2}).to(gpu.device);
  const DeviceView<const float, 2> view = device_view<float, 2>(there.sliced(0, 1, 4));
  EXPECT_EQ(view.device, &gpu.device);
  EXPECT_EQ(view.memory, there.any().data);
  EXPECT_EQ(view.cl(), there.any().data);
  EXPECT_EQ(view.offset, 2 * sizeof(float));
  EXPECT_EQ(view.cuda(), reinterpret_cast<uintptr_t>(view.memory) + view.offset);
  EXPECT_EQ(view.size(), 6);
  EXPECT_THAT(fakes::elements(view), ElementsAre(2, 3, 4, 5, 6, 7));
  const auto of = [&](const Tensor& t) { return [t] { device_view<float, 2>(t); }; };
  EXPECT_EQ(refusal(of(counted({4, 2}))),
            "given float32[4, 2] on cpu, needed float32 of rank 2 on a device: it lives in CPU "
            "memory (copy it with to(device))");
  EXPECT_EQ(refusal(of(there.reshaped({8}))),
            "given float32[8] on opencl, needed float32 of rank 2 on a device: its rank differs");
  EXPECT_EQ(refusal(of(there.transposed({1, 0}))),
            "given float32[2, 4] on opencl, needed float32 of rank 2 on a device: it is not packed "
            "(clone() it)");
  EXPECT_EQ(refusal(of(Tensor(DType::int32, {4, 2}, gpu.device))),
            "given int32[4, 2] on opencl, needed float32 of rank 2 on a device: its element type "
            "differs");
}

}  // namespace
}  // namespace ejk
