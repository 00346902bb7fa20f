// SPDX-License-Identifier: Apache-2.0
// Where a tuning changes its ways: how large a set is, and how fast is fast enough.
#pragma once

#include <ejk/candidates.h>
#include <ejk/tuner.h>

namespace ejk::detail {

// Larger sets are searched for their best few.
inline bool too_large_to_race(const CandidateSet& set) { return set.size() > 48; }
// Of larger ones an entry has only what was looked at.
inline bool too_large_to_list(const CandidateSet& set) { return set.size() > 256; }

// 0 seconds: not measured.
inline bool is_fast_enough(double seconds, const TuneBudget& budget) {
  return seconds > 0 && seconds <= budget.target_seconds;
}

}  // namespace ejk::detail
