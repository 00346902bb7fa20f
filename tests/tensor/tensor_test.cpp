// SPDX-License-Identifier: Apache-2.0
// Element types, copies between layouts and the owning tensor.
#include <ejk/tensor.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include <gtest/gtest.h>

#include <ejk/error.h>

namespace ejk {
namespace {

// The message of the Error(invalid_argument) that `f` must throw.
template <class F>
std::string refusal(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::invalid_argument);
    return e.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

Tensor counting(std::vector<int64_t> shape) {
  Tensor t = Tensor::of<int32_t>(std::move(shape));
  std::iota(t.data<int32_t>(), t.data<int32_t>() + t.size(), 0);
  return t;
}

TEST(DTypes, NamesGoBothWays) {
  for (int i = 0; i <= static_cast<int>(DType::uint2); ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(dtype_from_name(dtype_name(dtype)), dtype);
  }
  EXPECT_EQ(dtype_name(dtype_of<bool>), "bool");
  EXPECT_EQ(dtype_name(dtype_of<uint64_t>), "uint64");
  EXPECT_EQ(dtype_name(dtype_of<const Half>), "float16");
  EXPECT_EQ(dtype_bits(DType::complex128), 128u);
  EXPECT_EQ(dtype_bits(DType::int2), 2u);
  EXPECT_NE(refusal([] { dtype_from_name("float33"); }).find("bfloat16"), std::string::npos);
}

TEST(HalfType, EveryValueSurvivesTheWayThroughFloat) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    Half h;
    h.bits = static_cast<uint16_t>(bits);
    const auto f = static_cast<float>(h);
    if (std::isnan(f)) EXPECT_TRUE(std::isnan(static_cast<float>(Half(f))));
    else EXPECT_EQ(Half(f).bits, bits);
  }
}

// Between two neighbours the nearer one must be chosen, the even one in the middle.
TEST(HalfType, RoundsToNearestEvenIncludingSubnormals) {
  for (uint32_t bits = 0; bits < 0x7bff; ++bits) {
    Half low, high;
    low.bits = static_cast<uint16_t>(bits), high.bits = static_cast<uint16_t>(bits + 1);
    const float a = static_cast<float>(low), b = static_cast<float>(high);
    const float middle = a + (b - a) / 2;  // exact: half has 13 bits less than float
    const uint32_t even = bits % 2 == 0 ? bits : bits + 1;
    ASSERT_EQ(Half(middle).bits, even);
    ASSERT_EQ(Half(-middle).bits, even | 0x8000u);
    ASSERT_EQ(Half(std::nextafter(middle, a)).bits, bits);
    ASSERT_EQ(Half(std::nextafter(middle, b)).bits, bits + 1);
  }
}

TEST(HalfType, LimitsAreHandled) {
  constexpr float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(Half(inf).bits, 0x7c00);
  EXPECT_EQ(Half(-inf).bits, 0xfc00);
  EXPECT_EQ(Half(65519.f).bits, 0x7bff);
  EXPECT_EQ(Half(65520.f).bits, 0x7c00);
  EXPECT_EQ(Half(0x1p-25f).bits, 0);  // the middle between 0 and the least subnormal
  EXPECT_EQ(Half(std::nextafter(0x1p-25f, 1.f)).bits, 1);
  EXPECT_EQ(Half(-0.f).bits, 0x8000);
  EXPECT_EQ(Half(1e-45f).bits, 0);
  EXPECT_TRUE(std::isnan(static_cast<float>(Half(std::nanf("")))));
  EXPECT_TRUE(std::isnan(static_cast<float>(Half(std::bit_cast<float>(0x7f800001u)))));
}

TEST(BFloat16Type, RoundsToNearestEven) {
  for (uint32_t bits = 0; bits < 0x7f7f; bits += 3) {
    const uint32_t middle = (bits << 16) | 0x8000u;
    ASSERT_EQ(BFloat16(std::bit_cast<float>(middle)).bits, bits % 2 == 0 ? bits : bits + 1);
    ASSERT_EQ(BFloat16(std::bit_cast<float>(middle - 1)).bits, bits);
    ASSERT_EQ(BFloat16(std::bit_cast<float>(middle + 1)).bits, bits + 1);
  }
  EXPECT_EQ(BFloat16(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_EQ(static_cast<float>(BFloat16(1.5f)), 1.5f);
}

TEST(Tensors, AreZeroedAlignedAndShared) {
  const Tensor t = Tensor::of<float>({3, 5});
  EXPECT_EQ(reinterpret_cast<uintptr_t>(t.data<float>()) % 64, 0u);
  for (float v : t.view<float, 2>().span()) EXPECT_EQ(v, 0.f);
  const Tensor copy = t;
  copy.view<float, 2>()(2, 4) = 7;
  EXPECT_EQ(t.data<float>()[14], 7.f);
  EXPECT_EQ(t.clone().data<float>()[14], 7.f);
  EXPECT_NE(t.clone().data<float>(), t.data<float>());
}

TEST(Tensors, EmptyAndScalarShapesWork) {
  EXPECT_EQ(Tensor().size(), 0);
  EXPECT_EQ(Tensor().clone().size(), 0);
  EXPECT_EQ(Tensor::of<float>({}).size(), 1);
  EXPECT_EQ((Tensor::of<float>({4, 0, 3}).selected(0, 3).clone().size()), 0);
}

TEST(Tensors, ImpossibleSizesAreRefused) {
  EXPECT_NE(refusal([] { Tensor::of<float>({2, -1}); }).find("[2, -1]"), std::string::npos);
  EXPECT_NE(refusal([] {
              Tensor::of<float>({int64_t{1} << 40, int64_t{1} << 40});
            }).find("more bytes than can exist"),
            std::string::npos);
  refusal([] { Tensor::of<float>({int64_t{1} << 61}); });
  refusal([] { Tensor::of<float>({0, int64_t{1} << 40, int64_t{1} << 40}); });
}

TEST(Tensors, ValuesMustFitTheShape) {
  const std::vector<float> values{1, 2, 3};
  EXPECT_EQ((Tensor::of<float>({3}, values).data<float>()[2]), 3.f);
  const std::string text = refusal([&] { Tensor::of<float>({2, 2}, std::span(values)); });
  EXPECT_NE(text.find("3 values"), std::string::npos);
  EXPECT_NE(text.find("expected 4"), std::string::npos);
}

TEST(Tensors, WrongAccessSaysWhatIsThere) {
  const Tensor t = counting({2, 3});
  EXPECT_NE(refusal([&] { t.data<float>(); }).find("int32"), std::string::npos);
  EXPECT_NE(refusal([&] { t.view<int32_t, 3>(); }).find("[2, 3]"), std::string::npos);
  EXPECT_NE(refusal([&] {
              t.transposed({1, 0}).view<int32_t, 2>();
            }).find("clone()"),
            std::string::npos);
}

TEST(Tensors, LayoutsShareElements) {
  const Tensor t = counting({2, 3, 4});
  const Tensor turned = t.transposed({2, 0, 1});
  EXPECT_EQ(turned.shape(), (std::vector<int64_t>{4, 2, 3}));
  EXPECT_EQ((turned.strided<int32_t, 3>()(3, 1, 2)), 23);
  const Tensor odd = t.sliced(2, 1, 4, 2);
  EXPECT_EQ(odd.shape(), (std::vector<int64_t>{2, 3, 2}));
  EXPECT_EQ((odd.strided<int32_t, 3>()(1, 2, 1)), 23);
  const Tensor row = t.selected(1, 2);
  EXPECT_EQ((row.strided<int32_t, 2>()(1, 3)), 23);
  EXPECT_EQ((t.reshaped({6, 4}).view<int32_t, 2>()(5, 3)), 23);
  EXPECT_TRUE(t.sliced(0, 1, 2).packed());
  EXPECT_EQ(t.sliced(1, 3, 3).size(), 0);
}

TEST(Tensors, BoundsAreChecked) {
  const Tensor t = counting({2, 3});
  refusal([&] { t.transposed({0}); });
  refusal([&] { t.transposed({0, 0}); });
  refusal([&] { t.transposed({0, -1}); });
  refusal([&] { t.sliced(2, 0, 1); });
  refusal([&] { t.sliced(0, 0, 3); });
  refusal([&] { t.sliced(0, 2, 1); });
  refusal([&] { t.sliced(0, 0, 1, 0); });
  refusal([&] { t.selected(1, 3); });
  refusal([&] { t.selected(-1, 0); });
  refusal([&] { t.reshaped({7}); });
  refusal([&] { t.transposed({1, 0}).reshaped({6}); });
}

TEST(CopyElements, AnyLayoutBecomesAnyOther) {
  const Tensor from = counting({3, 4, 5}).transposed({1, 2, 0});
  const Tensor to = Tensor::of<int32_t>({5, 4, 6}).transposed({1, 0, 2}).sliced(2, 0, 6, 2);
  copy_elements(from.any(), to.any());
  const auto a = from.strided<int32_t, 3>(), b = to.strided<int32_t, 3>();
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 5; ++j)
      for (int k = 0; k < 3; ++k) EXPECT_EQ(a(i, j, k), b(i, j, k));
  const Tensor packed = to.clone();
  EXPECT_TRUE(packed.packed());
  EXPECT_EQ((packed.view<int32_t, 3>()(3, 4, 2)), 59);
}

TEST(CopyElements, EverySizeOfElementIsCopied) {
  for (int i = 0; i <= static_cast<int>(DType::uint2); ++i) {
    const Tensor t(static_cast<DType>(i), {4, 8});
    auto* bytes = static_cast<unsigned char*>(t.any().data);
    for (size_t b = 0; b < t.any().bytes(); ++b) bytes[b] = static_cast<unsigned char>(37 * b + 1);
    const Tensor there = t.transposed({1, 0}).clone(), back = there.transposed({1, 0}).clone();
    EXPECT_EQ(std::memcmp(back.any().data, bytes, t.any().bytes()), 0)
        << dtype_name(static_cast<DType>(i));
    EXPECT_NE(std::memcmp(there.any().data, bytes, t.any().bytes()), 0);
  }
}

TEST(CopyElements, NeighboursOfSmallElementsStay) {
  const Tensor t(DType::int4, {2, 4});
  std::memset(t.any().data, 0xee, t.any().bytes());
  copy_elements(Tensor(DType::int4, {1, 3}).any(), t.sliced(0, 0, 1).sliced(1, 0, 3).any());
  const auto* bytes = static_cast<unsigned char*>(t.any().data);
  EXPECT_EQ(bytes[0], 0x00);
  EXPECT_EQ(bytes[1], 0xe0);
  EXPECT_EQ(bytes[2], 0xee);
  EXPECT_NE(refusal([&] { t.sliced(1, 1, 3); }).find("inside a byte"), std::string::npos);
}

TEST(CopyElements, MismatchesAreRefused) {
  const Tensor a = counting({2, 3}), b = Tensor::of<float>({2, 3}), c = counting({3, 2});
  EXPECT_NE(refusal([&] { copy_elements(a.any(), b.any()); }).find("float32"), std::string::npos);
  EXPECT_NE(refusal([&] { copy_elements(a.any(), c.any()); }).find("[3, 2]"), std::string::npos);
  AnyView fixed = a.any();
  fixed.writable = false;
  refusal([&] { copy_elements(a.any(), fixed); });
  AnyView remote = a.any();
  remote.platform = Platform::opencl;
  refusal([&] { copy_elements(remote, a.any()); });
}

TEST(AnyViews, PackedIgnoresStridesOfSingleElements) {
  const std::vector<int64_t> shape{2, 1, 3}, strides{3, 99, 1}, gaps{4, 99, 1};
  EXPECT_TRUE((AnyView{nullptr, DType::float32, Platform::cpu, shape, strides, true}.packed()));
  EXPECT_FALSE((AnyView{nullptr, DType::float32, Platform::cpu, shape, gaps, true}.packed()));
  EXPECT_TRUE((AnyView{nullptr, DType::float32, Platform::cpu, shape, {}, true}.packed()));
  EXPECT_EQ((AnyView{nullptr, DType::int4, Platform::cpu, shape, {}, true}.bytes()), 3u);
  EXPECT_EQ(shape_text(shape), "[2, 1, 3]");
}

}  // namespace
}  // namespace ejk
