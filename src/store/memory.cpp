// SPDX-License-Identifier: Apache-2.0
#include "store/memory.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/time.h"
#include "base/warn.h"
#include "store/entry_file.h"
#include "store/keep.h"

namespace ejk::detail {

MemoryStore::MemoryStore(Value environment, std::string where, WarningSink warn)
    : environment_(std::move(environment)),
      where_(std::move(where)),
      warn_(base::warnings_to(std::move(warn))) {}

std::optional<Entry> MemoryStore::get(const EntryId& id, Detail detail, const Value* environment) {
  const Value& own = environment_.is_null() ? environment_here(id) : environment_;
  const Value& here = environment != nullptr ? *environment : own;
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find({id.device, id.op, id.key});
  if (found == entries_.end()) return std::nullopt;
  // Its own spec, then the key alone, which sorts first; a question by key takes what there is.
  auto call = found->second.find(id.spec);
  if (call == found->second.end())
    call = id.spec.empty() ? found->second.begin() : found->second.find("");
  if (call == found->second.end()) return std::nullopt;
  const Entry* best = nullptr;
  for (const auto& [place, entry] : call->second)
    if (best == nullptr || answers_before(entry, *best, here)) best = &entry;
  Entry out = *best;
  if (detail == Detail::choice) out.candidates.clear();
  return out;
}

bool MemoryStore::put(const Entry& entry, IfPresent if_present) {
  if (const auto text = entry_text(entry); !text) {
    warn_("[" + entry.id.op + "] not keeping an entry that could not be read back: " + text.why());
    return false;
  }
  keep(entry, if_present);
  return true;
}

void MemoryStore::take(Entry entry) { keep(std::move(entry), IfPresent::keep_better); }

void MemoryStore::keep(Entry entry, IfPresent if_present) {
  const std::lock_guard lock(mutex_);
  Places& places = entries_[{entry.id.device, entry.id.op, entry.id.key}][entry.id.spec];
  std::string place = environment_id(entry);
  const auto there = places.find(place);
  if (there == places.end()) places.emplace(std::move(place), entry);
  else if (auto now = kept(entry, there->second, if_present)) there->second = std::move(*now);
  if (if_present == IfPresent::replace)
    std::erase_if(places, [&](const auto& other) {
      return !same_place(other.second, entry) && stands_in_the_way(other.second, entry);
    });
}

bool MemoryStore::erase(const EntryId& id) {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find({id.device, id.op, id.key});
  if (found == entries_.end()) return false;
  const size_t erased = std::erase_if(found->second, [&](const auto& call) {
    return call.first == id.spec || call.first.empty() || id.spec.empty();
  });
  if (found->second.empty()) entries_.erase(found);
  return erased > 0;
}

void MemoryStore::for_each(std::string_view op, const std::function<bool(const Entry&)>& visit,
                           Detail detail) {
  std::vector<Entry> all;  // a visit may ask this store
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, calls] : entries_)
      for (const auto& [spec, places] : calls)
        for (const auto& [place, entry] : places)
          if (op.empty() || entry.id.op == op) all.push_back(entry);
  }
  for (Entry& entry : all) {
    if (detail == Detail::choice) entry.candidates.clear();
    if (!visit(entry)) return;
  }
}

struct MemoryStore::Held final : TuningLease {
  Held(MemoryStore& from, std::string what) : store(from), name(std::move(what)) {}
  ~Held() override {
    {
      const std::lock_guard lock(store.mutex_);
      store.leased_.erase(name);
    }
    store.released_.notify_all();
  }
  MemoryStore& store;
  std::string name;
};

std::unique_ptr<TuningLease> MemoryStore::lease(const EntryId& id, double patience_seconds) {
  std::string name = stable_json(Value(Value::Array{id.device, id.op, id.key, id.spec}));
  std::unique_lock lock(mutex_);
  const bool free = released_.wait_for(lock, base::duration_of(patience_seconds),
                                       [&] { return !leased_.contains(name); });
  if (!free) return nullptr;
  leased_.insert(name);
  return std::make_unique<Held>(*this, std::move(name));
}

}  // namespace ejk::detail
