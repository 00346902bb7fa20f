// SPDX-License-Identifier: Apache-2.0
// The document of `ejk report`.
#pragma once

#include "stores.h"

namespace ejk::cli {

// An entry with everything that was measured.
Value entry_report(const Held& held);
// Of these: "summary", "gains", "recorded" (null), "entries".
Value report_of(Value entries);
// Of what a store holds, with "recorded" (as coverage_document) if calls are recorded.
Value report_of_store(const Filter& filter, const KernelOptions& kernels, Problems& problems);

// Of an entry or candidate: whether it has enough samples for an interval.
bool has_interval(const Value& measured);

}  // namespace ejk::cli
