// SPDX-License-Identifier: Apache-2.0
// How often recorded calls are made: counters of each thread's own, added up when asked for.
#pragma once

#include <atomic>
#include <cstdint>

#include <ejk/detail/export.h>

namespace EJK_EXPORT ejk {
namespace detail {

// Only its thread writes it, others read.
struct CallCount {
  std::atomic<uint64_t> calls{0};
  std::atomic<uint64_t> timed{0};        // of these
  std::atomic<uint64_t> nanoseconds{0};  // they took together

  void add_time(uint64_t spent) noexcept {
    timed.store(timed.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    nanoseconds.store(nanoseconds.load(std::memory_order_relaxed) + spent,
                      std::memory_order_relaxed);
  }
};

// The calling thread's counters by record.
inline thread_local constinit CallCount* call_counts = nullptr;
inline thread_local constinit uint32_t call_counts_size = 0;

// Makes room for that record.
[[gnu::cold]] CallCount& more_call_counts(uint32_t record);

inline CallCount& call_count(uint32_t record) {
  return record < call_counts_size ? call_counts[record] : more_call_counts(record);
}

// Counts one call. True if it should be timed: the first ones, and then one in 64.
inline bool count_call(CallCount& count) noexcept {
  const uint64_t n = count.calls.load(std::memory_order_relaxed) + 1;
  count.calls.store(n, std::memory_order_relaxed);
  return (n & (n - 1)) == 0 || n % 64 == 0;
}

// Of a clock that is never set back.
uint64_t steady_nanoseconds();

// Adds the time until it is destroyed.
class CallTimer {
 public:
  explicit CallTimer(uint32_t record) : record_(record) {}
  ~CallTimer() {
    const uint64_t spent = steady_nanoseconds() - start_;
    // Asked for again: what ran may have made the thread's counters move.
    call_count(record_).add_time(spent);
  }
  CallTimer(const CallTimer&) = delete;

 private:
  uint32_t record_;
  uint64_t start_ = steady_nanoseconds();
};

struct CallTotals {
  uint64_t calls = 0, timed = 0, nanoseconds = 0;
};
// A number that no other record has. Never 0.
uint32_t new_call_record();
// Of all threads, those that have ended included.
CallTotals call_totals(uint32_t record);

}  // namespace detail
}  // namespace ejk
