// SPDX-License-Identifier: Apache-2.0
// The table a warm call probes: key words to configuration, without lock or allocation.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include <ejk/cache.h>
#include <ejk/store.h>

namespace ejk::detail {

// What a warm call needs of a choice: the words of a short key share its first line, those of most
// others are in the next one.
struct alignas(64) WarmEntry {
  const void* config = nullptr;
  uint32_t record = 0;  // counts calls; 0: nobody does
  uint16_t count = 0;
  bool ask_first = false;  // a warm call may not use it without asking the selector
  bool heuristic = false;  // a call under scopes must ask the policy
  const uint64_t* words = nullptr;
  static constexpr size_t inline_words = 13;
  uint64_t first[inline_words];

  std::vector<uint64_t> rest;  // owns all the words of a long key
  AnyConfig owner;
  EntryId id;
};

// Readers never wait: they see a table that is complete at any moment. Writers take a lock.
// Entries and outgrown tables are kept until the whole is destroyed, because a reader may still
// be looking at them.
class WarmTable {
 public:
  WarmTable();
  ~WarmTable();
  WarmTable(const WarmTable&) = delete;

  // The entry for these words, nullptr if there is none made since `generation`.
  template <class Words>
  const WarmEntry* find(uint64_t hash, const Words& words, uint64_t generation) const noexcept {
    const Slots* slots = slots_.load(std::memory_order_acquire);
    if (slots->generation != generation) return nullptr;
    for (uint64_t i = hash;; ++i) {
      const Slot& slot = slots->at[i & slots->mask];
      const WarmEntry* entry = slot.entry.load(std::memory_order_acquire);
      if (entry == nullptr) return nullptr;
      if (slot.hash.load(std::memory_order_relaxed) == hash && words.equal(*entry)) return entry;
    }
  }

  // Adds or replaces. An entry made for an older generation of the cache is not taken.
  void publish(uint64_t hash, std::unique_ptr<WarmEntry> entry, std::vector<uint64_t> words,
               uint64_t generation);

 private:
  struct Slot {
    std::atomic<uint64_t> hash{0};
    std::atomic<const WarmEntry*> entry{nullptr};
  };
  struct Slots {
    Slots(size_t size, uint64_t at_generation)
        : mask(size - 1), generation(at_generation), at(std::make_unique<Slot[]>(size)) {}
    const uint64_t mask;
    const uint64_t generation;
    std::unique_ptr<Slot[]> at;
  };
  Slots* renew(size_t size, uint64_t generation);
  static Slot& place(Slots& slots, uint64_t hash, const std::vector<uint64_t>& words);

  std::atomic<const Slots*> slots_;
  std::mutex mutex_;
  size_t used_ = 0;
  std::vector<std::unique_ptr<Slots>> tables_;  // the last one is in use
  std::vector<std::unique_ptr<WarmEntry>> entries_;
};

}  // namespace ejk::detail
