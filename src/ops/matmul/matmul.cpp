// SPDX-License-Identifier: Apache-2.0
// The operation: what it accepts, which configs it knows, its reference and its gradient.
#include <ejk/ops/matmul.h>

#include <algorithm>
#include <type_traits>
#include <vector>

#include "ops/matmul/products.h"

namespace ejk::ops {
namespace {

constexpr std::string_view op = "matmul";

template <class T>
std::string text(std::string_view name, const T& view) {
  return fmt::format("{}{}", name, shape_text(view.shape));
}

template <class A, class B, class C, class Bias>
void check_shapes(const A& a, const B& b, const Bias& bias, const C& c) {
  const int64_t batch = c.shape[0], m = c.shape[1], n = c.shape[2], k = a.shape[2];
  const auto serves = [&](const auto& x) { return x.shape[0] == batch || x.shape[0] == 1; };
  if (serves(a) && serves(b) && a.shape[1] == m && b.shape[1] == k && b.shape[2] == n &&
      (!bias || bias->shape[0] == n))
    return;
  refuse(op,
         fmt::format("{}, {}{}, {}", text("a", a), text("b", b),
                     bias ? ", " + text("bias", *bias) : "", text("c", c)),
         "a[batch or 1, m, k], b[batch or 1, k, n], bias[n] or none, c[batch, m, n]");
}

// One product per element of the batch, or a single one where a shared b lets rows follow each
// other.
template <class A, class B, class C>
void multiply_batch(const MatmulBlocking& blocking, const A& a, const B& b, const float* bias,
                    const C& c) {
  const int64_t batch = c.shape[0], m = c.shape[1], n = c.shape[2], k = a.shape[2];
  const auto rows_follow = [&](const auto& x) {
    return x.shape[0] == batch && x.strides[0] == m * x.strides[1];
  };
  if (batch == 1 || (batch > 1 && b.shape[0] == 1 && rows_follow(a) && rows_follow(c))) {
    const Gemm one{batch * m, n, k, matrix(a, 0), matrix(b, 0), matrix(c, 0), bias};
    return gemm({&one, 1}, blocking);
  }
  std::vector<Gemm> problems;
  for (int64_t i = 0; i < batch; ++i)
    problems.push_back({m, n, k, matrix(a, i), matrix(b, i), matrix(c, i), bias});
  gemm(problems, blocking);
}

// A c whose columns are contiguous is the row-major c of the transposed product.
template <class A, class B, class C>
void multiply(const MatmulBlocking& blocking, const A& a, const B& b, const float* bias,
              const C& c) {
  if (c.shape[2] != 1 && c.strides[2] != 1 && c.strides[1] == 1 && bias == nullptr)
    multiply_batch(blocking, transposed(b), transposed(a), nullptr, transposed(c));
  else multiply_batch(blocking, a, b, bias, c);
}

template <class Bias>
const float* packed_bias(const Bias& bias, std::vector<float>& copy) {
  if (!bias || bias->shape[0] == 0) return nullptr;
  using T = std::remove_const_t<typename Bias::value_type::element_type>;
  if constexpr (std::is_same_v<T, float>)
    if (bias->strides[0] == 1) return bias->data;
  for (int64_t i = 0; i < bias->shape[0]; ++i) copy.push_back(static_cast<float>((*bias)(i)));
  return copy.data();
}

// ---- the shape of a call ------------------------------------------------------------------------

int64_t batch_of(const Invocation& inv) {
  return std::max(inv.args[0].shape[0], inv.args[1].shape[0]);
}

}  // namespace

template <Element In, Element Result>
void Matmul<In, Result>::run(const Config& config, const Input& a, const Input& b, const Bias& bias,
                             const Output& c) const {
  check_shapes(a, b, bias, *c);
  check_product_memory(op, a, b, "a c that overlaps the bias", bias, *c);
  check_blocking(op, "forward", config.forward);
  std::vector<float> bias_copy;
  multiply(config.forward, a, b, packed_bias(bias, bias_copy), *c);
}

template <Element In, Element Result>
void Matmul<In, Result>::reference(const Input& a, const Input& b, const Bias& bias,
                                   const Output& out) const {
  const StridedView<Result, 3>& c = *out;
  check_shapes(a, b, bias, c);
  check_product_memory(op, a, b, "a c that overlaps the bias", bias, c);
  std::vector<double> sums(static_cast<size_t>(c.shape[2]));
  for (int64_t batch = 0; batch < c.shape[0]; ++batch)
    for (int64_t i = 0; i < c.shape[1]; ++i) {
      std::ranges::fill(sums, 0.0);
      for (int64_t k = 0; k < a.shape[2]; ++k) {
        const double factor = static_cast<float>(a(a.shape[0] == 1 ? 0 : batch, i, k));
        for (int64_t j = 0; j < c.shape[2]; ++j)
          sums[static_cast<size_t>(j)] +=
              factor * double{static_cast<float>(b(b.shape[0] == 1 ? 0 : batch, k, j))};
      }
      for (int64_t j = 0; j < c.shape[2]; ++j) {
        const double sum = sums[static_cast<size_t>(j)];
        c(batch, i, j) = static_cast<Result>(
            static_cast<float>(bias ? sum + double{static_cast<float>((*bias)(j))} : sum));
      }
    }
}

// ---- configs ------------------------------------------------------------------------------------

template <Element In, Element Result>
auto Matmul<In, Result>::heuristic_cfg(const Invocation& inv) const -> Config {
  const auto &a = inv.args[0].shape, &b = inv.args[1].shape;
  return product_heuristic<Config>(batch_of(inv), a[1], b[2], a[2], matrix_of(inv.args[0]),
                                   matrix_of(inv.args[1]));
}

template <Element In, Element Result>
auto Matmul<In, Result>::candidate_cfgs(const Invocation& inv) const -> Space<Config> {
  const auto &a = inv.args[0].shape, &b = inv.args[1].shape;
  const int64_t m = a[1] * (b[0] == 1 ? batch_of(inv) : 1);
  return product_space(inv, heuristic_cfg(inv), m, b[2], a[2]);
}

template <Element In, Element Result>
bool Matmul<In, Result>::is_valid(const Config& config, const Invocation&) const {
  return products_can_run(config);
}

template <Element In, Element Result>
auto Matmul<In, Result>::numerics(const Config& config, const Invocation& inv) const
    -> std::array<std::string, 3> {
  const auto &shape_a = inv.args[0].shape, &shape_b = inv.args[1].shape;
  const int64_t batch = batch_of(inv), m = shape_a[1], n = shape_b[2], k = shape_a[2];
  const Matrix a = matrix_of(inv.args[0]), b = matrix_of(inv.args[1]);
  // As it is, or transposed as `multiply` does for some c.
  const std::array<Gemm, 2> ways{
      {{m, n, k, a, b, {}, nullptr}, {n, m, k, b.transposed(), a.transposed(), {}, nullptr}}};
  const std::array<int64_t, 2> depths{m, batch * m};  // one by one, or all rows in one
  const auto cotangents = any_cotangent(m, n);
  const auto of_grad_b = [&](const Matrix& dc) {
    return sums_in(depths, [&](int64_t depth) {
      return gemm_sums({k, n, depth, a.transposed(), dc, {}, nullptr}, config.grad_b);
    });
  };
  return {sums_in(ways, [&](const Gemm& way) { return gemm_sums(way, config.forward); }),
          sums_in(cotangents,
                  [&](const Matrix& dc) {
                    return gemm_sums({m, k, n, dc, b.transposed(), {}, nullptr}, config.grad_a);
                  }),
          sums_in(cotangents, of_grad_b)};
}

// ---- gradients ----------------------------------------------------------------------------------

namespace {

template <class T>
StridedView<T, 3> packed_view(T* data, std::array<int64_t, 3> shape) {
  return View<T, 3>{data, shape};
}

// The products of a batch of x and y in a tensor of T. Where that is for a single matrix that
// served the whole batch, they are added up, in order.
template <class T, class X, class Y>
Tensor product(const MatmulBlocking& blocking, int64_t batch, const X& x, const Y& y,
               int64_t batch_of_result) {
  const int64_t m = x.shape[1], n = y.shape[2];
  Tensor out = Tensor::of<T>({batch_of_result, m, n});
  if (batch_of_result == batch) {
    multiply(blocking, x, y, nullptr, packed_view(out.data<T>(), {batch, m, n}));
    return out;
  }
  std::vector<float> sum(static_cast<size_t>(m * n)), one(sum.size());
  for (int64_t i = 0; i < batch; ++i) {
    const std::vector<Gemm> problem{{m,
                                     n,
                                     x.shape[2],
                                     matrix(x, i),
                                     matrix(y, i),
                                     {one.data(), DType::float32, n, 1},
                                     nullptr}};
    gemm(problem, blocking);
    for (size_t at = 0; at < sum.size(); ++at) sum[at] += one[at];
  }
  for (size_t at = 0; at < sum.size(); ++at) out.data<T>()[at] = static_cast<T>(sum[at]);
  return out;
}

// Rows of all of the batch as one matrix.
template <class View>
std::optional<View> rows_in_one(const View& v) {
  if (v.strides[0] != v.shape[1] * v.strides[1]) return std::nullopt;
  return View(v.data, {1, v.shape[0] * v.shape[1], v.shape[2]}, {0, v.strides[1], v.strides[2]});
}

template <class T, class D>
Tensor column_sums(const D& dc) {
  std::vector<double> sums(static_cast<size_t>(dc.shape[2]));
  for (int64_t batch = 0; batch < dc.shape[0]; ++batch)
    for (int64_t i = 0; i < dc.shape[1]; ++i)
      for (int64_t j = 0; j < dc.shape[2]; ++j)
        sums[static_cast<size_t>(j)] += double{static_cast<float>(dc(batch, i, j))};
  Tensor out = Tensor::of<T>({dc.shape[2]});
  for (size_t j = 0; j < sums.size(); ++j)
    out.data<T>()[j] = static_cast<T>(static_cast<float>(sums[j]));
  return out;
}

}  // namespace

template <Element In, Element Result>
auto Matmul<In, Result>::gradients(const Config& config, const Input& a, const Input& b,
                                   const Bias& bias, const StridedView<const Result, 3>& dc) const
    -> Gradients {
  check_shapes(a, b, bias, dc);
  check_blocking(op, "grad_a", config.grad_a);
  check_blocking(op, "grad_b", config.grad_b);
  const int64_t batch = dc.shape[0];
  Gradients out;
  std::get<0>(out) = product<In>(config.grad_a, batch, dc, transposed(b), a.shape[0]);
  const auto all_a = rows_in_one(a);
  const auto all_dc = rows_in_one(dc);
  // A b that serves the whole batch gets its gradient from all rows at once.
  if (b.shape[0] == 1 && a.shape[0] == batch && all_a && all_dc)
    std::get<1>(out) = product<In>(config.grad_b, 1, transposed(*all_a), *all_dc, 1);
  else std::get<1>(out) = product<In>(config.grad_b, batch, transposed(a), dc, b.shape[0]);
  if (bias) std::get<2>(out) = column_sums<In>(dc);
  return out;
}

template struct Matmul<float>;
template struct Matmul<BFloat16>;
template struct Matmul<BFloat16, BFloat16>;

}  // namespace ejk::ops
