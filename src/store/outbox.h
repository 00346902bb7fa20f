// SPDX-License-Identifier: Apache-2.0
// Notes of entries that a database shall get: files beside those of the local store, so that
// another process can send what this one could not.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ejk/store.h>

#include "base/warn.h"

namespace ejk::detail {

// What is sent to a database: what notes say that it does not have, or everything.
enum class Push : uint8_t { noted, everything };

class Outbox {
 public:
  // `store`: the directory of the local store. Made when it is needed.
  explicit Outbox(std::string store) : store_(std::move(store)) {}

  struct Note {
    std::string name;
    EntryId call;
    IfPresent if_present = IfPresent::keep_better;
    std::string environment;  // environment_id of the entry; "": an older version wrote the note
  };
  // Its name; "" if it could not be written.
  std::string add(const Entry& entry, IfPresent if_present) const;
  void remove(const std::string& name) const;  // nothing if it is gone
  // At most so many. Those that cannot be read now, or are a stranger's with strict trust, are
  // passed over; a file that is not a note is removed.
  std::vector<Note> notes() const;
  bool empty() const;

 private:
  std::string store_;
};

}  // namespace ejk::detail
