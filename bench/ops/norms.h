// SPDX-License-Identifier: Apache-2.0
// bench/ops: operations over rows, and a copy of as many bytes.
#pragma once

#include <cstring>

#include <ejk/ops/layer_norm.h>
#include <ejk/ops/rms_norm.h>
#include <ejk/ops/softmax.h>

#include "case.h"

namespace bench {

// A kernel that takes x, then `between`, then out. The arrays live as long as the case.
template <class T, class Kernel, class... Between>
Case row_case(const Words& words, const Kernel& kernel, const Between&... between) {
  const int64_t rows = number(words, 2), columns = number(words, 3);
  const ejk::Tensor x = random_tensor<T>({rows, columns});
  const ejk::Tensor out = ejk::Tensor::of<T>({rows, columns});
  const ejk::StridedView<const T, 2> in = x.strided<T, 2>();
  const ejk::StridedView<T, 2> to = out.strided<T, 2>();
  const auto config = config_for(word(words, 4), kernel, in, between..., to);
  return {[=] {
            static_cast<void>(x), static_cast<void>(out);
            kernel.run(config, in, between..., to);
          },
          ejk::to_json(config)};
}

// A weight (or bias) that lives as long as the program: a few per run.
template <class T>
std::optional<std::span<const T>> lasting_line(int64_t columns) {
  static std::vector<ejk::Tensor> kept;
  kept.push_back(random_tensor<T>({columns}));
  return kept.back().view<const T, 1>().span();
}

// rms_norm | layer_norm | softmax TYPE ROWS COLUMNS HOW: TYPE f32 or bf16, HOW heuristic or tuned.
template <class T>
Case norm_case(const Words& words) {
  const std::string& op = word(words, 0);
  if (op == "softmax") return row_case<T>(words, ejk::ops::Softmax<T>{}, 1.f);
  const auto line = lasting_line<T>(number(words, 3));
  if (op == "rms_norm") return row_case<T>(words, ejk::ops::RmsNorm<T>{}, line, 1e-6f);
  return row_case<T>(words, ejk::ops::LayerNorm<T>{}, line, line, 1e-5f);
}
inline Case make_norm(const Words& words) {
  return word(words, 1) == "bf16" ? norm_case<ejk::BFloat16>(words) : norm_case<float>(words);
}

// memcpy TYPE ROWS COLUMNS
inline Case make_memcpy(const Words& words) {
  const auto size = static_cast<size_t>(number(words, 2) * number(words, 3)) *
                    (word(words, 1) == "bf16" ? 2u : 4u);
  const auto count = static_cast<int64_t>(size / 4);
  const ejk::Tensor from = random_tensor<float>({count}), to = ejk::Tensor::of<float>({count});
  return {[=] { std::memcpy(to.data<float>(), from.data<float>(), size); }};
}

}  // namespace bench
