// SPDX-License-Identifier: Apache-2.0
// Arrays as parameters: views, spans, vectors, tensors, DLPack, each with its private copy.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <vector>

#include <ejk/argument.h>
#include <ejk/config.h>
#include <ejk/detail/export.h>
#include <ejk/detail/private_array.h>

namespace EJK_EXPORT ejk {
namespace detail {

// Any struct laid out as DLPack's DLTensor, declared in any header.
template <class T>
concept DlpackTensor = requires(const T& t) {
  t.data, t.device.device_type, t.device.device_id, t.ndim, t.dtype.code, t.dtype.bits,
      t.dtype.lanes, t.shape, t.strides, t.byte_offset;
};
template <class T>
concept HasView = requires(const T& t) {
  { ejk_view(t) } -> std::convertible_to<AnyView>;
};
template <class T>
concept HasKey = requires(KeySink& sink, const T& t) {
  ejk_key(sink, t);
};

// Throw Error(invalid_argument) for codes this library does not know.
DType dlpack_dtype(int code, int bits, int lanes);
Platform dlpack_platform(int device_type);
// The device of an array that does not live on the CPU. Throws Error(invalid_argument) if there is
// none of that number here.
const Device* dlpack_device(Platform platform, int device_id);

template <DlpackTensor T>
AnyView any_view_of(const T& t) {
  const auto rank = static_cast<size_t>(t.ndim);
  AnyView view{t.data,
               dlpack_dtype(t.dtype.code, t.dtype.bits, t.dtype.lanes),
               dlpack_platform(static_cast<int>(t.device.device_type)),
               {t.shape, rank},
               t.strides ? std::span<const int64_t>(t.strides, rank) : std::span<const int64_t>(),
               true};
  if (view.platform == Platform::cpu) view.data = static_cast<std::byte*>(t.data) + t.byte_offset;
  else {
    view.device = dlpack_device(view.platform, static_cast<int>(t.device.device_id));
    view.offset = t.byte_offset;
  }
  return view;
}
inline AnyView any_view_of(const AnyView& v) { return v; }
inline AnyView any_view_of(const Tensor& t) { return t.any(); }
template <HasView T>
AnyView any_view_of(const T& t) {
  return ejk_view(t);
}

template <class T>
concept DynamicTensor = requires(const T& t) {
  any_view_of(t);
};

// ---- copies ---------------------------------------------------------------------------------

// Appends the arrays and numbers in a value; see bound_kernel.h.
template <class T>
void append_result(const T& result, std::vector<OutputBytes>& outputs);

template <class P>
class ValueCopy {
 public:
  ValueCopy(const P& original, Role role) : value_(original) {
    if (role == Role::in_out) pristine_.emplace(original);
  }
  P& get() { return value_; }
  void reset() {
    if constexpr (std::is_copy_assignable_v<P>)
      if (pristine_) value_ = *pristine_;
  }
  void append_outputs(std::vector<OutputBytes>& outputs) const {
    if (pristine_) append_result(value_, outputs);
  }

 private:
  P value_;
  std::optional<P> pristine_;  // of one that run may write
};

// For types that can be pointed at other data: Rebuild::at(original, array) gives such a P.
template <class P, class Rebuild>
class ArrayCopy {
 public:
  ArrayCopy(const P& original, Role role)
      : array_(Rebuild::array(original), role), view_(Rebuild::at(original, array_.array())) {}
  ArrayCopy(ArrayCopy&&) = delete;  // the view may point into the array's shape
  P& get() { return view_; }
  void reset() { array_.reset(); }
  void append_outputs(std::vector<OutputBytes>& outputs) const { array_.append_output(outputs); }

 private:
  PrivateArray array_;
  P view_;
};

// ---- arrays ---------------------------------------------------------------------------------

Arg describe_array(const ArrayRef& array);

// Of a packed view, whose shape is all that counts in a key. Traits::array and Traits::at know its
// memory.
template <class P, class Traits>
struct PackedTraits {
  static constexpr int words = P::rank;
  static void emit(const P& p, auto& sink) {
    for (const int64_t size : p.shape) sink.push(static_cast<uint64_t>(size));
  }
  static Arg describe(const P& p) { return describe_array(Traits::array(p)); }
  using Copy = ArrayCopy<P, Traits>;
};

template <class T, int R>
struct ArgTraits<View<T, R>> : PackedTraits<View<T, R>, ArgTraits<View<T, R>>> {
  using P = View<T, R>;
  static ArrayRef array(const P& p) {
    return ArrayRef({const_cast<std::remove_const_t<T>*>(p.data),
                     dtype_of<T>,
                     Platform::cpu,
                     p.shape,
                     {},
                     !std::is_const_v<T>});
  }
  static P at(const P& p, const ArrayRef& a) { return {static_cast<T*>(a.data), p.shape}; }
};

template <class T, int R>
struct ArgTraits<StridedView<T, R>> {
  using P = StridedView<T, R>;
  static constexpr int words = 2 * R;
  static void emit(const P& p, auto& sink) {
    for (size_t d = 0; d < R; ++d) sink.push(static_cast<uint64_t>(p.shape[d]));
    for (size_t d = 0; d < R; ++d) sink.push(static_cast<uint64_t>(p.strides[d]));
  }
  static ArrayRef array(const P& p) {
    return ArrayRef({const_cast<std::remove_const_t<T>*>(p.data), dtype_of<T>, Platform::cpu,
                     p.shape, p.strides, !std::is_const_v<T>});
  }
  static P at(const P& p, const ArrayRef& a) {
    return {static_cast<T*>(a.data), p.shape, p.strides};
  }
  static Arg describe(const P& p) { return describe_array(array(p)); }
  using Copy = ArrayCopy<P, ArgTraits>;
};

template <Element T, size_t Extent>
struct ArgTraits<std::span<T, Extent>> {
  using P = std::span<T, Extent>;
  static constexpr int words = Extent == std::dynamic_extent ? 1 : 0;
  static void emit(const P& p, auto& sink) {
    if constexpr (words == 1) sink.push(p.size());
  }
  static ArrayRef array(const P& p) {
    const int64_t size[1] = {static_cast<int64_t>(p.size())};
    return ArrayRef({const_cast<std::remove_const_t<T>*>(p.data()),
                     dtype_of<T>,
                     Platform::cpu,
                     size,
                     {},
                     !std::is_const_v<T>});
  }
  static P at(const P& p, const ArrayRef& a) { return P(static_cast<T*>(a.data), p.size()); }
  static Arg describe(const P& p) { return describe_array(array(p)); }
  using Copy = ArrayCopy<P, ArgTraits>;
};

void emit_any(const AnyView& view, WordSink& sink);
template <>
struct ArgTraits<AnyView> {
  static constexpr int words = any_number_of_words;
  static void emit(const AnyView& p, auto& sink) { emit_any(p, sink); }
  static ArrayRef array(const AnyView& p) { return ArrayRef(p); }
  static AnyView at(const AnyView&, const ArrayRef& a) { return a.any(); }
  static Arg describe(const AnyView& p) { return describe_array(array(p)); }
  using Copy = ArrayCopy<AnyView, ArgTraits>;
};

template <DlpackTensor P>
struct ArgTraits<P> {
  static constexpr int words = any_number_of_words;
  static void emit(const P& p, auto& sink) { emit_any(any_view_of(p), sink); }
  static ArrayRef array(const P& p) { return ArrayRef(any_view_of(p)); }
  static P at(const P& p, const ArrayRef& a) {
    P out = p;
    out.data = a.data;
    out.byte_offset = a.offset;
    out.shape = const_cast<int64_t*>(a.shape.data());
    out.strides = a.strides.empty() ? nullptr : const_cast<int64_t*>(a.strides.data());
    return out;
  }
  static Arg describe(const P& p) { return describe_array(array(p)); }
  using Copy = ArrayCopy<P, ArgTraits>;
};

// A tensor shares its elements, so a const one may still be written: its memory stays open.
class TensorCopy {
 public:
  TensorCopy(const Tensor& original, Role role)
      : role_(role), array_(ref(original, role), role, PrivateArray::Inputs::open) {
    reset();
  }
  TensorCopy(TensorCopy&&) = delete;
  Tensor& get() { return value_; }
  void reset() {
    array_.reset();
    value_ = Tensor::around(array_.array().any());  // a run may have assigned another one
  }
  void append_outputs(std::vector<OutputBytes>& outputs) const {
    if (role_ != Role::input) append_output(value_.any(), outputs);
  }

 private:
  static ArrayRef ref(const Tensor& t, Role role) {
    ArrayRef array = ArrayRef(t.any());
    array.writable = role != Role::input;
    return array;
  }

  Role role_;
  PrivateArray array_;
  Tensor value_;
};

template <>
struct ArgTraits<Tensor> {
  static constexpr int words = any_number_of_words;
  static void emit(const Tensor& p, auto& sink) { emit_any(p.any(), sink); }
  static Arg describe(const Tensor& p) {
    Arg arg = describe_array(ArrayRef(p.any()));
    arg.role = Role::input;
    return arg;
  }
  using Copy = TensorCopy;
};

template <class T>
concept ArrayElement = Element<T> && !std::same_as<std::remove_cv_t<T>, bool>;

template <class P>
AnyView view_vector(const P& p, std::array<int64_t, 1>& size) {
  using T = typename P::value_type;
  size = {static_cast<int64_t>(p.size())};
  return {const_cast<T*>(p.data()), dtype_of<T>, Platform::cpu, size, {}, true};
}
// A vector owns its memory, so there is none to be closed around it.
template <class P>
class VectorCopy {
 public:
  VectorCopy(const P& original, Role role)
      : role_(role), pristine_(role == Role::input ? P() : original), value_(original) {}
  P& get() { return value_; }
  void reset() {
    if (role_ == Role::input) return;
    value_ = pristine_;
    std::array<int64_t, 1> size;
    if (role_ == Role::output) poison(view_vector(value_, size));
  }
  void append_outputs(std::vector<OutputBytes>& outputs) const {
    std::array<int64_t, 1> size;
    if (role_ != Role::input) append_output(view_vector(value_, size), outputs);
  }

 private:
  Role role_;
  P pristine_;  // empty for an input
  P value_;
};

template <ArrayElement T, class A>
struct ArgTraits<std::vector<T, A>> {
  using P = std::vector<T, A>;
  static constexpr int words = 1;
  static void emit(const P& p, auto& sink) { sink.push(p.size()); }
  static Arg describe(const P& p) {
    const int64_t size[1] = {static_cast<int64_t>(p.size())};
    return describe_array(ArrayRef({nullptr, dtype_of<T>, Platform::cpu, size, {}, false}));
  }
  using Copy = VectorCopy<P>;
};

}  // namespace detail
}  // namespace ejk
