// SPDX-License-Identifier: Apache-2.0
// bench/opencl: operations beside this library's own on the CPU.
#pragma once

#include <type_traits>

#include "part.h"

namespace bench {

// Both as they are guessed. `arguments` are those of the kernel's run, arrays as tensors.
template <class K, class... A>
double over_cpu(const std::string& name, const K& kernel, const A&... arguments) {
  const ejk::Executor guessing = executor(false);
  const auto there = [](const auto& argument) {
    if constexpr (std::is_same_v<decltype(argument), const Tensor&>) return argument.to(device());
    else return argument;
  };
  const auto copies = std::make_tuple(there(arguments)...);
  const auto [ratio, same] = race(
      [&] {
        std::apply([&](const auto&... a) { guessing(kernel, a...); }, copies);
        wait();
      },
      [&] { guessing(kernel, arguments...); });
  std::printf("%s over the CPU's %.3f (A/A %.3f)\n", name.c_str(), ratio, same);
  return ratio;
}

inline void row_figures(const Options&, Figures& figures) {
  const Tensor x = random_tensor({512, 4096}), weight = random_tensor({4096}),
               out = Tensor::of<float>({512, 4096});
  figures.emplace_back("rms_norm_own",
                       over_cpu("rms_norm", ejk::ops::RmsNorm<float>{}, x, weight, 1e-6f, out));
  figures.emplace_back("softmax_own", over_cpu("softmax", ejk::ops::Softmax<float>{}, x, 1.f, out));
}

inline void flash_figures(const Options&, Figures& figures) {
  for (const bool causal : {false, true}) {
    const std::string name = causal ? "flash_causal" : "flash_full";
    ejk::ops::AttentionOptions options;
    options.causal = causal;
    std::vector<double> ratios;
    for (const int64_t length : {512, 2048}) {
      const auto array = [&] { return random_tensor({1, length, 8, 64}); };
      ratios.push_back(over_cpu(name + " " + std::to_string(length), ejk::ops::FlashAttention{},
                                array(), array(), array(), options));
    }
    figures.emplace_back(name + "_own", geomean(ratios));
  }
}

}  // namespace bench
