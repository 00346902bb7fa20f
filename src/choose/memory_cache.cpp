// SPDX-License-Identifier: Apache-2.0
// The memory tier: configurations by text key.
#include <charconv>

#include <ejk/cache.h>
#include <ejk/names.h>

namespace ejk {

std::string_view origin_name(Origin origin) { return name_of(origin); }

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
  return {std::string(text.substr(0, device)),
          std::string(text.substr(device, op)),
          std::string(text.substr(device + op)),
          {}};
}

}  // namespace

std::optional<ConfigCache::Record> ConfigCache::find(const EntryId& id) const {
  std::lock_guard lock(mutex_);
  const Record* record = records_.find(joined(id));
  if (record == nullptr) return std::nullopt;
  if (!record->spec.empty() && !id.spec.empty() && record->spec != id.spec) return std::nullopt;
  return *record;
}

void ConfigCache::insert(const EntryId& id, Record record) {
  std::lock_guard lock(mutex_);
  const bool by_hand = record.origin == Origin::memory;
  records_.insert_or_assign(joined(id), std::move(record), by_hand);
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
  records_.for_each_key([&](std::string_view text) { ids.push_back(separated(text)); });
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

}  // namespace ejk
