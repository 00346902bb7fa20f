// SPDX-License-Identifier: Apache-2.0
// OpenCL C, as the dialect's header makes it readable for CUDA, means what it means.
#include <gmock/gmock.h>

#include <bit>
#include <cmath>
#include <functional>

#include "cuda/device_program.h"
#include "cuda/emulated_cuda.h"

namespace ejk::detail {
namespace {

class DialectTest : public testing::Test {
 protected:
  DialectTest() : platform(open_cuda()) {}
  Backend& backend() { return *platform.backends.at(0); }
  std::shared_ptr<DeviceProgram> build(const std::string& file, const std::string& macros = "") {
    return backend().build(file, program_text(backend(), file, macros));
  }
  EmulatedCuda emulation;
  OpenedPlatform platform;
};

float bits(float x, uint32_t mask) {
  return std::bit_cast<float>(std::bit_cast<uint32_t>(x) & mask);
}

TEST_F(DialectTest, VectorsCalculateLaneByLane) {
  using Function = std::function<float(float, float)>;
  // In the order of vectors.cl.
  const Function functions[] = {
      [](float a, float b) { return a + b; },
      [](float a, float b) { return a - b; },
      [](float a, float b) { return a * b; },
      [](float a, float b) { return a / b; },
      [](float a, float) { return -a; },
      [](float a, float) { return 2.f * a + 1.f; },
      [](float a, float b) { return std::fma(a, b, 3.f); },
      [](float a, float b) { return std::fmax(a, b); },
      [](float a, float b) { return std::fmin(a, b); },
      [](float a, float) { return std::fabs(a); },
      [](float a, float) { return std::exp(a); },
      [](float a, float) { return std::exp2(a); },
      [](float, float b) { return std::log(b); },
      [](float, float b) { return std::log2(b); },
      [](float, float b) { return std::sqrt(b); },
      [](float, float b) { return 1.f / std::sqrt(b); },
      [](float a, float) { return std::rint(a); },
      [](float a, float) { return std::tanh(a); },
      [](float a, float b) { return a < b ? b : a; },
      [](float a, float b) { return a >= b ? -1.f : 0.f; },
      [](float a, float) { return std::trunc(a); },
      [](float a, float) { return bits(a, 0x7fffffff); },
      [](float a, float) { return bits(a, 0xffff0000); },
      [](float a, float b) { return (a + b) * a; },
  };
  for (const size_t width : {2, 4, 8, 16}) {
    std::vector<float> x(width), y(width), to(width * std::size(functions)), expected;
    for (size_t i = 0; i < width; ++i) {
      x[i] = 0.3f * static_cast<float>(i) - 1.7f;
      y[i] = 0.1f + 0.2f * static_cast<float>(i);
    }
    for (const Function& function : functions)
      for (size_t i = 0; i < width; ++i) expected.push_back(function(x[i], y[i]));
    const Array<float> on_device_x(backend(), x), on_device_y(backend(), y),
        on_device_to(backend(), to);
    launch(backend(), *build("vectors.cl", "#define WIDTH " + std::to_string(width) + "\n"),
           "arithmetic", {}, on_device_x, on_device_y, on_device_to);
    EXPECT_EQ(on_device_to.values(), expected) << width << emulation.finding();
  }
}

TEST_F(DialectTest, VectorsHavePartsAndNumbersHaveHalves) {
  std::vector<float> x(16);
  for (size_t i = 0; i < 16; ++i) x[i] = static_cast<float>(1 << i);
  const auto program = build("vectors.cl", "#define WIDTH 4\n");
  const Array<float> on_device_x(backend(), x), to(backend(), std::vector<float>(7));
  launch(backend(), *program, "parts", {}, on_device_x, to);
  EXPECT_THAT(to.values(), testing::ElementsAre(65535.f, 65535.f, 65535.f, 65535.f,
                                                1 + 512 + 1024 + 32768, 128 + 32768, 0.f));

  const Array<float> numbers(backend(), {1.f / 3.f, -2.5f, 65504.f, 1e-7f});
  const Array<uint16_t> halves(backend(), {0, 0, 0, 0});
  const Array<int> count(backend(), {4});
  launch(backend(), *program, "numbers", {}, numbers, halves, to, count);
  EXPECT_THAT(halves.values(), testing::ElementsAre(0x3555, 0xc100, 0x7bff, 0x0002));
  EXPECT_THAT(to.values(), testing::ElementsAre(0.33325195f, -2.5f, 65504.f, 0x1p-23f,
                                                bits(1.f / 3.f, 0xffff0000), 7.f, 1.f));
  EXPECT_THAT(count.values(), testing::ElementsAre(7));
}

TEST_F(DialectTest, TensorCoresMultiplyBfloat16) {
  constexpr int m = 32, n = 16, k = 48;
  std::vector<uint16_t> a(m * k), b(n * k);
  const auto number = [](uint16_t x) { return std::bit_cast<float>(uint32_t{x} << 16); };
  const auto small = [](size_t i) {  // exact in bfloat16, and so are all sums in float
    return static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(i % 19) - 9.f) >> 16);
  };
  for (size_t i = 0; i < a.size(); ++i) a[i] = small(i * 7);
  for (size_t i = 0; i < b.size(); ++i) b[i] = small(i * 5 + 3);
  std::vector<float> expected(m * n);
  for (size_t i = 0; i < m; ++i)
    for (size_t j = 0; j < n; ++j)
      for (size_t q = 0; q < k; ++q)
        expected[i * n + j] += number(a[i * k + q]) * number(b[j * k + q]);
  const Array<uint16_t> on_device_a(backend(), a), on_device_b(backend(), b);
  const Array<float> c(backend(), std::vector<float>(m * n));
  launch(backend(), *build("tensor_core.cl"), "tensor_core",
         {.groups = {n / 8, m / 16}, .items = {32}}, n, k, on_device_a, on_device_b, c);
  EXPECT_EQ(c.values(), expected) << emulation.finding();
}

// It would be the last number alone; OpenCL makes a vector of all four.
TEST_F(DialectTest, AVectorOfSeveralNumbersIsRefused) {
  const std::string source = std::string(backend().dialect()) + R"(
    __kernel void four(float a, float b, __global float* to) {
      const float4 v = (float4)(a, b, a, b);
      to[0] = v.x;
    })";
  EXPECT_THROW(backend().build("four.cl", source), DeviceError);
}

}  // namespace
}  // namespace ejk::detail
