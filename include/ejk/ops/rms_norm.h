// SPDX-License-Identifier: Apache-2.0
// Root-mean-square normalisation over the last axis, with its gradient.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <ejk/argument.h>
#include <ejk/detail/export.h>
#include <ejk/device_view.h>
#include <ejk/ops/row_config.h>
#include <ejk/tensor.h>

namespace EJK_EXPORT ejk {
namespace ops {

// out = x / sqrt(mean(x^2) + eps) * weight for each row; without a weight it is left out.
//
// T is float or BFloat16 (computed in float, rounded once). Strides are free; rows whose elements
// are not adjacent cost a copy of each row. `out` may be x itself, of the same strides; any other
// overlap of outputs with inputs is refused: Error(invalid_argument), as are shapes that do not
// fit.
//
// A row with a NaN becomes NaN. In a row with infinities these become NaN and the rest zero. Finite
// rows are right also where x^2 leaves the range of float. With eps = 0, a row of zeros is NaN.
// Results do not depend on the config.
//
// On OpenCL and CUDA devices arrays are packed, and everything else holds as well, but that results
// depend on the config by rounding, and that a device may take numbers below 1.2e-38 for zero.
template <class T>
struct RmsNorm : RowKernel {
  static constexpr std::string_view op_id = "rms_norm", version = "1";
  using In = StridedView<const T, 2>;                // [rows, columns]
  using Weight = std::optional<std::span<const T>>;  // one element per column
  using Result = Out<StridedView<T, 2>>;             // of the shape of x

  void run(const Config& config, const In& x, const Weight& weight, float eps,
           const Result& out) const;
  // The arrays of run_gpu.
  using DeviceIn = DeviceView<const T, 2>;
  using DeviceWeight = std::optional<DeviceView<const T, 1>>;
  using DeviceResult = Out<DeviceView<T, 2>>;
  void run_gpu(const GpuConfig& config, const DeviceIn& x, const DeviceWeight& weight, float eps,
               const DeviceResult& out) const;
  // The same in double precision, element by element.
  void reference(const In& x, const Weight& weight, float eps, const Result& out) const;

  // The pull-back gives dx and, if there is a weight, its gradient, both packed. Sums over rows are
  // made in an order that depends on the number of rows alone.
  struct Residuals {
    std::vector<float> scales;  // 1 / sqrt(mean(x^2) + eps) of each row
  };
  std::pair<In, Residuals> fwd_with_residuals(const Config& config, const In& x,
                                              const Weight& weight, float eps,
                                              const Result& out) const;
  std::tuple<Tensor, std::optional<Tensor>> vjp(const Config& config, const Residuals& residuals,
                                                const In& dy, const In& x, const Weight& weight,
                                                float eps, const Result& out) const;
  struct DeviceResiduals {
    Tensor scales;  // the same, float32[rows] on the device
  };
  std::pair<DeviceIn, DeviceResiduals> fwd_with_residuals_gpu(const GpuConfig& config,
                                                              const DeviceIn& x,
                                                              const DeviceWeight& weight, float eps,
                                                              const DeviceResult& out) const;
  std::tuple<Tensor, std::optional<Tensor>> vjp_gpu(const GpuConfig& config,
                                                    const DeviceResiduals& residuals,
                                                    const DeviceIn& dy, const DeviceIn& x,
                                                    const DeviceWeight& weight, float eps,
                                                    const DeviceResult& out) const;
};

extern template struct RmsNorm<float>;
extern template struct RmsNorm<BFloat16>;

// The same over the last axis of a tensor of any rank from 1 on, by the default executor. The
// weight has x's element type and the length of its last axis, and lives where x does. The result
// is packed and lives there too.
Tensor rms_norm(const Tensor& x, const std::optional<Tensor>& weight = {}, float eps = 1e-6f);

}  // namespace ops
}  // namespace ejk
