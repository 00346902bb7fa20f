// SPDX-License-Identifier: Apache-2.0
// A map by text whose size is bounded: what was not asked for for longest goes first.
#pragma once

#include <algorithm>
#include <cstddef>
#include <list>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace ejk::detail {

// Not thread-safe. What it finds stays where it is until the map is changed.
template <class V>
class RecentMap {
 public:
  explicit RecentMap(size_t most) : most_(std::max<size_t>(most, 1)) {}

  V* find(std::string_view key) {
    const auto found = places_.find(key);
    if (found == places_.end()) return nullptr;
    renew(found->second);
    return &found->second->value;
  }
  bool contains(std::string_view key) const { return places_.contains(key); }
  size_t size() const { return places_.size(); }

  // What stays does not count and goes only if it is erased.
  void insert_or_assign(std::string key, V value, bool stays = false) {
    erase(key);
    List& list = stays ? staying_ : recent_;
    list.push_front({std::move(key), std::move(value), stays});
    places_.emplace(list.front().key, list.begin());
    if (recent_.size() <= most_) return;
    places_.erase(recent_.back().key);
    recent_.pop_back();
  }
  void erase(std::string_view key) {
    const auto found = places_.find(key);
    if (found == places_.end()) return;
    const auto item = found->second;
    places_.erase(found);
    (item->stays ? staying_ : recent_).erase(item);
  }
  void clear() { places_.clear(), recent_.clear(), staying_.clear(); }

  // In the order of the keys.
  template <class F>
  void for_each_key(F&& f) const {
    for (const auto& [key, item] : places_) f(key);
  }

 private:
  struct Item {
    std::string key;
    V value;
    bool stays;
  };
  using List = std::list<Item>;

  void renew(typename List::iterator item) {
    if (!item->stays) recent_.splice(recent_.begin(), recent_, item);
  }

  size_t most_;
  List recent_, staying_;  // the latest first
  std::map<std::string_view, typename List::iterator> places_;
};

}  // namespace ejk::detail
