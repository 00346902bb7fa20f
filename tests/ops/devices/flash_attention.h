// SPDX-License-Identifier: Apache-2.0
// Checks flash_attention on a device against the reference and, for gradients, against the CPU's.
#pragma once

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <ejk/ops/flash_attention.h>

#include "ops/common.h"

namespace ops_test {

using ejk::ops::AttentionOptions;
using ejk::ops::FlashAttention;
using GpuConfig = FlashAttention::GpuConfig;

// Both ways, with blocks that are smaller than the sequences and divide nothing.
inline std::vector<GpuConfig> flash_configs() {
  using enum GpuConfig::Way;
  return {{direct, {0, 24, 1, 4, 4}, {0, 12, 1, 6, 4}},
          {direct, {0, 12, 2, 3, 8}, {0, 8, 3, 2, 2}},
          {tiled, {16, 8, 2, 1, 1}, {8, 16, 1, 2, 1}},
          {tiled, {8, 32, 1, 4, 1}, {16, 8, 4, 2, 1}}};
}

struct FlashCase {
  std::string name;
  int64_t batch, queries, keys, heads, kv_heads;
  AttentionOptions options = {};
};
// One dim, so that few programs are to be built.
inline constexpr int64_t flash_dim = 10;
inline std::vector<FlashCase> flash_cases() {
  std::vector<FlashCase> cases{{"full", 1, 37, 41, 2, 2},
                               {"few queries of many heads", 2, 3, 29, 6, 2},
                               {"one key", 1, 5, 1, 1, 1}};
  cases.push_back({"causal", 1, 45, 45, 2, 1, {.causal = true}});
  cases.push_back({"causal, fewer keys", 1, 21, 13, 1, 1, {.causal = true}});
  cases.push_back({"window", 1, 50, 47, 2, 2, {.window_left = 9, .window_right = 4}});
  cases.push_back(
      {"causal window", 1, 50, 50, 1, 1, {.causal = true, .window_left = 7, .window_right = 3}});
  cases.push_back({"cap and scale", 2, 19, 33, 2, 1, {.softcap = 1.5f, .scale = 0.7f}});
  cases.push_back({"lengths",
                   3,
                   20,
                   26,
                   2,
                   1,
                   {.query_seq_lengths = {20, 0, 7}, .key_value_seq_lengths = {26, 12, 0}}});
  cases.push_back(
      {"lengths of keys", 2, 11, 18, 1, 1, {.causal = true, .key_value_seq_lengths = {5, 18}}});
  return cases;
}

inline ejk::Tensor as_type(const ejk::Tensor& t, ejk::DType dtype) {
  if (dtype == ejk::DType::float32) return t;
  ejk::Tensor out(dtype, t.shape());
  for (int64_t i = 0; i < t.size(); ++i)
    out.data<ejk::BFloat16>()[i] = ejk::BFloat16(t.data<float>()[i]);
  return out;
}

// Forward and gradient of one case with one config.
inline void check_flash(const ejk::Device& device, const FlashCase& c, const GpuConfig& config,
                        ejk::DType dtype) {
  SCOPED_TRACE(c.name + ", " + to_json(ejk::to_value(config)) + ", " +
               std::string(dtype_name(dtype)));
  const auto random = [&](int64_t length, int64_t heads, unsigned seed) {
    return as_type(normals({c.batch, length, heads, flash_dim}, seed), dtype);
  };
  const ejk::Tensor q = random(c.queries, c.heads, 1), k = random(c.keys, c.kv_heads, 2),
                    v = random(c.keys, c.kv_heads, 3), dout = random(c.queries, c.heads, 4);
  const bool exact = dtype == ejk::DType::float32;
  const FlashAttention kernel;
  const ejk::Tensor gq = q.to(device), gk = k.to(device), gv = v.to(device);

  const auto [out, residuals] = kernel.fwd_with_residuals_gpu(config, gq, gk, gv, c.options);
  EXPECT_EQ(&out.device(), &device);
  expect_near(out.to(ejk::cpu_device()), kernel.reference(q, k, v, c.options),
              exact ? 3e-6f : 2e-2f);
  expect_near(kernel.run_gpu(config, gq, gk, gv, c.options).to(ejk::cpu_device()),
              out.to(ejk::cpu_device()), 0);
  const auto [here, here_residuals] = kernel.fwd_with_residuals({}, q, k, v, c.options);
  expect_near(residuals.lse.to(ejk::cpu_device()), here_residuals.lse, exact ? 1e-5f : 1e-3f);

  const auto [dq, dk, dv] = kernel.vjp({}, here_residuals, here, dout, q, k, v, c.options);
  const auto [gdq, gdk, gdv] =
      kernel.vjp_gpu(config, residuals, out, dout.to(device), gq, gk, gv, c.options);
  const float tolerance = exact ? 2e-5f : 6e-2f;
  expect_near(gdq.to(ejk::cpu_device()), dq, tolerance);
  expect_near(gdk.to(ejk::cpu_device()), dk, tolerance);
  expect_near(gdv.to(ejk::cpu_device()), dv, tolerance);
}

// Every case with one config of each way, and one with all; bfloat16 differs in loads and stores.
inline void check_flash(const ejk::Device& device) {
  const auto configs = flash_configs();
  const auto cases = flash_cases();
  for (const size_t config : {0u, 2u}) {
    for (const FlashCase& c : cases) check_flash(device, c, configs[config], ejk::DType::float32);
    check_flash(device, cases[3], configs[config + 1], ejk::DType::float32);
    check_flash(device, cases[3], configs[config], ejk::DType::bfloat16);
  }
}

// What a query does not see does not reach its output; what it sees does.
inline void check_flash_with_infinities(const ejk::Device& device) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const ejk::Tensor q = normals({1, 30, 1, flash_dim}, 1), k = normals({1, 30, 1, flash_dim}, 2),
                    v = normals({1, 30, 1, flash_dim}, 3);
  const AttentionOptions causal{.causal = true};
  const ejk::Tensor expected = FlashAttention{}.reference(q, k, v, causal);
  for (int64_t i = 20 * flash_dim; i < 21 * flash_dim; ++i)
    v.data<float>()[i] = infinity, k.data<float>()[i] = std::nanf("");
  for (const size_t which : {0u, 2u}) {
    const GpuConfig config = flash_configs()[which];
    SCOPED_TRACE(to_json(ejk::to_value(config)));
    const auto out = values(FlashAttention{}
                                .run_gpu(config, q.to(device), k.to(device), v.to(device), causal)
                                .to(ejk::cpu_device()));
    const auto wanted = values(expected);
    for (int64_t i = 0; i < 20 * flash_dim; ++i)
      ASSERT_NEAR(out[static_cast<size_t>(i)], wanted[static_cast<size_t>(i)], 3e-6f) << i;
    for (int64_t i = 20 * flash_dim; i < std::ssize(out); ++i)
      ASSERT_TRUE(std::isnan(out[static_cast<size_t>(i)])) << i;
  }
}

}  // namespace ops_test
