// SPDX-License-Identifier: Apache-2.0
// Work in numbered parts, one per thread: threads must not throw, so what a part needs is made
// before they start and found by its number.
#pragma once

#include <algorithm>
#include <cstdint>

#include <ejk/parallel.h>

namespace ejk::ops {

inline int64_t parts_for(int64_t count, int threads) {
  return std::clamp<int64_t>(count, 1, threads);
}

// Calls work(part, first, last) for `parts` ranges of `count`, each on a thread of its own.
template <class F>
void in_numbered_parts(int64_t count, int64_t parts, const F& work) {
  in_parts(parts, static_cast<int>(parts), [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) work(p, count * p / parts, count * (p + 1) / parts);
  });
}

}  // namespace ejk::ops
