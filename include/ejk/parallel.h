// SPDX-License-Identifier: Apache-2.0
// Threads for kernels on the CPU whose thread count is part of their config.
#pragma once

#include <algorithm>
#include <cstdint>
#include <thread>
#include <vector>

#include <ejk/device.h>

namespace ejk {

// Calls work(begin, end) for `threads` equal parts of [0, count), the first on the calling thread,
// and returns when all are done. `work` must not throw. With one thread it is a plain call.
template <class F>
void in_parts(int64_t count, int threads, const F& work) {
  const int64_t part = (count + threads - 1) / threads;
  if (part >= count) {
    work(int64_t{0}, count);
    return;
  }
  std::vector<std::jthread> others;
  for (int64_t begin = part; begin < count; begin += part)
    others.emplace_back([&work, begin, end = std::min(count, begin + part)] { work(begin, end); });
  work(int64_t{0}, part);
}

// The thread counts worth trying here: one, powers of two, and as many as can run.
inline std::vector<int> thread_counts() {
  std::vector<int> counts;
  for (int n = 1; n < visible_cores(); n *= 2) counts.push_back(n);
  counts.push_back(visible_cores());
  return counts;
}

}  // namespace ejk
