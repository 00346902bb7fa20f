// SPDX-License-Identifier: Apache-2.0
// Arrays in a device's memory, as parameters of run_gpu, run_opencl and run_cuda.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <ejk/detail/bind.h>
#include <ejk/detail/export.h>
#include <ejk/device.h>
#include <ejk/tensor.h>

namespace EJK_EXPORT ejk {

// A packed row-major array of fixed rank in the memory of an OpenCL or CUDA device. Someone else
// owns it: a Tensor, whose elements outlive the view, or memory of another library. `const T` marks
// an input. What is here are handles: only the device can read elements. All views of one call must
// be of one device.
template <Element T, int Rank>
struct DeviceView {
  // What the view is made of: element type, number of axes, platforms, sizes by axis.
  using element_type = T;
  static constexpr int rank = Rank;
  static constexpr detail::Platforms ejk_platforms = detail::on_gpu;
  using Sizes = std::array<int64_t, static_cast<size_t>(Rank)>;
  const Device* device = nullptr;  // whose memory it is; the device outlives the view
  void* memory = nullptr;          // OpenCL: a cl_mem; CUDA: a CUdeviceptr
  size_t offset = 0;               // of the first element in it, in bytes
  Sizes shape{};                   // elements along each axis; packed, row-major

  int64_t size() const { return View<T, Rank>{nullptr, shape}.size(); }  // number of elements
  operator DeviceView<const T, Rank>() const requires(!std::is_const_v<T>) {
    return {device, memory, offset, shape};
  }

  // For raw calls, as of a vendor's library.
  void* cl() const { return memory; }  // cl_mem, in which the array begins at `offset`
  uintptr_t cuda() const { return reinterpret_cast<uintptr_t>(memory) + offset; }  // CUdeviceptr
};

namespace detail {

// Throws Error(invalid_argument) if it lives on the CPU, is not packed, or is of another type.
void check_device_array(const Place& place, const AnyView& v, DType dtype, int rank, bool writes);

template <class T, int R>
struct ArrayTarget<DeviceView<T, R>> {
  static constexpr bool is_array = true;
  static DeviceView<T, R> make(const Place& place, const AnyView& v) {
    check_device_array(place, v, dtype_of<T>, R, !std::is_const_v<T>);
    DeviceView<T, R> out{v.device, v.data, v.offset, {}};
    for (size_t d = 0; d < R; ++d) out.shape[d] = v.shape[d];
    return out;
  }
};

// The call's device is a key word of its own.
template <class T, int R>
struct ArgTraits<DeviceView<T, R>> : PackedTraits<DeviceView<T, R>, ArgTraits<DeviceView<T, R>>> {
  using P = DeviceView<T, R>;
  static ArrayRef array(const P& p) {
    const Platform platform = p.device == nullptr ? Platform::cpu : p.device->platform;
    return ArrayRef(
        {p.memory, dtype_of<T>, platform, p.shape, {}, !std::is_const_v<T>, p.device, p.offset});
  }
  static P at(const P& p, const ArrayRef& a) { return {a.device, a.data, a.offset, p.shape}; }
};

}  // namespace detail

// The elements of a tensor on a device. Throws Error(invalid_argument) if it lives on the CPU, if
// type or rank differ, or if it is not packed.
template <Element T, int Rank>
DeviceView<T, Rank> device_view(const Tensor& tensor) {
  return detail::ArrayTarget<DeviceView<T, Rank>>::make({"device_view", -1}, tensor.any());
}

}  // namespace ejk
