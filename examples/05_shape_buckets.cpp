// SPDX-License-Identifier: Apache-2.0
// Many lengths, few choices: a `key` hook that rounds them.
#include <algorithm>
#include <cstdio>
#include <numeric>

#include <ejk/ejk.h>

// Sums of neighbours: y[i] = x[i] + x[i + 1].
struct PairSums {
  static constexpr std::string_view op_id = "pair_sums", version = "1";
  struct Config {
    size_t block = 64;
  };

  void run(const Config& config, std::span<const float> x, ejk::Out<std::span<float>> y) const {
    for (size_t begin = 0; begin < y->size(); begin += config.block)
      for (size_t i = begin; i < std::min(begin + config.block, y->size()); ++i)
        (*y)[i] = x[i] + x[i + 1];
  }
  // Lengths are rounded up to a power of two, and up to 64 they are all alike.
  auto key(std::span<const float> x, const ejk::Out<std::span<float>>&) const {
    return ejk::bucketed(x, {64});
  }
  // Asked for every exact length: of a bucket, the shortest may be too short for a config.
  bool is_valid(const Config& config, const ejk::Invocation& inv) const {
    return config.block > 0 && config.block <= static_cast<size_t>(inv.args[0].shape[0]);
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {.block = 1}; }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const { return {{16}, {64}, {256}}; }
};

int main() {
  int tunings = 0;
  ejk::SelectorOptions options;
  options.policy = ejk::AutotunePolicy{.budget_seconds = 0.5};
  options.on_event = [&](const ejk::Event& event) { tunings += event.kind == "autotune_finish"; };
  const ejk::Executor executor(options);

  bool right = true;
  for (size_t length = 600; length < 1000; length += 10) {
    std::vector<float> x(length), y(length - 1);
    std::iota(x.begin(), x.end(), 0.f);
    executor(PairSums{}, x, y);
    right = right && y.front() == 1 && y.back() == static_cast<float>(2 * length - 3);
  }
  std::printf("40 lengths, %d tuning\n", tunings);
  return right && tunings == 1 ? 0 : 1;
}
