// SPDX-License-Identifier: Apache-2.0
// How each kind of parameter is keyed, described and copied.
#pragma once

#include <array>
#include <bit>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include <ejk/argument.h>
#include <ejk/config.h>
#include <ejk/detail/trial_data.h>

namespace ejk::detail {

// Any struct laid out as DLPack's DLTensor, whoever declared it.
template <class T>
concept DlpackTensor = requires(const T& t) {
  t.data, t.device.device_type, t.ndim, t.dtype.code, t.dtype.bits, t.dtype.lanes, t.shape,
      t.strides, t.byte_offset;
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

template <DlpackTensor T>
AnyView any_view_of(const T& t) {
  const auto rank = static_cast<size_t>(t.ndim);
  return {static_cast<std::byte*>(t.data) + t.byte_offset,
          dlpack_dtype(t.dtype.code, t.dtype.bits, t.dtype.lanes),
          dlpack_platform(static_cast<int>(t.device.device_type)),
          {t.shape, rank},
          t.strides ? std::span<const int64_t>(t.strides, rank) : std::span<const int64_t>(),
          true};
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

inline Arg describe_array(const ArrayRef& a) {
  Arg arg;
  arg.kind = Arg::Kind::tensor;
  arg.role = a.writable ? Role::in_out : Role::input;
  arg.dtype = a.dtype;
  arg.shape = a.shape;
  arg.strides = a.any().packed() ? std::vector<int64_t>{} : a.strides;
  return arg;
}

template <class T, int R>
struct ArgTraits<View<T, R>> {
  using P = View<T, R>;
  static constexpr int words = R;
  static void emit(const P& p, auto& sink) {
    for (size_t d = 0; d < R; ++d) sink.push(static_cast<uint64_t>(p.shape[d]));
  }
  static ArrayRef array(const P& p) {
    return {const_cast<std::remove_const_t<T>*>(p.data),
            dtype_of<T>,
            Platform::cpu,
            {p.shape.begin(), p.shape.end()},
            {},
            !std::is_const_v<T>};
  }
  static P at(const P& p, const ArrayRef& a) { return {static_cast<T*>(a.data), p.shape}; }
  static Arg describe(const P& p) { return describe_array(array(p)); }
  using Copy = ArrayCopy<P, ArgTraits>;
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
    return {const_cast<std::remove_const_t<T>*>(p.data),
            dtype_of<T>,
            Platform::cpu,
            {p.shape.begin(), p.shape.end()},
            {p.strides.begin(), p.strides.end()},
            !std::is_const_v<T>};
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
    return {const_cast<std::remove_const_t<T>*>(p.data()),
            dtype_of<T>,
            Platform::cpu,
            {static_cast<int64_t>(p.size())},
            {},
            !std::is_const_v<T>};
  }
  static P at(const P& p, const ArrayRef& a) { return P(static_cast<T*>(a.data), p.size()); }
  static Arg describe(const P& p) { return describe_array(array(p)); }
  using Copy = ArrayCopy<P, ArgTraits>;
};

void emit_any(const AnyView& view, WordSink& sink);
inline ArrayRef array_of(const AnyView& v) {
  return {v.data,
          v.dtype,
          v.platform,
          {v.shape.begin(), v.shape.end()},
          {v.strides.begin(), v.strides.end()},
          v.writable};
}

template <>
struct ArgTraits<AnyView> {
  static constexpr int words = any_number_of_words;
  static void emit(const AnyView& p, auto& sink) { emit_any(p, sink); }
  static ArrayRef array(const AnyView& p) { return array_of(p); }
  static AnyView at(const AnyView&, const ArrayRef& a) { return a.any(); }
  static Arg describe(const AnyView& p) { return describe_array(array(p)); }
  using Copy = ArrayCopy<AnyView, ArgTraits>;
};

template <DlpackTensor P>
struct ArgTraits<P> {
  static constexpr int words = any_number_of_words;
  static void emit(const P& p, auto& sink) { emit_any(any_view_of(p), sink); }
  static ArrayRef array(const P& p) { return array_of(any_view_of(p)); }
  static P at(const P& p, const ArrayRef& a) {
    P out = p;
    out.data = a.data;
    out.byte_offset = 0;
    out.shape = const_cast<int64_t*>(a.shape.data());
    out.strides = a.strides.empty() ? nullptr : const_cast<int64_t*>(a.strides.data());
    return out;
  }
  static Arg describe(const P& p) { return describe_array(array(p)); }
  using Copy = ArrayCopy<P, ArgTraits>;
};

// Owning arrays: a pristine copy restores the one that candidates work on.
template <class P, P (*clone)(const P&), AnyView (*view)(const P&, std::array<int64_t, 1>&)>
class OwningCopy {
 public:
  OwningCopy(const P& original, Role role)
      : role_(role), pristine_(clone(original)), value_(clone(original)) {}
  P& get() { return value_; }
  void reset() {
    if (role_ != Role::input) value_ = clone(pristine_);
    std::array<int64_t, 1> size;
    if (role_ == Role::output) poison(view(value_, size));
  }
  void append_outputs(std::vector<OutputBytes>& outputs) const {
    std::array<int64_t, 1> size;
    if (role_ != Role::input) outputs.push_back(packed_bytes(view(value_, size)));
  }

 private:
  Role role_;
  P pristine_, value_;
};

inline Tensor clone_tensor(const Tensor& t) { return t.clone_with_strides(); }
inline AnyView view_tensor(const Tensor& t, std::array<int64_t, 1>&) { return t.any(); }
template <>
struct ArgTraits<Tensor> {
  static constexpr int words = any_number_of_words;
  static void emit(const Tensor& p, auto& sink) { emit_any(p.any(), sink); }
  static Arg describe(const Tensor& p) {
    Arg arg = describe_array(array_of(p.any()));
    arg.role = Role::input;
    return arg;
  }
  using Copy = OwningCopy<Tensor, clone_tensor, view_tensor>;
};

template <class T>
concept ArrayElement = Element<T> && !std::same_as<std::remove_cv_t<T>, bool>;

template <class P>
P clone_vector(const P& p) {
  return p;
}
template <class P>
AnyView view_vector(const P& p, std::array<int64_t, 1>& size) {
  using T = typename P::value_type;
  size = {static_cast<int64_t>(p.size())};
  return {const_cast<T*>(p.data()), dtype_of<T>, Platform::cpu, size, {}, true};
}
template <ArrayElement T, class A>
struct ArgTraits<std::vector<T, A>> {
  using P = std::vector<T, A>;
  static constexpr int words = 1;
  static void emit(const P& p, auto& sink) { sink.push(p.size()); }
  static Arg describe(const P& p) {
    return describe_array(
        {nullptr, dtype_of<T>, Platform::cpu, {static_cast<int64_t>(p.size())}, {}, false});
  }
  using Copy = OwningCopy<P, clone_vector<P>, view_vector<P>>;
};

// ---- scalars --------------------------------------------------------------------------------

inline Arg describe_value(Value v) {
  Arg arg;
  arg.value = std::move(v);
  return arg;
}

template <class P>
requires(std::integral<P> || std::is_enum_v<P>) struct ArgTraits<P> {
  static constexpr int words = 1;
  static void emit(const P& p, auto& sink) { sink.push(static_cast<uint64_t>(p)); }
  static Arg describe(const P& p) { return describe_value(value_of(p)); }
  using Copy = ValueCopy<P>;
};

template <class P>
requires(Element<P> && !std::integral<P>) struct ArgTraits<P> {
  static constexpr int words = 0;
  static void emit(const P&, auto&) {}
  static Arg describe(const P&) {
    Arg arg;  // like a rank-0 array: its type counts
    arg.kind = Arg::Kind::tensor;
    arg.dtype = dtype_of<P>;
    return arg;
  }
  using Copy = ValueCopy<P>;
};

template <class P>
requires(std::same_as<P, std::string> || std::same_as<P, std::string_view>) struct ArgTraits<P> {
  static constexpr int words = any_number_of_words;
  static void emit(const P& p, auto& sink) { sink.push_bytes(p); }
  static Arg describe(const P& p) { return describe_value(std::string_view(p)); }
  using Copy = ValueCopy<P>;
};

template <class P>
requires(std::same_as<P, std::nullptr_t> || std::same_as<P, std::nullopt_t>) struct ArgTraits<P> {
  static constexpr int words = 0;
  static void emit(const P&, auto&) {}
  static Arg describe(const P&) { return describe_value({}); }
  using Copy = ValueCopy<P>;
};

// ---- values that count although their type would not say so ------------------------------------

// Pushes every leaf of v by value.
template <class T>
void emit_by_value(const T& v, auto& sink) {
  if constexpr (std::same_as<T, std::nullptr_t> || std::same_as<T, std::nullopt_t>) return;
  else if constexpr (std::same_as<T, Value>) sink.push_bytes(stable_json(v));
  else if constexpr (std::floating_point<T>)
    sink.push(std::bit_cast<uint64_t>(static_cast<double>(v)));
  else if constexpr (std::integral<T> || std::is_enum_v<T>) sink.push(static_cast<uint64_t>(v));
  else if constexpr (is_string_like<T>) sink.push_bytes(v);
  else if constexpr (is_a<T, std::optional>) {
    sink.push(v.has_value());
    if (v) emit_by_value(*v, sink);
  } else if constexpr (is_a<T, std::tuple> || is_a<T, std::pair>) {
    std::apply([&](const auto&... item) { (emit_by_value(item, sink), ...); }, v);
  } else if constexpr (is_a<T, std::vector> || is_std_array<T> || std::is_bounded_array_v<T>) {
    sink.push(std::size(v));
    for (const auto& item : v) emit_by_value(item, sink);
  } else if constexpr (is_a<T, std::map>) {
    sink.push(v.size());
    for (const auto& [name, item] : v) emit_by_value(name, sink), emit_by_value(item, sink);
  } else
    for_each_field(v, [&](std::string_view, const auto& field) { emit_by_value(field, sink); });
}

template <class T>
consteval int words_by_value() {
  return std::is_arithmetic_v<T> || std::is_enum_v<T> ? 1 : any_number_of_words;
}

template <MadeOfValues T>
struct ArgTraits<Keyed<T>> {
  static constexpr int words = words_by_value<T>();
  static void emit(const Keyed<T>& p, auto& sink) { emit_by_value(p.value, sink); }
  static Arg describe(const Keyed<T>& p) { return describe_value(value_of(p.value)); }
  using Copy = ValueCopy<Keyed<T>>;
};

// Plain structs: settings, not data, so that their numbers count by value.
template <class P>
concept SettingsStruct = Reflected<P> && !DynamicTensor<P> && !HasKey<P> && !is_std_array<P> &&
                         !std::is_empty_v<P> && MadeOfValues<P>;
template <SettingsStruct P>
struct ArgTraits<P> {
  static constexpr int words = any_number_of_words;
  static void emit(const P& p, auto& sink) { emit_by_value(p, sink); }
  static Arg describe(const P& p) { return describe_value(value_of(p)); }
  using Copy = ValueCopy<P>;
};

// ---- wrappers -------------------------------------------------------------------------------

template <Argument T>
class UnkeyedCopy {
 public:
  UnkeyedCopy(const Unkeyed<T>& original, Role role) : inner_(original.value, role) {}
  Unkeyed<T>& get() { return value_ = Unkeyed<T>(inner_.get()); }
  void reset() { inner_.reset(); }
  void append_outputs(std::vector<OutputBytes>& outputs) const { inner_.append_outputs(outputs); }

 private:
  typename ArgTraits<T>::Copy inner_;
  Unkeyed<T> value_;
};
template <Argument T>
struct ArgTraits<Unkeyed<T>> {
  static constexpr int words = 0;
  static void emit(const Unkeyed<T>&, auto&) {}
  static Arg describe(const Unkeyed<T>& p) {
    Arg arg = ArgTraits<T>::describe(p.value);
    arg.unkeyed = true;
    return arg;
  }
  using Copy = UnkeyedCopy<T>;
};
// Handles, pointers, whatever run wants to be given: nobody looks inside.
template <class T>
requires(!Argument<T>) struct ArgTraits<Unkeyed<T>> {
  static constexpr int words = 0;
  static void emit(const Unkeyed<T>&, auto&) {}
  static Arg describe(const Unkeyed<T>&) {
    Arg arg;
    arg.unkeyed = true;
    return arg;
  }
  using Copy = ValueCopy<Unkeyed<T>>;
};

template <class V>
class OutCopy {
 public:
  OutCopy(const Out<V>& original, Role)
      : inner_(original.view, Role::output), value_(inner_.get()) {}
  OutCopy(OutCopy&&) = delete;
  Out<V>& get() { return value_; }
  void reset() { inner_.reset(); }
  void append_outputs(std::vector<OutputBytes>& outputs) const { inner_.append_outputs(outputs); }

 private:
  typename ArgTraits<V>::Copy inner_;
  Out<V> value_;
};
template <Argument V>
struct ArgTraits<Out<V>> {
  static constexpr int words = 0;
  static void emit(const Out<V>&, auto&) {}
  static Arg describe(const Out<V>& p) {
    Arg arg = ArgTraits<V>::describe(p.view);
    arg.role = Role::output;
    return arg;
  }
  using Copy = OutCopy<V>;
};

template <FixedString Name, Argument T, auto... D>
struct ArgTraits<Named<Name, T, D...>> {
  using P = Named<Name, T, D...>;
  static constexpr int words = ArgTraits<T>::words;
  static void emit(const P& p, auto& sink) { ArgTraits<T>::emit(p.value, sink); }
  static Arg describe(const P& p) { return ArgTraits<T>::describe(p.value); }
  class Copy {
   public:
    Copy(const P& original, Role role) : inner_(original.value, role) {}
    P& get() { return value_ = P(inner_.get()); }
    void reset() { inner_.reset(); }
    void append_outputs(std::vector<OutputBytes>& outputs) const { inner_.append_outputs(outputs); }

   private:
    typename ArgTraits<T>::Copy inner_;
    P value_;
  };
};

// ---- containers -----------------------------------------------------------------------------

template <class... T>
consteval int total_words() {
  return ((ArgTraits<T>::words == any_number_of_words) || ...) ? any_number_of_words
                                                               : (0 + ... + ArgTraits<T>::words);
}

template <Argument T>
struct ArgTraits<std::optional<T>> {
  using P = std::optional<T>;
  static constexpr int words = any_number_of_words;
  static void emit(const P& p, auto& sink) {
    sink.push(p.has_value());
    if (p) ArgTraits<T>::emit(*p, sink);
  }
  static Arg describe(const P& p) { return p ? ArgTraits<T>::describe(*p) : describe_value({}); }
  class Copy {
   public:
    Copy(const P& original, Role role) : role_(role) {
      if (original) inner_.emplace(*original, role);
    }
    P& get() {
      if (inner_) value_ = inner_->get();
      else value_.reset();
      return value_;
    }
    void reset() {
      if (inner_) inner_->reset();
    }
    void append_outputs(std::vector<OutputBytes>& outputs) const {
      if (role_ == Role::in_out) append_result(value_, outputs);
      else if (inner_) inner_->append_outputs(outputs);
    }

   private:
    Role role_;
    std::optional<typename ArgTraits<T>::Copy> inner_;
    P value_;
  };
};

template <class P, class... T>
struct TupleTraits {
  static constexpr int words = total_words<T...>();
  static void emit(const P& p, auto& sink) {
    std::apply([&](const auto&... item) { (ArgTraits<T>::emit(item, sink), ...); }, p);
  }
  static Arg describe(const P& p) {
    Arg arg;
    arg.kind = Arg::Kind::list;
    std::apply(
        [&](const auto&... item) { (arg.items.push_back(ArgTraits<T>::describe(item)), ...); }, p);
    return arg;
  }
  class Copy {
   public:
    Copy(const P& original, Role role)
        : Copy(original, role, std::make_index_sequence<sizeof...(T)>{}) {}
    P& get() {
      std::apply([&](auto&... c) { value_.emplace(c->get()...); }, copies_);
      return *value_;
    }
    void reset() {
      std::apply([](auto&... c) { (c->reset(), ...); }, copies_);
    }
    void append_outputs(std::vector<OutputBytes>& outputs) const {
      if (role_ == Role::in_out && value_) append_result(*value_, outputs);
      else std::apply([&](const auto&... c) { (c->append_outputs(outputs), ...); }, copies_);
    }

   private:
    template <size_t... I>
    Copy(const P& original, Role role, std::index_sequence<I...>)
        : role_(role),
          copies_(std::make_unique<typename ArgTraits<T>::Copy>(std::get<I>(original), role)...) {}
    Role role_;
    std::tuple<std::unique_ptr<typename ArgTraits<T>::Copy>...> copies_;
    std::optional<P> value_;
  };
};
template <Argument... T>
struct ArgTraits<std::tuple<T...>> : TupleTraits<std::tuple<T...>, T...> {};
template <Argument A, Argument B>
struct ArgTraits<std::pair<A, B>> : TupleTraits<std::pair<A, B>, A, B> {};

// Lists and maps hold settings or arrays; copies share nothing with the original for settings,
// and views inside them are copied element by element.
template <class P, class T>
class ListCopy {
 public:
  ListCopy(const P& original, Role role) : value_(original) {
    if (role == Role::in_out) pristine_.emplace(original);
    for (const auto& item : original) copies_.push_back(std::make_unique<ItemCopy>(item, role));
  }
  P& get() {
    if (pristine_) value_ = *pristine_;  // run may have made it longer
    size_t i = 0;
    for (auto&& item : value_) item = copies_[i++]->get();
    return value_;
  }
  void reset() {
    for (auto& c : copies_) c->reset();
  }
  void append_outputs(std::vector<OutputBytes>& outputs) const {
    if (pristine_) append_result(value_, outputs);
    else
      for (const auto& c : copies_) c->append_outputs(outputs);
  }

 private:
  using ItemCopy = typename ArgTraits<T>::Copy;
  P value_;
  std::optional<P> pristine_;  // of one that run may write
  std::vector<std::unique_ptr<ItemCopy>> copies_;
};

template <Argument T, size_t N>
struct ArgTraits<std::array<T, N>> {
  using P = std::array<T, N>;
  static constexpr int words = ArgTraits<T>::words == any_number_of_words
                                   ? any_number_of_words
                                   : static_cast<int>(N) * ArgTraits<T>::words;
  static void emit(const P& p, auto& sink) {
    for (const T& item : p) ArgTraits<T>::emit(item, sink);
  }
  static Arg describe(const P& p) {
    Arg arg;
    arg.kind = Arg::Kind::list;
    for (const T& item : p) arg.items.push_back(ArgTraits<T>::describe(item));
    return arg;
  }
  using Copy = ListCopy<P, T>;
};

template <Argument T, class A>
requires(!ArrayElement<T>) struct ArgTraits<std::vector<T, A>> {
  using P = std::vector<T, A>;
  static constexpr int words = any_number_of_words;
  static void emit(const P& p, auto& sink) {
    sink.push(p.size());
    for (const T& item : p) ArgTraits<T>::emit(item, sink);
  }
  static Arg describe(const P& p) {
    Arg arg;
    arg.kind = Arg::Kind::list;
    for (const T& item : p) arg.items.push_back(ArgTraits<T>::describe(item));
    return arg;
  }
  using Copy = ListCopy<P, T>;
};

template <class K, Argument T, class C, class A>
requires(std::integral<K> || is_string_like<K>) struct ArgTraits<std::map<K, T, C, A>> {
  using P = std::map<K, T, C, A>;
  static constexpr int words = any_number_of_words;
  static void emit(const P& p, auto& sink) {
    sink.push(p.size());
    for (const auto& [name, item] : p) emit_by_value(name, sink), ArgTraits<T>::emit(item, sink);
  }
  static Arg describe(const P& p) {
    Arg arg;
    arg.kind = Arg::Kind::dict;
    arg.ordered = std::integral<K>;  // numbers sort as numbers before they become text
    auto add = [&](std::string name, const T& item) {
      arg.names.push_back(std::move(name));
      arg.items.push_back(ArgTraits<T>::describe(item));
    };
    if constexpr (std::integral<K>)
      for_each_in_order(p, [&](K name, const T& item) { add(std::to_string(name), item); });
    else
      for (const auto& [name, item] : p) add(std::string(name), item);
    return arg;
  }
  class Copy {
   public:
    Copy(const P& original, Role role) : value_(original) {
      if (role == Role::in_out) pristine_.emplace(original);
      for (const auto& [name, item] : original)
        copies_.push_back(std::make_unique<typename ArgTraits<T>::Copy>(item, role));
    }
    P& get() {
      if (pristine_) value_ = *pristine_;  // run may have added to it
      size_t i = 0;
      for (auto& [name, item] : value_) item = copies_[i++]->get();
      return value_;
    }
    void reset() {
      for (auto& c : copies_) c->reset();
    }
    void append_outputs(std::vector<OutputBytes>& outputs) const {
      if (pristine_)
        for (const auto& [name, item] : value_) append_result(item, outputs);
      else
        for (const auto& c : copies_) c->append_outputs(outputs);
    }

   private:
    P value_;
    std::optional<P> pristine_;  // of one that run may write
    std::vector<std::unique_ptr<typename ArgTraits<T>::Copy>> copies_;
  };
};

// ---- types of the user ----------------------------------------------------------------------

// No name of a part has this length: what follows belongs to the next argument.
inline constexpr uint64_t end_of_parts = ~uint64_t{0};

template <HasKey P>
struct ArgTraits<P> {
  static constexpr int words = any_number_of_words;
  static void emit(const P& p, auto& sink) {
    KeySink key(sink);
    ejk_key(key, p);
    sink.push(end_of_parts);
  }
  static Arg describe(const P& p) {
    Arg arg;
    arg.kind = Arg::Kind::dict;
    KeySink key(arg);
    ejk_key(key, p);
    return arg;
  }
  using Copy = ValueCopy<P>;
};

}  // namespace ejk::detail
