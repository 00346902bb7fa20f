// SPDX-License-Identifier: Apache-2.0
// bench/ops: attention, forward, decoding, and forward with gradient.
#pragma once

#include <ejk/ops/decode_attention.h>
#include <ejk/ops/flash_attention.h>

#include "case.h"

namespace bench {

// attention KIND TYPE BATCH QUERIES KEYS HEADS KV_HEADS DIM HOW: KIND full, causal, decode,
// grad_full or grad_causal; TYPE f32 or bf16; HOW heuristic or tuned.
inline Case make_attention(const Words& words) {
  const std::string& kind = word(words, 1);
  const auto made = [&](std::vector<int64_t> shape) {
    return word(words, 2) == "bf16" ? random_tensor<ejk::BFloat16>(std::move(shape))
                                    : random_tensor<float>(std::move(shape));
  };
  const int64_t batch = number(words, 3), queries = number(words, 4), keys = number(words, 5),
                heads = number(words, 6), kv_heads = number(words, 7), dim = number(words, 8);
  const std::string& how = word(words, 9);
  const ejk::Tensor k = made({batch, keys, kv_heads, dim});
  const ejk::Tensor v = made({batch, keys, kv_heads, dim});
  if (kind == "decode") {
    const ejk::ops::DecodeAttention kernel;
    const ejk::Tensor q = made({batch, heads, dim});
    const std::span<const int32_t> all;
    const ejk::ops::DecodeOptions options;
    const auto config = config_for(how, kernel, q, k, v, all, options);
    return {[=] { kernel.run(config, q, k, v, all, options); }, ejk::to_json(config)};
  }
  const ejk::ops::FlashAttention kernel;
  const ejk::Tensor q = made({batch, queries, heads, dim});
  ejk::ops::AttentionOptions options;
  options.causal = kind.ends_with("causal");
  const bool gradient = kind.starts_with("grad");
  const auto scope = ejk::policy_override({.validate_backward = gradient});
  const auto config = config_for(how, kernel, q, k, v, options);
  const auto block = [](const std::optional<int>& size) {
    return std::to_string(size.value_or(0));
  };
  const std::string note = "forward " + block(config.fwd.q_blocksize) + " x " +
                           block(config.fwd.kv_blocksize) + ", backward " +
                           block(config.bwd.q_blocksize) + " x " + block(config.bwd.kv_blocksize) +
                           ", threads " + std::to_string(config.threads);
  if (!gradient) return {[=] { kernel.run(config, q, k, v, options); }, note};
  const ejk::Tensor dout = made(q.shape());
  return {[=] {
            const auto [out, residuals] = kernel.fwd_with_residuals(config, q, k, v, options);
            kernel.vjp(config, residuals, out, dout, q, k, v, options);
          },
          note};
}

}  // namespace bench
