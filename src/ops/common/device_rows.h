// SPDX-License-Identifier: Apache-2.0
// What operations over rows share around their launches on devices: checks, the macros of their
// programs, the grid.
#pragma once

#include <array>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>

#include <ejk/gpu.h>
#include <ejk/ops/row_config.h>

#include "ops/common/device_arrays.h"
#include "ops/common/refuse.h"
#include "ops/common/row_groups.h"

namespace ejk::ops {

// The macros of their sources.
struct RowProgram {
  int group, rows, width;
  int kept;  // vectors of a row that an item keeps in registers; 0: none
  bool bf16, weight, bias;
  bool residuals;  // forward keeps what the gradient needs
  bool gradient;   // the kernels of the gradient instead of forward's
};

inline constexpr int max_kept = 8;

// How many vectors of a row each item has.
inline int64_t vectors_per_item(const RowGpuConfig& config, int64_t columns) {
  return ceil_div(columns, int64_t{config.group} * config.width);
}
// Whether it can run at all, on any device.
bool is_sound(const RowGpuConfig& config, int64_t columns);
// The local memory of a group, forward and in gradients.
inline int64_t row_local_bytes(const RowGpuConfig& config, bool /*with_gradient*/ = false) {
  return config.group > 1 ? 4 * int64_t{config.group} : 0;
}

void check_row_config(std::string_view op, const RowGpuConfig& config, int64_t columns);

// One number per column, by name; none if it is left out.
template <class T>
using DeviceLine = std::pair<std::string_view, std::optional<DeviceView<const T, 1>>>;

// x[rows, columns], lines[columns], out[rows, columns], which overlaps nothing or is x itself.
template <class T>
void check_device_rows(std::string_view op, const RowGpuConfig& config,
                       const DeviceView<const T, 2>& x, std::initializer_list<DeviceLine<T>> lines,
                       const DeviceView<T, 2>& out) {
  check_row_config(op, config, x.shape[1]);
  constexpr int64_t most = int64_t{1} << 30;  // sizes are ints there
  bool fits = x.shape == out.shape && x.shape[0] <= most && x.shape[1] <= most;
  std::string given = "x" + shape_text(x.shape), needed = "x[rows, columns]";
  for (const auto& [name, line] : lines) {
    if (!line) continue;
    fits = fits && line->shape[0] == x.shape[1];
    given += fmt::format(", {}[{}]", name, line->shape[0]);
    needed += fmt::format(", {}[columns]", name);
  }
  if (!fits) refuse(op, given + ", out" + shape_text(out.shape), needed + ", out[rows, columns]");
  if (!same_on_device(x, out) && overlap_on_device(x, out))
    refuse(op, "an out that overlaps x", "an out apart from x, or x itself");
  for (const auto& [name, line] : lines)
    if (line && overlap_on_device(out, *line))
      refuse(op, fmt::format("an out that overlaps {}", name),
             fmt::format("an out apart from {}", name));
}

enum class RowPass { forward, forward_with_residuals, gradient };

template <class T>
RowProgram row_program(RowPass pass, const RowGpuConfig& config, int64_t columns,
                       bool weight = false, bool bias = false) {
  const bool keep = config.keep && pass != RowPass::gradient;
  return {.group = config.group,
          .rows = config.rows,
          .width = config.width,
          .kept = keep ? static_cast<int>(vectors_per_item(config, columns)) : 0,
          .bf16 = std::is_same_v<T, BFloat16>,
          .weight = weight,
          .bias = bias,
          .residuals = pass == RowPass::forward_with_residuals,
          .gradient = pass == RowPass::gradient};
}

// Rows without columns need no group.
inline Grid row_grid(const RowGpuConfig& config, const std::array<int64_t, 2>& shape) {
  return {.groups = {shape[1] == 0 ? 0 : ceil_div(shape[0], config.rows)}, .items = {config.group}};
}

// In place of a line that is left out: a kernel has all its parameters, and does not look at it.
template <class T>
DeviceView<const T, 1> line_or(const std::optional<DeviceView<const T, 1>>& line,
                               const DeviceView<const T, 2>& x) {
  return line.value_or(DeviceView<const T, 1>{x.device, x.memory, x.offset, {}});
}

// Passed in place of residuals when the caller asks for none.
template <class T>
DeviceView<float, 1> no_residuals(const DeviceView<T, 2>& out) {
  return {out.device, out.memory, out.offset, {}};
}
// All numbers of a tensor, one behind the other.
template <class T>
DeviceView<T, 1> flat(const Tensor& tensor) {
  return device_view<T, 1>(tensor.reshaped({tensor.size()}));
}

template <class T>
void check_cotangent(std::string_view op, const RowGpuConfig& config,
                     const DeviceView<const T, 2>& dy, const DeviceView<const T, 2>& x) {
  check_row_config(op, config, x.shape[1]);
  if (dy.shape != x.shape)
    refuse(op, "x" + shape_text(x.shape) + ", dy" + shape_text(dy.shape),
           "x[rows, columns], dy[rows, columns]");
}

// The sum over all rows of what `launch_chunks(grid, rows of a chunk, sums)` adds up in chunks.
// Their order depends on the number of rows alone.
template <class T, class F>
Tensor column_sums(const Source& source, const RowProgram& program, const DeviceView<const T, 2>& x,
                   const F& launch_chunks) {
  const auto [rows, columns] = x.shape;
  const int64_t padded = ceil_div(columns, program.width) * program.width;
  const int64_t chunk = rows_per_group(rows), chunks = ceil_div(rows, chunk);
  const Tensor sums(DType::float32, {chunks, padded}, *x.device);
  Tensor total(dtype_of<T>, {columns}, *x.device);
  const int64_t groups = ceil_div(padded / program.width, program.group);
  launch_chunks(Grid{.groups = {groups, chunks}, .items = {program.group}}, static_cast<int>(chunk),
                flat<float>(sums));
  launch(source, "add_chunks", program, {.groups = {groups}, .items = {program.group}},
         static_cast<int>(chunks), static_cast<int>(columns), flat<const float>(sums),
         device_view<T, 1>(total));
  return total;
}

}  // namespace ejk::ops
