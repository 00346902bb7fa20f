// SPDX-License-Identifier: Apache-2.0
// The operation on OpenCL and CUDA devices: what it accepts, and which configs it knows there.
#include <ejk/ops/matmul.h>

#include <algorithm>
#include <array>

#include "base/format.h"
#include "ops/common/device_arrays.h"
#include "ops/common/refuse.h"
#include "ops/matmul/device_product.h"

namespace ejk::ops {
namespace {

constexpr std::string_view op = "matmul";

template <class A, class B, class Bias, class C>
void check_arrays(const A& a, const B& b, const Bias& bias, const C& c) {
  const int64_t batch = c.shape[0], m = c.shape[1], n = c.shape[2], k = a.shape[2];
  const auto serves = [&](const auto& x) { return x.shape[0] == batch || x.shape[0] == 1; };
  if (!serves(a) || !serves(b) || a.shape[1] != m || b.shape[1] != k || b.shape[2] != n ||
      (bias && bias->shape[0] != n))
    refuse(op,
           fmt::format("a{}, b{}{}, c{}", shape_text(a.shape), shape_text(b.shape),
                       bias ? ", bias" + shape_text(bias->shape) : "", shape_text(c.shape)),
           "a[batch or 1, m, k], b[batch or 1, k, n], bias[n] or none, c[batch, m, n]");
  constexpr std::string_view apart = "a c that shares memory with nothing else";
  if (overlap_on_device(c, a)) refuse(op, "a c that overlaps a", apart);
  if (overlap_on_device(c, b)) refuse(op, "a c that overlaps b", apart);
  if (bias && overlap_on_device(c, *bias)) refuse(op, "a c that overlaps the bias", apart);
}

// c = a b, da = dc b^T and db = a^T dc.
template <class In, class Result>
KnownProducts products(int64_t batch, int64_t batch_of_a, int64_t batch_of_b, int64_t m, int64_t n,
                       int64_t k, bool bias) {
  constexpr DType in = dtype_of<In>, out = dtype_of<Result>;
  // Where one a serves all, its gradients are added up, as floats.
  const DType of_grad_a = batch_of_a == batch ? in : DType::float32;
  // Where one b does, the rows of a follow each other.
  if (batch_of_b == 1 && batch_of_a == batch) m *= batch, batch = 1;
  return {.forward = {{.a = in, .b = in, .c = out, .bias = bias}, {batch, m, n, k}},
          .grad_a = {{.a = out, .b = in, .c = of_grad_a, .b_across = true}, {batch, m, k, n}},
          .grad_b = {{.a = in, .b = out, .c = in, .a_across = true}, {batch, k, n, m}}};
}
template <class In, class Result>
KnownProducts products(const Invocation& inv) {
  const auto &a = inv.args[0].shape, &b = inv.args[1].shape;
  return products<In, Result>(std::max(a[0], b[0]), a[0], b[0], a[1], b[2], a[2],
                              inv.args[2].kind == Arg::Kind::tensor);
}
template <class In, class Result, class A, class B>
KnownProducts products_of(const A& a, const B& b, int64_t batch, bool bias) {
  return products<In, Result>(batch, a.shape[0], b.shape[0], a.shape[1], b.shape[2], a.shape[2],
                              bias);
}

}  // namespace

template <Element In, Element Result>
void Matmul<In, Result>::run_gpu(const GpuConfig& config, const DeviceInput& a,
                                 const DeviceInput& b, const DeviceBias& bias,
                                 const DeviceOutput& c) const {
  check_arrays(a, b, bias, *c);
  const auto [kind, sizes] = products_of<In, Result>(a, b, c->shape[0], bias.has_value()).forward;
  run_on_device(op, config.forward,
                {.kind = kind,
                 .sizes = sizes,
                 .a = device_array(a),
                 .b = device_array(b),
                 .c = device_array(*c),
                 .a_serves_all = a.shape[0] == 1,
                 .b_serves_all = b.shape[0] == 1,
                 .bias = bias ? device_array(*bias) : DeviceArray()});
}

template <Element In, Element Result>
auto Matmul<In, Result>::vjp_gpu(const GpuConfig& config, const Residuals&,
                                 const DeviceCotangent& dc, const DeviceInput& a,
                                 const DeviceInput& b, const DeviceBias& bias,
                                 const DeviceOutput&) const -> Gradients {
  check_arrays(a, b, bias, dc);
  const Device& device = *dc.device;
  const int64_t batch = dc.shape[0];
  const KnownProducts known = products_of<In, Result>(a, b, batch, bias.has_value());
  const auto made = [&](DType dtype, auto shape) {
    return Tensor(dtype, {shape.begin(), shape.end()}, device);
  };

  const Tensor da = made(dtype_of<In>, a.shape);
  const bool added_up = a.shape[0] != batch;
  const Tensor all_da =
      added_up ? made(DType::float32, std::array{batch, a.shape[1], a.shape[2]}) : da;
  run_on_device(op, config.grad_a,
                {.kind = known.grad_a.kind,
                 .sizes = known.grad_a.sizes,
                 .a = device_array(dc),
                 .b = device_array(b),
                 .c = device_array(all_da),
                 .b_serves_all = b.shape[0] == 1});
  if (added_up)
    sum_rows_on_device(batch, a.shape[1] * a.shape[2], device_array(all_da), DType::float32,
                       device_array(da), dtype_of<In>);

  const Tensor db = made(dtype_of<In>, b.shape);
  run_on_device(op, config.grad_b,
                {.kind = known.grad_b.kind,
                 .sizes = known.grad_b.sizes,
                 .a = device_array(a),
                 .b = device_array(dc),
                 .c = device_array(db),
                 .a_serves_all = a.shape[0] == 1});

  std::optional<Tensor> dbias;
  if (bias) {
    dbias = made(dtype_of<In>, bias->shape);
    sum_rows_on_device(batch * dc.shape[1], dc.shape[2], device_array(dc), dtype_of<Result>,
                       device_array(*dbias), dtype_of<In>);
  }
  return {da, db, dbias};
}

template <Element In, Element Result>
auto Matmul<In, Result>::heuristic_cfg_gpu(const Invocation& inv) const -> GpuConfig {
  return products<In, Result>(inv).template guess<GpuConfig>(*inv.device);
}

template <Element In, Element Result>
auto Matmul<In, Result>::candidate_cfgs_gpu(const Invocation& inv) const -> Space<GpuConfig> {
  return products<In, Result>(inv).template space<GpuConfig>(*inv.device, inv.backward);
}

template <Element In, Element Result>
bool Matmul<In, Result>::is_valid(const GpuConfig& config, const Invocation& inv) const {
  return products<In, Result>(inv).can_run(config, *inv.device);
}

#define EJK_INSTANTIATE(...)                                                                \
  template void Matmul<__VA_ARGS__>::run_gpu(const GpuConfig&, const DeviceInput&,          \
                                             const DeviceInput&, const DeviceBias&,         \
                                             const DeviceOutput&) const;                    \
  template auto Matmul<__VA_ARGS__>::vjp_gpu(                                               \
      const GpuConfig&, const Residuals&, const DeviceCotangent&, const DeviceInput&,       \
      const DeviceInput&, const DeviceBias&, const DeviceOutput&) const->Gradients;         \
  template auto Matmul<__VA_ARGS__>::heuristic_cfg_gpu(const Invocation&) const->GpuConfig; \
  template auto Matmul<__VA_ARGS__>::candidate_cfgs_gpu(const Invocation&)                  \
      const->Space<GpuConfig>;                                                              \
  template bool Matmul<__VA_ARGS__>::is_valid(const GpuConfig&, const Invocation&) const;
EJK_INSTANTIATE(float)
EJK_INSTANTIATE(BFloat16)
EJK_INSTANTIATE(BFloat16, BFloat16)

}  // namespace ejk::ops
