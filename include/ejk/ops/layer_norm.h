// SPDX-License-Identifier: Apache-2.0
// Layer normalisation over the last axis, with its gradient.
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

// What a row is normalised with.
struct RowMoments {
  float mean, rest_of_mean;  // the mean is their sum, more exactly than one float can say it
  float scale;               // 1 / sqrt(var + eps)
};

// out = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias for each row, var being the mean of the
// squared differences from the mean. Weight and bias may each be left out.
//
// T is float or BFloat16 (computed in float, rounded once). Strides are free; rows whose elements
// are not adjacent cost a copy of each row. `out` may be x itself, of the same strides; any other
// overlap of outputs with inputs is refused: Error(invalid_argument), as are shapes that do not
// fit.
//
// A row with a NaN or an infinity becomes NaN. Finite rows up to 1e38 are right also where squares
// leave the range of float or the mean is large beside the differences from it. With eps = 0, a row
// of equal elements is NaN. Results do not depend on the config.
//
// On OpenCL and CUDA devices arrays are packed, and everything else holds as well, but that results
// depend on the config by rounding, and that a device may take numbers below 1.2e-38 for zero.
template <class T>
struct LayerNorm : RowKernel {
  static constexpr std::string_view op_id = "layer_norm", version = "1";
  using In = StridedView<const T, 2>;  // [rows, columns]
  // Weight or bias; the result. Below, the same on a device.
  using PerColumn = std::optional<std::span<const T>>;
  using Result = Out<StridedView<T, 2>>;

  void run(const Config& config, const In& x, const PerColumn& weight, const PerColumn& bias,
           float eps, const Result& out) const;
  // The arrays of run_gpu.
  using DeviceIn = DeviceView<const T, 2>;
  using DevicePerColumn = std::optional<DeviceView<const T, 1>>;
  using DeviceResult = Out<DeviceView<T, 2>>;
  void run_gpu(const GpuConfig& config, const DeviceIn& x, const DevicePerColumn& weight,
               const DevicePerColumn& bias, float eps, const DeviceResult& out) const;
  // The same in double precision, element by element.
  void reference(const In& x, const PerColumn& weight, const PerColumn& bias, float eps,
                 const Result& out) const;

  // The pull-back gives dx and the gradients of weight and bias as far as there are such, all
  // packed. Sums over rows are made in an order that depends on the number of rows alone.
  struct Residuals {
    std::vector<RowMoments> moments;  // of each row
  };
  std::pair<In, Residuals> fwd_with_residuals(const Config& config, const In& x,
                                              const PerColumn& weight, const PerColumn& bias,
                                              float eps, const Result& out) const;
  std::tuple<Tensor, std::optional<Tensor>, std::optional<Tensor>> vjp(
      const Config& config, const Residuals& residuals, const In& dy, const In& x,
      const PerColumn& weight, const PerColumn& bias, float eps, const Result& out) const;
  struct DeviceResiduals {
    Tensor moments;  // the same, float32[rows, 3] on the device
  };
  std::pair<DeviceIn, DeviceResiduals> fwd_with_residuals_gpu(
      const GpuConfig& config, const DeviceIn& x, const DevicePerColumn& weight,
      const DevicePerColumn& bias, float eps, const DeviceResult& out) const;
  std::tuple<Tensor, std::optional<Tensor>, std::optional<Tensor>> vjp_gpu(
      const GpuConfig& config, const DeviceResiduals& residuals, const DeviceIn& dy,
      const DeviceIn& x, const DevicePerColumn& weight, const DevicePerColumn& bias, float eps,
      const DeviceResult& out) const;
};

extern template struct LayerNorm<float>;
extern template struct LayerNorm<BFloat16>;

// The same over the last axis of a tensor of any rank from 1 on, by the default executor. Weight
// and bias have x's element type and the length of its last axis, and live where x does. The result
// is packed and lives there too.
Tensor layer_norm(const Tensor& x, const std::optional<Tensor>& weight = {},
                  const std::optional<Tensor>& bias = {}, float eps = 1e-5f);

}  // namespace ops
}  // namespace ejk
