// SPDX-License-Identifier: Apache-2.0
// Threads for kernels on the CPU whose thread count is part of their config.
#pragma once

#include <cstdint>
#include <vector>

#include <ejk/detail/export.h>

namespace EJK_EXPORT ejk {

namespace detail {
using PartOfWork = void(const void* work, int64_t begin, int64_t end);
void run_parts(int64_t count, int threads, PartOfWork* part, const void* work);
}  // namespace detail

// Calls work(begin, end) for `threads` equal parts of [0, count), the first on the calling thread,
// and returns when all are done. `work` must not throw. With one thread it is a plain call.
template <class F>
void in_parts(int64_t count, int threads, const F& work) {
  if (threads <= 1) work(int64_t{0}, count);
  else
    detail::run_parts(
        count, threads,
        [](const void* f, int64_t begin, int64_t end) { (*static_cast<const F*>(f))(begin, end); },
        &work);
}

// The thread counts worth trying here: one, powers of two, and as many as can run.
std::vector<int> thread_counts();

}  // namespace ejk
