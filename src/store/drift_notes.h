// SPDX-License-Identifier: Apache-2.0
// Calls that have become slower than the evidence of their entries: one file each, in
// <store>/drift.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ejk/store.h>

#include "base/file.h"

namespace ejk::detail {

// One call in one environment. It stands until the call is tuned again: what it says of an entry
// holds for that evidence only.
struct DriftNote {
  EntryId id;
  Value environment, config;
  std::string tuned;            // Evidence::time of the entry
  double evidence_seconds = 0;  // Evidence::seconds of the entry
  double now_seconds = 0;       // what calls took
  std::string time;             // UTC, ISO 8601
};

// Whether both are about the same tuning.
bool is_same_evidence(const DriftNote& a, const DriftNote& b);
bool is_about(const DriftNote& note, const Entry& entry);

// Replaces the note of that call and environment. Makes the folders it needs.
base::FileError put_drift_note(const std::string& store_path, const DriftNote& note);
std::optional<DriftNote> find_drift_note(const std::string& store_path, const EntryId& id,
                                         const Value& environment);
// All of a store, by op and time. Files that are not notes are passed over with one warning.
std::vector<DriftNote> drift_notes(const std::string& store_path, const WarningSink& warn);

}  // namespace ejk::detail
