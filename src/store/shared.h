// SPDX-License-Identifier: Apache-2.0
// A local store in front of a database that many machines share. What is near answers; the database
// is asked for what is not there, and gets what is put. Without it everything goes on as if there
// were the local store alone, and what it missed is sent when it is back.
#pragma once

#include <array>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include <ejk/open_store.h>
#include <ejk/store.h>

#include "store/outbox.h"
#include "store/postgres/postgres_store.h"

namespace ejk::detail {

class SharedStore final : public Store {
 public:
  // Throws Error(invalid_argument) if it is no URL of a database.
  SharedStore(std::shared_ptr<DirectoryStore> near, const std::string& url,
              PostgresStore::Options options);
  ~SharedStore() override;  // sends what is left, for about a second
  SharedStore(const SharedStore&) = delete;
  SharedStore& operator=(const SharedStore&) = delete;

  std::optional<Entry> get(const EntryId& id, Detail detail = Detail::all,
                           const Value* environment = nullptr) override;
  bool put(const Entry& entry, IfPresent if_present = IfPresent::keep_better) override;
  bool erase(const EntryId& id) override;
  // Near, then what is only far.
  void for_each(std::string_view op, const std::function<bool(const Entry&)>& visit,
                Detail detail = Detail::all) override;
  // The same; false if not all that is far could be read, which is said.
  bool read_all(std::string_view op, const std::function<bool(const Entry&)>& visit, Detail detail,
                const PostgresStore::Wanted& wanted = {});
  // Far, so that one process of all machines tunes a call; near if that cannot lock.
  std::unique_ptr<TuningLease> lease(const EntryId& id, double patience_seconds) override;
  std::string where() const override;
  bool writable() const override { return near_->writable(); }
  std::string local_directory() const override { return near_->local_directory(); }

  // Sends what the outbox names, or everything near, until `go_on` returns false.
  struct Pushed {
    size_t sent = 0;     // they are there, or something better
    size_t refused = 0;  // the database does not take them
    size_t left = 0;     // it could not be asked
  };
  Pushed push(Push what, const std::function<bool(size_t done)>& go_on = {});

  PostgresStore& far() { return *far_; }
  const std::string& url() const { return url_; }  // with its password: not to be shown

 private:
  struct Sender;
  // What an op has on a device, as far as it was asked for at once. One call asks; the others of
  // the op wait for the answer.
  struct Prefetched {
    bool arrived = false;
    PostgresStore::Prefetched choices = {};  // does not change any more
    double until = 0;                        // what is not among them is not there
    std::set<std::string> changed = {};      // calls that they say nothing about
  };

  std::optional<Entry> ask_far(const EntryId& id, Detail detail, const Value& here);
  std::optional<Entry> prefetched(const EntryId& id, const Value& here, bool& known);
  void forget(const EntryId& id);
  PostgresStore::Sent send(const Entry& entry, IfPresent if_present);
  const Value& here(const EntryId& id, const Value* environment) const;

  const std::shared_ptr<DirectoryStore> near_;
  const std::string url_;
  const Value environment_;
  const Outbox outbox_;
  std::mutex mutex_;  // not held while the database is asked
  std::condition_variable arrived_;
  // By device, op, environment.
  std::map<std::array<std::string, 3>, std::shared_ptr<Prefetched>> prefetched_;
  std::shared_ptr<Sender> sender_;
  std::unique_ptr<PostgresStore> far_;
};

// The one behind the first layer; nullptr: there is none.
SharedStore* database_of(const PersistentCache& layers);

// As ejk::open_store does, with other deadlines for a database.
std::shared_ptr<Store> open_store(const std::string& address, OpenStoreOptions options,
                                  PostgresStore::Options far);

}  // namespace ejk::detail
