// SPDX-License-Identifier: Apache-2.0
// Recorded calls in a database. A folder sends the counts that stand in its files, not what was
// added to them, under a name of its own: sending them again changes nothing, from any process.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ejk/record.h>

#include "store/outbox.h"
#include "store/postgres/postgres_store.h"

namespace ejk::detail {

class CallSender {
 public:
  // Throws Error(invalid_argument) if it is no URL of a database.
  CallSender(std::string folder, const std::string& url, PostgresStore::Options options);

  // Where a call is kept, in the folder.
  struct File {
    std::string folder, name;
  };
  struct Sent {
    size_t sent = 0;     // calls
    size_t refused = 0;  // the database does not take them
    size_t left = 0;     // it could not be asked
  };
  // `go_on` is asked between batches.
  using GoOn = std::function<bool(size_t done)>;
  Sent send(const std::vector<File>& files, const GoOn& go_on);

  // Says in the folder that something of it is to be sent, for those who come later if this process
  // dies before it did; once until that is taken back.
  void leave_note();
  void take_note_back();
  // Sends what such notes are about, or all of the folder.
  Sent push(Push what, const GoOn& go_on);

  PostgresStore& database() { return database_; }

 private:
  class Batch;
  std::string source();

  const std::string folder_;
  std::string source_, note_;
  PostgresStore database_;
};

}  // namespace ejk::detail
