// SPDX-License-Identifier: Apache-2.0
// How long a call may wait for a tuning, and saying so.
#pragma once

#include <string_view>

#include <ejk/selector.h>

namespace ejk::detail {

// For how long a call may go on with a stored tuning; 0: not at all.
double seconds_to_resume(const AutotunePolicy& policy, const Evidence& stored);

// Tells how to avoid it, once in a process, if a call has waited for more than a second.
void announce_wait(double seconds, std::string_view op, const WarningSink& warn);

}  // namespace ejk::detail
