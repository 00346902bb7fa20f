// SPDX-License-Identifier: Apache-2.0
// What warm calls are looking at, so that nothing is freed under them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <ejk/detail/export.h>

namespace EJK_EXPORT ejk {
namespace detail {

class WarmReaders;

// What one call of a thread looks at: a table while it probes it, then the entry it runs with. On
// cache lines of its own: two, as they are fetched in pairs.
struct alignas(128) WarmReader {
  explicit constexpr WarmReader(const void* when_idle) : sees(when_idle), idle(when_idle) {}

  void look_at(const void* entry) noexcept { sees.store(entry, std::memory_order_release); }
  void look_away() noexcept { look_at(idle); }
  bool is_idle() const noexcept { return sees.load(std::memory_order_relaxed) == idle; }
  // Counts a watched call of its thread. True if this one is to be timed.
  bool is_turn_to_time() noexcept {
    if (--calls_until_timed != 0) return false;
    calls_until_timed = watch_interval;
    return true;
  }

  // A prime: in a program that makes its calls in turn, each of them gets timed.
  static constexpr uint32_t watch_interval = 1031;

  std::atomic<const void*> sees;
  // What it sees then: all readers, or another thing if it needs fences. nullptr: `no_reader`.
  const void* const idle;
  WarmReader* next = nullptr;  // of the same thread: a kernel may make calls itself
  WarmReader* next_of_all = nullptr;
  std::atomic<bool> taken{true};  // by a thread
  uint32_t calls_until_timed = watch_interval;
};

inline constinit WarmReader no_reader{nullptr};
inline thread_local constinit WarmReader* readers_of_this_thread = &no_reader;  // which ends them

// All readers, and what a writer may free. They are never freed themselves, but used again by other
// threads.
//
// Why it is right. A reader stores the table, then reads what the table holds, then stores the
// entry. A writer takes something out of the table, has every thread pass a barrier (membarrier; or
// all of these accesses are seq_cst), and then looks at the readers. A thread that read before its
// barrier what was taken out had stored the table before that: the writer sees the table, or what
// was stored after it, which is that very entry for as long as it is used. A thread that read after
// its barrier did not find what was taken out. So a writer may free what no reader is seen to look
// at, once it has seen each reader look at something else than the table. A probe takes
// nanoseconds, hence the writer waits for it; a kernel may run for hours, but keeps one entry only.
class WarmReaders {
 public:
  // `fenced`: calls have fences of their own, as writers cannot make threads pass a barrier.
  explicit WarmReaders(bool fenced) : idle_(fenced ? static_cast<const void*>(&first_) : this) {}
  WarmReaders(const WarmReaders&) = delete;

  // Those of this copy of the library. Never destroyed: threads may end after everything else.
  static WarmReaders& all();

  // An idle one of the calling thread, which looks at the table now; nullptr if there is none. To
  // be called before anything of the table is read.
  WarmReader* look_into(const void* table) const noexcept {
    WarmReader* const reader = readers_of_this_thread;
    if (reader->sees.load(std::memory_order_relaxed) != this) [[unlikely]]
      return look_deeper(table);
    reader->look_at(table);
    std::atomic_signal_fence(std::memory_order_seq_cst);  // a writer makes it a real one
    return reader;
  }
  // Gives the calling thread an idle one, unless the thread is about to end.
  void enlist();

  // What is looked at of what was taken out of the table before. Empty if that cannot be said now.
  std::optional<std::vector<const void*>> in_use(const void* table) const;

  // How many there are.
  size_t size() const;

  // In a forked child: what other threads were looking at does not count, they are not here.
  void forget_other_threads();

 private:
  [[gnu::cold]] WarmReader* look_deeper(const void* table) const noexcept;
  WarmReader* idle() const noexcept;
  WarmReader& claim();

  const void* const idle_;  // of its readers
  std::atomic<WarmReader*> first_{nullptr};
};

}  // namespace detail
}  // namespace ejk
