// SPDX-License-Identifier: Apache-2.0
// What a store holds for recorded calls.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <ejk/offline.h>
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

// The choices of a store for these devices as they are now, each read once, for questions about
// many calls.
std::unique_ptr<PersistentCache> choices_of(const PersistentCache& store,
                                            const std::set<std::string>& devices);
std::set<std::string> devices_of(const std::vector<RecordedCall>& calls);

struct TuningPlan {
  std::vector<PlannedCall> to_tune;  // as plan_tuning gives them
  std::vector<Entry> tuned;          // of the other calls, without candidates
  std::vector<EntryId> in_vain;      // of those in which every candidate was rejected
};
TuningPlan plan_with_choices(std::vector<RecordedCall> calls, PersistentCache* choices);

}  // namespace ejk
