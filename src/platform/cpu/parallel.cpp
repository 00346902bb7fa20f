// SPDX-License-Identifier: Apache-2.0
// Threads for kernels on the CPU.
#include <ejk/parallel.h>

#include <algorithm>
#include <thread>

#include <ejk/device.h>

namespace ejk {

void detail::run_parts(int64_t count, int threads, PartOfWork* part, const void* work) {
  const int64_t size = (count + threads - 1) / threads;
  std::vector<std::jthread> others;
  for (int64_t begin = size; begin < count; begin += size)
    others.emplace_back(part, work, begin, std::min(count, begin + size));
  part(work, 0, std::min(count, size));
}

std::vector<int> thread_counts() {
  std::vector<int> counts;
  for (int n = 1; n < visible_cores(); n *= 2) counts.push_back(n);
  counts.push_back(visible_cores());
  return counts;
}

}  // namespace ejk
