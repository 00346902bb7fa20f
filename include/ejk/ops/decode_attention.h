// SPDX-License-Identifier: Apache-2.0
// Attention of one query per sequence against a long cache of keys and values, plain or in pages;
// and its gradient.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>

#include <ejk/argument.h>
#include <ejk/detail/export.h>
#include <ejk/device_view.h>
#include <ejk/invocation.h>
#include <ejk/space.h>
#include <ejk/tensor.h>

namespace EJK_EXPORT ejk {
namespace ops {

// The query stands at the end of its sequence: at position length - 1.
struct DecodeOptions {
  std::optional<int64_t> window_left = {};  // it sees that many keys before its position
  std::optional<float> softcap = {};        // logits become softcap * tanh(logits / softcap)
  std::optional<float> scale = {};          // of q . k; default: 1 / sqrt(dim)
};
void ejk_key(KeySink& key, const DecodeOptions& options);

// How the work is cut into pieces on a CPU.
struct DecodeConfig {
  // In which order the cache is read.
  enum class Order {
    by_head,      // a few positions of one kv head, then the next head: results stay in registers
    by_position,  // all kv heads of a position, then the next position: memory is read in order
  };
  int splits = 1;     // parts of each sequence that are worked on apart and then put together
  int k_block = 128;  // keys that are worked on at a time
  int threads = 1;    // of sequences times splits
  Order order = Order::by_head;  // by_head anyway where heads do not lie side by side
};

// On OpenCL and CUDA devices. Fields change results by rounding only.
struct DecodeGpuConfig {
  int group = 1;   // items that share keys and values, a power of two; 1: for devices that are CPUs
  int heads = 1;   // queries that share keys and are worked on together
  int bk = 128;    // positions that are worked on at a time, a multiple of width
  int width = 4;   // of vectors: 2, 4, 8 or 16
  int splits = 1;  // parts of each sequence that are worked on apart and then put together
};

// What both kernels have in common.
struct DecodeKernel {
  using Config = DecodeConfig;
  using GpuConfig = DecodeGpuConfig;
  struct Residuals {};  // weights are made again
  Space<Config> candidate_cfgs(const Invocation& inv) const;
  bool is_valid(const Config& config, const Invocation& inv) const;
  // Threads do not change a result. No field changes a gradient.
  std::tuple<int, int, Config::Order> numerics(const Config& config) const {
    return {config.splits, config.k_block, config.order};
  }

  GpuConfig heuristic_cfg_gpu(const Invocation& inv) const;
  Space<GpuConfig> candidate_cfgs_gpu(const Invocation& inv) const;
  bool is_valid(const GpuConfig& config, const Invocation& inv) const;
};

// softmax(scale q k^T) v for q [batch, heads, dim] and k, v [batch, positions, kv_heads, dim], all
// float32 or all bfloat16, of any strides (the last is best 1: else a copy is made); heads is a
// multiple of kv_heads, and heads / kv_heads neighbours share one. lengths: how many positions of
// each sequence are filled; empty: all. Sums are float32. The result is packed, of the shape and
// type of q.
//
// - A sequence of length 0 gives zeros. What lies beyond a length or a window is never read.
// - NaN, infinity and huge logits do what they do in FlashAttention.
// - Results depend on splits, k_block and order (by rounding) and not on the number of threads.
//
// On OpenCL and CUDA devices all of this holds as well, but that there are no gradients; arrays
// with strides are packed first.
struct DecodeAttention : DecodeKernel {
  static constexpr std::string_view op_id = "decode_attention", version = "1";

  Tensor run(const Config& config, const Tensor& q, const Tensor& k, const Tensor& v,
             std::span<const int32_t> lengths, const DecodeOptions& options) const;
  // The same into memory of the caller, which must have the shape and type of q, be packed and not
  // overlap the others.
  void write(const Config& config, const Tensor& q, const Tensor& k, const Tensor& v,
             std::span<const int32_t> lengths, const AnyView& out,
             const DecodeOptions& options) const;
  Tensor reference(const Tensor& q, const Tensor& k, const Tensor& v,
                   std::span<const int32_t> lengths, const DecodeOptions& options) const;

  std::pair<Tensor, Residuals> fwd_with_residuals(const Config& config, const Tensor& q,
                                                  const Tensor& k, const Tensor& v,
                                                  std::span<const int32_t> lengths,
                                                  const DecodeOptions& options) const;
  // {dq, dk, dv}, packed, of the types of q, k and v; zeros for what is not seen.
  std::tuple<Tensor, Tensor, Tensor> vjp(const Config& config, const Residuals&, const Tensor& dout,
                                         const Tensor& q, const Tensor& k, const Tensor& v,
                                         std::span<const int32_t> lengths,
                                         const DecodeOptions& options) const;

  Config heuristic_cfg(const Invocation& inv) const;

  Tensor run_gpu(const GpuConfig& config, const Tensor& q, const Tensor& k, const Tensor& v,
                 std::span<const int32_t> lengths, const DecodeOptions& options) const;
};

// The same where position p of sequence b is row p % page_size of page
// block_table[b, p / page_size] of k_pages and v_pages [pages, page_size, kv_heads, dim].
// block_table is int32 [batch, pages of the longest sequence]; entries beyond a length may be
// anything, one within it that names no page is refused; on a device it makes the output of its
// sequence NaN. There must be a length for each sequence.
struct PagedDecodeAttention : DecodeKernel {
  static constexpr std::string_view op_id = "paged_decode_attention", version = "1";

  Tensor run(const Config& config, const Tensor& q, const Tensor& k_pages, const Tensor& v_pages,
             const Tensor& block_table, std::span<const int32_t> lengths,
             const DecodeOptions& options) const;
  // The same into memory of the caller, as DecodeAttention::write does.
  void write(const Config& config, const Tensor& q, const Tensor& k_pages, const Tensor& v_pages,
             const Tensor& block_table, std::span<const int32_t> lengths, const AnyView& out,
             const DecodeOptions& options) const;
  Tensor reference(const Tensor& q, const Tensor& k_pages, const Tensor& v_pages,
                   const Tensor& block_table, std::span<const int32_t> lengths,
                   const DecodeOptions& options) const;

  std::pair<Tensor, Residuals> fwd_with_residuals(const Config& config, const Tensor& q,
                                                  const Tensor& k_pages, const Tensor& v_pages,
                                                  const Tensor& block_table,
                                                  std::span<const int32_t> lengths,
                                                  const DecodeOptions& options) const;
  // {dq, dk_pages, dv_pages}: a page that several sequences share gets the sum.
  std::tuple<Tensor, Tensor, Tensor> vjp(const Config& config, const Residuals&, const Tensor& dout,
                                         const Tensor& q, const Tensor& k_pages,
                                         const Tensor& v_pages, const Tensor& block_table,
                                         std::span<const int32_t> lengths,
                                         const DecodeOptions& options) const;

  Config heuristic_cfg(const Invocation& inv) const;

  Tensor run_gpu(const GpuConfig& config, const Tensor& q, const Tensor& k_pages,
                 const Tensor& v_pages, const Tensor& block_table, std::span<const int32_t> lengths,
                 const DecodeOptions& options) const;
};

// Through the default executor, on whichever device the tensors live. Throw Error(invalid_argument)
// for what the kernels do not take.
Tensor decode_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                        std::span<const int32_t> lengths = {}, const DecodeOptions& options = {});
Tensor decode_attention_paged(const Tensor& q, const Tensor& k_pages, const Tensor& v_pages,
                              const Tensor& block_table, std::span<const int32_t> lengths,
                              const DecodeOptions& options = {});

}  // namespace ops
}  // namespace ejk
