// SPDX-License-Identifier: Apache-2.0
// Root-mean-square normalisation of rows on OpenCL and CUDA devices.
#include <ejk/ops/rms_norm.h>

#include <ejk_kernels/device_cl.h>
#include <ejk_kernels/device_rows_cl.h>
#include <ejk_kernels/rms_norm_cl.h>

#include "ops/common/device_rows.h"

namespace ejk::ops {
namespace {

constexpr std::string_view op = "rms_norm";
constexpr Source source{"rms_norm.cl", ejk_kernels::device_cl, ejk_kernels::device_rows_cl,
                        ejk_kernels::rms_norm_cl};

template <class T>
void forward(RowPass pass, const RowGpuConfig& config, const DeviceView<const T, 2>& x,
             const std::optional<DeviceView<const T, 1>>& weight, float eps,
             const DeviceView<T, 2>& out, const DeviceView<float, 1>& scales) {
  check_device_rows<T>(op, config, x, {{"weight", weight}}, out);
  launch(source, "rms_norm", row_program<T>(pass, config, x.shape[1], weight.has_value()),
         row_grid(config, x.shape), static_cast<int>(x.shape[0]), static_cast<int>(x.shape[1]), eps,
         x, line_or(weight, x), out, scales);
}

}  // namespace

template <class T>
void RmsNorm<T>::run_gpu(const GpuConfig& config, const DeviceIn& x, const DeviceWeight& weight,
                         float eps, const DeviceResult& out) const {
  forward(RowPass::forward, config, x, weight, eps, *out, no_residuals(*out));
}

template <class T>
auto RmsNorm<T>::fwd_with_residuals_gpu(const GpuConfig& config, const DeviceIn& x,
                                        const DeviceWeight& weight, float eps,
                                        const DeviceResult& out) const
    -> std::pair<DeviceIn, DeviceResiduals> {
  DeviceResiduals residuals{Tensor(DType::float32, {x.shape[0]}, *x.device)};
  forward(RowPass::forward_with_residuals, config, x, weight, eps, *out,
          flat<float>(residuals.scales));
  return {DeviceIn(*out), std::move(residuals)};
}

template <class T>
std::tuple<Tensor, std::optional<Tensor>> RmsNorm<T>::vjp_gpu(const GpuConfig& config,
                                                              const DeviceResiduals& residuals,
                                                              const DeviceIn& dy, const DeviceIn& x,
                                                              const DeviceWeight& weight, float,
                                                              const DeviceResult&) const {
  check_cotangent<T>(op, config, dy, x);
  const int rows = static_cast<int>(x.shape[0]), columns = static_cast<int>(x.shape[1]);
  const auto program = row_program<T>(RowPass::gradient, config, columns, weight.has_value());
  const auto scales = flat<const float>(residuals.scales);
  Tensor dx(dtype_of<T>, {rows, columns}, *x.device);
  launch(source, "rms_norm_dx", program, row_grid(config, x.shape), rows, columns, dy, x,
         line_or(weight, x), scales, device_view<T, 2>(dx));
  if (!weight) return {std::move(dx), std::nullopt};
  return {std::move(dx),
          column_sums<T>(source, program, x, [&](const Grid& grid, int chunk, const auto& sums) {
            launch(source, "rms_norm_dweight", program, grid, rows, columns, chunk, dy, x, scales,
                   sums);
          })};
}

#define EJK_INSTANTIATE(T)                                                                         \
  template void RmsNorm<T>::run_gpu(const GpuConfig&, const DeviceIn&, const DeviceWeight&, float, \
                                    const DeviceResult&) const;                                    \
  template std::pair<DeviceView<const T, 2>, RmsNorm<T>::DeviceResiduals>                          \
  RmsNorm<T>::fwd_with_residuals_gpu(const GpuConfig&, const DeviceIn&, const DeviceWeight&,       \
                                     float, const DeviceResult&) const;                            \
  template std::tuple<Tensor, std::optional<Tensor>> RmsNorm<T>::vjp_gpu(                          \
      const GpuConfig&, const DeviceResiduals&, const DeviceIn&, const DeviceIn&,                  \
      const DeviceWeight&, float, const DeviceResult&) const;
EJK_INSTANTIATE(float)
EJK_INSTANTIATE(BFloat16)

}  // namespace ejk::ops
