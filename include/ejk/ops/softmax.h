// SPDX-License-Identifier: Apache-2.0
// Softmax over the last axis, with its gradient.
#pragma once

#include <string_view>
#include <tuple>
#include <utility>

#include <ejk/argument.h>
#include <ejk/detail/export.h>
#include <ejk/device_view.h>
#include <ejk/ops/row_config.h>
#include <ejk/tensor.h>

namespace EJK_EXPORT ejk {
namespace ops {

// out = exp(scale x) / sum(exp(scale x)) for each row; scale is the inverse of a temperature.
//
// T is float or BFloat16 (computed in float, rounded once). The largest element of a row is
// subtracted first, so nothing overflows; what is more than 87.7 below it, scaled, becomes exactly
// 0. Strides are free; rows whose elements are not adjacent cost a copy of each row. `out` may be x
// itself, of the same strides; any other overlap is refused: Error(invalid_argument), as are shapes
// that do not fit and a scale that is not positive and finite.
//
// -inf becomes 0. A row with a NaN or +inf, and a row of nothing but -inf, becomes NaN.
// Results do not depend on the config.
//
// On OpenCL and CUDA devices arrays are packed, and everything else holds as well, but that results
// depend on the config by rounding.
template <class T>
struct Softmax : RowKernel {
  static constexpr std::string_view op_id = "softmax", version = "1";
  using In = StridedView<const T, 2>;     // [rows, columns]
  using Result = Out<StridedView<T, 2>>;  // of the shape of x

  void run(const Config& config, const In& x, float scale, const Result& out) const;
  // The arrays of run_gpu.
  using DeviceIn = DeviceView<const T, 2>;
  using DeviceResult = Out<DeviceView<T, 2>>;
  void run_gpu(const GpuConfig& config, const DeviceIn& x, float scale,
               const DeviceResult& out) const;
  // The same in double precision, element by element.
  void reference(const In& x, float scale, const Result& out) const;

  // The pull-back gives dx, packed. It reads the output again, which must be as it was.
  struct Residuals {};
  std::pair<In, Residuals> fwd_with_residuals(const Config& config, const In& x, float scale,
                                              const Result& out) const;
  std::tuple<Tensor> vjp(const Config& config, const Residuals& residuals, const In& y,
                         const In& dy, const In& x, float scale, const Result& out) const;
  std::pair<DeviceIn, Residuals> fwd_with_residuals_gpu(const GpuConfig& config, const DeviceIn& x,
                                                        float scale, const DeviceResult& out) const;
  std::tuple<Tensor> vjp_gpu(const GpuConfig& config, const Residuals& residuals, const DeviceIn& y,
                             const DeviceIn& dy, const DeviceIn& x, float scale,
                             const DeviceResult& out) const;
};

extern template struct Softmax<float>;
extern template struct Softmax<BFloat16>;

// The same over the last axis of a tensor of any rank from 1 on, by the default executor. The
// result is packed and lives where x does.
Tensor softmax(const Tensor& x, float scale = 1);

}  // namespace ops
}  // namespace ejk
