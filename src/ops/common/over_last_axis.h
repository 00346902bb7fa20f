// SPDX-License-Identifier: Apache-2.0
// A tensor of any rank as the rows of a matrix, for the functions that take tensors.
#pragma once

#include <functional>
#include <numeric>
#include <optional>
#include <span>
#include <string_view>

#include <ejk/device_view.h>
#include <ejk/tensor.h>

#include "ops/common/refuse.h"

namespace ejk::ops {

// The leading axes of a strided tensor as one, if a single stride leads through them.
inline std::optional<int64_t> row_stride(const Tensor& x) {
  const auto axes = static_cast<size_t>(x.rank() - 1);
  std::optional<int64_t> stride;  // from one row to the next
  int64_t rows = 1;               // in the axes behind
  for (size_t d = axes; d-- > 0;) {
    if (x.shape()[d] == 1) continue;
    if (stride && x.strides()[d] != *stride * rows) return std::nullopt;
    if (!stride) stride = x.strides()[d];
    rows *= x.shape()[d];
  }
  return stride.value_or(0);
}

// f.operator()<T>(rows of x, rows of the result), both as matrices of x's element type T where x
// lives: StridedViews, or DeviceViews. Gives the result, packed.
template <class F>
Tensor over_last_axis(std::string_view op, const Tensor& x, const F& f) {
  if (x.rank() == 0) refuse(op, "x of rank 0", "x with at least one axis");
  Tensor out = x.on_cpu() ? Tensor(x.dtype(), x.shape()) : Tensor(x.dtype(), x.shape(), x.device());
  const int64_t columns = x.shape().back();
  const int64_t rows =
      std::accumulate(x.shape().begin(), x.shape().end() - 1, int64_t{1}, std::multiplies<>());
  const std::optional<int64_t> stride = x.on_cpu() ? row_stride(x) : std::nullopt;
  const Tensor from = stride || x.packed() ? x : x.clone();
  const auto call = [&]<class T>(T) {
    if (x.on_cpu())
      f.template operator()<T>(
          StridedView<const T, 2>(from.data<T>(), {rows, columns},
                                  {stride ? *stride : columns, from.strides().back()}),
          StridedView<T, 2>(out.data<T>(), {rows, columns}, {columns, 1}));
    else
      f.template operator()<T>(device_view<const T, 2>(from.reshaped({rows, columns})),
                               device_view<T, 2>(out.reshaped({rows, columns})));
  };
  if (x.dtype() == DType::float32) call(float{});
  else if (x.dtype() == DType::bfloat16) call(BFloat16{});
  else refuse(op, fmt::format("x of {}", dtype_name(x.dtype())), "float32 or bfloat16");
  return out;
}

// A weight or bias with one element per column of x, kept packed; empty if there is none.
template <class T>
class ColumnTensor {
 public:
  ColumnTensor(std::string_view op, std::string_view name, const Tensor& x,
               const std::optional<Tensor>& given) {
    if (!given) return;
    if (given->dtype() != x.dtype() || given->rank() != 1 || given->shape()[0] != x.shape().back())
      refuse(op,
             fmt::format("x{} of {}, {}{} of {}", shape_text(x.shape()), dtype_name(x.dtype()),
                         name, shape_text(given->shape()), dtype_name(given->dtype())),
             fmt::format("{}[{}] of {}", name, x.shape().back(), dtype_name(x.dtype())));
    if (&given->device() != &x.device())
      refuse(op,
             fmt::format("x on {}, {} on {}", x.device().fingerprint, name,
                         given->device().fingerprint),
             "both on one device");
    packed_ = given->packed() ? *given : given->clone();
  }
  // As it stands beside these rows of x.
  std::optional<std::span<const T>> line_of(const StridedView<const T, 2>&) const {
    if (!packed_) return std::nullopt;
    return packed_->view<const T, 1>().span();
  }
  std::optional<DeviceView<const T, 1>> line_of(const DeviceView<const T, 2>&) const {
    if (!packed_) return std::nullopt;
    return device_view<const T, 1>(*packed_);
  }

 private:
  std::optional<Tensor> packed_;
};

}  // namespace ejk::ops
