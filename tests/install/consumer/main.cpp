// SPDX-License-Identifier: Apache-2.0
// A kernel of a user's own, called through an executor of the installed library.
#include <cstddef>
#include <cstdio>
#include <span>
#include <string_view>
#include <vector>

#include <ejk/ejk.h>

struct Saxpy {  // y += alpha x
  static constexpr std::string_view op_id = "consumer_saxpy", version = "1";
  struct Config {
    int block = 1024;
  };

  void run(const Config& config, ejk::Unkeyed<float> alpha, std::span<const float> x,
           std::span<float> y) const {
    const auto block = static_cast<size_t>(config.block);
    for (size_t begin = 0; begin < y.size(); begin += block)
      for (size_t i = begin; i < y.size() && i < begin + block; ++i) y[i] += alpha * x[i];
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const {
    return {{256}, {1024}, {4096}};
  }
};

int main() {
  const std::vector<float> x(5000, 1.f);
  std::vector<float> y(5000, 1.f);
  ejk::Executor executor;
  executor(Saxpy{}, 2.f, x, y);  // tunes on copies, then runs once on y
  executor(Saxpy{}, Saxpy::Config{.block = 256}, 2.f, x, y);
  for (float v : y)
    if (v != 5.f) return std::printf("expected 5, got %g\n", static_cast<double>(v)), 1;
  const auto [config, origin] = executor.choose_config(Saxpy{}, 2.f, x, y);
  std::printf("block %d\n", config.block);
  return 0;
}
