// SPDX-License-Identifier: Apache-2.0
// Checks decode_attention on a device against the reference, plain and in pages.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include <ejk/ops/decode_attention.h>

#include "ops/common.h"

namespace ops_test {

using ejk::ops::DecodeAttention;
using ejk::ops::DecodeGpuConfig;
using ejk::ops::DecodeOptions;
using ejk::ops::PagedDecodeAttention;

inline std::vector<DecodeGpuConfig> decode_configs() {
  return {{.group = 1, .heads = 2, .bk = 16, .width = 4, .splits = 3},
          {.group = 1, .heads = 3, .bk = 64, .width = 16, .splits = 1},
          {.group = 8, .heads = 2, .bk = 16, .width = 2, .splits = 2},
          {.group = 4, .heads = 1, .bk = 8, .width = 4, .splits = 1}};
}

inline ejk::Tensor integers(std::vector<int64_t> shape, const std::vector<int32_t>& values) {
  return ejk::Tensor::of<int32_t>(std::move(shape), std::span<const int32_t>(values));
}
inline ejk::Tensor of_type(const ejk::Tensor& t, bool bf16) {
  if (!bf16) return t;
  ejk::Tensor out(ejk::DType::bfloat16, t.shape());
  for (int64_t i = 0; i < t.size(); ++i)
    out.data<ejk::BFloat16>()[i] = ejk::BFloat16(t.data<float>()[i]);
  return out;
}

// [batch 3, heads 5 or 10] against 53 positions, the last vector of a row not full.
inline void check_decode(const ejk::Device& device, const DecodeGpuConfig& config,
                         const DecodeOptions& options, const std::vector<int32_t>& lengths,
                         bool bf16 = false) {
  SCOPED_TRACE(to_json(ejk::to_value(config)) + ", " + std::to_string(lengths.size()) + " lengths");
  const ejk::Tensor q = of_type(normals({3, 10, 11}, 1), bf16),
                    k = of_type(normals({3, 53, 2, 11}, 2), bf16),
                    v = of_type(normals({3, 53, 2, 11}, 3), bf16);
  const float tolerance = bf16 ? 2e-2f : 3e-6f;
  const ejk::Tensor out =
      DecodeAttention{}.run_gpu(config, q.to(device), k.to(device), v.to(device), lengths, options);
  expect_near(out.to(ejk::cpu_device()), DecodeAttention{}.reference(q, k, v, lengths, options),
              tolerance);
  if (lengths.empty()) return;

  // The same positions as 4 pages of 15 for each sequence, which lie anywhere.
  const ejk::Tensor k_pages = of_type(normals({13, 15, 2, 11}, 4), bf16),
                    v_pages = of_type(normals({13, 15, 2, 11}, 5), bf16);
  const ejk::Tensor table = integers({3, 4}, {7, 2, 12, 0, 1, 3, 5, -9, 4, 4, 99, 6});
  const ejk::Tensor paged =
      PagedDecodeAttention{}.run_gpu(config, q.to(device), k_pages.to(device), v_pages.to(device),
                                     table.to(device), lengths, options);
  expect_near(paged.to(ejk::cpu_device()),
              PagedDecodeAttention{}.reference(q, k_pages, v_pages, table, lengths, options),
              tolerance);
}

inline void check_decode(const ejk::Device& device) {
  for (const DecodeGpuConfig& config : decode_configs()) {
    check_decode(device, config, {}, {});
    check_decode(device, config, {}, {53, 44, 29});
    check_decode(device, config, {.window_left = 20}, {53, 41, 0});
    check_decode(device, config, {.window_left = 0}, {1, 2, 3});
    check_decode(device, config, {.softcap = 2.f, .scale = 0.9f}, {53, 41, 0});
  }
  check_decode(device, decode_configs()[0], {}, {53, 41, 0}, true);
  check_decode(device, decode_configs()[2], {}, {53, 41, 0}, true);
}

// A page number without a page is not read: the output of its sequence is NaN, that of others is
// right.
inline void check_decode_without_a_page(const ejk::Device& device) {
  const ejk::Tensor q = normals({2, 2, 11}, 1), k = normals({3, 4, 1, 11}, 2),
                    v = normals({3, 4, 1, 11}, 3);
  const std::vector<int32_t> lengths{8, 8};
  for (const int wrong : {-1, 3}) {
    const ejk::Tensor table = integers({2, 2}, {0, 1, 2, wrong});
    const auto out = values(PagedDecodeAttention{}
                                .run_gpu(decode_configs()[2], q.to(device), k.to(device),
                                         v.to(device), table.to(device), lengths, {})
                                .to(ejk::cpu_device()));
    for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(std::isnan(out[i]), i >= 22) << i;
  }
}

}  // namespace ops_test
