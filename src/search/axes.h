// SPDX-License-Identifier: Apache-2.0
// The points of a space as coordinates in which near points should behave alike.
#pragma once

#include <vector>

#include <ejk/search.h>

namespace ejk::detail {

struct Axis {
  std::vector<float> at;     // by point, from 0 to 1
  bool categorical = false;  // equal or not; how far apart says nothing
};

// At least one axis for each parameter that varies. Numbers that span a factor of four count by
// their logarithm; sizes that are not all powers of two get a second axis that tells how often two
// divides them, because alignment, warps and vector widths care.
std::vector<Axis> axes_of(const SearchSpace& space);

// The square of the distance between two points.
double squared_distance(const std::vector<Axis>& axes, size_t a, size_t b);

}  // namespace ejk::detail
