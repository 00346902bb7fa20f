// SPDX-License-Identifier: Apache-2.0
// The warm table's writers.
#include <ejk/detail/warm_table.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace ejk::detail {

namespace {

constexpr size_t smallest_table = 64;  // slots; doubled when half full

bool is_same_choice(const WarmEntry& a, const WarmEntry& b) {
  return a.ask_first == b.ask_first && a.heuristic == b.heuristic && a.record == b.record &&
         a.watched == b.watched && a.owner.type() == b.owner.type() && a.owner == b.owner;
}

}  // namespace

WarmTable::Slots::Slots(size_t size, uint64_t at_generation)
    : mask(size - 1), generation(at_generation), at(new Slot[size]) {}
WarmTable::Slots::~Slots() { delete[] at; }

WarmTable::WarmTable(size_t most, WarmReaders& readers)
    : slots_(new Slots(smallest_table, 0)), readers_(readers), most_(std::max<size_t>(most, 1)) {}

WarmTable::~WarmTable() {
  const std::unique_ptr<const Slots> slots(slots_.load());
  for_each(*slots, [](const Slot&, const WarmEntry* entry) { delete entry; });
}

size_t WarmTable::entries() const {
  const std::lock_guard lock(mutex_);
  return used_ + retired_.entries.size();
}

std::vector<std::vector<uint64_t>> WarmTable::words_of(const EntryId& id) const {
  std::vector<std::vector<uint64_t>> words;
  const std::lock_guard lock(mutex_);
  for_each(*slots_.load(), [&](const Slot&, const WarmEntry* entry) {
    const EntryId& own = entry->id;
    if (own.key == id.key && own.op == id.op && own.device == id.device && own.spec == id.spec)
      words.push_back(entry->rest);
  });
  return words;
}

template <class F>
void WarmTable::for_each(const Slots& slots, F&& f) {
  for (uint64_t i = 0; i <= slots.mask; ++i)
    if (const WarmEntry* entry = slots.at[i].entry.load(std::memory_order_relaxed))
      f(slots.at[i], entry);
}

WarmTable::Slot& WarmTable::place(const Slots& slots, uint64_t hash,
                                  const std::vector<uint64_t>& words) {
  for (uint64_t i = hash;; ++i) {
    Slot& slot = slots.at[i & slots.mask];
    const WarmEntry* entry = slot.entry.load(std::memory_order_relaxed);
    if (entry == nullptr) return slot;
    if (slot.hash.load(std::memory_order_relaxed) == hash && entry->count == words.size() &&
        std::equal(words.begin(), words.end(), entry->words))
      return slot;
  }
}

void WarmTable::publish(uint64_t hash, std::unique_ptr<WarmEntry> entry,
                        std::vector<uint64_t> words, uint64_t generation) {
  if (words.size() > std::numeric_limits<uint16_t>::max()) return;
  entry->count = static_cast<uint16_t>(words.size());
  entry->config = entry->owner.get();
  entry->timed = entry->watched != nullptr;
  entry->counted = entry->timed || entry->record != 0;
  entry->rest = words;
  if (words.size() <= WarmEntry::inline_words) std::copy(words.begin(), words.end(), entry->first);
  entry->words = words.size() <= WarmEntry::inline_words ? entry->first : entry->rest.data();

  Retired unused;  // is freed without the lock: a config's destructor may be anyone's
  const std::lock_guard lock(mutex_);
  const Slots& present = *slots_.load();
  if (generation < present.generation) return;
  const WarmEntry* there = nullptr;
  if (generation == present.generation)
    there = place(present, hash, words).entry.load(std::memory_order_relaxed);
  // Calls that always ask the selector must not make a new one each time.
  if (there != nullptr && is_same_choice(*there, *entry)) return;
  if (there == nullptr) make_room(generation), ++used_;
  else retired_.entries.emplace_back(there);
  Slot& slot = place(*slots_.load(), hash, words);
  entry->turn = ++turns_;
  slot.hash.store(hash, std::memory_order_relaxed);
  slot.entry.store(entry.release(), std::memory_order_seq_cst);
  unused = take_unused();
}

// For one more, of this generation.
void WarmTable::make_room(uint64_t generation) {
  const Slots& slots = *slots_.load();
  const size_t size = slots.mask + 1;
  if (generation != slots.generation) move_to(smallest_table, generation, 0);
  else if (used_ >= most_) move_to(size, generation, turn_after_oldest_quarter());
  else if ((used_ + 1) * 2 > size) move_to(2 * size, generation, 0);
}

uint64_t WarmTable::turn_after_oldest_quarter() const {
  std::vector<uint64_t> turns;
  for_each(*slots_.load(), [&](const Slot&, const WarmEntry* e) { turns.push_back(e->turn); });
  const auto last = turns.begin() + static_cast<ptrdiff_t>((turns.size() - 1) / 4);
  std::ranges::nth_element(turns, last);
  return *last + 1;
}

// A table is never changed so that a probe could miss what stays: what is left moves to a new one.
void WarmTable::move_to(size_t size, uint64_t generation, uint64_t oldest) {
  auto moved = std::make_unique<Slots>(size, generation);
  retired_.entries.reserve(retired_.entries.size() + used_);
  retired_.slots.reserve(retired_.slots.size() + 1);
  // Nothing throws from here on: everything has one owner.
  const Slots& old = *slots_.load();
  used_ = 0;
  for_each(old, [&](const Slot& slot, const WarmEntry* entry) {
    if (old.generation != generation || entry->turn < oldest)
      return static_cast<void>(retired_.entries.emplace_back(entry));
    const uint64_t hash = slot.hash.load(std::memory_order_relaxed);
    Slot& to = place(*moved, hash, entry->rest);
    to.hash.store(hash, std::memory_order_relaxed);
    to.entry.store(entry, std::memory_order_relaxed);
    ++used_;
  });
  slots_.store(moved.release(), std::memory_order_seq_cst);
  retired_.slots.emplace_back(&old);
}

WarmTable::Retired WarmTable::take_unused() {
  if (retired_.slots.empty() && retired_.entries.empty()) return {};
  const auto in_use = readers_.in_use(this);
  if (!in_use) return {};
  Retired used;
  used.entries.reserve(in_use->size());
  for (auto& entry : retired_.entries)
    if (std::ranges::find(*in_use, entry.get()) != in_use->end())
      used.entries.push_back(std::move(entry));
  return std::exchange(retired_, std::move(used));
}

}  // namespace ejk::detail
