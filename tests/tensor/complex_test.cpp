// SPDX-License-Identifier: Apache-2.0
// Complex numbers as elements and as arguments: keys, copies, comparisons, records.
#include <complex>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fakes.h"

namespace {

using testing::HasSubstr;

using C64 = std::complex<float>;
using C128 = std::complex<double>;

// As another library has it.
struct OtherComplex {
  using value_type = float;
  float re, im;
  float real() const { return re; }
  float imag() const { return im; }
};

// Of every kind of array parameter one; y += factor * x.
struct Axpy {
  static constexpr std::string_view op_id = "complex_axpy", version = "1";
  struct Config {
    float error = 0;  // relative, of the imaginary parts
  };
  void run(const Config& c, C64 factor, std::span<const C64> x, ejk::View<const C128, 2> scale,
           ejk::StridedView<C64, 1> y, ejk::Out<std::span<C64>> copy) const {
    for (size_t i = 0; i < x.size(); ++i) {
      C64& to = y(i);
      to += factor * x[i] * C64(scale(0, 0));
      (*copy)[i] = to = C64(to.real(), to.imag() * (1 + c.error));
    }
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const {
    return {{0.1f}, {0}, {1e-6f}};
  }
};
EJK_REGISTER(Axpy);

class Complex : public testing::Test {
 protected:
  template <class F>
  decltype(auto) with_arguments(F&& f) {
    return f(Axpy{}, C64(0, 1), x, scale, y, copy);
  }
  std::vector<C64> x{{1, 2}, {3, 4}, {5, 6}}, copy = std::vector<C64>(3);
  ejk::Tensor scale = ejk::Tensor::of<C128>({1, 1}, std::vector<C128>{{2, 0}});
  ejk::Tensor y = ejk::Tensor::of<C64>({3}, std::vector<C64>(3, {1, 1}));
  fakes::Setup setup;
};

TEST_F(Complex, ElementsHaveTheirTypes) {
  EXPECT_EQ(ejk::dtype_of<C64>, ejk::DType::complex64);
  EXPECT_EQ(ejk::dtype_of<const C128>, ejk::DType::complex128);
  EXPECT_FALSE(ejk::Element<std::complex<long double>>);
  EXPECT_EQ(ejk::dtype_of<OtherComplex>, ejk::DType::complex64);
  EXPECT_FALSE(ejk::Element<std::vector<float>>);
  EXPECT_EQ(scale.dtype(), ejk::DType::complex128);
  EXPECT_EQ(*scale.data<C128>(), C128(2, 0));
}

TEST_F(Complex, ArraysCountByTypeAndShapeAndNumbersByType) {
  const ejk::Executor executor(setup.options());
  const auto inv =
      with_arguments([&](auto&&... arguments) { return executor.describe(arguments...); });
  EXPECT_EQ(inv.spec(),
            R"({"args_spec":[{"dtype":"complex64","shape":[]},{"dtype":"complex64","shape":[3]},)"
            R"({"dtype":"complex128","shape":[1,1]},{"dtype":"complex64","shape":[3]}],)"
            R"("batch_axes":null,"kwargs_spec":{},"method":null,)"
            R"("outputs_spec":[{"dtype":"complex64","shape":[3]}]})");
}

TEST_F(Complex, ACallWritesItsOutputs) {
  const ejk::Executor executor(setup.options());
  executor(Axpy{}, Axpy::Config{}, C64(0, 1), x, scale, y, copy);
  EXPECT_EQ(copy, (std::vector<C64>{{-3, 3}, {-7, 7}, {-11, 11}}));
  EXPECT_EQ(y.data<C64>()[2], C64(-11, 11));
  const std::vector<double> numbers(3);
  EXPECT_THROW(executor(Axpy{}, C64(1), x, ejk::Tensor::of<double>({1, 1}), y, copy), ejk::Error);
}

TEST_F(Complex, ATuningComparesWithinTheToleranceAndLeavesTheArgumentsAlone) {
  const ejk::Executor real{ejk::SelectorOptions{.policy = ejk::AutotunePolicy{}}};
  const auto tuned = with_arguments([&](auto&&... arguments) { return real.tune(arguments...); });
  ASSERT_EQ(tuned.entry.candidates.size(), 3u);
  const auto& wrong = tuned.entry.candidates[0];
  EXPECT_EQ(wrong.kind, "wrong");
  EXPECT_THAT(wrong.why, HasSubstr("3 of 3 elements (complex64) differ, the first at 0"));
  for (size_t i : {1u, 2u}) EXPECT_NE(tuned.entry.candidates[i].status, "rejected");
  EXPECT_EQ(y.data<C64>()[0], C64(1, 1));
  EXPECT_EQ(copy[0], C64());
}

TEST_F(Complex, ARecordedCallIsMadeAgain) {
  const fakes::TempDir folder;
  ejk::SelectorOptions options = setup.options();
  options.recording = std::make_shared<ejk::Recording>(folder.path());
  {
    const ejk::Executor executor(options);
    with_arguments([&](auto&&... arguments) { executor(arguments...); });
  }
  options.recording->flush();
  auto recorded = ejk::read_recorded(folder.path())[ejk::cpu_device().fingerprint];
  ASSERT_EQ(recorded["complex_axpy@v1"].size(), 1u);
  const auto& call = recorded["complex_axpy@v1"].begin()->second;
  EXPECT_EQ(call.arguments.as_array()[0], ejk::Value(ejk::Value::Array{0., 1.}));
  const auto made = ejk::rebuild_call(call);
  EXPECT_EQ(made->invocation().spec(), call.id.spec);
  EXPECT_NO_THROW(made->run(ejk::make_config(Axpy::Config{})));
}

}  // namespace
