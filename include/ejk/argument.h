// SPDX-License-Identifier: Apache-2.0
// What can be an argument of a kernel, and how each kind counts in the key.
#pragma once

#include <concepts>
#include <cstddef>
#include <string_view>
#include <type_traits>
#include <utility>

#include <ejk/detail/argument_traits.h>
#include <ejk/detail/export.h>
#include <ejk/invocation.h>
#include <ejk/tensor.h>

namespace EJK_EXPORT ejk {

// Parameter types of `run` and how they count in the key:
//   View, StridedView, AnyView, Tensor,           element type, shape and non-packed strides
//   std::span<T>, std::vector<T>, DLPack tensors
//   integers, bools, enums, strings               by value
//   floating-point numbers                        by type: Keyed<float> makes the value count
//   complex numbers                               by type
//   optional, tuple, pair, array, map, vector     by structure and what they hold
//   plain structs                                 by the values of their fields
//   Out<...>                                      as what is inside, see Invocation::spec
//   Unkeyed<...>                                  not at all
// `const` elements are inputs; others are in-out arguments, which tuning saves and restores. A
// Tensor, a std::vector or a value is an input unless it is taken by non-const reference or as Out.

// A parameter whose value counts in the key, also for floating-point numbers and vectors of
// numbers. Each value is a key of its own, to be tuned and stored: use it for what takes few
// values.
template <class T>
struct Keyed {
  T value{};  // what `run` reads
  Keyed() = default;
  template <std::convertible_to<T> U>
  Keyed(U&& v) : value(static_cast<T>(std::forward<U>(v))) {}
  operator const T&() const noexcept { return value; }
  const T* operator->() const noexcept { return &value; }
};

// A parameter of which neither value nor presence counts in the key: a config must be right for any
// value of it.
template <class T>
struct Unkeyed {
  T value{};  // what `run` reads
  Unkeyed() = default;
  template <std::convertible_to<T> U>
  Unkeyed(U&& v) : value(static_cast<T>(std::forward<U>(v))) {}
  operator const T&() const noexcept { return value; }
  const T* operator->() const noexcept { return &value; }
};

// A view that the kernel promises to overwrite completely, without reading it. Tuning fills it with
// poison before a run, so that a candidate which leaves elements out is rejected. It counts in the
// key as the view does: a config that fits a large output may write past a small one.
template <class V>
struct Out {
  V view{};  // the array that `run` writes
  Out() = default;
  Out(V v) : view(std::move(v)) {}
  operator const V&() const noexcept { return view; }
  const V* operator->() const noexcept { return &view; }
  const V& operator*() const noexcept { return view; }
};

// A parameter that callers pass by name, ejk::kw("causal", true), in any order behind the
// positional ones. Without a default it must be given; std::optional defaults to empty.
//   void run(const Config&, View<...> q, ejk::Named<"causal", bool, false> causal) const;
template <detail::FixedString Name, class T, auto... Default>
requires(sizeof...(Default) <= 1) struct Named {
  // The name that callers write in ejk::kw, and the value that `run` reads.
  static constexpr std::string_view name = Name;
  T value{};
  Named() = default;
  template <std::convertible_to<T> U>
  Named(U&& v) : value(static_cast<T>(std::forward<U>(v))) {}
  operator const T&() const noexcept { return value; }
  const T* operator->() const noexcept { return &value; }
};

// A named argument of one call. Made by ejk::kw; refers to the caller's value.
template <class T>
struct KeywordArgument {
  // The name as the caller wrote it, and what it stands for.
  std::string_view name;
  T value;
};
// A named argument. The name must outlive the call (a literal does).
template <class T>
KeywordArgument<T> kw(std::string_view name, T&& value) {
  return {name, std::forward<T>(value)};
}

// Types of your own become parameters with one free function beside them, found by ADL:
//   void ejk_key(ejk::KeySink& key, const MyType& m) { key("rows", m.rows)("kind", m.kind); }
// It names what counts and is called at every call, from any thread; names and their order are part
// of the key. Copies are made by the copy constructor. Tensor
// types of your own become arguments for any view parameter with
//   ejk::AnyView ejk_view(const MyTensor& t);
// What it returns is used during the call only; shape and strides must live as long as `t`.
class KeySink {
 public:
  template <class T>
  KeySink& operator()(std::string_view name, const T& part) {
    if (words_) {
      words_->push_bytes(name);
      detail::ArgTraits<T>::emit(part, *words_);
    } else {
      arg_->names.emplace_back(name);
      arg_->items.push_back(detail::ArgTraits<T>::describe(part));
    }
    return *this;
  }

  explicit KeySink(detail::WordSink& words) : words_(&words) {}
  explicit KeySink(Arg& arg) : arg_(&arg) {}

 private:
  detail::WordSink* words_ = nullptr;
  Arg* arg_ = nullptr;
};

// Names the parameter types of a kernel whose `run` is overloaded or a template:
//   using Arguments = ejk::list<std::span<const float>, std::span<float>>;
template <class... T>
struct list {};

}  // namespace ejk
