// SPDX-License-Identifier: Apache-2.0
// The table a warm call probes: key words to configuration, without lock or allocation.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include <ejk/cache.h>
#include <ejk/detail/argument_traits.h>
#include <ejk/detail/export.h>
#include <ejk/detail/warm_readers.h>
#include <ejk/store.h>

namespace EJK_EXPORT ejk {
namespace detail {

struct WatchedCall;  // src/choose/drift.h

// What a warm call needs of a choice: the words of a short key share its first line, those of most
// others are in the next one.
struct alignas(64) WarmEntry {
  const void* config = nullptr;
  uint32_t record = 0;  // where calls are counted; 0: they are not
  uint16_t count = 0;
  bool ask_first : 1 = false;  // a warm call may not use it without asking the selector
  bool heuristic : 1 = false;  // a call under scopes must ask the policy
  bool counted : 1 = false;    // its calls are recorded or timed:
  bool timed : 1 = false;      // some are, see `watched`
  const uint64_t* words = nullptr;
  static constexpr size_t inline_words = 13;
  uint64_t first[inline_words];

  std::vector<uint64_t> rest;  // owns all the words of a long key
  AnyConfig owner;
  EntryId id;
  std::shared_ptr<WatchedCall> watched;  // some of its calls are timed; nullptr: none
  uint64_t turn = 0;                     // counts what was published
};

// A fixed number of words against an entry: unrolled.
template <size_t N>
struct FixedKey {
  const FixedWords<N>& w;
  bool equal(const WarmEntry& entry) const noexcept {
    if (entry.count != N) return false;
    const uint64_t* other = N <= WarmEntry::inline_words ? entry.first : entry.words;
    uint64_t difference = 0;
    for (size_t i = 0; i < N; ++i) difference |= w.words[i] ^ other[i];
    return difference == 0;
  }
};
struct AnyKey {
  const WordSink& w;
  bool equal(const WarmEntry& entry) const noexcept {
    return entry.count == w.size() &&
           std::memcmp(entry.words, w.data(), w.size() * sizeof(uint64_t)) == 0;
  }
};

// An entry and the reader that looks at it, or none. The caller of `find` lets go of it (WarmUse).
struct WarmFound {
  WarmReader* reader = nullptr;
  const WarmEntry* entry = nullptr;
};

// What was found is not freed before this is destroyed, on whichever thread.
class WarmUse {
 public:
  explicit WarmUse(const WarmFound& found) noexcept : reader_(*found.reader) {}
  ~WarmUse() { reader_.look_away(); }
  WarmUse(const WarmUse&) = delete;
  WarmUse& operator=(const WarmUse&) = delete;

 private:
  WarmReader& reader_;
};

// Readers never wait: they see a table that is complete at any moment. Writers take a lock. What
// they take out is freed as soon as no reader looks at it, at the next change after that.
class WarmTable {
 public:
  // With more than `most` entries, the quarter that was published first goes.
  explicit WarmTable(size_t most, WarmReaders& readers = WarmReaders::all());
  ~WarmTable();
  WarmTable(const WarmTable&) = delete;

  // Must come before find, once for each thread and each call within a call: else nothing is found.
  void enlist() const { readers_.enlist(); }

  // The entry for these words, none if there is none made since `generation`.
  template <class Words>
  WarmFound find(uint64_t hash, const Words& words, uint64_t generation) const noexcept {
    WarmReader* const reader = readers_.look_into(this);
    if (reader == nullptr) [[unlikely]]
      return {};
    const WarmEntry* const entry = probe(hash, words, generation);
    if (entry == nullptr) [[unlikely]]
      return reader->look_away(), WarmFound{};
    reader->look_at(entry);
    return {reader, entry};
  }

  // Adds or replaces. An entry made for an older generation of the cache is not taken.
  void publish(uint64_t hash, std::unique_ptr<WarmEntry> entry, std::vector<uint64_t> words,
               uint64_t generation);

  // The words of all entries with that id.
  std::vector<std::vector<uint64_t>> words_of(const EntryId& id) const;

  // Entries in memory, those that wait for their readers included.
  size_t entries() const;

 private:
  struct Slot {
    std::atomic<uint64_t> hash{0};
    std::atomic<const WarmEntry*> entry{nullptr};
  };
  struct Slots {
    Slots(size_t size, uint64_t at_generation);
    ~Slots();
    Slots(const Slots&) = delete;
    const uint64_t mask;
    const uint64_t generation;
    Slot* const at;
  };
  struct Retired {
    std::vector<std::unique_ptr<const Slots>> slots;
    std::vector<std::unique_ptr<const WarmEntry>> entries;
  };

  // seq_cst: see WarmReaders. It costs a reader nothing.
  template <class Words>
  const WarmEntry* probe(uint64_t hash, const Words& words, uint64_t generation) const noexcept {
    const Slots* slots = slots_.load(std::memory_order_seq_cst);
    if (slots->generation != generation) return nullptr;
    for (uint64_t i = hash;; ++i) {
      const Slot& slot = slots->at[i & slots->mask];
      const WarmEntry* entry = slot.entry.load(std::memory_order_seq_cst);
      if (entry == nullptr) return nullptr;
      if (slot.hash.load(std::memory_order_relaxed) == hash && words.equal(*entry)) return entry;
    }
  }

  void make_room(uint64_t generation);
  void move_to(size_t size, uint64_t generation, uint64_t oldest);
  uint64_t turn_after_oldest_quarter() const;
  Retired take_unused();
  static Slot& place(const Slots& slots, uint64_t hash, const std::vector<uint64_t>& words);
  template <class F>
  static void for_each(const Slots& slots, F&& f);

  std::atomic<const Slots*> slots_;
  WarmReaders& readers_;
  const size_t most_;
  mutable std::mutex mutex_;
  size_t used_ = 0;
  uint64_t turns_ = 0;
  Retired retired_;
};

}  // namespace detail
}  // namespace ejk
