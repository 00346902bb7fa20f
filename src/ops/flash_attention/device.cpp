// SPDX-License-Identifier: Apache-2.0
// The kernel flash_attention on OpenCL and CUDA devices: its launches, its configs.
#include "ops/flash_attention/device.h"

#include <algorithm>
#include <numbers>

#include <ejk/gpu.h>
#include <ejk_kernels/device_cl.h>
#include <ejk_kernels/flash_cl.h>
#include <ejk_kernels/flash_direct_cl.h>
#include <ejk_kernels/flash_tiled_cl.h>

#include "ops/common/device_arrays.h"
#include "ops/common/device_tensors.h"
#include "ops/common/refuse.h"
#include "ops/flash_attention/problem.h"

namespace ejk::ops {
namespace {

constexpr std::string_view op = FlashAttention::op_id;
constexpr Source direct{"flash_direct.cl", ejk_kernels::device_cl, ejk_kernels::flash_cl,
                        ejk_kernels::flash_direct_cl};
constexpr Source tiled{"flash_tiled.cl", ejk_kernels::device_cl, ejk_kernels::flash_cl,
                       ejk_kernels::flash_tiled_cl};

using GpuConfig = FlashAttention::GpuConfig;
using Way = GpuConfig::Way;
using Blocks = GpuConfig::Blocks;
enum class Pass { forward, gradient };

// ---- configs ------------------------------------------------------------------------------------

int items_of(const Blocks& b) { return b.bq / b.tq * (b.bk / b.tk); }

int64_t tiled_local_bytes(const Blocks& b, int64_t dim, Pass pass) {
  const int64_t rows = b.bq * dim, columns = b.bk * (dim + 1),
                products = int64_t{b.bq} * (b.bk + 1), parts = int64_t{b.bq} * (b.bk / b.tk);
  return 4 * (pass == Pass::forward ? rows + columns + products + parts
                                    : 2 * rows + 2 * columns + products);
}

// What an item of its own keeps on its stack.
int64_t direct_private_bytes(const Blocks& b, int64_t dim, Pass pass) {
  const int64_t lanes = int64_t{b.tq} * b.width, row = ceil_div(dim, b.tk) * b.tk;
  const int64_t columns = 2 * row * lanes, block = b.bk * (lanes + row);
  return 4 * (pass == Pass::forward ? columns + block : 2 * columns + 2 * block);
}

// Whether it can run at all, on any device.
bool is_sound(Way way, const Blocks& b, int64_t dim, Pass pass) {
  constexpr int64_t max_private = 1 << 20;  // of a stack of 8 MB
  constexpr int max_registers = 256;
  if (b.tq < 1 || b.tk < 1 || b.bk < b.tk || b.bk % b.tk != 0) return false;
  if (!is_power_of_two(b.width) || b.width > 16) return false;
  if (way == Way::direct)
    return b.width > 1 && b.tq <= 8 && b.tk <= 16 &&
           direct_private_bytes(b, dim, pass) <= max_private;
  if (b.bq < b.tq || b.bq % b.tq != 0 || dim % b.width != 0) return false;
  const int64_t of_row = ceil_div(dim, b.bk / b.tk), sums = b.tq * of_row;
  return items_of(b) <= 1024 &&
         int64_t{b.tq} * b.tk + (pass == Pass::forward ? sums : 2 * sums) <= max_registers;
}

bool fits(Way way, const Blocks& b, int64_t dim, Pass pass, const DeviceLimits& limits) {
  if (!is_sound(way, b, dim, pass)) return false;
  return way == Way::direct || (items_of(b) <= limits.group_items &&
                                tiled_local_bytes(b, dim, pass) <= limits.local_bytes);
}

int64_t dim_of(const Invocation& inv) {
  return inv.args[0].shape.size() == 4 ? inv.args[0].shape[3] : 0;
}

// Vectors of queries times keys are kept in registers, beside one key and the queries.
int registers_of(int width) { return width == 16 ? 32 : 16; }
int native_width(const Device& device) {
  return power_of_two_below(std::clamp<int64_t>(device.limits.vector_width, 4, 16));
}

Blocks guess_for_cpu(const Invocation& inv, Pass pass) {
  Blocks b;
  b.width = native_width(*inv.device);
  b.tk = 6;
  b.tq = registers_of(b.width) == 32 ? 4 : 2;
  b.bk = pass == Pass::forward ? 96 : 48;
  const auto &q = inv.args[0].shape, &k = inv.args[1].shape;
  if (q.size() == 4 && k.size() == 4 && k[2] > 0) {
    const int64_t rows = q[1] * (q[2] / k[2]);  // those that see the same keys
    while (b.tq > 1 && int64_t{b.tq - 1} * b.width >= rows) --b.tq;
  }
  while (b.bk > b.tk && !is_sound(Way::direct, b, dim_of(inv), pass)) b.bk = b.bk / 2 / 6 * 6;
  return b;
}

// The largest that fits: more queries per group read keys less often.
Blocks guess_for_gpu(const Invocation& inv, Pass pass) {
  const int64_t dim = dim_of(inv);
  const int width = dim % 4 == 0 ? 4 : 1;
  const Blocks sizes[] = {{64, 32, 4, 4, width}, {64, 16, 4, 2, width}, {32, 32, 4, 2, width},
                          {32, 16, 2, 2, width}, {16, 16, 2, 1, width}, {8, 8, 1, 1, width}};
  for (const Blocks& b : sizes)
    if (fits(Way::tiled, b, dim, pass, inv.device->limits)) return b;
  return sizes[std::size(sizes) - 1];
}

Space<GpuConfig>& add_blocks(Space<GpuConfig>& space, Blocks GpuConfig::*which,
                             const Invocation& inv, Pass pass) {
  const bool on_cpu = runs_on_cpu(*inv.device);
  const int native = native_width(*inv.device);
  if (on_cpu)
    space.param(which, &Blocks::bq, {0})
        .param(which, &Blocks::width, native > 4 ? std::vector{native, native / 2} : std::vector{4})
        .param(which, &Blocks::tq, {1, 2, 3, 4})
        .param(which, &Blocks::tk, {4, 6, 8, 12})
        .where([which](const GpuConfig& c) {
          const Blocks& b = c.*which;
          return b.tq * b.tk + b.tq + 1 <= registers_of(b.width);
        })
        .param(which, &Blocks::bk, {24, 48, 96, 192, 384});
  else
    space.param(which, &Blocks::bq, {16, 32, 64, 128})
        .param(which, &Blocks::bk, {16, 32, 64, 128})
        .param(which, &Blocks::tq, {1, 2, 4, 8})
        .param(which, &Blocks::tk, {1, 2, 4, 8})
        .where([which](const GpuConfig& c) {
          const int items = items_of(c.*which);
          return items % 32 == 0 && items >= 32 && items <= 512;
        })
        .param(which, &Blocks::width, {1, 4});
  const int64_t dim = dim_of(inv);
  return space.where([which, dim, pass, limits = inv.device->limits](const GpuConfig& c) {
    return fits(c.way, c.*which, dim, pass, limits);
  });
}

// ---- launches -----------------------------------------------------------------------------------

// The macros of a program.
struct Program {
  int dim;
  bool bf16;
  int width, bq, bk, tq, tk;
  bool capped, lengths, gradient;
};

// A checked call of which the arrays are packed.
struct DeviceCall {
  Tensor q, k, v, lengths;
  AttentionProblem p;
  const Device& device;
  Way way;
  Program program;

  DeviceCall(const GpuConfig& config, Pass pass, const Tensor& q_given, const Tensor& k_given,
             const Tensor& v_given, const AttentionOptions& options)
      : device(q_given.device()), way(config.way) {
    check_attention(q_given, k_given, v_given, options);
    q = packed_there(q_given), k = packed_there(k_given), v = packed_there(v_given);
    p = attention_problem(q, k, v, options);
    const Blocks& b = pass == Pass::forward ? config.fwd : config.bwd;
    check(b, pass);
    program = {.dim = static_cast<int>(p.dim),
               .bf16 = q.dtype() == DType::bfloat16,
               .width = b.width,
               .bq = way == Way::direct ? b.tq * b.width : b.bq,
               .bk = b.bk,
               .tq = b.tq,
               .tk = b.tk,
               .capped = p.softcap != 0,
               .lengths = p.query_lengths != nullptr || p.key_lengths != nullptr,
               .gradient = pass == Pass::gradient};
    lengths = program.lengths ? lengths_there() : q;  // else the kernel does not read it
  }

  bool is_empty() const {
    return p.batch == 0 || p.queries == 0 || p.heads == 0 || p.dim == 0 || p.keys == 0;
  }

  // Those of queries (keys) with `blocks` of them in a group.
  struct RowBlocks {
    int blocks, heads_in_block;
    int64_t groups;
  };
  RowBlocks blocks_of_queries() const {
    const int64_t shared = p.heads_per_kv_head();
    const int64_t together =
        std::clamp<int64_t>(program.bq / std::max<int64_t>(p.queries, 1), 1, shared);
    const int64_t blocks = ceil_div(p.queries, program.bq);
    return {static_cast<int>(blocks), static_cast<int>(together),
            p.batch * p.kv_heads * ceil_div(shared, together) * blocks};
  }

  template <class... A>
  void launch(KernelName kernel, int64_t groups, const A&... arguments) const {
    constexpr auto log2e = std::numbers::log2e_v<float>;
    const float factor = program.capped ? p.scale / p.softcap : p.scale * log2e;
    const int64_t ahead = p.causal ? 0 : p.right;
    const int items = way == Way::direct ? 1 : program.bq / program.tq * (program.bk / program.tk);
    ejk::launch(way == Way::direct ? direct : tiled, kernel, program,
                {.groups = {groups}, .items = {items}}, static_cast<int>(p.queries),
                static_cast<int>(p.keys), static_cast<int>(p.heads), static_cast<int>(p.kv_heads),
                static_cast<int>(std::min(p.left, p.queries)),
                static_cast<int>(std::min(ahead, p.keys)), factor, p.softcap * log2e, p.scale,
                DeviceArray(lengths), static_cast<int>(p.batch), arguments...);
  }

 private:
  void check(const Blocks& b, Pass pass) const {
    constexpr int64_t most = int64_t{1} << 30;  // positions are ints there, and are added
    if (p.queries >= most || p.keys >= most)
      refuse(op, fmt::format("{}, {}", described("q", q), described("k", k)),
             "sequences of less than 2^30 positions on a device");
    if (!is_empty() && !fits(way, b, p.dim, pass, device.limits))
      refuse(op,
             fmt::format("a {} config with bq = {}, bk = {}, tq = {}, tk = {}, width = {} for dim "
                         "{}",
                         way == Way::direct ? "direct" : "tiled", b.bq, b.bk, b.tq, b.tk, b.width,
                         p.dim),
             "blocks that are multiples of what is in registers, and fit the device");
  }
  Tensor lengths_there() const {
    std::vector<int32_t> both;
    const auto add = [&](const int32_t* given, int64_t all) {
      for (int64_t i = 0; i < p.batch; ++i)
        both.push_back(given != nullptr ? given[i] : static_cast<int32_t>(all));
    };
    add(p.query_lengths, p.queries);
    add(p.key_lengths, p.keys);
    return Tensor::of<int32_t>({std::ssize(both)}, std::span<const int32_t>(both)).to(device);
  }
};

// Writes to lse, if there is one.
Tensor forward(const GpuConfig& config, const Tensor& q, const Tensor& k, const Tensor& v,
               const AttentionOptions& options, const Tensor* lse) {
  const DeviceCall call(config, Pass::forward, q, k, v, options);
  if (call.is_empty()) return Tensor(q.dtype(), q.shape(), call.device);
  Tensor out = tensor_to_write(q.dtype(), q.shape(), call.device);
  const auto blocks = call.blocks_of_queries();
  call.launch("flash_forward", blocks.groups, blocks.blocks, blocks.heads_in_block,
              DeviceArray(call.q), DeviceArray(call.k), DeviceArray(call.v), DeviceArray(out),
              lse != nullptr ? 1 : 0, DeviceArray(lse != nullptr ? *lse : out));
  return out;
}

}  // namespace

int64_t flash_local_bytes(const GpuConfig& config, int64_t dim, bool gradient) {
  if (config.way == Way::direct) return 0;
  const int64_t forward = tiled_local_bytes(config.fwd, dim, Pass::forward);
  return gradient ? std::max(forward, tiled_local_bytes(config.bwd, dim, Pass::gradient)) : forward;
}

Tensor FlashAttention::run_gpu(const GpuConfig& config, const Tensor& q, const Tensor& k,
                               const Tensor& v, const AttentionOptions& options) const {
  return forward(config, q, k, v, options, nullptr);
}

std::pair<Tensor, FlashAttention::Residuals> FlashAttention::fwd_with_residuals_gpu(
    const GpuConfig& config, const Tensor& q, const Tensor& k, const Tensor& v,
    const AttentionOptions& options) const {
  check_attention(q, k, v, options);
  const Tensor lse(DType::float32, {q.shape()[0], q.shape()[2], q.shape()[1]}, q.device());
  return {forward(config, q, k, v, options, &lse), {lse}};
}

std::tuple<Tensor, Tensor, Tensor> FlashAttention::vjp_gpu(
    const GpuConfig& config, const Residuals& residuals, const Tensor& out, const Tensor& dout,
    const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options) const {
  const DeviceCall call(config, Pass::gradient, q, k, v, options);
  if (dout.dtype() != out.dtype() || dout.shape() != out.shape() || &dout.device() != &call.device)
    refuse(op, fmt::format("{}, {}", described("out", out), described("dout", dout)),
           "dout of the shape and type of out, and on its device");
  const auto make = call.is_empty()
                        ? [](DType dtype, const std::vector<int64_t>& shape,
                             const Device& there) { return Tensor(dtype, shape, there); }
                        : tensor_to_write;
  Tensor dq = make(q.dtype(), q.shape(), call.device), dk = make(k.dtype(), k.shape(), call.device),
         dv = make(v.dtype(), v.shape(), call.device);
  if (call.is_empty()) return {std::move(dq), std::move(dk), std::move(dv)};
  const DeviceArray q_there(call.q), k_there(call.k), v_there(call.v);
  const Tensor packed_out = packed_there(out), packed_dout = packed_there(dout);
  const Tensor delta = tensor_to_write(DType::float32, residuals.lse.shape(), call.device);
  const auto blocks = call.blocks_of_queries();
  call.launch("flash_dq", blocks.groups, blocks.blocks, blocks.heads_in_block, q_there, k_there,
              v_there, DeviceArray(packed_out), DeviceArray(packed_dout),
              DeviceArray(residuals.lse), DeviceArray(delta), DeviceArray(dq));
  const int64_t of_keys = ceil_div(call.p.keys, call.program.bq);
  call.launch("flash_dkdv", call.p.batch * call.p.kv_heads * of_keys, static_cast<int>(of_keys),
              q_there, k_there, v_there, DeviceArray(packed_dout), DeviceArray(residuals.lse),
              DeviceArray(delta), DeviceArray(dk), DeviceArray(dv));
  return {std::move(dq), std::move(dk), std::move(dv)};
}

GpuConfig FlashAttention::heuristic_cfg_gpu(const Invocation& inv) const {
  if (runs_on_cpu(*inv.device))
    return {Way::direct, guess_for_cpu(inv, Pass::forward), guess_for_cpu(inv, Pass::gradient)};
  return {Way::tiled, guess_for_gpu(inv, Pass::forward), guess_for_gpu(inv, Pass::gradient)};
}

Space<GpuConfig> FlashAttention::candidate_cfgs_gpu(const Invocation& inv) const {
  const GpuConfig guess = heuristic_cfg_gpu(inv);
  auto space = ejk::space<GpuConfig>().param(&GpuConfig::way, {guess.way});
  add_blocks(space, &GpuConfig::fwd, inv, Pass::forward);
  if (inv.backward) return add_blocks(space, &GpuConfig::bwd, inv, Pass::gradient);
  for (int Blocks::*field : {&Blocks::bq, &Blocks::bk, &Blocks::tq, &Blocks::tk, &Blocks::width})
    space.param(&GpuConfig::bwd, field, {guess.bwd.*field});
  return space;
}

bool FlashAttention::is_valid(const GpuConfig& config, const Invocation& inv) const {
  const auto all_fit = [&](const Blocks& b, Pass pass) {
    return fits(config.way, b, dim_of(inv), pass, inv.device->limits);
  };
  return all_fit(config.fwd, Pass::forward) &&
         (!inv.backward || all_fit(config.bwd, Pass::gradient));
}

}  // namespace ejk::ops
