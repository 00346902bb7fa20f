// SPDX-License-Identifier: Apache-2.0
// A store that is a database of PostgreSQL: one row per entry, schema.sql says how. By itself it
// waits for the network at every question; store/shared.h has it behind a directory.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ejk/store.h>

#include "base/warn.h"
#include "store/postgres/link.h"

namespace ejk::detail {

// The version of the schema that this version of the library makes and knows.
inline constexpr int postgres_schema = 3;

// What the timed calls of a folder may have taken; more is read as this, so that sums stay finite.
inline constexpr double max_timed_seconds = 1e12;

class PostgresStore final : public Store {
 public:
  struct Options {
    double connect_seconds = 1, get_seconds = 0.25, put_seconds = 2, prefetch_seconds = 2;
    bool connect_again = false;  // if it refuses, for connect_seconds
    double lease_seconds = 60;   // without a sign of its holder, which gives four in that time
    double idle_seconds = 30;
    postgres::Breaker::Options breaker = {};
    WarningSink on_warning = {};
    Value environment = {};  // of this process; default: that of the entry's device
    std::string meanwhile = "Nothing is read from it or written to it";
    std::function<void()> on_return = {};
  };
  // Throws Error(invalid_argument) if it is no URL of a database. Connects when it is first needed.
  PostgresStore(const std::string& url, Options options);

  std::optional<Entry> get(const EntryId& id, Detail detail = Detail::all,
                           const Value* environment = nullptr) override;
  bool put(const Entry& entry, IfPresent if_present = IfPresent::keep_better) override;
  bool erase(const EntryId& id) override;
  void for_each(std::string_view op, const std::function<bool(const Entry&)>& visit,
                Detail detail = Detail::all) override;
  // Which devices a reader needs; nothing of others is sent. Default: all.
  using Wanted = std::function<bool(const std::string& device)>;
  // The same; false if not all of it could be read, which is said.
  bool read_all(std::string_view op, const std::function<bool(const Entry&)>& visit, Detail detail,
                const Wanted& wanted = {});
  std::unique_ptr<TuningLease> lease(const EntryId& id, double patience_seconds) override;
  std::string where() const override;                          // without secrets
  bool writable() const override { return !refuses_writes_; }  // as far as it is known yet
  bool may_replace() const { return !refuses_replacing_; }

  // What became of an entry that was put.
  enum class Sent {
    kept,   // it is there, or something better
    later,  // perhaps it is: the database could not be asked
    never,  // the database does not take it
  };
  Sent send(const Entry& entry, IfPresent if_present);

  // The choices of all calls of an op on a device, without candidates; what answers in
  // `environment` if there are several. Rows are read when they are asked for: a program needs few.
  struct Prefetched {
    std::map<std::string, postgres::Row> rows;  // by call_id
    bool complete = false;                      // false: there are more, or it did not answer
    bool answered = false;
  };
  Prefetched prefetch(const std::string& device, const std::string& op, const Value& environment);
  double longest_prefetch() const { return options_.connect_seconds + options_.prefetch_seconds; }
  // What serves the call among them.
  std::optional<Entry> find(const Prefetched& among, const EntryId& id);

  struct Leased {
    std::unique_ptr<TuningLease> lease;
    bool cannot_lock = false;  // it could not be asked, or does not let this role
  };
  Leased try_lease(const EntryId& id, double patience_seconds);

  // A recorded call, and how often it was made as one source counted, or all together.
  struct CallCount {
    std::string call;    // call_id
    EntryId id;          // read ones have no spec
    std::string record;  // its document, without counts
    uint64_t calls = 0, timed_calls = 0;
    double timed_seconds = 0;
    std::string first, last;
  };
  // Takes the place of what this source (16 hex digits) said of these calls before, unless that was
  // more. Each call once.
  Sent count_calls(const std::string& source, const std::vector<CallCount>& calls);
  // What all sources counted together. False if not all of it could be read, which is said.
  bool for_each_call(const std::function<void(CallCount)>& visit, double seconds_per_question,
                     const Wanted& wanted = {});

  bool is_away() const { return link_->is_away(); }
  // Any other question, for the tool.
  postgres::Answer ask(postgres::Query query) { return link_->ask(std::move(query)); }

 private:
  struct RowToRead;
  std::optional<Entry> read(const RowToRead& row, Detail detail);
  // Calls `read` for each wanted device of that table, as the table has it; nullopt: all are
  // wanted. False if a `read` was, or if the devices could not be read, which is said.
  bool for_each_device(const std::string& table, const Wanted& wanted, double seconds,
                       const std::function<bool(const postgres::Field& device)>& read);
  bool read_all_of(const postgres::Field& device, std::string_view op,
                   const std::function<bool(const Entry&)>& visit, Detail detail);
  bool for_each_call_of(const postgres::Field& device, const std::function<void(CallCount)>& visit,
                        double seconds_per_question);
  std::string greeted(const postgres::Answer& answer);
  void report(const postgres::Answer& answer);
  void report_unread(const postgres::Answer& answer);
  const Value& here(const EntryId& id, const Value* environment) const;

  Options options_;
  base::OnceWarnings warn_;
  std::atomic<bool> refuses_writes_ = false, refuses_replacing_ = false;
  std::shared_ptr<postgres::Link> link_;  // last: its thread uses what is above
};

// The text that makes the schema from one of that version, for who may; 0: from nothing.
std::string postgres_schema_script(int from = 0);

}  // namespace ejk::detail
