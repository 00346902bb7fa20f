// SPDX-License-Identifier: Apache-2.0
// Layer normalisation of rows on OpenCL and CUDA devices.
#include <ejk/ops/layer_norm.h>

#include <ejk_kernels/device_cl.h>
#include <ejk_kernels/device_rows_cl.h>
#include <ejk_kernels/layer_norm_cl.h>

#include "ops/common/device_rows.h"

namespace ejk::ops {
namespace {

constexpr std::string_view op = "layer_norm";
constexpr Source source{"layer_norm.cl", ejk_kernels::device_cl, ejk_kernels::device_rows_cl,
                        ejk_kernels::layer_norm_cl};

template <class T>
using Line = std::optional<DeviceView<const T, 1>>;

template <class T>
void forward(RowPass pass, const RowGpuConfig& config, const DeviceView<const T, 2>& x,
             const Line<T>& weight, const Line<T>& bias, float eps, const DeviceView<T, 2>& out,
             const DeviceView<float, 1>& moments) {
  check_device_rows<T>(op, config, x, {{"weight", weight}, {"bias", bias}}, out);
  launch(source, "layer_norm",
         row_program<T>(pass, config, x.shape[1], weight.has_value(), bias.has_value()),
         row_grid(config, x.shape), static_cast<int>(x.shape[0]), static_cast<int>(x.shape[1]), eps,
         x, line_or(weight, x), line_or(bias, x), out, moments);
}

}  // namespace

template <class T>
void LayerNorm<T>::run_gpu(const GpuConfig& config, const DeviceIn& x,
                           const DevicePerColumn& weight, const DevicePerColumn& bias, float eps,
                           const DeviceResult& out) const {
  forward(RowPass::forward, config, x, weight, bias, eps, *out, no_residuals(*out));
}

template <class T>
auto LayerNorm<T>::fwd_with_residuals_gpu(const GpuConfig& config, const DeviceIn& x,
                                          const DevicePerColumn& weight,
                                          const DevicePerColumn& bias, float eps,
                                          const DeviceResult& out) const
    -> std::pair<DeviceIn, DeviceResiduals> {
  DeviceResiduals residuals{Tensor(DType::float32, {x.shape[0], 3}, *x.device)};
  forward(RowPass::forward_with_residuals, config, x, weight, bias, eps, *out,
          flat<float>(residuals.moments));
  return {DeviceIn(*out), std::move(residuals)};
}

template <class T>
std::tuple<Tensor, std::optional<Tensor>, std::optional<Tensor>> LayerNorm<T>::vjp_gpu(
    const GpuConfig& config, const DeviceResiduals& residuals, const DeviceIn& dy,
    const DeviceIn& x, const DevicePerColumn& weight, const DevicePerColumn& bias, float,
    const DeviceResult&) const {
  check_cotangent<T>(op, config, dy, x);
  const int rows = static_cast<int>(x.shape[0]), columns = static_cast<int>(x.shape[1]);
  const auto program = row_program<T>(RowPass::gradient, config, columns, weight.has_value());
  const auto moments = flat<const float>(residuals.moments);
  Tensor dx(dtype_of<T>, {rows, columns}, *x.device);
  launch(source, "layer_norm_dx", program, row_grid(config, x.shape), rows, columns, dy, x,
         line_or(weight, x), moments, device_view<T, 2>(dx));
  std::optional<Tensor> dweight, dbias;
  if (weight)
    dweight =
        column_sums<T>(source, program, x, [&](const Grid& grid, int chunk, const auto& sums) {
          launch(source, "layer_norm_dweight", program, grid, rows, columns, chunk, dy, x, moments,
                 sums);
        });
  if (bias)
    dbias = column_sums<T>(source, program, x, [&](const Grid& grid, int chunk, const auto& sums) {
      launch(source, "layer_norm_dbias", program, grid, rows, columns, chunk, dy, sums);
    });
  return {std::move(dx), std::move(dweight), std::move(dbias)};
}

#define EJK_INSTANTIATE(T)                                                                         \
  template void LayerNorm<T>::run_gpu(const GpuConfig&, const DeviceIn&, const DevicePerColumn&,   \
                                      const DevicePerColumn&, float, const DeviceResult&) const;   \
  template std::pair<DeviceView<const T, 2>, LayerNorm<T>::DeviceResiduals>                        \
  LayerNorm<T>::fwd_with_residuals_gpu(const GpuConfig&, const DeviceIn&, const DevicePerColumn&,  \
                                       const DevicePerColumn&, float, const DeviceResult&) const;  \
  template std::tuple<Tensor, std::optional<Tensor>, std::optional<Tensor>> LayerNorm<T>::vjp_gpu( \
      const GpuConfig&, const DeviceResiduals&, const DeviceIn&, const DeviceIn&,                  \
      const DevicePerColumn&, const DevicePerColumn&, float, const DeviceResult&) const;
EJK_INSTANTIATE(float)
EJK_INSTANTIATE(BFloat16)

}  // namespace ejk::ops
