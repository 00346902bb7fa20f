// SPDX-License-Identifier: Apache-2.0
// The readers of all threads: given to threads, taken back at their end, asked what they look at.
#include <ejk/detail/warm_readers.h>

#include <linux/membarrier.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <thread>
#include <utility>

namespace ejk::detail {

namespace {

#if defined(__SANITIZE_THREAD__)
constexpr bool sees_barriers = false;  // the sanitizer does not know of membarrier
#elif defined(__has_feature)
constexpr bool sees_barriers = !__has_feature(thread_sanitizer);
#else
constexpr bool sees_barriers = true;
#endif

int membarrier(int command) { return static_cast<int>(::syscall(SYS_membarrier, command, 0, 0)); }

bool can_pass_barriers() {
  const int known = membarrier(MEMBARRIER_CMD_QUERY);
  return known > 0 && (known & MEMBARRIER_CMD_PRIVATE_EXPEDITED) != 0;
}

// A process must say before its first time that it is going to use it. Beside other threads that
// takes 5 to 20 ms, so it is not done before something is to be freed.
bool pass_barriers() {
  if (membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) == 0) return true;
  return errno == EPERM && membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0 &&
         membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) == 0;
}

thread_local constinit bool thread_ends = false;

struct ReadersOfThread {
  ~ReadersOfThread() {
    thread_ends = true;
    while (readers_of_this_thread->idle != nullptr) {
      WarmReader& reader = *std::exchange(readers_of_this_thread, readers_of_this_thread->next);
      reader.taken.store(false, std::memory_order_release);
    }
  }
};

// What it looks at when it does not probe the table; the table if that does not end.
const void* after_probe(const WarmReader& reader, const void* table) {
  constexpr int patience = 100;  // a thread that was stopped within its probe is not waited for
  const void* seen = reader.sees.load(std::memory_order_seq_cst);
  for (int i = 0; seen == table && i < patience; ++i) {
    std::this_thread::yield();
    seen = reader.sees.load(std::memory_order_seq_cst);
  }
  return seen;
}

}  // namespace

WarmReaders& WarmReaders::all() {
  static auto* const readers = [] {
    auto* const made = new WarmReaders(!sees_barriers || !can_pass_barriers());
    ::pthread_atfork(nullptr, nullptr, [] { all().forget_other_threads(); });
    return made;
  }();
  return *readers;
}

WarmReader* WarmReaders::idle() const noexcept {
  for (WarmReader* reader = readers_of_this_thread; reader->idle != nullptr; reader = reader->next)
    if (reader->idle == idle_ && reader->is_idle()) return reader;
  return nullptr;
}

// Of a call within a call, or one that needs a fence of its own.
WarmReader* WarmReaders::look_deeper(const void* table) const noexcept {
  WarmReader* const reader = idle();
  if (reader != nullptr) reader->sees.store(table, std::memory_order_seq_cst);
  return reader;
}

void WarmReaders::enlist() {
  if (thread_ends || idle() != nullptr) return;
  static thread_local const ReadersOfThread given_back;
  WarmReader& mine = claim();
  mine.next = readers_of_this_thread;
  readers_of_this_thread = &mine;
}

WarmReader& WarmReaders::claim() {
  for (WarmReader* reader = first_.load(); reader != nullptr; reader = reader->next_of_all) {
    bool taken = false;
    if (reader->is_idle() && reader->taken.compare_exchange_strong(taken, true)) return *reader;
  }
  auto* const made = new WarmReader(idle_);
  made->next_of_all = first_.load();
  while (!first_.compare_exchange_weak(made->next_of_all, made)) {
  }
  return *made;
}

std::optional<std::vector<const void*>> WarmReaders::in_use(const void* table) const {
  if (idle_ == this && !pass_barriers()) return std::nullopt;
  std::vector<const void*> seen;
  for (const WarmReader* reader = first_.load(); reader != nullptr; reader = reader->next_of_all) {
    const void* const what = after_probe(*reader, table);
    if (what == table) return std::nullopt;
    if (what != idle_) seen.push_back(what);
  }
  return seen;
}

size_t WarmReaders::size() const {
  size_t count = 0;
  for (const WarmReader* reader = first_.load(); reader != nullptr; reader = reader->next_of_all)
    ++count;
  return count;
}

void WarmReaders::forget_other_threads() {
  const auto is_mine = [](const WarmReader* reader) {
    const WarmReader* mine = readers_of_this_thread;
    while (mine->idle != nullptr && mine != reader) mine = mine->next;
    return mine == reader;
  };
  for (WarmReader* reader = first_.load(); reader != nullptr; reader = reader->next_of_all) {
    if (is_mine(reader)) continue;
    reader->look_away();
    reader->taken.store(false);
  }
}

}  // namespace ejk::detail
