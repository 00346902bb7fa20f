// SPDX-License-Identifier: Apache-2.0
// Members of a config that say how many threads to use: integers called threads or num_threads.
#pragma once

#include <optional>

#include <ejk/store.h>

namespace ejk::detail {

// Whether a config, or a part of it, says how many threads to use.
bool speaks_of_threads(const Value& config);
// Whether one of these is not 1: kernels may take 0 or -1 for as many as there are cores.
bool asks_for_several_threads(const Value& config);
bool fits_these_cores(const Value& config);  // it asks for no more threads than run here
// Where it was tuned fewer threads could run than here, and threads are what it is about.
bool tuned_with_fewer_cores(const Entry& entry);
// The entry's config if no more threads are asked for than run here. Else what a tuning with more
// cores knows of this many: of the candidates that took part with fewer threads than the winner,
// the fastest. Parts of it that were not measured (of a gradient) may still have asked for more.
std::optional<Value> config_for_these_cores(const Entry& entry);

}  // namespace ejk::detail
