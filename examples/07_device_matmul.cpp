// SPDX-License-Identifier: Apache-2.0
// A tiled product on OpenCL devices: the source is a file, the space asks for the device's limits.
#include <cmath>
#include <cstdio>

#include <ejk/ejk.h>
#include <ejk/gpu.h>
#include <ejk_kernels/device_matmul_cl.h>

struct TiledMatmul {
  static constexpr std::string_view op_id = "tiled_matmul", version = "1";
  struct Config {  // TILE, DEPTH and PER_ITEM in the source
    int tile = 16, depth = 16, per_item = 4;
  };
  using Input = ejk::DeviceView<const float, 2>;
  using Output = ejk::Out<ejk::DeviceView<float, 2>>;
  static constexpr ejk::Source source{"device_matmul.cl", ejk_kernels::device_matmul_cl};

  void run_gpu(const Config& config, Input a, Input b, Output c) const {
    const int64_t rows = c->shape[0], columns = c->shape[1];
    ejk::launch(source, "matmul", config,
                {.groups = {ejk::ceil_div(columns, config.tile), ejk::ceil_div(rows, config.tile)},
                 .items = {config.tile, config.tile / config.per_item}},
                static_cast<int>(rows), static_cast<int>(columns), static_cast<int>(a.shape[1]), a,
                b, *c);
  }
  bool is_valid(const Config& config, const ejk::Invocation& inv) const {
    const auto [tile, depth, per_item] = config;
    return tile > 0 && depth > 0 && per_item > 0 && tile % per_item == 0 &&
           tile * (tile / per_item) <= inv.device->limits.group_items &&
           8 * tile * depth <= inv.device->limits.local_bytes;
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }
  auto candidate_cfgs(const ejk::Invocation&) const {
    return ejk::space<Config>()
        .param(&Config::tile, {8, 16, 32})
        .param(&Config::depth, {16})
        .param(&Config::per_item, {1, 8});
  }
  // Slow and right, on the CPU: each candidate's result is compared with it.
  void reference(ejk::View<const float, 2> a, ejk::View<const float, 2> b,
                 ejk::Out<ejk::View<float, 2>> c) const {
    for (int64_t i = 0; i < c->shape[0]; ++i)
      for (int64_t j = 0; j < c->shape[1]; ++j) {
        float sum = 0;
        for (int64_t p = 0; p < a.shape[1]; ++p) sum += a(i, p) * b(p, j);
        (*c)(i, j) = sum;
      }
  }
};

ejk::Tensor counted(int64_t rows, int64_t columns) {
  auto tensor = ejk::Tensor::of<float>({rows, columns});
  for (int64_t i = 0; i < tensor.size(); ++i) tensor.data<float>()[i] = static_cast<float>(i % 7);
  return tensor;
}

int main() {
  const auto list = ejk::devices("opencl");
  if (list.empty()) {
    std::printf("no OpenCL device: %s\n", ejk::why_no_devices(ejk::Platform::opencl).c_str());
    return 0;
  }
  const ejk::Device& device = list.at(0);
  const ejk::Tensor a = counted(70, 50), b = counted(50, 90);
  const ejk::Tensor c = ejk::Tensor::of<float>({70, 90}).to(device);

  const ejk::Executor executor;
  executor(TiledMatmul{}, a.to(device), b.to(device), c);
  const ejk::Tensor back = c.to(ejk::cpu_device());

  float difference = 0;
  for (int64_t i = 0; i < 70; ++i)
    for (int64_t j = 0; j < 90; ++j) {
      float sum = 0;
      for (int64_t p = 0; p < 50; ++p) sum += a.view<float, 2>()(i, p) * b.view<float, 2>()(p, j);
      difference = std::max(difference, std::abs(sum - back.view<float, 2>()(i, j)));
    }
  const auto config =
      executor.choose_config<ejk::Platform::opencl>(TiledMatmul{}, a.to(device), b.to(device), c)
          .config;
  std::printf("%s: tiles of %d, %d rows per item; largest difference %g\n",
              device.fingerprint.c_str(), config.tile, config.per_item, double{difference});
  return difference == 0 ? 0 : 1;
}
