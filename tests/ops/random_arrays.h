// SPDX-License-Identifier: Apache-2.0
// What tests of matrix operations share: arrays that lie in memory in any way.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <random>
#include <vector>

#include <ejk/tensor.h>

namespace ejk::testing {

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
