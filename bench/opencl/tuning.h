// SPDX-License-Identifier: Apache-2.0
// bench/opencl: what tuning is worth on shapes that no guess was made with.
#pragma once

#include "matmul.h"

namespace bench {

struct Gain {
  double over_guess, over_median;
};

// Beside the guess, and beside the median of configs that are drawn from the space.
template <class Call>
Gain gain(const std::string& name, const Call& call, double seconds) {
  constexpr int drawn = 9, rounds = 31;
  const auto guess = call.guess();
  const auto tuned = call.tuned(seconds);
  std::vector<Work> works{call.run(tuned), call.run(guess), call.run(tuned)};
  for (const auto& config : call.sampled(drawn)) works.push_back(call.run(config));
  std::vector<double> times;
  for (const auto& samples : interleave(works, rounds)) times.push_back(median(samples));
  const Gain out{.over_guess = tuned == guess ? 1 : times[1] / times[0],
                 .over_median = median({times.begin() + 3, times.end()}) / times[0]};
  std::printf("%s: tuned over guess %.3f (A/A %.3f), over the median of %zu candidates %.2f\n",
              name.c_str(), out.over_guess, times[2] / times[0], times.size() - 3, out.over_median);
  return out;
}

inline void tuning_figures(const Options& options, Figures& figures) {
  const std::vector<Shape> products = {{384, 640, 512}, {777, 777, 777}, {48, 2048, 512},
                                       {1, 4096, 1024}, {8, 1024, 4096}, {2000, 24, 300}};
  std::vector<double> over_guess, over_median;
  for (const Shape& shape : products) {
    const auto [guess, other] = gain("matmul " + shape.text(), Product(shape).call,
                                     options.seconds / static_cast<double>(products.size()));
    over_guess.push_back(guess), over_median.push_back(other);
  }
  figures.emplace_back("tuned_over_heuristic_geomean", geomean(over_guess));
  figures.emplace_back("tuned_over_median_geomean", geomean(over_median));
}

}  // namespace bench
