// SPDX-License-Identifier: Apache-2.0
// OpenCL kernels that the tour tunes: as one writes them for a GPU, and one as for a CPU. Each
// guess is what is usually taken without measuring.
#pragma once

#include <algorithm>
#include <cmath>

#include <ejk/ejk.h>
#include <ejk/gpu.h>
#include <ejk_kernels/device_matmul_cl.h>

namespace examples {

using DeviceInput = ejk::DeviceView<const float, 2>;
using DeviceOutput = ejk::Out<ejk::DeviceView<float, 2>>;
using HostInput = ejk::View<const float, 2>;
using HostOutput = ejk::Out<ejk::View<float, 2>>;

inline int extent(const auto& view, size_t axis) { return static_cast<int>(view.shape[axis]); }

// y += alpha x, an element per item or more.
struct Saxpy {
  static constexpr std::string_view op_id = "saxpy_cl", version = "1";
  struct Config {
    int group = 64, items = 1;
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

  void run_gpu(const Config& config, ejk::Unkeyed<float> alpha, ejk::DeviceView<const float, 1> x,
               ejk::DeviceView<float, 1> y) const {
    ejk::launch(source, "saxpy", config,
                {.groups = {ejk::ceil_div(y.size(), int64_t{config.group} * config.items)},
                 .items = {config.group}},
                static_cast<int>(y.size()), static_cast<float>(alpha), x, y);
  }
  bool is_valid(const Config& config, const ejk::Invocation& inv) const {
    return config.group > 0 && config.items > 0 && config.group <= inv.device->limits.group_items;
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }
  auto candidate_cfgs(const ejk::Invocation&) const {
    return ejk::space<Config>()
        .param(&Config::group, {1, 64, 256})
        .param(&Config::items, {1, 256, 4096});
  }
};

// out[j, i] = in[i, j], a tile per group, through local memory or past it.
struct Transpose {
  static constexpr std::string_view op_id = "transpose_cl", version = "1";
  struct Config {
    int tile = 16, lines = 16;  // a group has TILE x LINES items
    bool staged = true;
  };
  static constexpr ejk::Source source{"transpose.cl", R"(
__kernel EJK_GROUP(TILE, LINES, 1)
void transpose(int rows, int columns, __global const float* restrict in, __global float* restrict out) {
  const int column0 = get_group_id(0) * TILE, row0 = get_group_id(1) * TILE;
  const int x = get_local_id(0), y = get_local_id(1);
#if STAGED
  __local float part[TILE * (TILE + 1)];
  for (int i = y; i < TILE; i += LINES)
    if (row0 + i < rows && column0 + x < columns)
      part[i * (TILE + 1) + x] = in[(size_t)(row0 + i) * columns + column0 + x];
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int i = y; i < TILE; i += LINES)
    if (column0 + i < columns && row0 + x < rows)
      out[(size_t)(column0 + i) * rows + row0 + x] = part[x * (TILE + 1) + i];
#else
  for (int i = y; i < TILE; i += LINES)
    if (column0 + i < columns && row0 + x < rows)
      out[(size_t)(column0 + i) * rows + row0 + x] = in[(size_t)(row0 + x) * columns + column0 + i];
#endif
})"};

  void run_gpu(const Config& config, DeviceInput in, DeviceOutput out) const {
    ejk::launch(source, "transpose", config,
                {.groups = {ejk::ceil_div(in.shape[1], config.tile),
                            ejk::ceil_div(in.shape[0], config.tile)},
                 .items = {config.tile, config.lines}},
                extent(in, 0), extent(in, 1), in, *out);
  }
  bool is_valid(const Config& config, const ejk::Invocation& inv) const {
    const auto& limits = inv.device->limits;
    return config.tile > 0 && config.lines > 0 && config.lines <= config.tile &&
           config.tile * config.lines <= limits.group_items &&
           4 * config.tile * (config.tile + 1) <= limits.local_bytes;
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }
  auto candidate_cfgs(const ejk::Invocation&) const {
    return ejk::space<Config>()
        .param(&Config::tile, {8, 16, 64})
        .param(&Config::lines, {4, 16})
        .param(&Config::staged, {false, true});
  }
  void reference(HostInput in, HostOutput out) const {
    for (int64_t i = 0; i < in.shape[0]; ++i)
      for (int64_t j = 0; j < in.shape[1]; ++j) (*out)(j, i) = in(i, j);
  }
};

// Each inner element becomes the mean of itself and its four neighbours; the border stays as it is.
struct Blur {
  static constexpr std::string_view op_id = "blur_cl", version = "1";
  struct Config {
    int wide = 16, high = 16, rows = 1;  // items of a group, and rows for each of them
  };
  static constexpr ejk::Source source{"blur.cl", R"(
__kernel EJK_GROUP(WIDE, HIGH, 1)
void blur(int rows, int columns, __global const float* restrict in, __global float* restrict out) {
  const int x = get_global_id(0), first = get_global_id(1) * ROWS;
  if (x >= columns) return;
  for (int y = first; y < min(first + ROWS, rows); ++y) {
    const size_t at = (size_t)y * columns + x;
    const int inner = x > 0 && y > 0 && x + 1 < columns && y + 1 < rows;
    out[at] = inner ? 0.2f * (in[at] + in[at - 1] + in[at + 1] + in[at - columns] + in[at + columns])
                    : in[at];
  }
})"};

  void run_gpu(const Config& config, DeviceInput in, DeviceOutput out) const {
    ejk::launch(source, "blur", config,
                {.groups = {ejk::ceil_div(in.shape[1], config.wide),
                            ejk::ceil_div(in.shape[0], int64_t{config.high} * config.rows)},
                 .items = {config.wide, config.high}},
                extent(in, 0), extent(in, 1), in, *out);
  }
  bool is_valid(const Config& config, const ejk::Invocation& inv) const {
    return config.wide > 0 && config.high > 0 && config.rows > 0 &&
           config.wide * config.high <= inv.device->limits.group_items;
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }
  auto candidate_cfgs(const ejk::Invocation&) const {
    return ejk::space<Config>()
        .param(&Config::wide, {16, 256})
        .param(&Config::high, {1, 16})
        .param(&Config::rows, {1, 8});
  }
  void reference(HostInput in, HostOutput out) const {
    const int64_t rows = in.shape[0], columns = in.shape[1];
    for (int64_t y = 0; y < rows; ++y)
      for (int64_t x = 0; x < columns; ++x) {
        const bool inner = x > 0 && y > 0 && x + 1 < columns && y + 1 < rows;
        (*out)(y, x) =
            inner ? 0.2f * (in(y, x) + in(y, x - 1) + in(y, x + 1) + in(y - 1, x) + in(y + 1, x))
                  : in(y, x);
      }
  }
};

// The sum of each row, by a group that adds up in local memory.
struct RowSum {
  static constexpr std::string_view op_id = "row_sum_cl", version = "1";
  struct Config {
    int group = 128, width = 1;  // an item reads WIDTH elements at a time
  };
  static constexpr ejk::Source source{"row_sum.cl", R"(
__kernel EJK_GROUP(GROUP, 1, 1)
void row_sum(int columns, __global const float* restrict in, __global float* restrict out) {
  __local float part[GROUP];
  const int item = get_local_id(0);
  __global const float* row = in + (size_t)get_group_id(0) * columns;
  float sum[WIDTH];
  for (int w = 0; w < WIDTH; ++w) sum[w] = 0.f;
  for (int at = item * WIDTH; at < columns; at += GROUP * WIDTH)
    for (int w = 0; w < WIDTH; ++w) sum[w] += row[at + w];
  for (int w = 1; w < WIDTH; ++w) sum[0] += sum[w];
  part[item] = sum[0];
  for (int step = GROUP / 2; step > 0; step /= 2) {
    barrier(CLK_LOCAL_MEM_FENCE);
    if (item < step) part[item] += part[item + step];
  }
  if (item == 0) out[get_group_id(0)] = part[0];
})"};

  void run_gpu(const Config& config, DeviceInput in,
               ejk::Out<ejk::DeviceView<float, 1>> out) const {
    ejk::launch(source, "row_sum", config, {.groups = {in.shape[0]}, .items = {config.group}},
                extent(in, 1), in, *out);
  }
  bool is_valid(const Config& config, const ejk::Invocation& inv) const {
    const auto [group, width] = config;
    return group > 0 && width > 0 && (group & (group - 1)) == 0 &&
           group <= inv.device->limits.group_items && inv.args[0].shape[1] % width == 0;
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }
  auto candidate_cfgs(const ejk::Invocation&) const {
    return ejk::space<Config>()
        .param(&Config::group, {1, 8, 128})
        .param(&Config::width, {1, 16, 64});
  }
  void reference(HostInput in, ejk::Out<ejk::View<float, 1>> out) const {
    for (int64_t i = 0; i < in.shape[0]; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < in.shape[1]; ++j) sum += double{in(i, j)};
      (*out)(i) = static_cast<float>(sum);
    }
  }
  // Numbers of both signs cancel: what is left is small beside what was added.
  static ejk::Tolerance tolerance(ejk::DType) { return {.relative = 1e-4, .absolute = 1e-3}; }
};

inline void multiply(HostInput a, HostInput b, const HostOutput& c) {
  for (int64_t i = 0; i < c->shape[0]; ++i) {
    std::fill_n(&(*c)(i, 0), c->shape[1], 0.f);
    for (int64_t p = 0; p < a.shape[1]; ++p)
      for (int64_t j = 0; j < c->shape[1]; ++j) (*c)(i, j) += a(i, p) * b(p, j);
  }
}

// c = a b as for a GPU: tiles in local memory.
struct TiledMatmul {
  static constexpr std::string_view op_id = "matmul_tiled_cl", version = "1";
  struct Config {
    int tile = 16, depth = 16, per_item = 1;
  };
  static constexpr ejk::Source source{"device_matmul.cl", ejk_kernels::device_matmul_cl};

  void run_gpu(const Config& config, DeviceInput a, DeviceInput b, DeviceOutput c) const {
    ejk::launch(source, "matmul", config,
                {.groups = {ejk::ceil_div(c->shape[1], config.tile),
                            ejk::ceil_div(c->shape[0], config.tile)},
                 .items = {config.tile, config.tile / config.per_item}},
                extent(*c, 0), extent(*c, 1), extent(a, 1), a, b, *c);
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
        .param(&Config::tile, {16, 64})
        .param(&Config::depth, {16})
        .param(&Config::per_item, {1, 8, 16});
  }
  void reference(HostInput a, HostInput b, HostOutput c) const { multiply(a, b, c); }
};

// c = a b as for a CPU: one item per group, which keeps ROWS x VECTORS vectors in registers.
struct DirectMatmul {
  static constexpr std::string_view op_id = "matmul_direct_cl", version = "1";
  struct Config {
    int rows = 4, vectors = 1, width = 8;
  };
  static constexpr ejk::Source source{"matmul_direct.cl", R"(
#if WIDTH == 4
typedef float4 vector;
#define LOAD vload4
#define STORE vstore4
#elif WIDTH == 8
typedef float8 vector;
#define LOAD vload8
#define STORE vstore8
#else
typedef float16 vector;
#define LOAD vload16
#define STORE vstore16
#endif
__kernel EJK_GROUP(1, 1, 1)
void matmul(int n, int k, __global const float* restrict a, __global const float* restrict b,
            __global float* restrict c) {
  const int row0 = get_group_id(1) * ROWS, column0 = get_group_id(0) * VECTORS * WIDTH;
  vector sum[ROWS][VECTORS];
#pragma unroll
  for (int i = 0; i < ROWS; ++i)
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) sum[i][v] = (vector)(0.f);
  for (int p = 0; p < k; ++p) {
    vector line[VECTORS];
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) line[v] = LOAD(v, b + (size_t)p * n + column0);
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
      const vector left = (vector)(a[(size_t)(row0 + i) * k + p]);
#pragma unroll
      for (int v = 0; v < VECTORS; ++v) sum[i][v] = fma(left, line[v], sum[i][v]);
    }
  }
#pragma unroll
  for (int i = 0; i < ROWS; ++i)
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) STORE(sum[i][v], v, c + (size_t)(row0 + i) * n + column0);
})"};

  void run_gpu(const Config& config, DeviceInput a, DeviceInput b, DeviceOutput c) const {
    ejk::launch(
        source, "matmul", config,
        {.groups = {c->shape[1] / (config.vectors * config.width), c->shape[0] / config.rows}},
        extent(*c, 1), extent(a, 1), a, b, *c);
  }
  bool is_valid(const Config& config, const ejk::Invocation& inv) const {
    const auto [rows, vectors, width] = config;
    return rows > 0 && vectors > 0 && (width == 4 || width == 8 || width == 16) &&
           rows * vectors <= 32 && inv.args[0].shape[0] % rows == 0 &&
           inv.args[1].shape[1] % (vectors * width) == 0;
  }
  // Vectors of the device's own width, four rows of them.
  Config heuristic_cfg(const ejk::Invocation& inv) const {
    const int64_t width = inv.device->limits.vector_width;
    return {.width = width >= 16 ? 16 : width >= 8 ? 8 : 4};
  }
  auto candidate_cfgs(const ejk::Invocation&) const {
    return ejk::space<Config>()
        .param(&Config::rows, {4, 8})
        .param(&Config::vectors, {1, 2})
        .param(&Config::width, {8, 16});
  }
  void reference(HostInput a, HostInput b, HostOutput c) const { multiply(a, b, c); }
};

}  // namespace examples
