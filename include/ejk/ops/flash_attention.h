// SPDX-License-Identifier: Apache-2.0
// Attention over whole sequences, in blocks, without ever holding all weights; and its gradient.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <ejk/argument.h>
#include <ejk/config.h>
#include <ejk/detail/export.h>
#include <ejk/device_view.h>
#include <ejk/invocation.h>
#include <ejk/space.h>
#include <ejk/tensor.h>

namespace EJK_EXPORT ejk {
namespace ops {

// Which keys a query sees, and how logits are made of q . k. Positions count from the start of both
// sequences, also where their lengths differ, as in jax.nn.dot_product_attention.
struct AttentionOptions {
  bool causal = false;  // query i sees keys 0 .. i
  // Query i sees keys i - window_left .. i + window_right. Unset: no limit on that side.
  std::optional<int64_t> window_left = {}, window_right = {};
  std::optional<float> softcap = {};  // logits become softcap * tanh(logits / softcap)
  std::optional<float> scale = {};    // of q . k; default: 1 / sqrt(dim)
  // One length per batch element, or empty. No query sees the keys from there on, and
  // queries from there on see no key.
  std::vector<int32_t> query_seq_lengths = {}, key_value_seq_lengths = {};
};
void ejk_key(KeySink& key, const AttentionOptions& options);

// softmax(scale q k^T) v for q [batch, queries, heads, dim] and k, v [batch, keys, kv_heads, dim],
// all float32 or all bfloat16, of any strides; heads is a multiple of kv_heads, and
// heads / kv_heads neighbours share one. Sums are float32. The result is packed, of the shape and
// type of q.
//
// - A query that sees no key gives zeros (and passes no gradient).
// - What a query does not see does not reach its output, whatever it is, NaN and infinity included.
// - A NaN that it sees in q or k, a logit of +inf, or only logits of -inf make its output NaN; a
//   NaN or infinity in v reaches the elements it is added to. Gradients of such inputs are not
//   defined.
// - Softmax does not overflow for logits between -2e38 and 2e38.
// - Results depend on the block sizes (by rounding) and not on the number of threads.
//
// On OpenCL and CUDA devices all of this holds as well; arrays with strides are packed first.
struct FlashAttention {
  static constexpr std::string_view op_id = "flash_attention", version = "1";
  // On CPUs.
  struct Config {
    FwdParams fwd = {};  // q_blocksize, kv_blocksize: queries and keys that are worked on at a time
    BwdParams bwd = {};  // the same for the gradient
    int threads = 1;     // forward: of blocks of queries; gradient: of heads
  };
  // On OpenCL and CUDA devices.
  struct GpuConfig {
    // Which of the two programs runs.
    enum class Way {
      direct,  // one item per group, vectors, registers: for devices that are CPUs
      tiled,   // groups with local memory: for GPUs
    };
    // How the work is cut into pieces.
    struct Blocks {
      int bq = 0;     // tiled: queries of a group
      int bk = 96;    // keys that are worked on at a time
      int tq = 4;     // queries in registers; direct: in vectors
      int tk = 6;     // keys in registers
      int width = 4;  // of vectors; tiled: of loads
    };
    Way way = Way::direct;  // of the forward pass and of the gradient
    // Of the forward pass; and
    Blocks fwd = {},
           bwd = {};  // of the gradient; for that of keys and values the two change places
  };
  // What the gradient needs besides the arguments.
  struct Residuals {
    Tensor lse;  // log2 of the sum of exponentials, float32 [batch, heads, queries]
  };

  Tensor run(const Config& config, const Tensor& q, const Tensor& k, const Tensor& v,
             const AttentionOptions& options) const;
  // The same into memory of the caller, which must have the shape and type of q, may have any
  // strides and must not overlap the others. With `lse`, its [batch, heads, queries] too.
  void write(const Config& config, const Tensor& q, const Tensor& k, const Tensor& v,
             const AnyView& out, const AttentionOptions& options, float* lse = nullptr) const;
  Tensor reference(const Tensor& q, const Tensor& k, const Tensor& v,
                   const AttentionOptions& options) const;

  std::pair<Tensor, Residuals> fwd_with_residuals(const Config& config, const Tensor& q,
                                                  const Tensor& k, const Tensor& v,
                                                  const AttentionOptions& options) const;
  // {dq, dk, dv}, packed, of the types of q, k and v.
  std::tuple<Tensor, Tensor, Tensor> vjp(const Config& config, const Residuals& residuals,
                                         const Tensor& out, const Tensor& dout, const Tensor& q,
                                         const Tensor& k, const Tensor& v,
                                         const AttentionOptions& options) const;

  Config heuristic_cfg(const Invocation& inv) const;
  Space<Config> candidate_cfgs(const Invocation& inv) const;
  bool is_valid(const Config& config, const Invocation& inv) const;
  // The blocks, as far as they can change the last bits of a result.
  struct SumOrder {
    // Queries (0: they cannot) and keys of the forward pass, and of the gradient.
    int64_t fwd_queries = 0, fwd_keys = 0, bwd_queries = 0, bwd_keys = 0;
  };
  SumOrder numerics(const Config& config, const Invocation& inv) const;  // equal: the same bits

  // The same on the device that the arrays live on, where results and residuals stay.
  Tensor run_gpu(const GpuConfig& config, const Tensor& q, const Tensor& k, const Tensor& v,
                 const AttentionOptions& options) const;
  std::pair<Tensor, Residuals> fwd_with_residuals_gpu(const GpuConfig& config, const Tensor& q,
                                                      const Tensor& k, const Tensor& v,
                                                      const AttentionOptions& options) const;
  std::tuple<Tensor, Tensor, Tensor> vjp_gpu(const GpuConfig& config, const Residuals& residuals,
                                             const Tensor& out, const Tensor& dout, const Tensor& q,
                                             const Tensor& k, const Tensor& v,
                                             const AttentionOptions& options) const;
  GpuConfig heuristic_cfg_gpu(const Invocation& inv) const;
  Space<GpuConfig> candidate_cfgs_gpu(const Invocation& inv) const;
  bool is_valid(const GpuConfig& config, const Invocation& inv) const;
};

// Through the default executor, on whichever device q, k and v live. Throws
// Error(invalid_argument) for what FlashAttention does not take.
Tensor flash_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                       const AttentionOptions& options = {});
// The output, and a function from its cotangent to {dq, dk, dv}. The function shares the elements
// of q, k and v: they must not change until it is called.
using AttentionGradient = std::function<std::tuple<Tensor, Tensor, Tensor>(const Tensor& dout)>;
std::pair<Tensor, AttentionGradient> flash_attention_vjp(const Tensor& q, const Tensor& k,
                                                         const Tensor& v,
                                                         const AttentionOptions& options = {});

}  // namespace ops
}  // namespace ejk
