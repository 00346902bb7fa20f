// SPDX-License-Identifier: Apache-2.0
// Calls that are told to fail: FAKE_CUDA_FAIL=cuLaunchKernel:2:700 for the second launch.
#pragma once

namespace emulated {

// Counts the call. 0, or the status that it shall return.
int injected_failure(const char* call);

// Counts from the beginning, with what the environment says now.
void forget_calls();

// How often it was called.
int calls_of(const char* call);

}  // namespace emulated
