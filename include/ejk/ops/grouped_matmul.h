// SPDX-License-Identifier: Apache-2.0
// Rows that are sorted by group, each group with a matrix of its own (as jax.lax.ragged_dot).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include <ejk/argument.h>
#include <ejk/detail/export.h>
#include <ejk/device_view.h>
#include <ejk/executor.h>
#include <ejk/invocation.h>
#include <ejk/ops/matmul.h>
#include <ejk/space.h>
#include <ejk/tensor.h>

namespace EJK_EXPORT ejk {
namespace ops {

// c[rows, n]: row i is a[rows, k] row i times b[groups, k, n] of its group. The first
// group_sizes[0] rows are group 0, the next group_sizes[1] rows group 1, and so on; rows behind the
// last group are zeros. Throws Error(invalid_argument) if
//   - shapes do not fit, or arrays overlap that Matmul does not let overlap
//   - a group size is negative (0 is allowed)
//   - the groups have more rows together than there are
//
// Types, strides, NaN and infinities, threads and memory: as in Matmul. The values of group_sizes
// do not count in the key: a config must do for any division of the rows. So tuning measures the
// division of the call that is tuned, or one like it for a recorded call.
//
// On OpenCL and CUDA devices arrays are packed, and group_sizes is there too. Its values are not
// checked, as that would wait for them: a negative one is 0, and rows that are not there are left
// out.
template <Element In, Element Result = float>
struct GroupedMatmul {
  static constexpr std::string_view op_id = "grouped_matmul", version = "1";
  // One blocking for the product and one for the gradient of each factor.
  struct Config {
    // Of a b; of the gradients of a and b.
    MatmulBlocking forward;
    MatmulBlocking grad_a, grad_b;
    bool operator==(const Config&) const = default;
  };
  // The same on OpenCL and CUDA devices.
  struct GpuConfig {
    // Of a b; of the gradients of a and b.
    MatmulGpuBlocking forward;
    MatmulGpuBlocking grad_a, grad_b;
    bool operator==(const GpuConfig&) const = default;
  };
  // The arrays of `run` on a CPU: rows of a, one matrix per group, rows per group, the result.
  using Rows = StridedView<const In, 2>;
  using Matrices = StridedView<const In, 3>;
  using Sizes = std::span<const int32_t>;
  using Output = Out<StridedView<Result, 2>>;
  using Gradients = std::tuple<Tensor, Tensor>;  // of a and b: packed, of their shapes and type
  // The gradient needs nothing but the arguments.
  struct Residuals {};

  DType result = dtype_of<Result>;  // counts in the key, which does not see outputs

  void run(const Config& config, const Rows& a, const Matrices& b, Sizes group_sizes,
           const Output& c) const;
  // The same arrays on a device, and the gradient of the result.
  using DeviceRows = DeviceView<const In, 2>;
  using DeviceMatrices = DeviceView<const In, 3>;
  using DeviceSizes = DeviceView<const int32_t, 1>;
  using DeviceOutput = Out<DeviceView<Result, 2>>;
  using DeviceCotangent = DeviceView<const Result, 2>;
  void run_gpu(const GpuConfig& config, const DeviceRows& a, const DeviceMatrices& b,
               const DeviceSizes& group_sizes, const DeviceOutput& c) const;
  void reference(const Rows& a, const Matrices& b, Sizes group_sizes, const Output& c) const;

  Config heuristic_cfg(const Invocation& inv) const;
  Space<Config> candidate_cfgs(const Invocation& inv) const;
  bool is_valid(const Config& config, const Invocation& inv) const;
  // How the elements of the result and of the gradients of a and b are summed over k.
  std::array<std::string, 3> numerics(const Config& config, const Invocation& inv) const;

  GpuConfig heuristic_cfg_gpu(const Invocation& inv) const;
  Space<GpuConfig> candidate_cfgs_gpu(const Invocation& inv) const;
  bool is_valid(const GpuConfig& config, const Invocation& inv) const;

  Residuals fwd_with_residuals(const Config& config, const Rows& a, const Matrices& b,
                               Sizes group_sizes, const Output& c) const {
    run(config, a, b, group_sizes, c);
    return {};
  }
  Gradients vjp(const Config& config, const Residuals&, const StridedView<const Result, 2>& dc,
                const Rows& a, const Matrices& b, Sizes group_sizes, const Output&) const {
    return gradients(config, a, b, group_sizes, dc);
  }
  Residuals fwd_with_residuals_gpu(const GpuConfig& config, const DeviceRows& a,
                                   const DeviceMatrices& b, const DeviceSizes& group_sizes,
                                   const DeviceOutput& c) const {
    run_gpu(config, a, b, group_sizes, c);
    return {};
  }
  Gradients vjp_gpu(const GpuConfig& config, const Residuals&, const DeviceCotangent& dc,
                    const DeviceRows& a, const DeviceMatrices& b, const DeviceSizes& group_sizes,
                    const DeviceOutput& c) const;

 private:
  Gradients gradients(const Config& config, const Rows& a, const Matrices& b, Sizes group_sizes,
                      const StridedView<const Result, 2>& dc) const;
};

// Through the default executor, or another. a is of rank 2, b of rank 3, both float32 or both
// bfloat16; group_sizes is a packed int32 tensor of rank 1. All live in one place, where the result
// does too; on a device what is not packed is copied first. `result` is float32, or bfloat16 for
// bfloat16 arguments. Throws Error(invalid_argument) that says what was given and what is needed.
Tensor grouped_matmul(const Tensor& a, const Tensor& b, const Tensor& group_sizes,
                      DType result = DType::float32);
Tensor grouped_matmul(const Executor& executor, const Tensor& a, const Tensor& b,
                      const Tensor& group_sizes, DType result = DType::float32);

// The result, and a function from its gradient to those of a and b, which it shares: they must not
// change in between.
std::pair<Tensor, std::function<std::pair<Tensor, Tensor>(const Tensor&)>> grouped_matmul_vjp(
    const Executor& executor, const Tensor& a, const Tensor& b, const Tensor& group_sizes,
    DType result = DType::float32);

}  // namespace ops
}  // namespace ejk
