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

}  // namespace

template <class T>
void LayerNorm<T>::run_gpu(const GpuConfig& config, const DeviceIn& x,
                           const DevicePerColumn& weight, const DevicePerColumn& bias, float eps,
                           const DeviceResult& out) const {
  check_device_rows<T>(op, config, x, {{"weight", weight}, {"bias", bias}}, *out);
  launch(source, "layer_norm",
         row_program<T>(config, x.shape[1], weight.has_value(), bias.has_value()),
         row_grid(config, x.shape), static_cast<int>(x.shape[0]), static_cast<int>(x.shape[1]), eps,
         x, line_or(weight, x), line_or(bias, x), *out);
}

#define EJK_INSTANTIATE(T)                                                                       \
  template void LayerNorm<T>::run_gpu(const GpuConfig&, const DeviceIn&, const DevicePerColumn&, \
                                      const DevicePerColumn&, float, const DeviceResult&) const;
EJK_INSTANTIATE(float)
EJK_INSTANTIATE(BFloat16)

}  // namespace ejk::ops
