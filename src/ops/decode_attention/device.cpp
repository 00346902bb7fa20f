// SPDX-License-Identifier: Apache-2.0
// The kernels decode_attention and paged_decode_attention on OpenCL and CUDA devices.
#include "ops/decode_attention/device.h"

#include <algorithm>
#include <cmath>

#include <ejk/gpu.h>
#include <ejk_kernels/decode_cl.h>
#include <ejk_kernels/device_cl.h>

#include "ops/common/device_arrays.h"
#include "ops/common/device_tensors.h"
#include "ops/common/refuse.h"
#include "ops/decode_attention/problem.h"

namespace ejk::ops {
namespace {

constexpr Source source{"decode.cl", ejk_kernels::device_cl, ejk_kernels::decode_cl};

// The macros of a program.
struct Program {
  int dim;
  bool bf16;
  int width, group, heads, bk;
  bool capped, lengths, paged;
};

// Whether it can run at all, on any device.
bool is_sound(const DecodeGpuConfig& c, int64_t dim) {
  constexpr int64_t max_registers = 256;
  if (!is_power_of_two(c.group) || !is_power_of_two(c.width) || c.width < 2 || c.width > 16)
    return false;
  if (c.heads < 1 || c.splits < 1 || c.bk < c.width || c.bk % c.width != 0) return false;
  const int64_t own = ceil_div(ceil_div(dim, c.width), c.group);
  const int64_t most = c.group == 1 ? 1 << 16 : max_registers;  // on the stack of a CPU's item
  return c.heads * own * c.width <= most && c.bk <= 1 << 14;
}

bool fits(const DecodeGpuConfig& c, int64_t dim, const DeviceLimits& limits) {
  return is_sound(c, dim) && c.group <= std::max<int64_t>(1, limits.group_items) &&
         (c.group == 1 || decode_local_bytes(c, dim) <= limits.local_bytes);
}

// A checked call: a sequence is `positions` rows of k and v, or pages of them.
struct DeviceCall {
  std::string_view op;
  const Tensor &q, &k, &v;
  std::span<const int32_t> lengths;
  const Tensor* table;
  const DecodeOptions& options;

  Tensor run(const DecodeGpuConfig& config) const {
    if (table == nullptr) check_decode(op, q, k, v, lengths, options);
    else check_paged_decode(op, q, k, v, *table, lengths, options);
    const Device& device = q.device();
    const int64_t batch = q.shape()[0], heads = q.shape()[1], dim = q.shape()[2];
    const int64_t positions = k.shape()[1] * (table != nullptr ? table->shape()[1] : 1);
    constexpr int64_t most = int64_t{1} << 30;  // positions are ints there, and are added
    if (batch * k.shape()[1] >= most || k.shape()[0] * k.shape()[1] >= most || positions >= most)
      refuse(op, described("k", k), "less than 2^30 positions on a device");
    if (q.size() == 0 || positions == 0 || k.size() == 0)
      return Tensor(q.dtype(), q.shape(), device);
    if (!fits(config, dim, device.limits))
      refuse(op,
             fmt::format("a config with group = {}, heads = {}, bk = {}, width = {}, splits = {} "
                         "for dim {}",
                         config.group, config.heads, config.bk, config.width, config.splits, dim),
             "powers of two for group and width, bk a multiple of width, and no more than fits the "
             "device");
    return launched(config, batch, heads, dim, positions);
  }

 private:
  Tensor launched(const DecodeGpuConfig& config, int64_t batch, int64_t heads, int64_t dim,
                  int64_t positions) const {
    const Device& device = q.device();
    const Tensor q_there = packed_there(q), k_there = packed_there(k), v_there = packed_there(v);
    const Tensor table_there = table != nullptr ? packed_there(*table) : q_there;
    const Tensor lengths_there =
        lengths.empty() ? q_there : Tensor::of<int32_t>({std::ssize(lengths)}, lengths).to(device);
    const Program program{.dim = static_cast<int>(dim),
                          .bf16 = q.dtype() == DType::bfloat16,
                          .width = config.width,
                          .group = config.group,
                          .heads = config.heads,
                          .bk = config.bk,
                          .capped = options.softcap.has_value(),
                          .lengths = !lengths.empty(),
                          .paged = table != nullptr};
    const float scale = options.scale.value_or(1.f / std::sqrt(static_cast<float>(dim)));
    const float cap = options.softcap.value_or(1.f);
    const int64_t kv_heads = k.shape()[2], left = options.window_left.value_or(positions);
    const int64_t groups =
        batch * kv_heads * ceil_div(heads / kv_heads, config.heads) * config.splits;
    const int64_t splits = config.splits, padded = ceil_div(dim, config.width) * config.width;
    Tensor out = tensor_to_write(q.dtype(), q.shape(), device);
    // With one part the kernel does not look at these two.
    const Tensor sums =
        splits == 1 ? out : tensor_to_write(DType::float32, {batch, heads, splits, padded}, device);
    const Tensor stats =
        splits == 1 ? out : tensor_to_write(DType::float32, {batch, heads, splits, 2}, device);
    launch(source, "decode", program, {.groups = {groups}, .items = {config.group}},
           static_cast<int>(batch), static_cast<int>(positions), static_cast<int>(heads),
           static_cast<int>(kv_heads), config.splits, static_cast<int>(std::min(left, positions)),
           options.softcap ? scale / cap : scale, cap, DeviceArray(lengths_there),
           static_cast<int>(table != nullptr ? table->shape()[1] : 0),
           static_cast<int>(k.shape()[1]), static_cast<int>(k.shape()[0]), DeviceArray(table_there),
           DeviceArray(q_there), DeviceArray(k_there), DeviceArray(v_there), DeviceArray(out),
           DeviceArray(sums), DeviceArray(stats));
    if (splits > 1)
      launch(source, "decode_join", program, {.groups = {batch * heads}, .items = {config.group}},
             static_cast<int>(heads), config.splits, DeviceArray(lengths_there), DeviceArray(sums),
             DeviceArray(stats), DeviceArray(out));
    return out;
  }
};

struct Sizes {
  int64_t batch = 1, shared = 1, kv_heads = 1, dim = 1, positions = 1;
};
Sizes sizes_of(const Invocation& inv) {
  const auto &q = inv.args[0].shape, &k = inv.args[1].shape;
  if (q.size() != 3 || k.size() != 4 || k[2] == 0) return {};
  Sizes s{q[0], q[1] / k[2], k[2], q[2], k[1]};
  if (inv.op_id == PagedDecodeAttention::op_id && inv.args[3].shape.size() == 2)
    s.positions *= inv.args[3].shape[1];
  return s;
}

}  // namespace

int64_t decode_local_bytes(const DecodeGpuConfig& c, int64_t dim) {
  if (c.group == 1) return 0;
  return int64_t{4} * c.heads * (ceil_div(dim, c.width) * c.width + c.bk);
}

// As many heads as share what is read, and as many parts as keep all units busy.
DecodeGpuConfig DecodeKernel::heuristic_cfg_gpu(const Invocation& inv) const {
  const Sizes s = sizes_of(inv);
  const DeviceLimits& limits = inv.device->limits;
  const bool on_cpu = runs_on_cpu(*inv.device);
  DecodeGpuConfig c;
  c.width = on_cpu ? power_of_two_below(std::clamp<int64_t>(limits.vector_width, 4, 16)) : 4;
  c.group = on_cpu ? 1 : power_of_two_below(std::clamp<int64_t>(limits.group_items, 1, 128));
  c.heads = static_cast<int>(std::clamp<int64_t>(s.shared, 1, 4));
  while (c.heads > 1 && !fits(c, s.dim, limits)) --c.heads;
  const int64_t groups = s.batch * s.kv_heads * ceil_div(s.shared, c.heads),
                wanted = 4 * std::max<int64_t>(1, limits.compute_units);
  const int64_t worth_a_part = int64_t{2} * c.bk;
  c.splits =
      static_cast<int>(std::clamp<int64_t>(ceil_div(wanted, std::max<int64_t>(groups, 1)), 1,
                                           std::clamp<int64_t>(s.positions / worth_a_part, 1, 64)));
  return c;
}

Space<DecodeGpuConfig> DecodeKernel::candidate_cfgs_gpu(const Invocation& inv) const {
  using C = DecodeGpuConfig;
  const Sizes s = sizes_of(inv);
  const bool on_cpu = runs_on_cpu(*inv.device);
  const C guess = heuristic_cfg_gpu(inv);
  std::vector<int> heads{guess.heads}, splits{guess.splits};
  for (const int h : {1, 2, 4, 8})
    if (h <= s.shared) heads.push_back(h);
  for (const int n : {1, 2, 4, 8, 16, 32})
    if (n == 1 || s.positions / n >= 64) splits.push_back(n);
  return ejk::space<C>()
      .param(&C::group, on_cpu ? std::vector{1} : std::vector{32, 64, 128, 256})
      .param(&C::width, on_cpu && guess.width > 4 ? std::vector{guess.width, guess.width / 2}
                                                  : std::vector{4, 8})
      .param(&C::heads, heads)
      .param(&C::bk, {64, 128, 256, 512})
      .where([s, limits = inv.device->limits](const C& c) { return fits(c, s.dim, limits); })
      .param(&C::splits, splits);
}

bool DecodeKernel::is_valid(const GpuConfig& config, const Invocation& inv) const {
  return fits(config, sizes_of(inv).dim, inv.device->limits);
}

Tensor DecodeAttention::run_gpu(const GpuConfig& config, const Tensor& q, const Tensor& k,
                                const Tensor& v, std::span<const int32_t> lengths,
                                const DecodeOptions& options) const {
  return DeviceCall{op_id, q, k, v, lengths, nullptr, options}.run(config);
}

Tensor PagedDecodeAttention::run_gpu(const GpuConfig& config, const Tensor& q,
                                     const Tensor& k_pages, const Tensor& v_pages,
                                     const Tensor& block_table, std::span<const int32_t> lengths,
                                     const DecodeOptions& options) const {
  return DeviceCall{op_id, q, k_pages, v_pages, lengths, &block_table, options}.run(config);
}

}  // namespace ejk::ops
