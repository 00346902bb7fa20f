// SPDX-License-Identifier: Apache-2.0
// A first kernel: a plain struct, called through an executor that finds its block size.
#include <algorithm>
#include <cstdio>
#include <span>
#include <vector>

#include <ejk/ejk.h>

struct Saxpy {  // y += alpha x
  static constexpr std::string_view op_id = "saxpy_blocks", version = "1";
  struct Config {
    int block = 1024;
  };

  void run(const Config& config, ejk::Unkeyed<float> alpha, std::span<const float> x,
           std::span<float> y) const {
    const auto block = static_cast<size_t>(config.block);
    for (size_t begin = 0; begin < y.size(); begin += block)
      for (size_t i = begin; i < std::min(begin + block, y.size()); ++i) y[i] += alpha * x[i];
  }
  // What is stored may come from elsewhere: a block of 0 would run for ever.
  bool is_valid(const Config& config, const ejk::Invocation&) const { return config.block > 0; }
  Config heuristic_cfg(const ejk::Invocation&) const { return {.block = 1024}; }  // a guess
  auto candidate_cfgs(const ejk::Invocation&) const {                             // what to measure
    return ejk::space<Config>().param(&Config::block, {1, 16, 256, 1024, 4096});
  }
};

int main() {
  std::vector<float> x(10'000, 1.f), y(10'000, 1.f);
  ejk::Executor executor;        // asks memory, then disk, then measures, then takes the heuristic
  executor(Saxpy{}, 2.f, x, y);  // the first call measures on copies, keeps the result, runs once
  executor(Saxpy{}, 3.f, x, y);  // from now on: one table probe
  const auto [config, origin] = executor.choose_config(Saxpy{}, 2.f, x, y);
  std::printf("block %d, known from %s; y[0] = %g\n", config.block, origin_name(origin).data(),
              double{y[0]});
  return std::all_of(y.begin(), y.end(), [](float v) { return v == 6.f; }) ? 0 : 1;
}
