// SPDX-License-Identifier: Apache-2.0
// What a process that does nothing but tune does between runs, so that it takes little of the
// machine.
#pragma once

#include <functional>

namespace ejk::detail {

// Called between first runs, warm-ups and rounds; empty: they follow each other at once. Set before
// the tuning begins, in a process of its own.
inline std::function<void()> rest_between_runs;

}  // namespace ejk::detail
