// SPDX-License-Identifier: Apache-2.0
// bench/opencl: what tuning is worth on shapes that no guess was made with.
#pragma once

#include "matmul.h"

namespace bench {

struct Gains {
  std::vector<double> over_guess, over_median, over_median_of_all;
};

// Beside the guess, and beside the median of configs that are drawn from what the kernel offers,
// each as likely as any other. For a CPU behind OpenCL that is one item per group, and tiles that
// fit its registers: what is known to be slow there is left out. Beside them configs
// that the kernel has for GPUs too, as far as they can run here.
template <class Call>
void measure_gain(const std::string& name, const Call& call, double seconds, Gains& gains) {
  constexpr int drawn = 15, rounds = 31, drawn_of_all = 9, rounds_of_all = 3;
  const auto guess = call.guess();
  const auto tuned = call.tuned(seconds);
  std::vector<Work> works{call.run(tuned), call.run(guess), call.run(tuned)};
  for (const auto& config : call.drawn(Of::this_device, drawn)) works.push_back(call.run(config));
  std::vector<double> times;
  for (const auto& samples : interleave(works, rounds)) times.push_back(median(samples));
  const bool same = ejk::to_json(tuned) == ejk::to_json(guess);
  gains.over_guess.push_back(same ? 1 : times[1] / times[0]);
  gains.over_median.push_back(median({times.begin() + 3, times.end()}) / times[0]);
  std::vector<Work> all{call.run(tuned)};
  for (const auto& config : call.drawn(Of::all_devices, drawn_of_all))
    all.push_back(call.run(config));
  std::vector<double> times_of_all;
  for (const auto& samples : interleave(all, rounds_of_all))
    times_of_all.push_back(median(samples));
  gains.over_median_of_all.push_back(median({times_of_all.begin() + 1, times_of_all.end()}) /
                                     times_of_all[0]);
  std::printf(
      "%s: tuned over guess %.3f (A/A %.3f), over the median of %zu drawn for this device %.2f, of "
      "%zu for all devices %.2f\n",
      name.c_str(), gains.over_guess.back(), times[2] / times[0], times.size() - 3,
      gains.over_median.back(), all.size() - 1, gains.over_median_of_all.back());
}

inline void tuning_figures(const Options& options, Figures& figures) {
  const double seconds = options.seconds / 6;
  Gains gains;
  for (const Shape& shape : {Shape{384, 640, 512}, Shape{777, 777, 777}, Shape{48, 2048, 512},
                             Shape{1, 4096, 1024}, Shape{8, 1024, 4096}, Shape{2000, 24, 300}})
    measure_gain("matmul " + shape.text(), Product(shape).call, seconds, gains);
  const Tensor x = random_there({300, 1536}), y = random_there({1000, 257});
  measure_gain("rms_norm 300x1536",
               DeviceCall(ejk::ops::RmsNorm<float>{}, x, random_there({1536}), 1e-6f, x.clone()),
               seconds, gains);
  measure_gain("softmax 1000x257", DeviceCall(ejk::ops::Softmax<float>{}, y, 1.f, y.clone()),
               seconds, gains);
  const auto sequence = [] { return random_there({1, 384, 6, 80}); };
  measure_gain("flash_attention 384, 6 heads of 80",
               DeviceCall(ejk::ops::FlashAttention{}, sequence(), sequence(), sequence(),
                          ejk::ops::AttentionOptions{}),
               seconds, gains);
  const auto keys = [] { return random_there({3, 1500, 2, 64}); };
  measure_gain("decode_attention 1500, 8 heads of 64",
               DeviceCall(ejk::ops::DecodeAttention{}, random_there({3, 8, 64}), keys(), keys(),
                          std::span<const int32_t>(), ejk::ops::DecodeOptions{}),
               seconds, gains);
  figures.emplace_back("tuned_over_heuristic_geomean", geomean(gains.over_guess));
  figures.emplace_back("tuned_over_median_geomean", geomean(gains.over_median));
  figures.emplace_back("tuned_over_median_of_all_geomean", geomean(gains.over_median_of_all));
}

}  // namespace bench
