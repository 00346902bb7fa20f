// SPDX-License-Identifier: Apache-2.0
// One kernel for the CPU and for OpenCL: where the arrays live decides, and each has its config.
#include <algorithm>
#include <cstdio>
#include <span>
#include <vector>

#include <ejk/ejk.h>
#include <ejk/gpu.h>

struct Saxpy {  // y += alpha x
  static constexpr std::string_view op_id = "device_saxpy", version = "1";
  struct Config {  // of run
    int block = 1024;
  };
  struct GpuConfig {  // of run_gpu: GROUP and ITEMS in the source
    int group = 64, items = 4;
  };
  static constexpr ejk::Source source{"saxpy.cl", R"(
__kernel EJK_GROUP(GROUP, 1, 1)
void saxpy(int n, float alpha, __global const float* restrict x, __global float* restrict y) {
  const int first = get_group_id(0) * GROUP * ITEMS + get_local_id(0);
  for (int i = 0; i < ITEMS; ++i) {
    const int at = first + i * GROUP;
    if (at < n) y[at] += alpha * x[at];
  }
})"};

  void run(const Config& config, ejk::Unkeyed<float> alpha, std::span<const float> x,
           std::span<float> y) const {
    const auto block = static_cast<size_t>(config.block);
    for (size_t begin = 0; begin < y.size(); begin += block)
      for (size_t i = begin; i < std::min(begin + block, y.size()); ++i) y[i] += alpha * x[i];
  }
  bool is_valid(const Config& config, const ejk::Invocation&) const { return config.block > 0; }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const { return {{256}, {1024}}; }

  void run_gpu(const GpuConfig& config, ejk::Unkeyed<float> alpha,
               ejk::DeviceView<const float, 1> x, ejk::DeviceView<float, 1> y) const {
    ejk::launch(source, "saxpy", config,
                {.groups = {ejk::ceil_div(y.size(), int64_t{config.group} * config.items)},
                 .items = {config.group}},
                static_cast<int>(y.size()), static_cast<float>(alpha), x, y);
  }
  bool is_valid(const GpuConfig& config, const ejk::Invocation& inv) const {
    return config.group > 0 && config.items > 0 && config.group <= inv.device->limits.group_items;
  }
  GpuConfig heuristic_cfg_gpu(const ejk::Invocation&) const { return {}; }
  auto candidate_cfgs_gpu(const ejk::Invocation&) const {
    return ejk::space<GpuConfig>()
        .param(&GpuConfig::group, {1, 64})
        .param(&GpuConfig::items, {4, 1024});
  }
};

int main() {
  const auto list = ejk::devices("opencl");
  if (list.empty()) {
    std::printf("no OpenCL device: %s\n", ejk::why_no_devices(ejk::Platform::opencl).c_str());
    return 0;
  }
  const ejk::Device& device = list.at(0);
  const std::vector<float> ones(100'000, 1.f);
  const auto host = ejk::Tensor::of<float>({100'000}, std::span(ones));
  const ejk::Tensor x = host.to(device), y = host.to(device);

  const ejk::Executor executor;
  executor(Saxpy{}, 2.f, x, y);  // tuned on the device, once
  executor(Saxpy{}, 3.f, x, y);  // only begun: the next line waits
  const ejk::Tensor back = y.to(ejk::cpu_device());
  const auto [config, origin] = executor.choose_config<ejk::Platform::opencl>(Saxpy{}, 2.f, x, y);
  std::printf("%s: groups of %d, %d items each, known from %s; y[0] = %g\n",
              device.fingerprint.c_str(), config.group, config.items, origin_name(origin).data(),
              double{back.data<float>()[0]});
  return std::all_of(back.data<float>(), back.data<float>() + back.size(),
                     [](float v) { return v == 6.f; })
             ? 0
             : 1;
}
