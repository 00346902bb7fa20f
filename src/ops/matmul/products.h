// SPDX-License-Identifier: Apache-2.0
// What operations made of products share: views as matrices, checks, configs of three products, and
// types that are known at run time only.
#pragma once

#include <algorithm>
#include <array>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/format.h"
#include "ops/common/overlap.h"
#include "ops/common/refuse.h"
#include "ops/matmul/blocking.h"
#include "ops/matmul/gemm.h"

namespace ejk::ops {

// Number `index` of a view of matrices; a single one serves all.
template <class View>
Matrix matrix(const View& v, int64_t index) {
  const int64_t at = v.shape[0] == 1 ? 0 : index * v.strides[0];
  return {v.data + at, dtype_of<typename View::element_type>, v.strides[1], v.strides[2]};
}
// The last two axes of an argument, for their strides.
inline Matrix matrix_of(const Arg& arg) {
  const size_t rank = arg.shape.size();
  if (arg.strides.empty()) return {nullptr, arg.dtype, arg.shape[rank - 1], 1};
  return {nullptr, arg.dtype, arg.strides[rank - 2], arg.strides[rank - 1]};
}

template <class View>
View transposed(const View& v) {
  return {v.data, {v.shape[0], v.shape[2], v.shape[1]}, {v.strides[0], v.strides[2], v.strides[1]}};
}

// `last` is the input beside a and b, if there is one. Small products spend much of their time
// here: no text is made unless something is refused.
template <class A, class B, class C, class Last>
[[gnu::always_inline]] inline void check_product_memory(std::string_view op, const A& a, const B& b,
                                                        std::string_view overlaps_last,
                                                        const std::optional<Last>& last,
                                                        const C& c) {
  constexpr std::string_view needed = "a c that shares memory with nothing else";
  if (overlaps_itself(c))
    refuse(op, fmt::format("c with strides {}, whose elements overlap", shape_text(c.strides)),
           needed);
  if (overlap(c, a)) refuse(op, "a c that overlaps a", needed);
  if (overlap(c, b)) refuse(op, "a c that overlaps b", needed);
  if (last && overlap(c, *last)) refuse(op, overlaps_last, needed);
}

// c = a b [m, n], with their gradients, `batch` times.
template <class Config>
Config product_heuristic(int64_t batch, int64_t m, int64_t n, int64_t k, const Matrix& a,
                         const Matrix& b) {
  const Matrix dc{nullptr, DType::float32, n, 1};
  return {gemm_heuristic(batch, m, n, k, a, b), gemm_heuristic(batch, m, k, n, dc, b.transposed()),
          gemm_heuristic(batch, k, n, m, a.transposed(), dc)};
}
template <class Config>
Space<Config> product_space(const Invocation& inv, const Config& guess, int64_t m, int64_t n,
                            int64_t k) {
  Space<Config> space = blocking_space(&Config::forward, m, n, k);
  const auto gradient = [&](const MatmulBlocking& b) {
    return inv.backward ? variations(b) : std::vector{b};
  };
  space.param(&Config::grad_a, gradient(guess.grad_a));
  space.param(&Config::grad_b, gradient(guess.grad_b));
  return space;
}
// Of one product whose strides are not all known: how its elements are summed in each of the cases.
template <class Sums, class Cases>
std::string sums_in(const Cases& cases, const Sums& sums) {
  std::vector<std::string> all;
  for (const auto& one : cases) all.push_back(sums(one));
  std::string text = all[0];
  if (std::ranges::all_of(all, [&](const auto& other) { return other == all[0]; })) return text;
  for (size_t i = 1; i < all.size(); ++i) text += " or " + all[i];
  return text;
}
// A cotangent of any strides is one of these, as far as they count: rows that lie side by side,
// columns that do, or neither.
inline std::array<Matrix, 3> any_cotangent(int64_t rows, int64_t columns) {
  const DType f = DType::float32;
  return {{{nullptr, f, columns, 1}, {nullptr, f, 1, rows}, {nullptr, f, 2 * columns, 2}}};
}
template <class Config>
bool products_can_run(const Config& config) {
  return gemm_can_run(config.forward) && gemm_can_run(config.grad_a) && gemm_can_run(config.grad_b);
}

// ---- on tensors ---------------------------------------------------------------------------------

inline bool has_product_elements(const Tensor& a) {
  return a.dtype() == DType::float32 || a.dtype() == DType::bfloat16;
}
inline void check_result(std::string_view op, std::string_view given, const Tensor& a,
                         DType result) {
  if (result != DType::float32 && (result != DType::bfloat16 || a.dtype() != DType::bfloat16))
    refuse(op, fmt::format("{}, result {}", given, dtype_name(result)),
           "a float32 result, or bfloat16 for bfloat16 arguments");
}
// Null: it is left out.
inline void check_one_place(
    std::string_view op, const Tensor& a,
    std::initializer_list<std::pair<std::string_view, const Tensor*>> others) {
  for (const auto& [name, other] : others)
    if (other != nullptr && &other->device() != &a.device())
      refuse(op,
             fmt::format("a on {}, {} on {}", a.device().fingerprint, name,
                         other->device().fingerprint),
             "all on one device; copy them with to(device)");
}
inline Tensor packed(const Tensor& t) { return t.packed() ? t : t.clone(); }
inline void check_cotangent(std::string_view op, const Tensor& c, const Tensor& dc) {
  if (dc.dtype() != c.dtype() || dc.shape() != c.shape())
    refuse(op, described("dc", dc), described("the gradient of c,", c));
}

// Calls f with the element types of a kernel.
template <class F>
decltype(auto) with_types(const Tensor& a, DType result, const F& f) {
  if (a.dtype() == DType::float32) return f.template operator()<float, float>();
  if (result == DType::float32) return f.template operator()<BFloat16, float>();
  return f.template operator()<BFloat16, BFloat16>();
}

}  // namespace ejk::ops
