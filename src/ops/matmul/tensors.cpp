// SPDX-License-Identifier: Apache-2.0
// The operation on tensors: ranks, transposes and types that are known at run time only.
#include <ejk/ops/matmul.h>

#include <algorithm>
#include <type_traits>
#include <vector>

#include "ops/matmul/device_product.h"
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
  check_one_place(op, a, {{"b", &b}, {"bias", options.bias ? &*options.bias : nullptr}});
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

// The same on a device, in the product's order there.
Tensor packed_matrices(const Tensor& t, bool transpose) {
  const Tensor matrices = t.rank() == 3 ? t : packed(t).reshaped({1, t.shape()[0], t.shape()[1]});
  if (!transpose) return packed(matrices);
  const Tensor from = packed(matrices);
  const int64_t batch = from.shape()[0], rows = from.shape()[1], columns = from.shape()[2];
  Tensor to(t.dtype(), {batch, columns, rows}, t.device());
  transpose_on_device(op, batch, rows, columns, t.dtype(), device_array(from), device_array(to));
  return to;
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
  const int64_t batch_a = last_a == 2 ? a.shape()[0] : 1, batch_b = last_b == 2 ? b.shape()[0] : 1;
  std::vector<int64_t> shape{m, n};
  if (last_a == 2 || last_b == 2) shape.insert(shape.begin(), batch_a == 1 ? batch_b : batch_a);
  return Tensor(options.result, std::move(shape), a.device());
}

template <class T>
DeviceView<T, 3> device_matrices(const Tensor& t) {
  return device_view<T, 3>(packed_matrices(t, false));
}

// The arguments on a device, packed: itself where they are, else copies, which this keeps.
template <class In>
class OnDevice {
 public:
  OnDevice(const Tensor& a, const Tensor& b, const MatmulOptions& options)
      : a_(packed_matrices(a, options.transpose_a)), b_(packed_matrices(b, options.transpose_b)) {
    if (options.bias) bias_ = packed(*options.bias);
  }
  auto a() const { return device_view<const In, 3>(a_); }
  auto b() const { return device_view<const In, 3>(b_); }
  std::optional<DeviceView<const In, 1>> bias() const {
    if (!bias_) return std::nullopt;
    return device_view<const In, 1>(*bias_);
  }

 private:
  Tensor a_, b_;
  std::optional<Tensor> bias_;
};

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
  check_one_place(op, a, {{"c", &c}});
  if (!c.on_cpu() && !c.packed())
    refuse(op, described("c", c) + " that is not packed", "a packed c on a device");
  with_types(a, asked.result, [&]<class In, class Result>() {
    if (!a.on_cpu()) {
      const OnDevice<In> arguments(a, b, asked);
      executor(Matmul<In, Result>{}, arguments.a(), arguments.b(), arguments.bias(),
               Out(device_matrices<Result>(c)));
      return;
    }
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
  using Pulled = std::function<MatmulGradients(const Tensor&)>;
  return with_types(a, options.result, [&]<class In, class Result>() -> std::pair<Tensor, Pulled> {
    // `view` makes what the kernel's pull-back takes of dc.
    const auto pulled = [&](auto pull, auto view) -> Pulled {
      return [pull = std::move(pull), view, a, b, c, options](const Tensor& dc) {
        check_cotangent(op, c, dc);
        const Tensor kept = dc.on_cpu() ? dc : packed(dc);
        auto [da, db, dbias] = pull(view(kept));
        return MatmulGradients{like(a, da, options.transpose_a), like(b, db, options.transpose_b),
                               std::move(dbias)};
      };
    };
    if (a.on_cpu())
      return {c, pulled(executor
                            .vjp(Matmul<In, Result>{}, matrices<const In>(a, options.transpose_a),
                                 matrices<const In>(b, options.transpose_b), bias_view<In>(options),
                                 Out(matrices<Result>(c, false)))
                            .second,
                        [](const Tensor& dc) {
                          return StridedView<const Result, 3>(matrices<Result>(dc, false));
                        })};
    const OnDevice<In> arguments(a, b, options);
    return {c, pulled([pull = executor
                                  .vjp(Matmul<In, Result>{}, arguments.a(), arguments.b(),
                                       arguments.bias(), Out(device_matrices<Result>(c)))
                                  .second,
                       arguments](const auto& dc) { return pull(dc); },
                      [](const Tensor& dc) { return device_matrices<const Result>(dc); })};
  });
}

}  // namespace ejk::ops
