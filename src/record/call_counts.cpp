// SPDX-License-Identifier: Apache-2.0
// The counters of all threads.
#include <ejk/detail/call_counts.h>

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

namespace ejk::detail {

namespace {

struct ThreadCounts;

// Never destroyed: threads may end after everything else.
struct AllCounts {
  std::mutex mutex;
  std::set<const ThreadCounts*> threads;
  std::vector<CallTotals> ended;  // of threads that are gone, by record
  std::atomic<uint32_t> records{0};
  CallCount lost;  // where calls are counted that no thread can count any more
};
AllCounts& all() {
  static auto* const counts = [] {
    auto* const made = new AllCounts;
    // A forked child must not wait for a thread that is not in it.
    ::pthread_atfork([] { all().mutex.lock(); }, [] { all().mutex.unlock(); },
                     [] { all().mutex.unlock(); });
    return made;
  }();
  return *counts;
}

void add(CallTotals& to, const CallCount& count) {
  to.calls += count.calls.load(std::memory_order_relaxed);
  to.timed += count.timed.load(std::memory_order_relaxed);
  to.nanoseconds += count.nanoseconds.load(std::memory_order_relaxed);
}

struct ThreadCounts {
  std::unique_ptr<CallCount[]> counts;
  uint32_t size = 0;

  ~ThreadCounts();
};
thread_local constinit bool thread_ends = false;

ThreadCounts::~ThreadCounts() {
  thread_ends = true;
  call_counts = nullptr, call_counts_size = 0;
  const std::lock_guard lock(all().mutex);
  auto& ended = all().ended;
  ended.resize(std::max<size_t>(ended.size(), size));
  for (uint32_t i = 0; i < size; ++i) add(ended[i], counts[i]);
  all().threads.erase(this);
}

}  // namespace

CallCount& more_call_counts(uint32_t record) {
  if (thread_ends) return all().lost;
  thread_local ThreadCounts mine;
  const std::lock_guard lock(all().mutex);
  const uint32_t size = std::max({uint32_t{64}, record + 1, mine.size * 2});
  auto larger = std::make_unique<CallCount[]>(size);
  for (uint32_t i = 0; i < mine.size; ++i) {
    larger[i].calls = mine.counts[i].calls.load(std::memory_order_relaxed);
    larger[i].timed = mine.counts[i].timed.load(std::memory_order_relaxed);
    larger[i].nanoseconds = mine.counts[i].nanoseconds.load(std::memory_order_relaxed);
  }
  mine.counts = std::move(larger), mine.size = size;
  all().threads.insert(&mine);
  call_counts = mine.counts.get(), call_counts_size = size;
  return call_counts[record];
}

uint64_t steady_nanoseconds() {
  return static_cast<uint64_t>(
      std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count());
}

uint32_t new_call_record() { return all().records.fetch_add(1, std::memory_order_relaxed) + 1; }

CallTotals call_totals(uint32_t record) {
  CallTotals totals;
  const std::lock_guard lock(all().mutex);
  if (record < all().ended.size()) totals = all().ended[record];
  for (const ThreadCounts* thread : all().threads)
    if (record < thread->size) add(totals, thread->counts[record]);
  return totals;
}

}  // namespace ejk::detail
