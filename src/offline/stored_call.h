// SPDX-License-Identifier: Apache-2.0
// What a store holds for a recorded call.
#pragma once

#include <optional>

#include <ejk/record.h>
#include <ejk/store.h>

namespace ejk {

struct StoredCall {
  Entry entry;
  bool for_any_outputs;  // of a tuning that did not look at the outputs: the call has yet to be
                         // tuned

  bool is_tuned() const {
    return !for_any_outputs && entry.evidence.complete && entry.outcome != Outcome::failed;
  }
};

// A record from before outputs counted is tuned under the key that its call has now, so its entry
// is looked for there, too.
std::optional<StoredCall> stored_for(PersistentCache& store, const RecordedCall& call);
std::optional<StoredCall> stored_for(PersistentCache& store, const EntryId& id);

}  // namespace ejk
