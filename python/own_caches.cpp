// SPDX-License-Identifier: Apache-2.0
// Caches of the program's own, as the memory tier and as a store. What they raise is raised.
#include "own_caches.h"

#include <ejk/names.h>

namespace ejk::python {

thread_local nb::handle selection;

namespace {

nb::object asked(nb::handle cache, const EntryId& id) {
  return cache.attr("get")(id.device, id.op, id.key);
}

void told(nb::handle cache, const EntryId& id, const nb::object& config) {
  cache.attr("put")(id.device, id.op, id.key, config);
}

class OwnCache final : public ConfigCache {
 public:
  explicit OwnCache(nb::handle overlay) : overlay_(overlay) {}

  std::optional<Record> find(const EntryId& id) const override {
    const Gil held;
    const nb::object found = asked(cache(), id);
    if (found.is_none()) return std::nullopt;
    return Record{config_of(found, id.op), Origin::memory, {}};
  }
  void insert(const EntryId& id, Record record) override {
    const Gil held;
    told(cache(), id, object_of(record.config));
  }

 private:
  nb::object cache() const {
    return overlay_ ? nb::borrow(overlay_) : nb::object(selection.attr("own_cache"));
  }
  nb::handle overlay_;  // the caller's; nullptr: the selection's cache
};

class OwnStore final : public Store {
 public:
  std::optional<Entry> get(const EntryId& id, Detail, const Value*) override {
    const Gil held;
    const nb::object found = asked(selection.attr("own_persistent"), id);
    if (found.is_none()) return std::nullopt;
    Entry entry;
    entry.id = id;
    entry.config = config_of(found, id.op).to_value();
    entry.provenance = name_of(Provenance::put);
    return entry;
  }
  bool put(const Entry& entry, IfPresent) override {
    if (entry.outcome == Outcome::failed) return true;  // there is no config to put
    const Gil held;
    told(selection.attr("own_persistent"), entry.id, config_reader->read(entry.config));
    return true;
  }
  bool erase(const EntryId&) override { return false; }
  void for_each(std::string_view, const std::function<bool(const Entry&)>&, Detail) override {}
  std::unique_ptr<TuningLease> lease(const EntryId&, double) override { return nullptr; }
  std::string where() const override { return "a store of the program's own"; }
  bool writable() const override { return true; }
};

}  // namespace

std::shared_ptr<ConfigCache> own_cache() { return std::make_shared<OwnCache>(nb::handle()); }
std::shared_ptr<Store> own_store() { return std::make_shared<OwnStore>(); }
std::shared_ptr<ConfigCache> own_overlay(nb::handle cache) {
  return std::make_shared<OwnCache>(cache);
}

}  // namespace ejk::python
