// SPDX-License-Identifier: Apache-2.0
// The strategies, one file each.
#pragma once

#include <ejk/search.h>

namespace ejk::detail {

std::unique_ptr<SearchStrategy> exhaustive_search(SearchSpace space);
std::unique_ptr<SearchStrategy> random_search(SearchSpace space, uint64_t seed);
std::unique_ptr<SearchStrategy> auto_search(SearchSpace space, uint64_t seed,
                                            const std::vector<SearchHistory>& histories);

}  // namespace ejk::detail
