// SPDX-License-Identifier: Apache-2.0
// Gradients of a kernel, and one configuration for a whole batch.
#include <cstdio>

#include "kernels.h"

struct Dot {
  static constexpr std::string_view op_id = "dot", version = "1";
  struct Config {
    size_t block = 256;  // elements per partial sum
  };
  using In = std::span<const float>;
  using Gradient = std::vector<float>;

  float run(const Config& config, In x, In y) const {
    float sum = 0;
    for (size_t begin = 0; begin < x.size(); begin += config.block) {
      float part = 0;
      for (size_t i = begin; i < std::min(begin + config.block, x.size()); ++i) part += x[i] * y[i];
      sum += part;
    }
    return sum;
  }
  bool is_valid(const Config& config, const ejk::Invocation&) const { return config.block > 0; }
  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const { return {{16}, {256}, {4096}}; }

  // Forward also gives what backward needs; vjp turns it into one gradient per argument.
  std::pair<float, std::pair<In, In>> fwd_with_residuals(const Config& c, In x, In y) const {
    return {run(c, x, y), {x, y}};
  }
  std::tuple<Gradient, Gradient> vjp(const Config&, const std::pair<In, In>& kept, float dy) const {
    Gradient dx(kept.second.begin(), kept.second.end()), dz(kept.first.begin(), kept.first.end());
    for (float& g : dx) g *= dy;
    for (float& g : dz) g *= dy;
    return {dx, dz};
  }
};

int main() {
  ejk::Executor executor;
  const auto budget = ejk::policy_override({.budget_seconds = 0.5});
  const std::vector<float> x{1, 2, 3}, z{4, 5, 6};
  const auto [out, pull] = executor.vjp(Dot{}, x, z);
  const auto [dx, dz] = pull(2.f);
  std::printf("dot %g; for 2: dx[0] %g, dz[2] %g\n", double{out}, double{dx[0]}, double{dz[2]});
  if (out != 32 || dx != Dot::Gradient{8, 10, 12} || dz != Dot::Gradient{2, 4, 6}) return 1;

  // 64 rows at once: one choice, rows spread over the cores, the scalar shared by all.
  const auto a = ejk::Tensor::of<float>({64, 1000}), b = ejk::Tensor::of<float>({64, 1000});
  for (int64_t i = 0; i < a.size(); ++i) a.data<float>()[i] = 1, b.data<float>()[i] = 3;
  ejk::vmap_with_config(executor, examples::Saxpy{}, ejk::none, 0, 0)(2.f, a, b);  // b += 2 a
  const std::vector<float> dots = ejk::vmap_with_config(executor, Dot{}, 0, 0)(a, b);
  std::printf("%zu dot products, the last is %g\n", dots.size(), double{dots.back()});
  return dots == std::vector<float>(64, 5000.f) ? 0 : 1;
}
