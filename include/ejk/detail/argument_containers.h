// SPDX-License-Identifier: Apache-2.0
// Containers of values and arrays, and types of the user, as parameters.
#pragma once

#include <array>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <ejk/detail/argument_arrays.h>
#include <ejk/detail/argument_values.h>
#include <ejk/detail/export.h>

namespace EJK_EXPORT ejk {
namespace detail {

// ---- containers -----------------------------------------------------------------------------

consteval int sum_of_words(std::initializer_list<int> parts) {
  int sum = 0;
  for (const int part : parts) {
    if (part == any_number_of_words) return any_number_of_words;
    sum += part;
  }
  return sum;
}
template <class... T>
consteval int total_words() {
  return sum_of_words({ArgTraits<T>::words...});
}

template <class P>
inline constexpr bool may_hold_outputs = false;
template <class V>
inline constexpr bool may_hold_outputs<Out<V>> = true;
template <class T>
inline constexpr bool may_hold_outputs<std::optional<T>> = may_hold_outputs<T>;
template <class T, size_t N>
inline constexpr bool may_hold_outputs<std::array<T, N>> = may_hold_outputs<T>;
template <class T, class A>
inline constexpr bool may_hold_outputs<std::vector<T, A>> = may_hold_outputs<T>;
template <class K, class T, class C, class A>
inline constexpr bool may_hold_outputs<std::map<K, T, C, A>> = may_hold_outputs<T>;
template <class... T>
inline constexpr bool may_hold_outputs<std::tuple<T...>> = (may_hold_outputs<T> || ...);
template <class T, class U>
inline constexpr bool may_hold_outputs<std::pair<T, U>> =
    may_hold_outputs<T> || may_hold_outputs<U>;

template <Argument T>
struct ArgTraits<std::optional<T>> {
  using P = std::optional<T>;
  static constexpr int words = any_number_of_words;
  static void emit(const P& p, auto& sink) {
    sink.push(p.has_value());
    if (p) ArgTraits<T>::emit(*p, sink);
  }
  static Arg describe(const P& p) {
    if (p) return ArgTraits<T>::describe(*p);
    Arg none = describe_value({});
    none.place_of_outputs = may_hold_outputs<T>;
    return none;
  }
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
    for (const auto& item : original)
      copies_.push_back(std::make_unique<ItemCopy>(item_in(item), role));
  }
  P& get() {
    if (pristine_) value_ = *pristine_;  // run may have added to it
    size_t i = 0;
    for (auto&& item : value_) item_in(item) = copies_[i++]->get();
    return value_;
  }
  void reset() {
    for (auto& c : copies_) c->reset();
  }
  void append_outputs(std::vector<OutputBytes>& outputs) const {
    if (!pristine_)
      for (const auto& c : copies_) c->append_outputs(outputs);
    else if constexpr (is_a<P, std::map>)
      for (const auto& [name, item] : value_) append_result(item, outputs);
    else append_result(value_, outputs);
  }

 private:
  using ItemCopy = typename ArgTraits<T>::Copy;
  // A map's items have a name beside them.
  static auto& item_in(auto& element) {
    if constexpr (is_a<P, std::map>) return element.second;
    else return element;
  }

  P value_;
  std::optional<P> pristine_;  // of one that run may write
  std::vector<std::unique_ptr<ItemCopy>> copies_;
};

template <class P>
Arg describe_list(const P& list) {
  Arg arg;
  arg.kind = Arg::Kind::list;
  for (const typename P::value_type& item : list)
    arg.items.push_back(ArgTraits<typename P::value_type>::describe(item));
  return arg;
}

template <Argument T, size_t N>
struct ArgTraits<std::array<T, N>> {
  using P = std::array<T, N>;
  static constexpr int words = ArgTraits<T>::words == any_number_of_words
                                   ? any_number_of_words
                                   : static_cast<int>(N) * ArgTraits<T>::words;
  static void emit(const P& p, auto& sink) {
    for (const T& item : p) ArgTraits<T>::emit(item, sink);
  }
  static Arg describe(const P& p) { return describe_list(p); }
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
    Arg arg = describe_list(p);
    arg.place_of_outputs = may_hold_outputs<T>;
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
    arg.place_of_outputs = may_hold_outputs<T>;
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
  using Copy = ListCopy<P, T>;
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

}  // namespace detail
}  // namespace ejk
