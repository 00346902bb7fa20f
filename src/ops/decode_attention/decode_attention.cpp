// SPDX-License-Identifier: Apache-2.0
// The kernels decode_attention and paged_decode_attention: their arguments and their configs.
#include <ejk/ops/decode_attention.h>

#include <ejk/executor.h>
#include <ejk/parallel.h>

#include "ops/decode_attention/problem.h"
#include "ops/flash_attention/arguments.h"

namespace ejk::ops {
namespace {

void check_options(std::string_view op, const DecodeOptions& options) {
  check_window(op, "window_left", options.window_left);
  if (options.softcap) check_number(op, "softcap", *options.softcap, true);
  if (options.scale) check_number(op, "scale", *options.scale, false);
}

void check_config(std::string_view op, const DecodeConfig& config) {
  check_positive(op, "splits", config.splits);
  check_positive(op, "k_block", config.k_block);
  check_positive(op, "threads", config.threads);
}

// What the plain and the paged cache have in common. `where` names the first two axes of k and v.
void check_arrays(std::string_view op, std::string_view where, const Tensor& q, const Tensor& k,
                  const Tensor& v, const DecodeOptions& options) {
  const auto refuse_these = [&](std::string_view needed) {
    refuse(op, fmt::format("{}, {}, {}", described("q", q), described("k", k), described("v", v)),
           needed);
  };
  check_attention_dtype(op, q, k, v);
  if (q.rank() != 3 || k.rank() != 4 || v.rank() != 4)
    refuse_these(fmt::format("q[batch, heads, dim], k and v[{}, kv_heads, dim]", where));
  if (k.shape() != v.shape()) refuse_these("k and v of one shape");
  if (q.shape()[2] != k.shape()[3]) refuse_these("one dim for q, k and v");
  const int64_t heads = q.shape()[1], kv_heads = k.shape()[2];
  if (kv_heads == 0 ? heads != 0 : heads % kv_heads != 0)
    refuse_these("heads of q that are a multiple of those of k and v");
  check_options(op, options);
}

}  // namespace

void check_decode(std::string_view op, const Tensor& q, const Tensor& k, const Tensor& v,
                  std::span<const int32_t> lengths, const DecodeOptions& options) {
  check_arrays(op, "batch, positions", q, k, v, options);
  if (q.shape()[0] != k.shape()[0])
    refuse(op, fmt::format("{}, {}", described("q", q), described("k", k)),
           "one number of batch elements");
  if (!lengths.empty()) check_lengths(op, "lengths", lengths, q.shape()[0], k.shape()[1]);
}

void check_paged_decode(std::string_view op, const Tensor& q, const Tensor& k, const Tensor& v,
                        const Tensor& table, std::span<const int32_t> lengths,
                        const DecodeOptions& options) {
  check_arrays(op, "pages, page_size", q, k, v, options);
  if (table.dtype() != DType::int32 || table.rank() != 2 || table.shape()[0] != q.shape()[0])
    refuse(op, fmt::format("{}, {}", described("q", q), described("block_table", table)),
           "block_table int32[batch, pages of the longest sequence]");
  const int64_t pages = k.shape()[0], page_size = k.shape()[1];
  check_lengths(op, "lengths", lengths, q.shape()[0], table.shape()[1] * page_size);
  if (!table.on_cpu()) return;  // to look would be to wait
  const auto entries = table.strided<int32_t, 2>();
  for (int64_t b = 0; b < q.shape()[0]; ++b) {
    const int64_t length = lengths[static_cast<size_t>(b)];
    for (int64_t i = 0; i * page_size < length; ++i)
      if (entries(b, i) < 0 || entries(b, i) >= pages)
        refuse(op,
               fmt::format("block_table[{}, {}] = {} within a length of {}", b, i, entries(b, i),
                           length),
               fmt::format("a page from 0 to {}", pages - 1));
  }
}

namespace {

// A checked call, with copies of arrays whose rows are not packed.
struct Call {
  Tensor q, k, v, table;
  DecodeProblem problem;

  Call(std::string_view op, const Tensor& q_given, const Tensor& k_given, const Tensor& v_given,
       std::span<const int32_t> lengths, const DecodeOptions& options,
       const Tensor* table_given = nullptr) {
    if (table_given == nullptr) check_decode(op, q_given, k_given, v_given, lengths, options);
    else check_paged_decode(op, q_given, k_given, v_given, *table_given, lengths, options);
    q = with_packed_rows(q_given), k = with_packed_rows(k_given), v = with_packed_rows(v_given);
    problem.q = {q.any().data, q.strides()[0], 0, q.strides()[1], q.dtype() == DType::bfloat16};
    problem.k = rows_of(k), problem.v = rows_of(v);
    problem.batch = q.shape()[0], problem.heads = q.shape()[1], problem.dim = q.shape()[2];
    problem.kv_heads = k.shape()[2], problem.positions = k.shape()[1];
    if (!lengths.empty()) problem.lengths = lengths.data();
    problem.scale = options.scale.value_or(1.f / std::sqrt(static_cast<float>(problem.dim)));
    problem.softcap = options.softcap.value_or(0.f);
    problem.left = options.window_left.value_or(std::numeric_limits<int64_t>::max() / 2);
    if (table_given == nullptr) return;
    table = with_packed_rows(*table_given);
    problem.block_table = table.data<int32_t>();
    problem.table_stride = table.strides()[0];
    problem.page_size = k.shape()[1];
    problem.positions = table.shape()[1] * problem.page_size;
  }
};

Rows rows_of_output(const AnyView& out) {
  return {out.data, out.shape[1] * out.shape[2], 0, out.shape[2], out.dtype == DType::bfloat16};
}

void check_output(std::string_view op, const AnyView& out, const Tensor& q, const Tensor& k,
                  const Tensor& v) {
  if (out.dtype != q.dtype() || !std::ranges::equal(out.shape, q.shape()))
    refuse(op, fmt::format("{}, {}", described("q", q), described("out", out)),
           "out of the shape and type of q");
  if (out.platform != Platform::cpu || !out.writable || !out.packed())
    refuse(op, "an output that is read-only, on a device or not packed",
           "packed memory of the CPU that can be written");
  check_apart(op, out, "q", q.any());
  check_apart(op, out, "k", k.any());
  check_apart(op, out, "v", v.any());
}

// Gradients of a cache, of whatever layout, in its type.
Tensor as_type_of(const Tensor& cache, const Tensor& sums) {
  if (cache.dtype() == DType::float32) return sums;
  Tensor out(cache.dtype(), cache.shape());
  std::transform(sums.data<float>(), sums.data<float>() + sums.size(), out.data<BFloat16>(),
                 [](float sum) { return BFloat16(sum); });
  return out;
}

void forward(std::string_view op, const DecodeConfig& config, const Call& call, const Tensor& q,
             const Tensor& k, const Tensor& v, const AnyView& out) {
  check_config(op, config);
  check_output(op, out, q, k, v);
  decode_forward(call.problem, config, rows_of_output(out));
}

Tensor reference_of(const Call& call) {
  Tensor out(call.q.dtype(), call.q.shape());
  decode_reference(call.problem, rows_of_output(out.any()));
  return out;
}

std::tuple<Tensor, Tensor, Tensor> gradients(std::string_view op, const DecodeConfig& config,
                                             const Call& call, const Tensor& dout) {
  check_config(op, config);
  if (dout.dtype() != call.q.dtype() || dout.shape() != call.q.shape())
    refuse(op, fmt::format("{}, {}", described("q", call.q), described("dout", dout)),
           "dout of the shape and type of q");
  const Tensor packed_dout = dout.clone();
  Tensor dq(call.q.dtype(), call.q.shape());
  const Tensor dk = Tensor::of<float>(call.k.shape()), dv = Tensor::of<float>(call.v.shape());
  decode_backward(
      call.problem, config.threads,
      {rows_of_output(packed_dout.any()), rows_of_output(dq.any()), rows_of(dk), rows_of(dv)});
  return {std::move(dq), as_type_of(call.k, dk), as_type_of(call.v, dv)};
}

using Order = DecodeConfig::Order;

// Whether the heads of a position lie side by side in a cache.
bool side_by_side(const Arg& cache) {
  return cache.strides.size() != 4 || cache.strides[2] <= cache.strides[1];  // none: packed
}

// Memory in order, unless so many heads share what is read that adding to all of their sums takes
// longer.
Order best_order(int64_t heads, const Arg& k, const Arg& v) {
  constexpr int64_t many = 4;
  const int64_t kv_heads = k.shape[2];
  const bool in_order = kv_heads > 1 && heads <= many * kv_heads;
  return in_order && side_by_side(k) && side_by_side(v) ? Order::by_position : Order::by_head;
}

// Threads that the work is worth, for so many positions of a cache, and how many keys at a time. In
// order: many, as each time the processor must find out again what is read. Else those that
// together with their values stay in the second level.
DecodeConfig heuristic(const Arg& q, double positions, const Arg& k, const Arg& v) {
  constexpr double worth_a_thread = 1e6;  // of elements: reading them takes longer than starting it
  constexpr int64_t worth_a_block = int64_t{256} << 10;  // of bytes
  DecodeConfig config;
  config.order = best_order(q.shape[1], k, v);
  const int64_t in_a_row = k.shape[2] * k.shape[3];
  const int64_t bytes = in_a_row * static_cast<int64_t>(dtype_bits(k.dtype) / 8);
  if (config.order == Order::by_position) config.k_block = 256;
  else
    while (config.k_block > 32 && config.k_block * bytes > worth_a_block) config.k_block /= 2;
  const double elements = 2 * positions * static_cast<double>(in_a_row);
  config.threads =
      static_cast<int>(std::clamp(elements / worth_a_thread, 1.0, double(visible_cores())));
  while (config.splits * q.shape[0] < config.threads) ++config.splits;
  return config;
}

}  // namespace

void ejk_key(KeySink& key, const DecodeOptions& o) {
  key("window_left", o.window_left)("softcap", o.softcap.has_value());
}

// With one head of k and v, memory is read in order by head.
Space<DecodeConfig> DecodeKernel::candidate_cfgs(const Invocation& inv) const {
  const Arg &k = inv.args[1], &v = inv.args[2];
  const bool both = k.shape.size() == 4 && k.shape[2] > 1 && side_by_side(k) && side_by_side(v);
  return ejk::space<DecodeConfig>()
      .param(&DecodeConfig::threads, thread_counts())
      .param(&DecodeConfig::splits,
             [](const DecodeConfig& so_far) {
               return so_far.threads == 1 ? std::vector<int>{1}
                                          : std::vector<int>{1, so_far.threads, 4 * so_far.threads};
             })
      .param(&DecodeConfig::order,
             both ? std::vector{Order::by_head, Order::by_position} : std::vector{Order::by_head})
      .param(&DecodeConfig::k_block, [](const DecodeConfig& so_far) {
        return so_far.order == Order::by_head ? std::vector<int>{32, 64, 128, 256, 512}
                                              : std::vector<int>{64, 256, 1024};
      });
}

bool DecodeKernel::is_valid(const Config& config, const Invocation&) const {
  return config.splits > 0 && config.k_block > 0 && config.threads > 0;
}

// ---- plain ------------------------------------------------------------------------------------

Tensor DecodeAttention::run(const Config& config, const Tensor& q, const Tensor& k, const Tensor& v,
                            std::span<const int32_t> lengths, const DecodeOptions& options) const {
  Tensor out(q.dtype(), q.shape());
  write(config, q, k, v, lengths, out.any(), options);
  return out;
}

void DecodeAttention::write(const Config& config, const Tensor& q, const Tensor& k, const Tensor& v,
                            std::span<const int32_t> lengths, const AnyView& out,
                            const DecodeOptions& options) const {
  forward(op_id, config, Call(op_id, q, k, v, lengths, options), q, k, v, out);
}

Tensor DecodeAttention::reference(const Tensor& q, const Tensor& k, const Tensor& v,
                                  std::span<const int32_t> lengths,
                                  const DecodeOptions& options) const {
  const Device& here = cpu_device();
  return reference_of(Call(op_id, q.to(here), k.to(here), v.to(here), lengths, options));
}

std::pair<Tensor, DecodeAttention::Residuals> DecodeAttention::fwd_with_residuals(
    const Config& config, const Tensor& q, const Tensor& k, const Tensor& v,
    std::span<const int32_t> lengths, const DecodeOptions& options) const {
  return {run(config, q, k, v, lengths, options), {}};
}

std::tuple<Tensor, Tensor, Tensor> DecodeAttention::vjp(const Config& config, const Residuals&,
                                                        const Tensor& dout, const Tensor& q,
                                                        const Tensor& k, const Tensor& v,
                                                        std::span<const int32_t> lengths,
                                                        const DecodeOptions& options) const {
  return gradients(op_id, config, Call(op_id, q, k, v, lengths, options), dout);
}

DecodeConfig DecodeAttention::heuristic_cfg(const Invocation& inv) const {
  const auto &q = inv.args[0].shape, &k = inv.args[1].shape;
  if (q.size() != 3 || k.size() != 4) return {};
  const auto positions = static_cast<double>(k[0]) * static_cast<double>(k[1]);
  return heuristic(inv.args[0], positions, inv.args[1], inv.args[2]);
}

Tensor decode_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                        std::span<const int32_t> lengths, const DecodeOptions& options) {
  // Or the first call would try to tune it.
  check_decode(DecodeAttention::op_id, q, k, v, lengths, options);
  return default_executor()(DecodeAttention{}, q, k, v, lengths, options);
}

// ---- paged ------------------------------------------------------------------------------------

Tensor PagedDecodeAttention::run(const Config& config, const Tensor& q, const Tensor& k_pages,
                                 const Tensor& v_pages, const Tensor& block_table,
                                 std::span<const int32_t> lengths,
                                 const DecodeOptions& options) const {
  Tensor out(q.dtype(), q.shape());
  write(config, q, k_pages, v_pages, block_table, lengths, out.any(), options);
  return out;
}

void PagedDecodeAttention::write(const Config& config, const Tensor& q, const Tensor& k_pages,
                                 const Tensor& v_pages, const Tensor& block_table,
                                 std::span<const int32_t> lengths, const AnyView& out,
                                 const DecodeOptions& options) const {
  const Call call(op_id, q, k_pages, v_pages, lengths, options, &block_table);
  forward(op_id, config, call, q, k_pages, v_pages, out);
}

Tensor PagedDecodeAttention::reference(const Tensor& q, const Tensor& k_pages,
                                       const Tensor& v_pages, const Tensor& block_table,
                                       std::span<const int32_t> lengths,
                                       const DecodeOptions& options) const {
  const Device& here = cpu_device();
  const Tensor table = block_table.to(here);
  return reference_of(
      Call(op_id, q.to(here), k_pages.to(here), v_pages.to(here), lengths, options, &table));
}

std::pair<Tensor, PagedDecodeAttention::Residuals> PagedDecodeAttention::fwd_with_residuals(
    const Config& config, const Tensor& q, const Tensor& k_pages, const Tensor& v_pages,
    const Tensor& block_table, std::span<const int32_t> lengths,
    const DecodeOptions& options) const {
  return {run(config, q, k_pages, v_pages, block_table, lengths, options), {}};
}

std::tuple<Tensor, Tensor, Tensor> PagedDecodeAttention::vjp(
    const Config& config, const Residuals&, const Tensor& dout, const Tensor& q,
    const Tensor& k_pages, const Tensor& v_pages, const Tensor& block_table,
    std::span<const int32_t> lengths, const DecodeOptions& options) const {
  const Call call(op_id, q, k_pages, v_pages, lengths, options, &block_table);
  return gradients(op_id, config, call, dout);
}

DecodeConfig PagedDecodeAttention::heuristic_cfg(const Invocation& inv) const {
  const auto &q = inv.args[0].shape, &k = inv.args[1].shape, &table = inv.args[3].shape;
  if (q.size() != 3 || k.size() != 4 || table.size() != 2) return {};
  const auto positions = static_cast<double>(table[0]) * static_cast<double>(table[1] * k[1]);
  return heuristic(inv.args[0], positions, inv.args[1], inv.args[2]);
}

Tensor decode_attention_paged(const Tensor& q, const Tensor& k_pages, const Tensor& v_pages,
                              const Tensor& block_table, std::span<const int32_t> lengths,
                              const DecodeOptions& options) {
  check_paged_decode(PagedDecodeAttention::op_id, q, k_pages, v_pages, block_table, lengths,
                     options);
  return default_executor()(PagedDecodeAttention{}, q, k_pages, v_pages, block_table, lengths,
                            options);
}

}  // namespace ejk::ops
