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

}  // namespace

template <class T>
void RmsNorm<T>::run_gpu(const GpuConfig& config, const DeviceIn& x, const DeviceWeight& weight,
                         float eps, const DeviceResult& out) const {
  check_device_rows<T>(op, config, x, {{"weight", weight}}, *out);
  launch(source, "rms_norm", row_program<T>(config, x.shape[1], weight.has_value()),
         row_grid(config, x.shape), static_cast<int>(x.shape[0]), static_cast<int>(x.shape[1]), eps,
         x, line_or(weight, x), *out);
}

#define EJK_INSTANTIATE(T)                                                                         \
  template void RmsNorm<T>::run_gpu(const GpuConfig&, const DeviceIn&, const DeviceWeight&, float, \
                                    const DeviceResult&) const;
EJK_INSTANTIATE(float)
EJK_INSTANTIATE(BFloat16)

}  // namespace ejk::ops
