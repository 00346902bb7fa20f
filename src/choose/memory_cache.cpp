// SPDX-License-Identifier: Apache-2.0
// The memory tier: configurations by text key.
#include <charconv>
#include <mutex>

#include <ejk/cache.h>
#include <ejk/names.h>

#include "choose/recent_map.h"

namespace ejk {

std::string_view origin_name(Origin origin) { return name_of(origin); }

namespace {

// Without the spec, and to be separated again. Lengths first: no text in one part can look like
// another part.
std::string text_without_spec(const EntryId& id) {
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

struct ConfigCache::State {
  explicit State(size_t most_shapes) : records(most_shapes) {}

  std::mutex order;  // held while something changes together with the generation
  std::mutex mutex;
  detail::RecentMap<Record> records;  // by device, op and key
};

ConfigCache::ConfigCache(size_t most_shapes) : state_(std::make_unique<State>(most_shapes)) {}
ConfigCache::~ConfigCache() = default;

std::optional<ConfigCache::Record> ConfigCache::find(const EntryId& id) const {
  std::lock_guard lock(state_->mutex);
  const Record* record = state_->records.find(text_without_spec(id));
  if (record == nullptr) return std::nullopt;
  if (!record->spec.empty() && !id.spec.empty() && record->spec != id.spec) return std::nullopt;
  return *record;
}

void ConfigCache::insert(const EntryId& id, Record record) {
  std::lock_guard lock(state_->mutex);
  const bool by_hand = record.origin == Origin::memory;
  state_->records.insert_or_assign(text_without_spec(id), std::move(record), by_hand);
}

void ConfigCache::put_any(const EntryId& id, AnyConfig config) {
  std::lock_guard order(state_->order);
  insert(id, {std::move(config), Origin::memory, id.spec});
  changed();
}

void ConfigCache::keep(const EntryId& id, Record record, uint64_t generation) {
  std::lock_guard order(state_->order);
  if (generation_.load(std::memory_order_acquire) != generation) return;
  // A heuristic does not take the place of what was tuned or put for other calls with this key.
  const auto present = record.origin == Origin::heuristics ? find(id) : std::nullopt;
  if (!present || present->origin == Origin::heuristics) insert(id, std::move(record));
}

void ConfigCache::clear() {
  std::lock_guard order(state_->order);
  {
    std::lock_guard lock(state_->mutex);
    state_->records.clear();
  }
  changed();
}

size_t ConfigCache::size() const {
  std::lock_guard lock(state_->mutex);
  return state_->records.size();
}

std::vector<EntryId> ConfigCache::keys() const {
  std::lock_guard lock(state_->mutex);
  std::vector<EntryId> ids;
  state_->records.for_each_key([&](std::string_view text) { ids.push_back(separated(text)); });
  return ids;
}

std::optional<AnyConfig> ConfigCache::get(std::string device, std::string op,
                                          std::string key) const {
  auto record = find({std::move(device), std::move(op), std::move(key), {}});
  if (!record) return std::nullopt;
  return std::move(record->config);
}

void ConfigCache::erase(const EntryId& id) {
  std::lock_guard order(state_->order);
  {
    std::lock_guard lock(state_->mutex);
    state_->records.erase(text_without_spec(id));
  }
  changed();
}

}  // namespace ejk
