// SPDX-License-Identifier: Apache-2.0
// Random orders.
#pragma once

#include <cstddef>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

namespace ejk::base {

// 0 .. count-1 in random order. The same order for the same state of `random` everywhere: written
// out because std::shuffle may draw differently in another standard library.
inline std::vector<size_t> shuffled(size_t count, std::mt19937_64& random) {
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  for (size_t left = count; left > 1; --left) std::swap(order[left - 1], order[random() % left]);
  return order;
}

}  // namespace ejk::base
