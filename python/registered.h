// SPDX-License-Identifier: Apache-2.0
// Kernels that libraries registered, called with arrays of the caller's.
#pragma once

#include <span>

#include <ejk/record.h>

namespace ejk::python {

// Runs the call on its arrays; what the kernel returns is copied into the last results. Throws
// Error.
void run_registered(const RecordedCall& call, const Value& config, std::span<const Tensor> results);

}  // namespace ejk::python
