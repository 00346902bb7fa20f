// SPDX-License-Identifier: Apache-2.0
// Snapshots: the choices of a store as one text that never changes, named by the SHA-256 of its
// bytes. A program that is launched with one answers from it alone.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ejk/store.h>

#include "store/memory.h"

namespace ejk::detail {

// One line of JSON each, sorted, without candidates: equal choices have equal bytes. Of the entries
// of one call, and of failed tunings, the caller leaves out what does not answer.
std::string snapshot_text(std::vector<Entry> entries);
// Throws Error(parse) for any other text.
std::vector<Entry> entries_of_snapshot(std::string_view text);
std::string name_of_snapshot(std::string_view text);  // 64 hex digits

// HASH, or PLACE#HASH; HASH may begin with "sha256:".
struct SnapshotAddress {
  std::string place;  // a file, a store's directory or a database; "": the default store's layers
  std::string name;
};
// Throws Error(invalid_argument) for any other text.
SnapshotAddress read_snapshot_address(const std::string& text);

// Its text, whose name was checked. What comes from a database is kept in the directory in front of
// it. Throws Error(io) if it cannot be had, or if its bytes are not those that the name says.
std::string fetch_snapshot(const SnapshotAddress& address);
// Puts it into a store, a directory or a database; gives its name. Throws Error(io).
std::string publish_snapshot(std::string_view text, const std::string& store);

struct PublishedSnapshot {
  std::string name;
  size_t bytes = 0;
  std::string author, time;  // of a database
};
// Of a store, a directory or a database. Throws Error(io).
std::vector<PublishedSnapshot> published_snapshots(const std::string& store);

// Answers with what is in a snapshot, and takes nothing.
class SnapshotStore final : public Store {
 public:
  explicit SnapshotStore(std::string_view text);  // throws Error(parse)

  std::optional<Entry> get(const EntryId& id, Detail detail = Detail::all,
                           const Value* environment = nullptr) override;
  bool put(const Entry&, IfPresent) override { return false; }
  bool erase(const EntryId&) override { return false; }
  void for_each(std::string_view op, const std::function<bool(const Entry&)>& visit,
                Detail detail = Detail::all) override;
  std::unique_ptr<TuningLease> lease(const EntryId&, double) override { return nullptr; }
  std::string where() const override { return where_; }  // "snapshot HASH"
  bool writable() const override { return false; }

 private:
  const std::string where_;
  MemoryStore choices_;
};

extern const char* const snapshot_variable;
// That which $EJKERNEL_PERSISTENT_CACHE_SNAPSHOT names, loaded once; nullptr: it is not set. Throws
// what reading it throws.
std::shared_ptr<SnapshotStore> snapshot_of_launch();

}  // namespace ejk::detail
