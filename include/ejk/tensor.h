// SPDX-License-Identifier: Apache-2.0
// Element types, views of arrays that others own, and an owning tensor.
#pragma once

#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <ejk/detail/export.h>
#include <ejk/device.h>

namespace EJK_EXPORT ejk {

// Types of elements, by the names that NumPy and JAX give them. int4, uint4, int2 and uint2 are
// packed into bytes.
enum class DType : uint8_t {
  boolean,
  int8,
  int16,
  int32,
  int64,
  uint8,
  uint16,
  uint32,
  uint64,
  float16,
  bfloat16,
  float32,
  float64,
  complex64,
  complex128,
  float8_e4m3fn,
  float8_e5m2,
  float8_e4m3,
  float8_e3m4,
  float8_e8m0fnu,
  float8_e4m3fnuz,
  float8_e5m2fnuz,
  float8_e4m3b11fnuz,
  int4,
  uint4,
  int2,
  uint2,
};

// The name as NumPy and JAX spell it: "float32", "bool", ... It lives as long as the process.
std::string_view dtype_name(DType dtype);
// The type of such a name. Throws Error(invalid_argument) that lists the known names.
DType dtype_from_name(std::string_view name);
// The size of one element in memory, in bits: 8 of a bool, 4 of an int4.
size_t dtype_bits(DType dtype);

// IEEE half precision and bfloat16: storage types that convert to and from float. From float they
// round to nearest even; what is too large becomes an infinity, and a NaN stays a NaN. Equality
// compares bits, so a NaN equals itself and -0 does not equal 0.
struct Half {
  uint16_t bits = 0;  // as in memory
  Half() = default;
  explicit Half(float value);
  explicit operator float() const;
  bool operator==(const Half&) const = default;
};
struct BFloat16 {
  uint16_t bits = 0;  // as in memory
  BFloat16() = default;
  explicit BFloat16(float value);
  explicit operator float() const;
  bool operator==(const BFloat16&) const = default;
};

namespace detail {
// std::complex of float or double, or a type with the same interface and layout.
template <class T>
concept Complex = (std::same_as<typename T::value_type, float> ||
                   std::same_as<typename T::value_type, double>)&&requires(const T& z) {
  { z.real() } -> std::convertible_to<typename T::value_type>;
  { z.imag() } -> std::convertible_to<typename T::value_type>;
  requires sizeof(T) == 2 * sizeof(typename T::value_type);
};

template <class T>
consteval int dtype_index_of() {
  using U = std::remove_cv_t<T>;
  if constexpr (std::same_as<U, bool>) return static_cast<int>(DType::boolean);
  else if constexpr (std::same_as<U, Half>) return static_cast<int>(DType::float16);
  else if constexpr (std::same_as<U, BFloat16>) return static_cast<int>(DType::bfloat16);
  else if constexpr (std::same_as<U, float>) return static_cast<int>(DType::float32);
  else if constexpr (std::same_as<U, double>) return static_cast<int>(DType::float64);
  else if constexpr (Complex<U>)
    return static_cast<int>(sizeof(U) == 8 ? DType::complex64 : DType::complex128);
  else if constexpr (std::integral<U> && sizeof(U) <= 8) {
    constexpr int first = static_cast<int>(std::is_signed_v<U> ? DType::int8 : DType::uint8);
    return first + std::countr_zero(sizeof(U));
  } else return -1;
}
}  // namespace detail

// The types that can be elements of views and tensors.
template <class T>
concept Element = detail::dtype_index_of<T>()
>= 0;

// The DType of a C++ type.
template <Element T>
inline constexpr DType dtype_of = static_cast<DType>(detail::dtype_index_of<T>());

// A packed row-major array of fixed rank that someone else owns, in memory that this process can
// read. `const T` marks an input: a kernel's parameter that `run` does not write.
//
// A view is a pointer and sizes, so copies are cheap and refer to the same elements, which must
// outlive them. Accesses are neither checked nor synchronised.
template <Element T, int Rank>
struct View {
  // What the view is made of: element type, number of axes, sizes by axis.
  using element_type = T;
  static constexpr int rank = Rank;
  using Sizes = std::array<int64_t, static_cast<size_t>(Rank)>;
  // The first element, and the elements along each axis.
  T* data = nullptr;
  Sizes shape{};

  // Number of elements.
  int64_t size() const {
    int64_t n = 1;
    for (int64_t d : shape) n *= d;
    return n;
  }
  // One element, by an index for each axis, from 0. Not checked.
  template <std::integral... I>
  requires(sizeof...(I) == Rank) T& operator()(I... index) const {
    int64_t at = 0, d = 0;
    ((at = at * shape[static_cast<size_t>(d++)] + static_cast<int64_t>(index)), ...);
    return data[at];
  }
  std::span<T> span() const { return {data, static_cast<size_t>(size())}; }  // all elements
  operator View<const T, Rank>() const requires(!std::is_const_v<T>) { return {data, shape}; }
};

// The same with strides, which are counted in elements and may be 0 or negative. `data` is the
// element of index 0 on every axis, which need not be the lowest address.
template <Element T, int Rank>
struct StridedView {
  // What the view is made of: element type, number of axes, sizes by axis.
  using element_type = T;
  static constexpr int rank = Rank;
  using Sizes = std::array<int64_t, static_cast<size_t>(Rank)>;
  // The first element, the elements along each axis, and the step from one to the next.
  T* data = nullptr;
  Sizes shape{};
  Sizes strides{};

  StridedView() = default;
  StridedView(T* first, Sizes sizes, Sizes steps) : data(first), shape(sizes), strides(steps) {}
  StridedView(const View<T, Rank>& packed) : data(packed.data), shape(packed.shape) {
    int64_t step = 1;
    for (size_t d = Rank; d-- > 0; step *= shape[d]) strides[d] = step;
  }

  int64_t size() const { return View<T, Rank>{data, shape}.size(); }  // number of elements
  template <std::integral... I>
  requires(sizeof...(I) == Rank) T& operator()(I... index) const {
    int64_t at = 0;
    size_t d = 0;
    ((at += static_cast<int64_t>(index) * strides[d++]), ...);
    return data[at];
  }
  operator StridedView<const T, Rank>() const requires(!std::is_const_v<T>) {
    return {data, shape, strides};
  }
};

// An array of any element type and rank that someone else owns, shape and strides included (they
// must outlive the view). `ejk_view` returns one for a tensor type of your own (see KeySink).
struct AnyView {
  // The first element, the type of all, where they live, and how many there are along each axis. On
  // a device `data` is the handle of its memory (a cl_mem, a CUdeviceptr), never an address of this
  // process.
  void* data = nullptr;
  DType dtype = DType::float32;
  Platform platform = Platform::cpu;
  std::span<const int64_t> shape = {};
  // In elements, one for each axis; empty: packed.
  std::span<const int64_t> strides = {};
  // Whether the elements may be written. A kernel that writes refuses a view that may not be.
  bool writable = true;
  // Where the elements live; null: on the CPU. `platform` must be the device's.
  const Device* device = nullptr;
  // On a device: where the first element is in its memory, in bytes.
  size_t offset = 0;

  int64_t size() const;  // number of elements
  // Whether the elements lie row-major without gaps. Axes of size 1 may have any stride.
  bool packed() const;
  // What a packed copy takes; elements smaller than a byte share bytes.
  size_t bytes() const { return (static_cast<size_t>(size()) * dtype_bits(dtype) + 7) / 8; }
};

// Copies the elements of `from` into `to`, which may live on different devices and have any
// strides. Where the two overlap, both must be packed and on the CPU. Returns when `to` can be read
// there; on a device it can in what this thread does next. Throws Error(invalid_argument) if
//   - dtype or shape differ: copies never convert
//   - `to` is not writable
//   - a view is on a device and does not say which
void copy_elements(const AnyView& from, const AnyView& to);

std::string shape_text(std::span<const int64_t> shape);  // "[2, 3]"

// An owning array, zeroed when made, in CPU memory (aligned to 64 bytes) or in a device's. Copies
// share the elements (as arrays do in Python), and the last one frees them; clone() copies them.
// `const` speaks of the tensor, not of its elements, as with a pointer.
//
// Several threads may use copies of one tensor. What they read and write in its elements is not
// synchronised.
class Tensor {
 public:
  // No elements: float32 of shape [0].
  Tensor() = default;
  // Throws Error(invalid_argument) for negative sizes or more bytes than can exist, std::bad_alloc
  // if there is not so much memory, and DeviceError on a device.
  Tensor(DType dtype, std::vector<int64_t> shape);
  // In the memory of a device, which must live as long as the elements do, as those that devices()
  // lists. cpu_device() is CPU memory.
  Tensor(DType dtype, std::vector<int64_t> shape, const Device& device);

  // By the element's C++ type: Tensor::of<float>({2, 3}).
  template <Element T>
  static Tensor of(std::vector<int64_t> shape) {
    return Tensor(dtype_of<T>, std::move(shape));
  }
  // With a copy of these values, row by row. Throws Error(invalid_argument) if the number of values
  // is not the shape's size.
  template <Element T>
  static Tensor of(std::vector<int64_t> shape, std::span<const T> values) {
    Tensor t = of<T>(std::move(shape));
    t.assign(values.data(), values.size(), dtype_of<T>);
    return t;
  }

  // A tensor over elements that `owner` keeps alive; without an owner they must outlive it and all
  // tensors that share them. Kernels may write them, whatever elements.writable says. Shape and
  // strides are copied. Throws Error(invalid_argument) for elements on a device that is not given.
  static Tensor around(const AnyView& elements, std::shared_ptr<void> owner = {});

  // Type, number of axes, elements along each axis, and the step in elements from one to the next.
  DType dtype() const noexcept { return dtype_; }
  int rank() const noexcept { return static_cast<int>(shape_.size()); }
  const std::vector<int64_t>& shape() const noexcept { return shape_; }
  const std::vector<int64_t>& strides() const noexcept { return strides_; }
  // Number of elements; whether they lie row-major without gaps; a writable view of them, which
  // refers to this tensor's shape and is valid as long as this object.
  int64_t size() const { return any().size(); }
  bool packed() const { return any().packed(); }
  AnyView any() const;
  // Where the elements live: cpu_device() for CPU memory, where this process can read them.
  const Device& device() const;
  bool on_cpu() const noexcept { return device_ == nullptr; }

  // The first element as T; strides() says where the others are. Throws Error(invalid_argument) if
  // they are of another type or, as view() and strided() do, if they live on a device: to() brings
  // them here.
  template <Element T>
  T* data() const {
    return static_cast<T*>(checked_data(dtype_of<T>, -1, false));
  }
  // A view of the elements, which lives as long as a tensor that shares them. Throws
  // Error(invalid_argument) if type or rank differ or, for view(), the tensor is not packed.
  template <Element T, int Rank>
  View<T, Rank> view() const {
    View<T, Rank> v{static_cast<T*>(checked_data(dtype_of<T>, Rank, true)), {}};
    for (size_t d = 0; d < Rank; ++d) v.shape[d] = shape_[d];
    return v;
  }
  template <Element T, int Rank>
  StridedView<T, Rank> strided() const {
    StridedView<T, Rank> v;
    v.data = static_cast<T*>(checked_data(dtype_of<T>, Rank, false));
    for (size_t d = 0; d < Rank; ++d) v.shape[d] = shape_[d], v.strides[d] = strides_[d];
    return v;
  }

  // Tensors that share these elements. Axes and indices count from 0 and must lie inside, and a
  // part of elements smaller than a byte must begin at a whole byte, else Error(invalid_argument).
  //
  // Axes in another order: axis i of the result is axis order[i] of this one, each given once.
  Tensor transposed(std::vector<int> order) const;
  // Indices begin, begin + step, ... below `end` of one axis. 0 <= begin <= end <= size, step >= 1.
  Tensor sliced(int axis, int64_t begin, int64_t end, int64_t step = 1) const;
  // One index of an axis, which the result does not have any more.
  Tensor selected(int axis, int64_t index) const;
  // The same elements in row-major order under another shape of the same size. This must be packed.
  Tensor reshaped(std::vector<int64_t> shape) const;

  // A packed tensor with elements of its own, equal to these, on the same device.
  Tensor clone() const;
  // The same elements on a device (ejk::cpu_device() for the CPU), packed. A tensor that is there
  // and packed is shared, not copied. A copy to the CPU waits for what this thread began there.
  Tensor to(const Device& device) const;

 private:
  enum class Zeroed : bool { no, yes };
  Tensor(DType dtype, std::vector<int64_t> shape, Zeroed zeroed, const Device& device);

  void assign(const void* values, size_t count, DType dtype);
  void move_to_element(int64_t index);  // which must begin a byte
  Tensor copy_on(const Device* device) const;
  void* checked_data(DType dtype, int rank, bool must_be_packed) const;

  // Points at the first element and owns the whole block. On a device: the handle of its memory.
  std::shared_ptr<std::byte> storage_;
  const Device* device_ = nullptr;  // null: the CPU
  size_t offset_ = 0;               // on a device: of the first element in its memory, in bytes
  DType dtype_ = DType::float32;
  std::vector<int64_t> shape_{0}, strides_{1};
};

}  // namespace ejk
