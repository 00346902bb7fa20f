// SPDX-License-Identifier: Apache-2.0
// Which configs the row kernels guess, offer and accept on devices.
#include <algorithm>

#include "ops/common/device_rows.h"

namespace ejk::ops {
namespace {

// Enough to keep every unit busy with groups of different length.
constexpr int64_t groups_per_unit = 8;

int columns_of(const Invocation& inv) { return static_cast<int>(inv.args[0].shape[1]); }

RowGpuConfig kept_if_possible(RowGpuConfig config, int64_t columns) {
  config.keep = vectors_per_item(config, columns) <= max_kept;
  return config;
}

RowGpuConfig guess_for_cpu(const Invocation& inv) {
  const int64_t rows = inv.args[0].shape[0],
                units = std::max<int64_t>(1, inv.device->limits.compute_units);
  const int width = power_of_two_below(std::clamp<int64_t>(inv.device->limits.vector_width, 4, 16));
  const int64_t per_group = std::clamp<int64_t>(rows / (units * groups_per_unit), 1, 16);
  return kept_if_possible({.group = 1, .rows = power_of_two_below(per_group), .width = width},
                          columns_of(inv));
}

// Sixteen bytes are the largest load; four of them per item hide its latency.
RowGpuConfig guess_for_gpu(const Invocation& inv) {
  const int width = inv.args[0].dtype == DType::bfloat16 ? 8 : 4;
  const int64_t most = std::clamp<int64_t>(inv.device->limits.group_items, 1, 1024);
  const int64_t wanted = std::max<int64_t>(32, ceil_div(columns_of(inv), int64_t{4} * width));
  return kept_if_possible(
      {.group = power_of_two_below(std::min(most, wanted)), .rows = 1, .width = width},
      columns_of(inv));
}

}  // namespace

bool is_sound(const RowGpuConfig& config, int64_t columns) {
  const auto [group, rows, width, keep] = config;
  return is_power_of_two(group) && rows >= 1 && is_power_of_two(width) && width <= 16 &&
         int64_t{group} * width <= 1 << 16 &&
         !(keep && vectors_per_item(config, columns) > max_kept);
}

void check_row_config(std::string_view op, const RowGpuConfig& config, int64_t columns) {
  if (!is_sound(config, columns))
    refuse(
        op,
        fmt::format("a config with group = {}, rows = {}, width = {}, keep = {} for {} columns",
                    config.group, config.rows, config.width, config.keep, columns),
        fmt::format("group and width powers of two, width up to 16, positive rows, and keep only "
                    "up to {} * group * width columns",
                    max_kept));
}

RowGpuConfig RowKernel::heuristic_cfg_gpu(const Invocation& inv) const {
  return runs_on_cpu(*inv.device) ? guess_for_cpu(inv) : guess_for_gpu(inv);
}

Space<RowGpuConfig> RowKernel::candidate_cfgs_gpu(const Invocation& inv) const {
  using C = RowGpuConfig;
  const bool on_cpu = runs_on_cpu(*inv.device);
  const std::vector<int> groups =
      on_cpu ? std::vector{1} : std::vector{32, 64, 128, 256, 512, 1024};
  const std::vector<int> widths = on_cpu ? std::vector{4, 8, 16} : std::vector{1, 2, 4, 8};
  return ejk::space<C>()
      .param(&C::group, groups)
      .param(&C::rows, on_cpu ? std::vector{1, 2, 4, 16} : std::vector{1, 2, 4})
      .param(&C::width, widths)
      .param(&C::keep, {false, true})
      .where([kernel = *this, inv](const C& c) { return kernel.is_valid(c, inv); });
}

bool RowKernel::is_valid(const GpuConfig& config, const Invocation& inv) const {
  const DeviceLimits& limits = inv.device->limits;
  return is_sound(config, columns_of(inv)) &&
         config.group <= std::max<int64_t>(1, limits.group_items) &&
         row_local_bytes(config) <= limits.local_bytes;
}

}  // namespace ejk::ops
