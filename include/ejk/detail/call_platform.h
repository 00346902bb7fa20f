// SPDX-License-Identifier: Apache-2.0
// Which platform a call runs on, and with it which config type: by the types of its arguments, or
// by where its arrays live.
#pragma once

#include <bit>
#include <concepts>
#include <string_view>
#include <type_traits>
#include <utility>

#include <ejk/detail/export.h>
#include <ejk/detail/kernel_traits.h>

namespace EJK_EXPORT ejk {
namespace detail {

template <class K, Context C, class... Args>
consteval auto find_call_config() {
  if constexpr (std::is_final_v<K>) return std::type_identity<NoConfig>{};
  else
    return std::type_identity<
        ConfigOf<K, hook_t<K, run_family, C, first_of(call_platforms_of<K, C, Args...>)>>>{};
}
// The config that a call with these arguments runs with; the first platform's if several may be
// meant.
template <class K, Context C, class... Args>
using CallConfig = typename decltype(find_call_config<K, C, Args...>())::type;

// Whether it is the config of a platform that a call with these arguments may run on, but not the
// first.
template <class K, Context C, class Config, class... Args>
consteval bool is_config_of_another() {
  constexpr Platforms open = call_platforms_of<K, C, Args...>;
  if constexpr (std::has_single_bit(open)) return false;
  else {
    const auto takes = []<Platform P>(std::integral_constant<Platform, P>) {
      return includes(open, P) && P != first_of(open) &&
             std::same_as<ConfigOf<K, hook_t<K, run_family, C, P>>, Config>;
    };
    return !std::same_as<CallConfig<K, C, Args...>, Config> &&
           (takes(std::integral_constant<Platform, Platform::opencl>{}) ||
            takes(std::integral_constant<Platform, Platform::cuda>{}));
  }
}

template <class K, Context C, class... A>
inline constexpr bool config_comes_first = false;
template <class K, Context C, class A, class... Rest>
inline constexpr bool config_comes_first<K, C, A, Rest...> =
    std::is_same_v<std::remove_cvref_t<A>, CallConfig<K, C, Rest...>> ||
    is_config_of_another<K, C, std::remove_cvref_t<A>, Rest...>();

template <class P>
struct ResultOf {
  using type = NoResult;
};
template <class P>
requires(P::sound) struct ResultOf<P> {
  using type = typename P::Result;
};

// Whether the plans of all platforms that a call may run on have the same config, or result.
template <class K, Context C, Platforms Open, Platform P>
inline constexpr bool same_config = true;
template <class K, Context C, Platforms Open, Platform P>
requires(includes(Open, P)) inline constexpr bool same_config<K, C, Open, P> =
    std::same_as<typename Plan<K, C, P>::Config, typename Plan<K, C, first_of(Open)>::Config>;
template <class K, Context C, Platforms Open, Platform P>
inline constexpr bool same_result = true;
template <class K, Context C, Platforms Open, Platform P>
requires(includes(Open, P)) inline constexpr bool same_result<K, C, Open, P> = std::same_as<
    typename ResultOf<Plan<K, C, P>>::type, typename ResultOf<Plan<K, C, first_of(Open)>>::type>;
template <class K, Context C, Platforms Open>
consteval bool configs_agree() {
  return same_config<K, C, Open, Platform::opencl> && same_config<K, C, Open, Platform::cuda>;
}
template <class K, Context C, Platforms Open>
consteval bool results_agree() {
  return same_result<K, C, Open, Platform::opencl> && same_result<K, C, Open, Platform::cuda>;
}

namespace mistake {
template <class Kernel>
struct runs_of_platforms_return_different_types {
  static_assert(sizeof(Kernel) == 0,
                "ejk: where the arrays of a call live is known at run time only, and the kernel's "
                "run returns another type on each platform; return the same, or pass views");
};
}  // namespace mistake

// Whether the types of the arguments say which platform they live on.
template <class K, Context C, class... Args>
inline constexpr bool is_decided = std::has_single_bit(call_platforms_of<K, C, Args...>);

[[noreturn]] void no_run_there(const Home& home);
[[noreturn]] void name_the_platform(const Home& home, Platform meant);
[[noreturn]] void config_of_another_platform(const Home& home, std::string_view given,
                                             std::string_view needed);
template <class Result>
[[noreturn]] Result refuse_config(const Home& home, std::string_view given,
                                  std::string_view needed) {
  config_of_another_platform(home, given, needed);
}

// Calls f with the plan of the platform that the arrays live on.
template <class K, Context C, class F, class... Args>
decltype(auto) where_arrays_live(F&& f, const Args&... args) {
  constexpr Platforms open = call_platforms_of<K, C, Args...>;
  using First = FirstPlan<K, C, Args...>;
  if constexpr (is_decided<K, C, Args...>) return f(std::type_identity<First>{});
  else {
    using enum Platform;
    const Home home = home_of(K::op_id, args...);
    if (home.platform() == First::platform) return f(std::type_identity<First>{});
    if constexpr (First::platform != opencl && includes(open, opencl))
      if (home.platform() == opencl) return f(std::type_identity<Plan<K, C, opencl>>{});
    if constexpr (First::platform != cuda && includes(open, cuda))
      if (home.platform() == cuda) return f(std::type_identity<Plan<K, C, cuda>>{});
    no_run_there(home);
  }
}

// Throws if the arrays live on another platform than the one that the result is typed for.
template <class P, class... Args>
void check_home(const Args&... args) {
  if constexpr (P::sound)
    if constexpr (!is_decided<typename P::Kernel, P::context, Args...>)
      if (const Home home = home_of(P::Kernel::op_id, args...); home.platform() != P::platform)
        name_the_platform(home, P::platform);
}

// where_arrays_live for what has the config in its type. Where platforms differ in that it is the
// first's.
template <class K, class F, class... Args>
auto where_config_is_known(F&& f, const Args&... args) {
  constexpr Platforms open = call_platforms_of<K, Context::plain, Args...>;
  if constexpr (is_decided<K, Context::plain, Args...> || configs_agree<K, Context::plain, open>())
    return where_arrays_live<K, Context::plain>(std::forward<F>(f), args...);
  else {
    using First = FirstPlan<K, Context::plain, Args...>;
    check_home<First>(args...);
    return f(std::type_identity<First>{});
  }
}

}  // namespace detail
}  // namespace ejk
