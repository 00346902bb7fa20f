// SPDX-License-Identifier: Apache-2.0
// Matrix products: c = a b + bias, batched, on the CPU with any strides, on devices packed.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include <ejk/argument.h>
#include <ejk/detail/export.h>
#include <ejk/device_view.h>
#include <ejk/executor.h>
#include <ejk/invocation.h>
#include <ejk/space.h>
#include <ejk/tensor.h>

namespace EJK_EXPORT ejk {
namespace ops {

// How one product is cut into pieces. Sums over k are made in stretches of about kc, each from its
// first element to its last, and added in order: kc can change the last bits of a result; the other
// fields cannot, except for `pack` where a and b lie along k or c is narrower than a SIMD vector.
struct MatmulBlocking {
  // Which factors are copied before the product.
  enum class Pack {
    none,     // both are read as they lie; few rows, or b in the cache
    b,        // b is copied in the order in which it is read; a is used a few times only
    a_and_b,  // both are copied; large products
  };
  Pack pack = Pack::a_and_b;  // see above
  int kc = 256;               // depth of a block: rows of b, columns of a
  int mc = 168;               // rows of a and c
  int nc = 1024;              // columns of b and c
  int vectors = 2;  // SIMD vectors of columns in a register tile: 1 to 4, or 8 (of a single row)
  int threads = 1;  // that share the blocks of c
  bool operator==(const MatmulBlocking&) const = default;
};

// How one product is cut into pieces on an OpenCL or CUDA device: a group makes a block of bm x bn
// elements of c from parts of a and b that are bk deep, an item tiles of it in its registers. All
// fields change results by rounding only.
struct MatmulGpuBlocking {
  // Which of the programs runs.
  enum class Way {
    direct,       // one item per group, and vectors: CPUs behind OpenCL
    tiled,        // the items of a group share the parts in local memory: GPUs
    tensor_core,  // the same with tensor cores, for bfloat16 on CUDA; tm x tn are of a warp
  };
  Way way = Way::tiled;           // see above
  int bm = 64, bn = 64, bk = 16;  // the block of a group, and its depth
  int tm = 4, tn = 4;  // an item's tile: rows, and columns or (direct) vectors of columns
  int width = 4;       // in a vector: 1, 2, 4, 8, 16; not direct: elements that are read at once
  MatmulBlocking::Pack pack = MatmulBlocking::Pack::none;  // direct: what is copied to local memory
  int pad = 0;     // not direct: elements behind each line of a part in local memory
  int stages = 1;  // not direct: 2: room for the next parts beside those in use, one barrier less
  bool operator==(const MatmulGpuBlocking&) const = default;
};

// c[batch, m, n] = a[batch, m, k] b[batch, k, n] + bias[n]. A batch of 1 in a or b serves all.
//
// Elements are float, or BFloat16 that are multiplied and summed as float and rounded once at the
// end if Result is BFloat16 too. Matmul<float>, Matmul<BFloat16> and Matmul<BFloat16, BFloat16>
// exist. Strides may be anything; c must share memory neither with an input nor among its own
// elements, else Error(invalid_argument), as for shapes that do not fit. m, n, k or batch may be 0;
// with k = 0, c is the bias or zeros.
//
// NaN and infinities propagate as in IEEE arithmetic: nothing is skipped because a factor is zero,
// so 0 * inf gives NaN. The result does not depend on the number of threads.
//
// On OpenCL and CUDA devices arrays are packed, and no size is beyond 2^30.
template <Element In, Element Result = float>
struct Matmul {
  static constexpr std::string_view op_id = "matmul", version = "1";
  // One blocking for the product and one for the gradient of each factor.
  struct Config {
    MatmulBlocking forward;         // of a b
    MatmulBlocking grad_a, grad_b;  // of dc b^T and a^T dc
    bool operator==(const Config&) const = default;
  };
  // The same on OpenCL and CUDA devices.
  struct GpuConfig {
    // Of a b; of dc b^T and a^T dc.
    MatmulGpuBlocking forward;
    MatmulGpuBlocking grad_a, grad_b;
    bool operator==(const GpuConfig&) const = default;
  };
  // The arrays of `run` on a CPU: a and b, the bias, c.
  using Input = StridedView<const In, 3>;
  using Bias = std::optional<StridedView<const In, 1>>;
  using Output = Out<StridedView<Result, 3>>;
  // The gradients of a, b and, if there is one, bias: packed tensors of their shapes and type.
  using Gradients = std::tuple<Tensor, Tensor, std::optional<Tensor>>;
  struct Residuals {};

  DType result = dtype_of<Result>;  // counts in the key, which does not see outputs

  void run(const Config& config, const Input& a, const Input& b, const Bias& bias,
           const Output& c) const;
  // The same arrays on a device, and the gradient of c.
  using DeviceInput = DeviceView<const In, 3>;
  using DeviceBias = std::optional<DeviceView<const In, 1>>;
  using DeviceOutput = Out<DeviceView<Result, 3>>;
  using DeviceCotangent = DeviceView<const Result, 3>;
  void run_gpu(const GpuConfig& config, const DeviceInput& a, const DeviceInput& b,
               const DeviceBias& bias, const DeviceOutput& c) const;
  // Sums in double, in the textbook's order.
  void reference(const Input& a, const Input& b, const Bias& bias, const Output& c) const;

  Config heuristic_cfg(const Invocation& inv) const;
  Space<Config> candidate_cfgs(const Invocation& inv) const;
  bool is_valid(const Config& config, const Invocation& inv) const;
  // How the elements of the result and of the gradients of a and b are summed over k.
  std::array<std::string, 3> numerics(const Config& config, const Invocation& inv) const;

  GpuConfig heuristic_cfg_gpu(const Invocation& inv) const;
  Space<GpuConfig> candidate_cfgs_gpu(const Invocation& inv) const;
  bool is_valid(const GpuConfig& config, const Invocation& inv) const;

  Residuals fwd_with_residuals(const Config& config, const Input& a, const Input& b,
                               const Bias& bias, const Output& c) const {
    run(config, a, b, bias, c);
    return {};
  }
  Gradients vjp(const Config& config, const Residuals&, const StridedView<const Result, 3>& dc,
                const Input& a, const Input& b, const Bias& bias, const Output&) const {
    return gradients(config, a, b, bias, dc);
  }
  Residuals fwd_with_residuals_gpu(const GpuConfig& config, const DeviceInput& a,
                                   const DeviceInput& b, const DeviceBias& bias,
                                   const DeviceOutput& c) const {
    run_gpu(config, a, b, bias, c);
    return {};
  }
  Gradients vjp_gpu(const GpuConfig& config, const Residuals&, const DeviceCotangent& dc,
                    const DeviceInput& a, const DeviceInput& b, const DeviceBias& bias,
                    const DeviceOutput& c) const;

 private:
  Gradients gradients(const Config& config, const Input& a, const Input& b, const Bias& bias,
                      const StridedView<const Result, 3>& dc) const;
};

// How the function matmul reads its arguments and makes its result.
struct MatmulOptions {
  bool transpose_a = false, transpose_b = false;  // the last two axes of the argument
  std::optional<Tensor> bias = {};                // [n], of the type of a and b
  DType result = DType::float32;                  // or bfloat16, for bfloat16 arguments
};

// Through the default executor, or another. a and b are of rank 2 or 3, both float32 or both
// bfloat16, strided or not, and live in one place; the result lives there too and is of rank 3 if
// one of them is. On a device what is not packed or is to be transposed is copied first. Throws
// Error(invalid_argument) that says what was given and what is needed.
Tensor matmul(const Tensor& a, const Tensor& b, const MatmulOptions& options = {});
Tensor matmul(const Executor& executor, const Tensor& a, const Tensor& b,
              const MatmulOptions& options = {});
// The same into a tensor that exists, on a device a packed one. Its type is the result's.
void matmul_into(const Executor& executor, const Tensor& c, const Tensor& a, const Tensor& b,
                 const MatmulOptions& options = {});

// What matmul_vjp returns.
struct MatmulGradients {
  Tensor a, b;                 // of the shapes of the arguments
  std::optional<Tensor> bias;  // empty if there was no bias
};
// The result, and a function from the gradient of the result to those of the arguments, which it
// shares: they must not change in between.
std::pair<Tensor, std::function<MatmulGradients(const Tensor&)>> matmul_vjp(
    const Executor& executor, const Tensor& a, const Tensor& b, const MatmulOptions& options = {});

}  // namespace ops
}  // namespace ejk
