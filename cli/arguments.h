// SPDX-License-Identifier: Apache-2.0
// Arguments as they are given on the command line.
#pragma once

#include <cstdint>
#include <string>

#include <ejk/value.h>

namespace ejk::cli {

// The sketch of an argument, as records hold them. Arrays are "f32[512,512]", "i32[64]:0..1023"
// (its elements are in that range) and "i32[101]:0..800:rising" (they also rise, from the first
// bound to the last one). "some(ARG)" and "null" are optional arguments; other texts are JSON,
// or else strings. Throws Failure(usage).
Value sketch_from_line(const std::string& text, int64_t seed);

}  // namespace ejk::cli
