// SPDX-License-Identifier: Apache-2.0
// The operation on tensors: ranks, transposes and types that are known at run time only.
#include <ejk/ops/matmul.h>

#include <algorithm>
#include <type_traits>

#include "ops/matmul/products.h"

namespace ejk::ops {
namespace {

constexpr std::string_view op = "matmul";

void check(const Tensor& a, const Tensor& b, const MatmulOptions& options) {
  std::string given = described("a", a) + ", " + described("b", b);
  if (options.bias) given += ", " + described("bias", *options.bias);
  const auto matrices = [](const Tensor& t) { return t.rank() == 2 || t.rank() == 3; };
  if (!matrices(a) || !matrices(b) || (options.bias && options.bias->rank() != 1))
    refuse(op, given, "a and b of rank 2 or 3, bias of rank 1");
  if (!has_product_elements(a) || b.dtype() != a.dtype() ||
      (options.bias && options.bias->dtype() != a.dtype()))
    refuse(op, given, "all of float32 or all of bfloat16");
  check_result(op, given, a, options.result);
  const auto rows = static_cast<size_t>(a.rank() - 2), others = static_cast<size_t>(b.rank() - 2);
  const int64_t depth_a = a.shape()[rows + (options.transpose_a ? 0 : 1)];
  const int64_t depth_b = b.shape()[others + (options.transpose_b ? 1 : 0)];
  const int64_t batch_a = a.rank() == 3 ? a.shape()[0] : 1;
  const int64_t batch_b = b.rank() == 3 ? b.shape()[0] : 1;
  if (depth_a != depth_b || (batch_a != batch_b && batch_a != 1 && batch_b != 1))
    refuse(op,
           fmt::format("{}{}{}", given, options.transpose_a ? ", transpose_a" : "",
                       options.transpose_b ? ", transpose_b" : ""),
           "a[batch or 1, m, k], b[batch or 1, k, n] after their transposes");
}

// Rank 3 with the last two axes in the product's order. Strides of axes that lead nowhere are made
// those of a packed tensor, so that they make no key of their own.
template <class T>
StridedView<T, 3> matrices(const Tensor& t, bool transpose) {
  const size_t rank = t.shape().size();
  StridedView<T, 3> v;
  v.data = t.data<std::remove_const_t<T>>();
  for (size_t d = 0; d < 3; ++d) {
    const bool there = d + rank >= 3;
    v.shape[d] = there ? t.shape()[d + rank - 3] : 1;
    v.strides[d] = there ? t.strides()[d + rank - 3] : 0;
  }
  if (transpose) std::swap(v.shape[1], v.shape[2]), std::swap(v.strides[1], v.strides[2]);
  for (size_t d = 3; d-- > 0;)
    if (v.shape[d] == 1) v.strides[d] = d == 2 ? 1 : v.shape[d + 1] * v.strides[d + 1];
  return v;
}

template <class In>
std::optional<StridedView<const In, 1>> bias_view(const MatmulOptions& options) {
  if (!options.bias) return std::nullopt;
  return options.bias->strided<In, 1>();
}

Tensor empty_result(const Tensor& a, const Tensor& b, const MatmulOptions& options) {
  const size_t last_a = a.shape().size() - 1, last_b = b.shape().size() - 1;
  const int64_t m = a.shape()[options.transpose_a ? last_a : last_a - 1];
  const int64_t n = b.shape()[options.transpose_b ? last_b - 1 : last_b];
  if (last_a == 1 && last_b == 1) return Tensor(options.result, {m, n});
  const int64_t batch_a = last_a == 2 ? a.shape()[0] : 1, batch_b = last_b == 2 ? b.shape()[0] : 1;
  return Tensor(options.result, {batch_a == 1 ? batch_b : batch_a, m, n});
}

// A gradient [batch, rows, columns] in the shape of the argument it belongs to.
Tensor like(const Tensor& argument, const Tensor& gradient, bool transpose) {
  const Tensor turned = transpose ? gradient.transposed({0, 2, 1}) : gradient;
  return argument.rank() == 3 ? turned : turned.selected(0, 0);
}

}  // namespace

void matmul_into(const Executor& executor, const Tensor& c, const Tensor& a, const Tensor& b,
                 const MatmulOptions& options) {
  MatmulOptions asked = options;
  asked.result = c.dtype();
  check(a, b, asked);
  if (c.rank() != std::max(a.rank(), b.rank()))
    refuse(op, described("c", c), fmt::format("a c of rank {}", std::max(a.rank(), b.rank())));
  with_types(a, asked.result, [&]<class In, class Result>() {
    executor(Matmul<In, Result>{}, matrices<const In>(a, asked.transpose_a),
             matrices<const In>(b, asked.transpose_b), bias_view<In>(asked),
             Out(matrices<Result>(c, false)));
  });
}

Tensor matmul(const Executor& executor, const Tensor& a, const Tensor& b,
              const MatmulOptions& options) {
  check(a, b, options);
  Tensor c = empty_result(a, b, options);
  matmul_into(executor, c, a, b, options);
  return c;
}

Tensor matmul(const Tensor& a, const Tensor& b, const MatmulOptions& options) {
  return matmul(default_executor(), a, b, options);
}

std::pair<Tensor, std::function<MatmulGradients(const Tensor&)>> matmul_vjp(
    const Executor& executor, const Tensor& a, const Tensor& b, const MatmulOptions& options) {
  check(a, b, options);
  Tensor c = empty_result(a, b, options);
  return with_types(
      a, options.result,
      [&]<class In, class Result>()
          -> std::pair<Tensor, std::function<MatmulGradients(const Tensor&)>> {
        auto pull = executor
                        .vjp(Matmul<In, Result>{}, matrices<const In>(a, options.transpose_a),
                             matrices<const In>(b, options.transpose_b), bias_view<In>(options),
                             Out(matrices<Result>(c, false)))
                        .second;
        return {c, [pull = std::move(pull), a, b, c, options](const Tensor& dc) {
                  check_cotangent(op, c, dc);
                  auto [da, db, dbias] =
                      pull(StridedView<const Result, 3>(matrices<Result>(dc, false)));
                  return MatmulGradients{like(a, da, options.transpose_a),
                                         like(b, db, options.transpose_b), std::move(dbias)};
                }};
      });
}

}  // namespace ejk::ops
