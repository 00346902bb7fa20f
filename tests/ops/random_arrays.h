// SPDX-License-Identifier: Apache-2.0
// What tests of matrix operations share: arrays that lie in memory in any way, instruction sets.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <hwy/targets.h>

#include <ejk/tensor.h>

namespace ejk::testing {

// Calls f for every instruction set that the operations are compiled for and that runs here.
template <class F>
void for_each_target(const F& f) {
  int tried = 0;
  for (const int64_t target :
       std::initializer_list<int64_t>{HWY_SCALAR, HWY_SSE4, HWY_AVX2, HWY_AVX3}) {
    if (target != HWY_SCALAR && (hwy::SupportedTargets() & target) == 0) continue;
    hwy::SetSupportedTargetsForTest(target);
    f(std::string(hwy::TargetName(target)));
    hwy::SetSupportedTargetsForTest(0);
    ++tried;
  }
  if (tried < 2) throw std::runtime_error("instruction sets are not told apart");
}

inline int64_t up_to(std::mt19937& random, int64_t most) {
  return std::uniform_int_distribution<int64_t>(0, most)(random);
}

// An array of rank R in exactly as much memory as it needs, so that sanitizers see every overrun.
template <class T, int R>
struct Strided {
  std::vector<T> memory;
  StridedView<T, R> view;

  // packed: row-major without gaps; else any order of axes, with gaps between them.
  Strided(std::mt19937& random, std::array<int64_t, R> shape, bool packed = false) {
    std::array<size_t, R> order;
    for (size_t d = 0; d < R; ++d) order[d] = d;
    if (!packed) std::ranges::shuffle(order, random);
    view.shape = shape;
    int64_t step = 1, last = 0;
    bool empty = false;
    for (size_t i = R; i-- > 0;) {
      const size_t d = order[i];
      if (!packed && up_to(random, 2) == 0) step += up_to(random, 3);
      view.strides[d] = step;
      last += step * (shape[d] - 1);
      step *= std::max<int64_t>(shape[d], 1);
      empty = empty || shape[d] == 0;
    }
    memory.resize(empty ? 0 : static_cast<size_t>(last + 1));
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (T& x : memory) x = static_cast<T>(uniform(random));
    view.data = memory.data();
  }
  Strided(const Strided&) = delete;

  operator StridedView<T, R>() const { return view; }
  operator StridedView<const T, R>() const { return view; }
};

}  // namespace ejk::testing
