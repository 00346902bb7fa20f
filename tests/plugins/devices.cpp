// SPDX-License-Identifier: Apache-2.0
// Kernels for devices: one for the CPU too, with configs of its own there, and one for nothing
// else.
#include <algorithm>
#include <span>
#include <vector>

#include <ejk/gpu.h>
#include <ejk/registry.h>

namespace {

struct Scaled {  // y = factor x
  static constexpr std::string_view op_id = "plugin.scaled", version = "1";
  struct Config {
    int block = 64;
  };
  struct GpuConfig {
    int group = 8;
  };
  static constexpr ejk::Source source{"scaled.cl", R"(
__kernel EJK_GROUP(GROUP, 1, 1)
void scaled(int n, float factor, __global const float* restrict x, __global float* restrict y) {
  const int at = get_global_id(0);
  if (at < n) y[at] = factor * x[at];
})"};

  void run(const Config&, float factor, std::span<const float> x,
           ejk::Out<std::span<float>> y) const {
    std::ranges::transform(x, y->begin(), [&](float v) { return factor * v; });
  }
  bool is_valid(const Config& config, const ejk::Invocation&) const { return config.block > 0; }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const { return {{64}, {128}}; }
  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }

  void run_gpu(const GpuConfig& config, float factor, ejk::DeviceView<const float, 1> x,
               ejk::Out<ejk::DeviceView<float, 1>> y) const {
    ejk::launch(source, "scaled", config,
                {.groups = {ejk::ceil_div(x.size(), config.group)}, .items = {config.group}},
                static_cast<int>(x.size()), factor, x, *y);
  }
  bool is_valid(const GpuConfig& config, const ejk::Invocation&) const { return config.group > 0; }
  GpuConfig heuristic_cfg_gpu(const ejk::Invocation&) const { return {}; }
  std::vector<GpuConfig> candidate_cfgs_gpu(const ejk::Invocation&) const { return {{8}, {64}}; }
};

struct Counted {  // how often each value comes
  static constexpr std::string_view op_id = "plugin.counted", version = "1";
  struct Config {
    int group = 1;
  };
  static constexpr ejk::Source source{"counted.cl", R"(
__kernel EJK_GROUP(1, 1, 1)
void counted(int n, __global const int* restrict values, __global int* restrict counts) {
  const int value = get_group_id(0) * GROUP;
  for (int v = value; v < value + GROUP; ++v) {
    counts[v] = 0;
    for (int i = 0; i < n; ++i) counts[v] += values[i] == v;
  }
})"};

  void run_gpu(const Config& config, ejk::Tensor values,
               ejk::Out<ejk::DeviceView<int, 1>> counts) const {
    ejk::launch(source, "counted", config, {.groups = {counts->size() / config.group}},
                static_cast<int>(values.size()), ejk::device_view<int, 1>(values), *counts);
  }
  bool is_valid(const Config& config, const ejk::Invocation& inv) const {
    return config.group > 0 && inv.args[1].shape[0] % config.group == 0;
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const { return {{1}, {4}}; }
};

}  // namespace

EJK_REGISTER(Scaled);
EJK_REGISTER(Counted);
