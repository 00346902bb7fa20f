// SPDX-License-Identifier: Apache-2.0
// In which order sums over rows are made.
#pragma once

#include <algorithm>
#include <cstdint>

namespace ejk::ops {

// Rows whose contributions to sums over rows (gradients of weights) are added up together, then
// group after group: the order of additions depends on the number of rows alone.
inline int64_t rows_per_group(int64_t rows) { return std::max<int64_t>(16, (rows + 63) / 64); }

}  // namespace ejk::ops
