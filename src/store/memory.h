// SPDX-License-Identifier: Apache-2.0
// A store that lasts as long as its process: for plans, which ask about many calls at once.
#pragma once

#include <array>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include <ejk/store.h>

namespace ejk::detail {

class MemoryStore final : public Store {
 public:
  // Without an environment: that of the device that is asked about.
  explicit MemoryStore(Value environment = {}, std::string where = "memory", WarningSink warn = {});

  std::optional<Entry> get(const EntryId& id, Detail detail = Detail::all,
                           const Value* environment = nullptr) override;
  bool put(const Entry& entry, IfPresent if_present = IfPresent::keep_better) override;
  bool erase(const EntryId& id) override;
  void for_each(std::string_view op, const std::function<bool(const Entry&)>& visit,
                Detail detail = Detail::all) override;
  std::unique_ptr<TuningLease> lease(const EntryId& id, double patience_seconds) override;
  std::string where() const override { return where_; }
  bool writable() const override { return true; }

  // As put does, but for looking whether it could be read back: it was just read.
  void take(Entry entry);

 private:
  using Key = std::array<std::string, 3>;       // device, op, key
  using Places = std::map<std::string, Entry>;  // by environment
  using Calls = std::map<std::string, Places>;  // by spec
  struct Held;
  void keep(Entry entry, IfPresent if_present);

  const Value environment_;
  const std::string where_;
  const WarningSink warn_;
  std::mutex mutex_;
  std::map<Key, Calls> entries_;
  std::set<std::string> leased_;
  std::condition_variable released_;
};

}  // namespace ejk::detail
