// SPDX-License-Identifier: Apache-2.0
// Softmax of rows on OpenCL and CUDA devices.
#include <ejk/ops/softmax.h>

#include <ejk_kernels/device_cl.h>
#include <ejk_kernels/device_rows_cl.h>
#include <ejk_kernels/softmax_cl.h>

#include "ops/common/device_rows.h"
#include "ops/softmax/scale.h"

namespace ejk::ops {
namespace {

constexpr std::string_view op = "softmax";
constexpr Source source{"softmax.cl", ejk_kernels::device_cl, ejk_kernels::device_rows_cl,
                        ejk_kernels::softmax_cl};

}  // namespace

template <class T>
void Softmax<T>::run_gpu(const GpuConfig& config, const DeviceIn& x, float scale,
                         const DeviceResult& out) const {
  check_device_rows<T>(op, config, x, {}, *out);
  check_scale(op, scale);
  launch(source, "softmax", row_program<T>(RowPass::forward, config, x.shape[1]),
         row_grid(config, x.shape), static_cast<int>(x.shape[0]), static_cast<int>(x.shape[1]),
         scale, x, *out);
}

template <class T>
auto Softmax<T>::fwd_with_residuals_gpu(const GpuConfig& config, const DeviceIn& x, float scale,
                                        const DeviceResult& out) const
    -> std::pair<DeviceIn, Residuals> {
  run_gpu(config, x, scale, out);
  return {DeviceIn(*out), Residuals{}};
}

template <class T>
std::tuple<Tensor> Softmax<T>::vjp_gpu(const GpuConfig& config, const Residuals&, const DeviceIn& y,
                                       const DeviceIn& dy, const DeviceIn&, float scale,
                                       const DeviceResult&) const {
  check_cotangent<T>(op, config, dy, y);
  Tensor dx(dtype_of<T>, {y.shape[0], y.shape[1]}, *y.device);
  launch(source, "softmax_dx", row_program<T>(RowPass::gradient, config, y.shape[1]),
         row_grid(config, y.shape), static_cast<int>(y.shape[0]), static_cast<int>(y.shape[1]),
         scale, dy, y, device_view<T, 2>(dx));
  return {std::move(dx)};
}

#define EJK_INSTANTIATE(T)                                                                         \
  template void Softmax<T>::run_gpu(const GpuConfig&, const DeviceIn&, float, const DeviceResult&) \
      const;                                                                                       \
  template std::pair<DeviceView<const T, 2>, Softmax<T>::Residuals>                                \
  Softmax<T>::fwd_with_residuals_gpu(const GpuConfig&, const DeviceIn&, float,                     \
                                     const DeviceResult&) const;                                   \
  template std::tuple<Tensor> Softmax<T>::vjp_gpu(                                                 \
      const GpuConfig&, const Residuals&, const DeviceIn&, const DeviceIn&, const DeviceIn&,       \
      float, const DeviceResult&) const;
EJK_INSTANTIATE(float)
EJK_INSTANTIATE(BFloat16)

}  // namespace ejk::ops
