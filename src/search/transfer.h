// SPDX-License-Identifier: Apache-2.0
// What histories from other devices or problem sizes say about the points of a space.
#pragma once

#include <cstddef>
#include <vector>

#include "search/gaussian_process.h"

namespace ejk::detail {

struct Transfer {
  // Per history, the logarithms of its times with mean 0 and variance 1, failures and very slow
  // points at its ceiling, points it lacks filled in. Histories that tell nothing are left out.
  std::vector<Trend> trends;
  Trend mean;        // of the trends; empty if there are none
  double scale = 1;  // typical standard deviation of the logarithms
};
Transfer transfer_from(const std::vector<SearchHistory>& histories, const SearchSpace& space,
                       const std::vector<Axis>& axes);

// Which of `count` things, sorted from good to bad, to keep if only `limit` can be kept: the better
// half of them, and an even sample of the others. Ascending.
std::vector<size_t> representatives(size_t count, size_t limit);

}  // namespace ejk::detail
