// SPDX-License-Identifier: Apache-2.0
// The memory tier: the cache by text key and the warm table by key words.
#include <algorithm>
#include <charconv>
#include <limits>

#include <ejk/cache.h>
#include <ejk/detail/warm_table.h>

namespace ejk {

std::string_view origin_name(Origin origin) {
  switch (origin) {
    case Origin::override_:
      return "override";
    case Origin::overlay:
      return "overlay";
    case Origin::memory:
      return "memory";
    case Origin::persistent:
      return "persistent";
    case Origin::autotune:
      return "autotune";
    case Origin::heuristics:
      return "heuristics";
  }
  return "unknown";
}

namespace {

// Lengths first: no text in one part can look like another part.
std::string joined(const EntryId& id) {
  return std::to_string(id.device.size()) + ' ' + std::to_string(id.op.size()) + ' ' + id.device +
         id.op + id.key;
}

EntryId separated(std::string_view text) {
  size_t device = 0, op = 0;
  const char* at = std::from_chars(text.data(), text.data() + text.size(), device).ptr;
  at = std::from_chars(at + 1, text.data() + text.size(), op).ptr;
  text.remove_prefix(static_cast<size_t>(at + 1 - text.data()));
  return {std::string(text.substr(0, device)), std::string(text.substr(device, op)),
          std::string(text.substr(device + op)), {}};
}

}  // namespace

std::optional<ConfigCache::Record> ConfigCache::find(const EntryId& id) const {
  std::lock_guard lock(mutex_);
  const auto found = records_.find(joined(id));
  if (found == records_.end()) return std::nullopt;
  const Record& record = found->second;
  if (!record.spec.empty() && !id.spec.empty() && record.spec != id.spec) return std::nullopt;
  return record;
}

void ConfigCache::insert(const EntryId& id, Record record) {
  std::lock_guard lock(mutex_);
  records_.insert_or_assign(joined(id), std::move(record));
}

void ConfigCache::put_any(const EntryId& id, AnyConfig config) {
  std::lock_guard order(order_);
  insert(id, {std::move(config), Origin::memory, id.spec});
  changed();
}

void ConfigCache::keep(const EntryId& id, Record record, uint64_t generation) {
  std::lock_guard order(order_);
  if (generation_.load(std::memory_order_acquire) == generation) insert(id, std::move(record));
}

void ConfigCache::clear() {
  std::lock_guard order(order_);
  {
    std::lock_guard lock(mutex_);
    records_.clear();
  }
  changed();
}

size_t ConfigCache::size() const {
  std::lock_guard lock(mutex_);
  return records_.size();
}

std::vector<EntryId> ConfigCache::keys() const {
  std::lock_guard lock(mutex_);
  std::vector<EntryId> ids;
  for (const auto& [text, record] : records_) ids.push_back(separated(text));
  return ids;
}

std::optional<AnyConfig> ConfigCache::get(std::string device, std::string op,
                                          std::string key) const {
  auto record = find({std::move(device), std::move(op), std::move(key), {}});
  if (!record) return std::nullopt;
  return std::move(record->config);
}

void ConfigCache::erase(const EntryId& id) {
  std::lock_guard order(order_);
  {
    std::lock_guard lock(mutex_);
    records_.erase(joined(id));
  }
  changed();
}

namespace detail {

namespace {
constexpr size_t smallest_table = 64;  // slots; doubled when half full
}

WarmTable::WarmTable() { slots_.store(renew(smallest_table, 0), std::memory_order_release); }
WarmTable::~WarmTable() = default;

WarmTable::Slots* WarmTable::renew(size_t size, uint64_t generation) {
  tables_.push_back(std::make_unique<Slots>(size, generation));
  return tables_.back().get();
}

WarmTable::Slot& WarmTable::place(Slots& slots, uint64_t hash, const std::vector<uint64_t>& words) {
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
  entry->rest = words;
  if (words.size() <= WarmEntry::inline_words) std::copy(words.begin(), words.end(), entry->first);
  entry->words = words.size() <= WarmEntry::inline_words ? entry->first : entry->rest.data();

  std::lock_guard lock(mutex_);
  Slots* slots = tables_.back().get();
  if (generation < slots->generation) return;
  if (generation > slots->generation) {
    slots = renew(smallest_table, generation);
    used_ = 0;
    slots_.store(slots, std::memory_order_release);
  } else if ((used_ + 1) * 2 > slots->mask + 1) {
    const Slots* old = slots;
    slots = renew((old->mask + 1) * 2, generation);
    for (uint64_t i = 0; i <= old->mask; ++i) {
      const WarmEntry* moved = old->at[i].entry.load(std::memory_order_relaxed);
      if (moved == nullptr) continue;
      const uint64_t moved_hash = old->at[i].hash.load(std::memory_order_relaxed);
      Slot& slot = place(*slots, moved_hash, moved->rest);
      slot.hash.store(moved_hash, std::memory_order_relaxed);
      slot.entry.store(moved, std::memory_order_relaxed);
    }
    slots_.store(slots, std::memory_order_release);
  }
  Slot& slot = place(*slots, hash, words);
  const WarmEntry* there = slot.entry.load(std::memory_order_relaxed);
  // Entries are never freed: calls that always ask the selector must not add one each time.
  if (there && there->ask_first == entry->ask_first && there->heuristic == entry->heuristic &&
      there->record == entry->record &&
      there->owner.type() == entry->owner.type() && there->owner == entry->owner)
    return;
  if (there == nullptr) ++used_;
  slot.hash.store(hash, std::memory_order_relaxed);
  slot.entry.store(entry.get(), std::memory_order_release);
  entries_.push_back(std::move(entry));
}

}  // namespace detail
}  // namespace ejk
