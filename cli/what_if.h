// SPDX-License-Identifier: Apache-2.0
// What a store gives recorded calls.
#pragma once

#include <vector>

#include <ejk/record.h>
#include <ejk/store.h>

namespace ejk::cli {

// "coverage" (shares "calls" and "time"), "expected_regret_seconds", "seconds", "calls", "shapes",
// "tiers" (a list from best to worst) and "to_tune" (what tuning would pay, the most first).
Value coverage_document(const std::vector<RecordedCall>& calls, const PersistentCache& store);

}  // namespace ejk::cli
