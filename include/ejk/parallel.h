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

// Calls work(begin, end) for at most `threads` parts of [0, count), equal but for the last, and
// returns when all are done. The first part runs on the calling thread, each other one on a thread
// that is started for it. With one thread, or fewer, it is the plain call work(0, count).
//
// `work` must not throw: on one of these threads that ends the program. The calling thread's scopes
// do not apply on the others (current_scopes() takes them there). Throws std::system_error, with
// parts left out, if a thread cannot be started.
template <class F>
void in_parts(int64_t count, int threads, const F& work) {
  if (threads <= 1) work(int64_t{0}, count);
  else
    detail::run_parts(
        count, threads,
        [](const void* f, int64_t begin, int64_t end) { (*static_cast<const F*>(f))(begin, end); },
        &work);
}

// The thread counts worth trying here, ascending: one, powers of two, and visible_cores(). Values
// for the member of a Config that says how many threads `run` uses.
std::vector<int> thread_counts();

}  // namespace ejk
