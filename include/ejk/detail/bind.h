// SPDX-License-Identifier: Apache-2.0
// Turns what a caller passes into what `run` takes.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ejk/argument.h>
#include <ejk/detail/argument_containers.h>
#include <ejk/detail/export.h>
#include <ejk/error.h>

namespace EJK_EXPORT ejk {
namespace detail {

// Where an argument is bound, for messages: "[op] argument 2" or "[op] argument \"mask\"".
struct Place {
  std::string_view op;
  int argument;                       // counted from 0 among run's parameters after the config
  std::string_view name = {};         // of a named one
  Platform platform = Platform::cpu;  // of the call
};

std::string text_of(const Place& place);
[[noreturn]] void wrong_array(const Place& place, const AnyView& given, DType dtype, int rank,
                              std::string_view problem, std::string_view needed_on = "cpu");
[[noreturn]] void wrong_keyword(std::string_view op, std::string_view name, std::string_view known);
[[noreturn]] void missing_keyword(std::string_view op, std::string_view name);
[[noreturn]] void repeated_keyword(std::string_view op, std::string_view name);
[[noreturn]] void wrong_type(const Place& place, std::string_view given, std::string_view needed);

inline void check_on_cpu(const Place& place, const AnyView& v, DType dtype, int rank) {
  if (v.platform != Platform::cpu)
    wrong_array(place, v, dtype, rank, "it does not live in CPU memory");
}

// What a parameter takes.
struct WantedArray {
  DType dtype;
  int rank;
  bool packed, writes;
};
inline void check_array(const Place& place, const AnyView& v, const WantedArray& wanted) {
  const auto [dtype, rank, packed, writes] = wanted;
  check_on_cpu(place, v, dtype, rank);
  if (v.dtype != dtype) wrong_array(place, v, dtype, rank, "its element type differs");
  if (static_cast<int>(v.shape.size()) != rank)
    wrong_array(place, v, dtype, rank, "its rank differs");
  if (packed && !v.strides.empty() && !v.packed())
    wrong_array(place, v, dtype, rank,
                "it is not packed (take an ejk::StridedView, or clone() it)");
  if (writes && !v.writable)
    wrong_array(place, v, dtype, rank, "it is read-only and the kernel writes it");
}

template <class T>
inline constexpr bool is_wrapper = false;
template <class T>
inline constexpr bool is_wrapper<Keyed<T>> = true;
template <class T>
inline constexpr bool is_wrapper<Unkeyed<T>> = true;
template <class V>
inline constexpr bool is_wrapper<Out<V>> = true;
template <class T>
inline constexpr bool is_named = false;
template <FixedString N, class T, auto... D>
inline constexpr bool is_named<Named<N, T, D...>> = true;

template <class T>
struct Wrapped;
template <template <class> class W, class T>
struct Wrapped<W<T>> {
  using type = T;
};
template <FixedString N, class T, auto... D>
struct Wrapped<Named<N, T, D...>> {
  using type = T;
};

template <class A>
inline constexpr bool is_keyword = false;
template <class T>
inline constexpr bool is_keyword<KeywordArgument<T>> = true;

// ---- where arguments live ----------------------------------------------------------------------

// Platforms as bits.
using Platforms = uint8_t;
constexpr Platforms only(Platform platform) {
  return static_cast<Platforms>(1U << static_cast<unsigned>(platform));
}
inline constexpr Platforms on_cpu = only(Platform::cpu),
                           on_gpu = only(Platform::opencl) | only(Platform::cuda),
                           anywhere = on_cpu | on_gpu;
constexpr bool includes(Platforms platforms, Platform one) { return (platforms & only(one)) != 0; }

// Of several arguments: a type that belongs to devices decides; else arrays that know it at run
// time do; numbers and types of the CPU go everywhere.
consteval Platforms platforms_of_all(std::initializer_list<Platforms> all) {
  Platforms device = on_gpu, last = 0;
  bool open = false;
  for (const Platforms one : all) {
    if ((one & on_cpu) == 0) device &= one, last = one;
    open = open || one == anywhere;
  }
  if (last != 0) return device != 0 ? device : last;  // else binding says which does not fit
  return open ? anywhere : on_cpu;
}

// Where arguments of a type can live. Types of other platforms say so with
// `static constexpr ejk::Platform ejk_platform`; what wraps or holds one belongs there too.
template <class T>
consteval Platforms platforms_of() {
  if constexpr (requires { T::ejk_platform; }) return only(T::ejk_platform);
  else if constexpr (requires { T::ejk_platforms; }) return T::ejk_platforms;
  else if constexpr (DynamicTensor<T>) return anywhere;
  else if constexpr (is_wrapper<T> || is_named<T>) return platforms_of<typename Wrapped<T>::type>();
  else if constexpr (is_keyword<T>) return platforms_of<std::remove_cvref_t<decltype(T::value)>>();
  else if constexpr (is_a<T, std::optional> || is_a<T, std::vector> || is_std_array<T>)
    return platforms_of<typename T::value_type>();
  else if constexpr (is_a<T, std::map>) return platforms_of<typename T::mapped_type>();
  else if constexpr (is_a<T, std::tuple> || is_a<T, std::pair>)
    return []<class... I>(std::type_identity<std::tuple<I...>>) {
      return platforms_of_all({on_cpu, platforms_of<std::remove_cvref_t<I>>()...});
    }(std::type_identity<decltype(std::tuple_cat(std::declval<T>()))>{});
  else return on_cpu;
}
template <class... A>
consteval Platforms call_platforms() {
  return platforms_of_all({on_cpu, platforms_of<std::remove_cvref_t<A>>()...});
}

// Null: on the CPU.
[[noreturn]] void unknown_device(const Place& place, const AnyView& array);
inline const Device* device_of(const Place& place, const AnyView& v) {
  if (v.platform != Platform::cpu && v.device == nullptr) unknown_device(place, v);
  return v.device;
}

// Calls f with the device of every array in `t` that knows where it lives; null for the CPU.
template <class T, class F>
void for_each_device(const Place& place, const T& t, F&& f) {
  if constexpr ((platforms_of<T>() & on_gpu) == 0) return;
  else if constexpr (requires { T::ejk_platforms; }) f(t.device);
  else if constexpr (DynamicTensor<T>) f(device_of(place, any_view_of(t)));
  else if constexpr (requires { T::ejk_platform; }) return;
  else if constexpr (is_a<T, Out>) for_each_device(place, t.view, f);
  else if constexpr (is_wrapper<T> || is_named<T> || is_keyword<T>)
    for_each_device(place, t.value, f);
  else if constexpr (is_a<T, std::optional>) {
    if (t) for_each_device(place, *t, f);
  } else if constexpr (is_a<T, std::map>)
    for (const auto& [name, item] : t) for_each_device(place, item, f);
  else if constexpr (is_a<T, std::tuple> || is_a<T, std::pair>)
    std::apply([&](const auto&... item) { (for_each_device(place, item, f), ...); }, t);
  else
    for (const auto& item : t) for_each_device(place, item, f);
}

// The device of a call's arrays, and the first argument that lives there.
struct Home {
  const Device* device = nullptr;  // null: all live on the CPU
  Place first = {"", -1};
  Platform platform() const { return device == nullptr ? Platform::cpu : device->platform; }
};

// Calls f(place, device) for every array in the arguments of a call.
template <class F, class... A>
void for_each_home(std::string_view op, F&& f, const A&... args) {
  Place place{op, 0};
  const auto look = [&](const auto& arg) {
    if constexpr (is_keyword<std::remove_cvref_t<decltype(arg)>>) place.name = arg.name;
    for_each_device(place, arg, [&](const Device* device) { f(place, device); });
    ++place.argument;
  };
  (look(args), ...);
}

template <class... A>
Home home_of(std::string_view op, const A&... args) {
  Home home{nullptr, {op, -1}};
  for_each_home(
      op,
      [&](const Place& place, const Device* device) {
        if (home.device == nullptr && device != nullptr) home = {device, place};
      },
      args...);
  return home;
}

[[noreturn]] void wrong_device(const Place& place, const Device* device, const Home& home,
                               Platform platform);
// Throws Error(invalid_argument) unless all arrays live on one device, which is of this platform.
template <class... A>
void check_devices(std::string_view op, Platform platform, const A&... args) {
  const Home home = home_of(op, args...);
  for_each_home(
      op,
      [&](const Place& place, const Device* device) {
        if (device != home.device || home.platform() != platform)
          wrong_device(place, device, home, platform);
      },
      args...);
}

namespace mistake {
template <class Kernel, int Argument, class Given, class Wanted>
struct argument_does_not_fit {
  static_assert(
      sizeof(Kernel) == 0,
      "ejk: an argument (its number, counted from 0, and both types are in the line above: "
      "<Kernel, number, given, wanted>) does not convert to the parameter of the kernel's run");
};
template <class Kernel, int Argument, class Given, class Wanted>
struct argument_would_lose_its_fraction {
  static_assert(
      sizeof(Kernel) == 0,
      "ejk: a floating-point argument is passed for an integer parameter of the kernel's run; "
      "convert it yourself (<Kernel, number, given, wanted>)");
};
template <class Kernel, int Argument, class Given, class Wanted>
struct argument_lives_on_another_platform {
  static_assert(
      sizeof(Kernel) == 0,
      "ejk: the kernel's run for this platform takes an argument of another platform; add "
      "run_{platform} for it (<Kernel, number, given, wanted>)");
};
template <class Kernel, int Argument, class Given, class Wanted>
struct argument_is_const_but_run_writes_it {
  static_assert(
      sizeof(Kernel) == 0,
      "ejk: the kernel's run takes this argument by non-const reference, so it must not be "
      "const or a temporary (<Kernel, number, given, wanted>)");
};
}  // namespace mistake

template <class P>
struct ArrayTarget {
  static constexpr bool is_array = false;
};
template <class T, int R>
struct ArrayTarget<View<T, R>> {
  static constexpr bool is_array = true;
  static View<T, R> make(const Place& place, const AnyView& v) {
    check_array(place, v,
                {.dtype = dtype_of<T>, .rank = R, .packed = true, .writes = !std::is_const_v<T>});
    View<T, R> out{static_cast<T*>(v.data), {}};
    for (size_t d = 0; d < R; ++d) out.shape[d] = v.shape[d];
    return out;
  }
};
template <class T, int R>
struct ArrayTarget<StridedView<T, R>> {
  static constexpr bool is_array = true;
  static StridedView<T, R> make(const Place& place, const AnyView& v) {
    check_array(place, v,
                {.dtype = dtype_of<T>, .rank = R, .packed = false, .writes = !std::is_const_v<T>});
    View<T, R> packed{static_cast<T*>(v.data), {}};
    for (size_t d = 0; d < R; ++d) packed.shape[d] = v.shape[d];
    StridedView<T, R> out(packed);
    if (!v.strides.empty())
      for (size_t d = 0; d < R; ++d) out.strides[d] = v.strides[d];
    return out;
  }
};
template <Element T>
struct ArrayTarget<std::span<T>> {
  static constexpr bool is_array = true;
  static std::span<T> make(const Place& place, const AnyView& v) {
    check_array(place, v,
                {.dtype = dtype_of<T>, .rank = 1, .packed = true, .writes = !std::is_const_v<T>});
    return {static_cast<T*>(v.data), static_cast<size_t>(v.shape[0])};
  }
};
template <>
struct ArrayTarget<AnyView> {
  static constexpr bool is_array = true;
  static AnyView make(const Place& place, const AnyView& v) {
    if (place.platform == Platform::cpu)
      check_on_cpu(place, v, v.dtype, static_cast<int>(v.shape.size()));
    return v;
  }
};

// Stands in for a value after a mistake was reported, so that only the mistake is.
template <class P>
P& no_value() {
  __builtin_unreachable();
}

// Contiguous storage of a matching element type (std::vector, std::array, View, std::span) as a
// rank-1 view.
template <class A, class T>
concept LineOf = requires(A& a) {
  { std::data(a) } -> std::convertible_to<T*>;
  { std::size(a) } -> std::convertible_to<size_t>;
};

template <class T>
inline constexpr bool is_fixed_view = false;
template <class T, int R>
inline constexpr bool is_fixed_view<View<T, R>> = true;
template <class T, int R>
inline constexpr bool is_fixed_view<StridedView<T, R>> = true;

template <class V>
using PackedOf = View<typename V::element_type, V::rank>;

// How an argument becomes a parameter, in the order in which the ways are tried.
enum class Way {
  other_platform,
  itself,
  loses_fraction,
  none,       // the last two of these and the first are mistakes
  wrapped,    // Keyed, Unkeyed, Out, Named and optional: what is inside is bound
  lifted,     // an optional of another type
  checked,    // an array that knows its type at run time only
  converted,  // implicitly
  via_view,   // a packed view as a strided one of const elements
  line,       // contiguous storage as a view of rank 1
  erased,     // a view of fixed type as AnyView
};
constexpr bool is_mistake(Way way) {
  return way == Way::other_platform || way == Way::loses_fraction || way == Way::none;
}

template <class P, class A>
consteval Way way_of() {
  using U = std::remove_cvref_t<A>;
  if constexpr (std::same_as<U, P>) return Way::itself;
  else if constexpr (std::same_as<U, std::nullopt_t> && std::is_convertible_v<A, P>)
    return Way::converted;
  else if constexpr ((platforms_of<P>() & platforms_of<U>()) == 0) return Way::other_platform;
  else if constexpr (is_wrapper<P> || is_named<P>) {
    constexpr Way inside = way_of<typename Wrapped<P>::type, A>();
    return is_mistake(inside) ? inside : Way::wrapped;
  } else if constexpr (ArrayTarget<P>::is_array && DynamicTensor<U>) return Way::checked;
  else if constexpr (std::floating_point<U> && std::integral<P>) return Way::loses_fraction;
  else if constexpr (std::same_as<P, bool> && std::is_pointer_v<std::decay_t<A>>)
    return Way::none;  // always true
  else if constexpr (is_a<P, std::optional>) {
    if constexpr (is_a<U, std::optional>) {
      constexpr Way inside = way_of<typename P::value_type, const typename U::value_type&>();
      return is_mistake(inside) ? inside : Way::lifted;
    } else {
      constexpr Way inside = way_of<typename P::value_type, A>();
      return is_mistake(inside) && std::is_convertible_v<A, P> ? Way::converted
             : is_mistake(inside)                              ? inside
                                                               : Way::wrapped;
    }
  } else if constexpr (std::is_convertible_v<A, P>) return Way::converted;
  else if constexpr (is_fixed_view<P> && is_fixed_view<U>) return requires {
      P(static_cast<PackedOf<P>>(std::declval<A>()));
    }
  ? Way::via_view : Way::none;
  else if constexpr (requires {
                       typename P::element_type;
                       requires P::rank == 1;
                       requires LineOf<A, typename P::element_type>;
                     }) return Way::line;
  else if constexpr (std::same_as<P, AnyView> && is_fixed_view<U>) return Way::erased;
  else if constexpr (requires {
                       requires U::rank == 1;
                       { std::declval<A>().span() } -> std::convertible_to<P>;
                     }) return Way::line;
  else return Way::none; }

// What `run` gets for its parameter Raw when the caller passes `arg`: a reference to the argument
// itself if the types agree, else a new P.
template <class K, int I, class Raw, class A>
decltype(auto) bind(const Place& place, A&& arg) {
  using P = std::remove_cvref_t<Raw>;
  using U = std::remove_cvref_t<A>;
  constexpr bool writes =
      std::is_lvalue_reference_v<Raw> && !std::is_const_v<std::remove_reference_t<Raw>>;
  constexpr bool fixed =
      std::is_const_v<std::remove_reference_t<A>> || !std::is_lvalue_reference_v<A>;
  constexpr Way way = way_of<P, A>();
  if constexpr (way == Way::other_platform) {
    static_cast<void>(mistake::argument_lives_on_another_platform<K, I, U, P>{});
    return no_value<P>();
  } else if constexpr (way == Way::loses_fraction) {
    static_cast<void>(mistake::argument_would_lose_its_fraction<K, I, U, P>{});
    return no_value<P>();
  } else if constexpr (way == Way::none || (writes && way != Way::itself)) {
    static_cast<void>(mistake::argument_does_not_fit<K, I, U, P>{});
    return no_value<P>();
  } else if constexpr (writes && fixed) {
    static_cast<void>(mistake::argument_is_const_but_run_writes_it<K, I, U, P>{});
    return no_value<P>();
  } else if constexpr (way == Way::itself) {
    if constexpr (std::same_as<P, AnyView>) static_cast<void>(ArrayTarget<P>::make(place, arg));
    else if constexpr (std::same_as<P, Tensor>) {
      if (place.platform == Platform::cpu && !arg.on_cpu()) [[unlikely]]
        static_cast<void>(ArrayTarget<AnyView>::make(place, arg.any()));
    } else if constexpr (DlpackTensor<P>)
      static_cast<void>(ArrayTarget<AnyView>::make(place, any_view_of(arg)));
    return static_cast<std::remove_reference_t<A>&>(arg);
  } else if constexpr (way == Way::wrapped) {
    if constexpr (is_a<P, std::optional>)
      return P(bind<K, I, typename P::value_type>(place, std::forward<A>(arg)));
    else return P(bind<K, I, typename Wrapped<P>::type>(place, std::forward<A>(arg)));
  } else if constexpr (way == Way::lifted) {
    return arg ? P(bind<K, I, typename P::value_type>(place, *arg)) : P();
  } else if constexpr (way == Way::checked) {
    return ArrayTarget<P>::make(place, any_view_of(arg));
  } else if constexpr (way == Way::converted) {
    return static_cast<P>(std::forward<A>(arg));
  } else if constexpr (way == Way::via_view) {
    return P(static_cast<PackedOf<P>>(arg));
  } else if constexpr (way == Way::erased) {
    std::span<const int64_t> strides;
    if constexpr (requires { arg.strides; }) strides = arg.strides;
    using T = typename U::element_type;
    return AnyView{const_cast<std::remove_const_t<T>*>(arg.data),
                   dtype_of<T>,
                   Platform::cpu,
                   arg.shape,
                   strides,
                   !std::is_const_v<T>};
  } else if constexpr (requires { arg.span(); }) {
    return P(arg.span());
  } else {
    const View<typename P::element_type, 1> line{std::data(arg),
                                                 {static_cast<int64_t>(std::size(arg))}};
    return P(line);
  }
}

}  // namespace detail
}  // namespace ejk
