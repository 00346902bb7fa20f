// SPDX-License-Identifier: Apache-2.0
// Members of a config that say how many threads to use: integers called threads or num_threads.
#pragma once

#include <ejk/value.h>

namespace ejk::detail {

// Whether a config, or a part of it, says how many threads to use.
bool speaks_of_threads(const Value& config);
// Whether one of these is not 1: kernels may take 0 or -1 for as many as there are cores.
bool asks_for_several_threads(const Value& config);
// Asks for as many threads as run here at most. Returns how many of its members asked for more.
int lower_threads(Value& config);

}  // namespace ejk::detail
