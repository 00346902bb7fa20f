// SPDX-License-Identifier: Apache-2.0
// What the tests of operations share: small tensors, an executor that guesses, what is refused,
// every instruction set.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <ejk/error.h>
#include <ejk/executor.h>
#include <ejk/tensor.h>

#include "sanitized.h"

namespace ops_test {

// An executor that neither measures nor stores.
inline const ejk::Executor& guessing() {
  static const ejk::Executor executor = [] {
    ejk::SelectorOptions options;
    options.policy = ejk::AutotunePolicy{.allow_autotune = false};
    return ejk::Executor(std::move(options));
  }();
  return executor;
}

inline ejk::Tensor floats(std::vector<int64_t> shape, std::vector<float> values) {
  return ejk::Tensor::of<float>(std::move(shape), std::span<const float>(values));
}
inline ejk::Tensor normals(std::vector<int64_t> shape, unsigned seed) {
  ejk::Tensor t = ejk::Tensor::of<float>(std::move(shape));
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < t.size(); ++i) t.data<float>()[i] = normal(engine);
  return t;
}

// The elements in order, of float32 or bfloat16.
inline std::vector<float> values(const ejk::Tensor& t) {
  const ejk::Tensor packed = t.clone();
  std::vector<float> out;
  for (int64_t i = 0; i < packed.size(); ++i)
    out.push_back(t.dtype() == ejk::DType::float32
                      ? packed.data<float>()[i]
                      : static_cast<float>(packed.data<ejk::BFloat16>()[i]));
  return out;
}

inline void expect_near(const ejk::Tensor& found, const ejk::Tensor& expected,
                        float tolerance = 2e-6f) {
  ASSERT_EQ(found.shape(), expected.shape());
  const std::vector<float> got = values(found), wanted = values(expected);
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(got[i], wanted[i], tolerance) << "element " << i;
}

// The message of the Error(invalid_argument) that `f` must throw.
template <class F>
std::string refusal(const F& f) {
  try {
    f();
  } catch (const ejk::Error& e) {
    EXPECT_EQ(e.kind(), ejk::ErrorKind::invalid_argument);
    return e.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return "nothing was refused";
}

// The instruction sets that the operations are compiled for (with sanitizers fewer) and that run
// here.
inline std::vector<int64_t> targets() {
  std::vector<int64_t> found{HWY_SCALAR};
  for (const int64_t target : std::initializer_list<int64_t>{HWY_SSE4, HWY_AVX2, HWY_AVX3})
    if ((hwy::SupportedTargets() & target) != 0 && (!sanitized || target == HWY_AVX2))
      found.push_back(target);
  if (found.size() < 2) throw std::runtime_error("instruction sets are not told apart");
  return found;
}

// Calls f with each of them in turn.
template <class F>
void on_every_target(const F& f) {
  for (const int64_t target : targets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    f();
    hwy::SetSupportedTargetsForTest(0);
  }
}

}  // namespace ops_test
