// SPDX-License-Identifier: Apache-2.0
// The operation on OpenCL and CUDA devices: what it accepts, and which configs it knows there.
#include <ejk/ops/grouped_matmul.h>

#include "base/format.h"
#include "ops/common/device_arrays.h"
#include "ops/common/refuse.h"
#include "ops/matmul/device_product.h"

namespace ejk::ops {
namespace {

constexpr std::string_view op = "grouped_matmul";

template <class A, class B, class S, class C>
void check_arrays(const A& a, const B& b, const S& sizes, const C& c) {
  if (a.shape[1] != b.shape[1] || c.shape[0] != a.shape[0] || c.shape[1] != b.shape[2] ||
      sizes.shape[0] != b.shape[0])
    refuse(op,
           fmt::format("a{}, b{}, group_sizes{}, c{}", shape_text(a.shape), shape_text(b.shape),
                       shape_text(sizes.shape), shape_text(c.shape)),
           "a[rows, k], b[groups, k, n], group_sizes[groups], c[rows, n]");
  constexpr std::string_view apart = "a c that shares memory with nothing else";
  if (overlap_on_device(c, a)) refuse(op, "a c that overlaps a", apart);
  if (overlap_on_device(c, b)) refuse(op, "a c that overlaps b", apart);
  if (overlap_on_device(c, sizes)) refuse(op, "a c that overlaps group_sizes", apart);
}

// c = a b of rows in groups, da = dc b^T of the same rows, db = a^T dc of each group.
template <class In, class Result>
KnownProducts products(int64_t rows, int64_t groups, int64_t n, int64_t k) {
  using Groups = ProductKind::Groups;
  constexpr DType in = dtype_of<In>, out = dtype_of<Result>;
  return {.forward = {{.a = in, .b = in, .c = out, .groups = Groups::of_rows},
                      {.m = rows, .n = n, .k = k, .groups = groups}},
          .grad_a = {{.a = out, .b = in, .c = in, .b_across = true, .groups = Groups::of_rows},
                     {.m = rows, .n = k, .k = n, .groups = groups}},
          .grad_b = {{.a = in, .b = out, .c = in, .a_across = true, .groups = Groups::of_depth},
                     {.batch = groups, .m = k, .n = n, .k = rows, .groups = groups}}};
}
template <class In, class Result>
KnownProducts products(const Invocation& inv) {
  const auto &a = inv.args[0].shape, &b = inv.args[1].shape;
  return products<In, Result>(a[0], b[0], b[2], a[1]);
}
template <class In, class Result, class A, class B>
KnownProducts products_of(const A& a, const B& b) {
  return products<In, Result>(a.shape[0], b.shape[0], b.shape[2], a.shape[1]);
}

}  // namespace

template <Element In, Element Result>
void GroupedMatmul<In, Result>::run_gpu(const GpuConfig& config, const DeviceRows& a,
                                        const DeviceMatrices& b, const DeviceSizes& sizes,
                                        const DeviceOutput& c) const {
  check_arrays(a, b, sizes, *c);
  const KnownProduct forward = products_of<In, Result>(a, b).forward;
  run_on_device(op, config.forward,
                {.kind = forward.kind,
                 .sizes = forward.sizes,
                 .a = device_array(a),
                 .b = device_array(b),
                 .c = device_array(*c),
                 .group_sizes = device_array(sizes)});
}

template <Element In, Element Result>
auto GroupedMatmul<In, Result>::vjp_gpu(const GpuConfig& config, const Residuals&,
                                        const DeviceCotangent& dc, const DeviceRows& a,
                                        const DeviceMatrices& b, const DeviceSizes& sizes,
                                        const DeviceOutput&) const -> Gradients {
  check_arrays(a, b, sizes, dc);
  const KnownProducts known = products_of<In, Result>(a, b);
  const auto made = [&](auto shape) {
    return Tensor(dtype_of<In>, {shape.begin(), shape.end()}, *dc.device);
  };
  const Tensor da = made(a.shape), db = made(b.shape);
  run_on_device(op, config.grad_a,
                {.kind = known.grad_a.kind,
                 .sizes = known.grad_a.sizes,
                 .a = device_array(dc),
                 .b = device_array(b),
                 .c = device_array(device_view<In, 2>(da)),
                 .group_sizes = device_array(sizes)});
  run_on_device(op, config.grad_b,
                {.kind = known.grad_b.kind,
                 .sizes = known.grad_b.sizes,
                 .a = device_array(a),
                 .b = device_array(dc),
                 .c = device_array(device_view<In, 3>(db)),
                 .group_sizes = device_array(sizes)});
  return {da, db};
}

template <Element In, Element Result>
auto GroupedMatmul<In, Result>::heuristic_cfg_gpu(const Invocation& inv) const -> GpuConfig {
  return products<In, Result>(inv).template guess<GpuConfig>(*inv.device);
}

template <Element In, Element Result>
auto GroupedMatmul<In, Result>::candidate_cfgs_gpu(const Invocation& inv) const
    -> Space<GpuConfig> {
  return products<In, Result>(inv).template space<GpuConfig>(*inv.device, inv.backward);
}

template <Element In, Element Result>
bool GroupedMatmul<In, Result>::is_valid(const GpuConfig& config, const Invocation& inv) const {
  return products<In, Result>(inv).can_run(config, *inv.device);
}

#define EJK_INSTANTIATE(...)                                                                       \
  template auto GroupedMatmul<__VA_ARGS__>::vjp_gpu(                                               \
      const GpuConfig&, const Residuals&, const DeviceCotangent&, const DeviceRows&,               \
      const DeviceMatrices&, const DeviceSizes&, const DeviceOutput&) const->Gradients;            \
  template void GroupedMatmul<__VA_ARGS__>::run_gpu(const GpuConfig&, const DeviceRows&,           \
                                                    const DeviceMatrices&, const DeviceSizes&,     \
                                                    const DeviceOutput&) const;                    \
  template auto GroupedMatmul<__VA_ARGS__>::heuristic_cfg_gpu(const Invocation&) const->GpuConfig; \
  template auto GroupedMatmul<__VA_ARGS__>::candidate_cfgs_gpu(const Invocation&)                  \
      const->Space<GpuConfig>;                                                                     \
  template bool GroupedMatmul<__VA_ARGS__>::is_valid(const GpuConfig&, const Invocation&) const;
EJK_INSTANTIATE(float)
EJK_INSTANTIATE(BFloat16)
EJK_INSTANTIATE(BFloat16, BFloat16)

}  // namespace ejk::ops
