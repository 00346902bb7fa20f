// SPDX-License-Identifier: Apache-2.0
// The memory tier: configurations by device, op and call key.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ejk/any_config.h>
#include <ejk/config.h>
#include <ejk/detail/export.h>
#include <ejk/store.h>

namespace EJK_EXPORT ejk {

// Which tier a configuration came from.
enum class Origin : uint8_t { override_, overlay, memory, persistent, autotune, heuristics };
std::string_view origin_name(Origin origin);

// Configurations of this process. Thread-safe. Any number of selectors may share one cache; each
// has its own warm table in front of it.
//   - A put from outside, an erase or a clear makes these tables void.
//   - Configs that you put stay.
//   - Of those that selections keep, the least recently used ones are dropped when there are more
//     than most_shapes calls; such a call is chosen again.
//
// Derive from it to bring your own: override find, insert and clear, each safe to call from several
// threads at once, and call changed() whenever what they hold changes other than through insert.
class ConfigCache {
 public:
  // What the cache holds for one call.
  struct Record {
    AnyConfig config;                // shared with every caller that found it; never changed
    Origin origin = Origin::memory;  // heuristics: may be passed over once tuning is possible
    std::string spec;                // "": matches any call with that key
  };

  // How many calls a cache remembers by default.
  static constexpr size_t default_most_shapes = size_t{1} << 16;

  explicit ConfigCache(size_t most_shapes = default_most_shapes);
  virtual ~ConfigCache();

  // The record for exactly that call: a record with another spec than id's is not found.
  virtual std::optional<Record> find(const EntryId& id) const;
  virtual void insert(const EntryId& id, Record record);
  virtual void clear();
  virtual size_t size() const;
  // What it holds, without specs, in no particular order.
  virtual std::vector<EntryId> keys() const;

  // For people: by text, any config type. A kernel whose Config is of another type reads the same
  // fields from it, or passes it over. What is put replaces what was there and counts for calls
  // from then on; get gives nullopt and erase does nothing if there is nothing under that key.
  template <class C>
  void put(std::string device, std::string op, std::string key, C config) {
    put_any({std::move(device), std::move(op), std::move(key), {}}, make_config(std::move(config)));
  }
  void put_any(const EntryId& id, AnyConfig config);
  std::optional<AnyConfig> get(std::string device, std::string op, std::string key) const;
  bool contains(std::string device, std::string op, std::string key) const {
    return get(std::move(device), std::move(op), std::move(key)).has_value();
  }
  void erase(const EntryId& id);

  // Inserts unless something was put, erased or cleared since `generation`: a config that
  // you put is not overwritten by a selection that began before.
  void keep(const EntryId& id, Record record, uint64_t generation);
  // Counts the changes that came from outside; warm tables compare it.
  uint64_t generation() const noexcept { return generation_.load(std::memory_order_acquire); }

 protected:
  // Makes every warm table in front of this cache void. Call it after the change.
  void changed() noexcept { generation_.fetch_add(1, std::memory_order_acq_rel); }

 private:
  struct State;
  std::shared_ptr<State> state_;
  std::atomic<uint64_t> generation_{0};
};

}  // namespace ejk
