// SPDX-License-Identifier: Apache-2.0
// The kernel flash_attention: its arguments, its configs, its gradient.
#include <ejk/ops/flash_attention.h>

#include <ejk/executor.h>
#include <ejk/parallel.h>

#include "ops/flash_attention/arguments.h"

namespace ejk::ops {
namespace {

constexpr std::string_view op = FlashAttention::op_id;

void check_shapes(const Tensor& q, const Tensor& k, const Tensor& v) {
  const auto refuse_these = [&](std::string_view needed) {
    refuse(op, fmt::format("{}, {}, {}", described("q", q), described("k", k), described("v", v)),
           needed);
  };
  if (q.rank() != 4 || k.rank() != 4 || v.rank() != 4)
    refuse_these("q[batch, queries, heads, dim], k and v[batch, keys, kv_heads, dim]");
  if (k.shape() != v.shape()) refuse_these("k and v of one shape");
  if (q.shape()[0] != k.shape()[0]) refuse_these("one number of batch elements");
  if (q.shape()[3] != k.shape()[3]) refuse_these("one dim for q, k and v");
  const int64_t heads = q.shape()[2], kv_heads = k.shape()[2];
  if (kv_heads == 0 ? heads != 0 : heads % kv_heads != 0)
    refuse_these("heads of q that are a multiple of those of k and v");
  if (q.shape()[1] > INT32_MAX || k.shape()[1] > INT32_MAX)
    refuse_these("sequences of less than 2^31 positions");
}

}  // namespace

AttentionProblem attention_problem(const Tensor& q, const Tensor& k, const Tensor& v,
                                   const AttentionOptions& options) {
  AttentionProblem p;
  p.q = rows_of(q), p.k = rows_of(k), p.v = rows_of(v);
  p.batch = q.shape()[0], p.queries = q.shape()[1], p.heads = q.shape()[2], p.dim = q.shape()[3];
  p.keys = k.shape()[1], p.kv_heads = k.shape()[2];
  p.scale = options.scale.value_or(1.f / std::sqrt(static_cast<float>(p.dim)));
  p.softcap = options.softcap.value_or(0.f);
  p.causal = options.causal;
  const int64_t far = p.queries + p.keys;
  p.left = std::min(options.window_left.value_or(far), far);
  p.right = std::min(options.window_right.value_or(far), far);
  if (!options.query_seq_lengths.empty()) p.query_lengths = options.query_seq_lengths.data();
  if (!options.key_value_seq_lengths.empty()) p.key_lengths = options.key_value_seq_lengths.data();
  return p;
}

void check_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                     const AttentionOptions& options) {
  check_attention_dtype(op, q, k, v);
  check_shapes(q, k, v);
  check_window(op, "window_left", options.window_left);
  check_window(op, "window_right", options.window_right);
  if (options.softcap) check_number(op, "softcap", *options.softcap, true);
  if (options.scale) check_number(op, "scale", *options.scale, false);
  const int64_t batch = q.shape()[0];
  if (!options.query_seq_lengths.empty())
    check_lengths(op, "query_seq_lengths", options.query_seq_lengths, batch, q.shape()[1]);
  if (!options.key_value_seq_lengths.empty())
    check_lengths(op, "key_value_seq_lengths", options.key_value_seq_lengths, batch, k.shape()[1]);
}

namespace {

// A checked call, with copies of arrays whose rows are not packed.
struct Call {
  Tensor q, k, v;
  AttentionProblem problem;

  Call(const Tensor& q_given, const Tensor& k_given, const Tensor& v_given,
       const AttentionOptions& options) {
    check_attention(q_given, k_given, v_given, options);
    q = with_packed_rows(q_given), k = with_packed_rows(k_given), v = with_packed_rows(v_given);
    problem = attention_problem(q, k, v, options);
  }
};

// What an unset field of a config means.
constexpr int default_q_block = 96, default_k_block = 128;

struct Blocks {
  int q, k;
};
Blocks blocks_of(std::string_view which, const std::optional<int>& q, const std::optional<int>& k,
                 int threads) {
  const Blocks blocks{q.value_or(default_q_block), k.value_or(default_k_block)};
  check_positive(op, fmt::format("{}.q_blocksize", which), blocks.q);
  check_positive(op, fmt::format("{}.kv_blocksize", which), blocks.k);
  check_positive(op, "threads", threads);
  return blocks;
}

void forward(const FlashAttention::Config& config, const Call& call, const AnyView& out,
             float* lse) {
  const Blocks blocks =
      blocks_of("fwd", config.fwd.q_blocksize, config.fwd.kv_blocksize, config.threads);
  attention_forward(call.problem, blocks.q, blocks.k, config.threads, rows_of(out), lse);
}

}  // namespace

void ejk_key(KeySink& key, const AttentionOptions& o) {
  key("causal", o.causal)("window_left", o.window_left)("window_right", o.window_right);
  key("softcap", o.softcap.has_value());
  key("query_seq_lengths", !o.query_seq_lengths.empty());
  key("key_value_seq_lengths", !o.key_value_seq_lengths.empty());
}

namespace {

// Whether some query may not see some key; `options` as ejk_key wrote them.
bool has_mask(const Arg& options) {
  for (size_t i = 0; i < options.names.size(); ++i)
    if (const Value& given = options.items[i].value;
        options.names[i] != "softcap" && !given.is_null() && given != Value(false))
      return true;
  return false;
}

}  // namespace

Tensor FlashAttention::run(const Config& config, const Tensor& q, const Tensor& k, const Tensor& v,
                           const AttentionOptions& options) const {
  const Call call(q, k, v, options);
  Tensor out(q.dtype(), q.shape());
  forward(config, call, out.any(), nullptr);
  return out;
}

void FlashAttention::write(const Config& config, const Tensor& q, const Tensor& k, const Tensor& v,
                           const AnyView& out, const AttentionOptions& options, float* lse) const {
  const Call call(q, k, v, options);
  if (out.dtype != q.dtype() || !std::ranges::equal(out.shape, q.shape()))
    refuse(op, fmt::format("{}, {}", described("q", q), described("out", out)),
           "out of the shape and type of q");
  if (out.platform != Platform::cpu || !out.writable)
    refuse(op, out.writable ? "an output on a device" : "an output that is read-only",
           "memory of the CPU that can be written");
  check_apart_from_itself(op, out);
  check_apart(op, out, "q", q.any());
  check_apart(op, out, "k", k.any());
  check_apart(op, out, "v", v.any());
  if (out.strides.empty() || out.shape[3] <= 1 || out.strides[3] == 1) {
    forward(config, call, out, lse);
    return;
  }
  const Tensor packed(out.dtype, {out.shape.begin(), out.shape.end()});
  forward(config, call, packed.any(), lse);
  copy_elements(packed.any(), out);
}

Tensor FlashAttention::reference(const Tensor& q, const Tensor& k, const Tensor& v,
                                 const AttentionOptions& options) const {
  const Device& here = cpu_device();
  const Call call(q.to(here), k.to(here), v.to(here), options);
  Tensor out(q.dtype(), q.shape());
  attention_reference(call.problem, rows_of(out));
  return out;
}

std::pair<Tensor, FlashAttention::Residuals> FlashAttention::fwd_with_residuals(
    const Config& config, const Tensor& q, const Tensor& k, const Tensor& v,
    const AttentionOptions& options) const {
  const Call call(q, k, v, options);
  Tensor out(q.dtype(), q.shape());
  Residuals residuals{Tensor::of<float>({q.shape()[0], q.shape()[2], q.shape()[1]})};
  forward(config, call, out.any(), residuals.lse.data<float>());
  return {std::move(out), std::move(residuals)};
}

std::tuple<Tensor, Tensor, Tensor> FlashAttention::vjp(
    const Config& config, const Residuals& residuals, const Tensor& out, const Tensor& dout,
    const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options) const {
  const Call call(q, k, v, options);
  if (dout.dtype() != out.dtype() || dout.shape() != out.shape())
    refuse(op, fmt::format("{}, {}", described("out", out), described("dout", dout)),
           "dout of the shape and type of out");
  const Blocks blocks =
      blocks_of("bwd", config.bwd.q_blocksize, config.bwd.kv_blocksize, config.threads);
  const Tensor packed_dout = with_packed_rows(dout);
  Tensor dq(q.dtype(), q.shape()), dk(k.dtype(), k.shape()), dv(v.dtype(), v.shape());
  attention_backward(call.problem, blocks.q, blocks.k, config.threads, rows_of(out),
                     residuals.lse.data<float>(), rows_of(packed_dout), rows_of(dq), rows_of(dk),
                     rows_of(dv));
  return {std::move(dq), std::move(dk), std::move(dv)};
}

FlashAttention::Config FlashAttention::heuristic_cfg(const Invocation& inv) const {
  Config config;
  config.fwd.q_blocksize = config.bwd.q_blocksize = default_q_block;
  config.fwd.kv_blocksize = config.bwd.kv_blocksize = default_k_block;
  // Starting a thread takes about as long as this many multiplications.
  constexpr double worth_a_thread = 4e6;
  const auto &q = inv.args[0].shape, &k = inv.args[1].shape;
  if (q.size() == 4 && k.size() == 4) {
    const double work = static_cast<double>(inv.args[0].size()) * static_cast<double>(k[1]);
    config.threads =
        static_cast<int>(std::clamp(work / worth_a_thread, 1.0, double(visible_cores())));
  }
  return config;
}

Space<FlashAttention::Config> FlashAttention::candidate_cfgs(const Invocation& inv) const {
  const bool four = inv.args[0].shape.size() == 4 && inv.args[1].shape.size() == 4;
  const int64_t queries = four ? inv.args[0].shape[1] : 0, keys = four ? inv.args[1].shape[1] : 0;
  // Blocks beyond the sequence are all the same.
  const auto sizes = [](std::initializer_list<int> all, int64_t length) {
    std::vector<std::optional<int>> some;
    for (const int size : all) {
      some.emplace_back(size);
      if (size >= length) break;
    }
    return some;
  };
  auto space = ejk::space<Config>()
                   .param(&Config::fwd, &FwdParams::q_blocksize, sizes({48, 96, 192, 384}, queries))
                   .param(&Config::fwd, &FwdParams::kv_blocksize, sizes({64, 128, 256, 512}, keys))
                   .param(&Config::threads, thread_counts());
  if (inv.backward)
    space.param(&Config::bwd, &BwdParams::q_blocksize, sizes({48, 96, 192}, queries))
        .param(&Config::bwd, &BwdParams::kv_blocksize, sizes({64, 128, 256}, keys));
  return space;
}

bool FlashAttention::is_valid(const Config& config, const Invocation&) const {
  const auto positive = [](const std::optional<int>& size) { return !size || *size > 0; };
  return positive(config.fwd.q_blocksize) && positive(config.fwd.kv_blocksize) &&
         positive(config.bwd.q_blocksize) && positive(config.bwd.kv_blocksize) &&
         config.threads > 0;
}

// Blocks of queries do not change the order of a sum over keys. But whether a value that is not
// finite is near a mask, and so added in another way, depends on which queries are worked on
// together.
FlashAttention::SumOrder FlashAttention::numerics(const Config& config,
                                                  const Invocation& inv) const {
  SumOrder order{config.fwd.q_blocksize.value_or(default_q_block),
                 config.fwd.kv_blocksize.value_or(default_k_block),
                 config.bwd.q_blocksize.value_or(default_q_block),
                 config.bwd.kv_blocksize.value_or(default_k_block)};
  const auto &q = inv.args[0].shape, &k = inv.args[1].shape;
  if (q.size() != 4 || k.size() != 4 || k[2] == 0) return order;
  const int64_t queries = q[1], keys = k[1], group = q[2] / k[2];
  order.fwd_queries = has_mask(inv.args[3]) ? std::min(order.fwd_queries, queries * group) : 0;
  order.fwd_keys = std::min(order.fwd_keys, keys);
  order.bwd_queries = std::min(order.bwd_queries, queries);
  order.bwd_keys = std::min(order.bwd_keys, keys);
  return order;
}

Tensor flash_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                       const AttentionOptions& options) {
  check_attention(q, k, v, options);  // or the first call would try to tune it
  return default_executor()(FlashAttention{}, q, k, v, options);
}

std::pair<Tensor, AttentionGradient> flash_attention_vjp(const Tensor& q, const Tensor& k,
                                                         const Tensor& v,
                                                         const AttentionOptions& options) {
  check_attention(q, k, v, options);
  auto [out, pull] = default_executor().vjp(FlashAttention{}, q, k, v, options);
  return {std::move(out), [pull = std::move(pull)](const Tensor& dout) { return pull(dout); }};
}

}  // namespace ejk::ops
