// SPDX-License-Identifier: Apache-2.0
// Everything that is known of a kernel at compile time: its hooks, its parameters, its key.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ejk/argument.h>
#include <ejk/config.h>
#include <ejk/detail/bind.h>
#include <ejk/detail/exact_shapes.h>
#include <ejk/detail/export.h>
#include <ejk/detail/hash.h>
#include <ejk/detail/hooks.h>
#include <ejk/detail/mistakes.h>
#include <ejk/kernel.h>

namespace EJK_EXPORT ejk {
namespace detail {

template <class K>
concept HasVersion = requires {
  { K::version } -> std::convertible_to<std::string_view>;
};
template <class K>
constexpr std::string_view version_of() {
  if constexpr (HasVersion<K>) return K::version;
  else return "0";
}

template <class Raw>
consteval Role role_of_raw() {
  using P = std::remove_cvref_t<Raw>;
  if constexpr (is_a<P, Out>) return Role::output;
  else if constexpr (std::is_lvalue_reference_v<Raw> &&
                     !std::is_const_v<std::remove_reference_t<Raw>>)
    return Role::in_out;
  else return Role::input;
}

// A view's own constness says more than the reference it is passed by. `name`: of a keyword
// argument; "": it has none.
void add_argument(Invocation& inv, Arg arg, Role role, std::string_view name);
void set_key(Invocation& inv, std::initializer_list<Arg> parts);
void set_words(Invocation& inv, const WordSink& words);

// A distinct address for every kernel type, context and platform in the process.
template <class K, Context C, Platform P>
inline char kernel_tag = 0;  // not const: linkers may merge equal constants

// What a key hook may return: values, arrays and tuples of those.
template <class T>
inline constexpr bool can_be_in_key = MadeOfValues<T> || Argument<T>;
template <class... T>
inline constexpr bool can_be_in_key<std::tuple<T...>> = (can_be_in_key<T> && ...);

constexpr bool names_a_platform(std::string_view hook) {
  return hook.ends_with("_cpu") || hook.ends_with("_opencl") || hook.ends_with("_cuda") ||
         hook.ends_with("_gpu");
}

template <class K, Context C, Platform P>
struct Plan {
  static constexpr bool sound = true;
  static constexpr Context context = C;
  static constexpr Platform platform = P;
  using Kernel = K;
  using Run = hook_t<K, run_family, C, P>;
  using Config = ConfigOf<K, Run>;
  using Heuristic = hook_t<K, heuristic_cfg_family, C, P>;
  using Candidates = hook_t<K, candidate_cfgs_family, C, P>;
  static constexpr bool has_own_config = !std::same_as<Config, ConfigOfRun<K>>;
  // Where run has a config of its own here, hooks for all platforms may be of the other one.
  template <class Hook>
  static constexpr bool may_be_of_run = has_own_config && !names_a_platform(Hook::text);
  template <class Hook>
  using IfOfThisConfig =
      std::conditional_t<may_be_of_run<Hook> && !std::is_void_v<FirstParameter<K, Hook>> &&
                             !std::same_as<FirstParameter<K, Hook>, Config>,
                         NoHook, Hook>;
  using Forward = IfOfThisConfig<hook_t<K, fwd_with_residuals_family, C, P>>;
  using Vjp = IfOfThisConfig<hook_t<K, vjp_family, C, P>>;
  using Raws = ParametersOf<K, Run>;
  static constexpr size_t arity = std::tuple_size_v<Raws>;
  template <size_t I>
  using Raw = std::tuple_element_t<I, Raws>;
  template <size_t I>
  using Param = std::remove_cvref_t<Raw<I>>;
  using Indices = std::make_index_sequence<arity>;

  static constexpr bool has_key = has<K, hook_key>;
  static constexpr InKey in_key = has_key ? InKey::no : InKey::yes;
  static constexpr bool has_is_valid =
      has<K, hook_is_valid> &&
      (!has_own_config || hook_is_valid::callable<K, const Config&, const Invocation&>);
  static constexpr bool numerics_sees_call =
      hook_numerics::callable<K, const Config&, const Invocation&>;
  static constexpr bool has_numerics =
      has<K, hook_numerics> &&
      (!has_own_config || numerics_sees_call || hook_numerics::callable<K, const Config&>);
  static constexpr bool has_prepare = has<K, hook_prepare>;
  // is_valid and numerics are asked once for every exact shape that shares the key.
  static constexpr bool asks_of_shapes = has_is_valid || has_numerics;

  // -- key words -----------------------------------------------------------------------------

  template <size_t... I>
  static consteval int words_of_parameters(std::index_sequence<I...>) {
    return sum_of_words(
        {total_words<Param<I>...>(), (asks_of_shapes ? shape_words<in_key, Param<I>>() : 0)...});
  }
  template <size_t... I>
  static consteval bool words_tell_shapes(std::index_sequence<I...>) {
    return asks_of_shapes || ((shape_words<in_key, Param<I>>() == 0) && ...);
  }
  static constexpr int parameter_words = words_of_parameters(Indices{});
  static constexpr bool fixed =
      parameter_words != any_number_of_words && std::is_empty_v<K> && !has_key;
  static constexpr bool on_device = P != Platform::cpu;
  static constexpr size_t own_words = on_device ? 2 : 1;  // the kernel, the device
  static constexpr size_t fixed_words =
      fixed ? static_cast<size_t>(parameter_words) + own_words : 1;

  template <class Params, size_t... I>
  static void emit(const K& kernel, const Params& params, uint64_t salt, auto& sink,
                   std::index_sequence<I...>) {
    sink.push(reinterpret_cast<uintptr_t>(&kernel_tag<K, C, P>) ^ salt);
    if constexpr (on_device)
      sink.push(reinterpret_cast<uintptr_t>(home_of(K::op_id, std::get<I>(params)...).device));
    if constexpr (has_key) {
      if constexpr (check_key<decltype(std::get<I>(params))...>())
        emit_key(hook_key::call(kernel, std::get<I>(params)...), sink);
    } else {
      if constexpr (!std::is_empty_v<K>) emit_by_value(kernel, sink);
      (ArgTraits<Param<I>>::emit(std::get<I>(params), sink), ...);
    }
    if constexpr (asks_of_shapes) (push_shapes<in_key>(std::get<I>(params), sink), ...);
  }
  // What the key hook returns counts by value, arrays in it as arrays do.
  template <class T>
  static void emit_key(const T& key, auto& sink) {
    if constexpr (MadeOfValues<T>) emit_by_value(key, sink);
    else if constexpr (is_a<T, std::tuple> || is_a<T, std::pair>)
      std::apply([&](const auto&... part) { (emit_key(part, sink), ...); }, key);
    else ArgTraits<T>::emit(key, sink);
  }
  template <class... Passed>
  static consteval bool check_key() {
    if constexpr (!hook_key::template callable<K, Passed...>) {
      static_cast<void>(mistake::key_has_another_signature<K>{});
      return false;
    } else if constexpr (!can_be_in_key<std::remove_cvref_t<decltype(hook_key::call(
                             std::declval<const K&>(), std::declval<Passed>()...))>>) {
      static_cast<void>(mistake::key_has_another_signature<K>{});
      return false;
    } else return true;
  }

  // -- the abstract call ----------------------------------------------------------------------

  template <class Params, size_t... I>
  static Invocation invocation(const K& kernel, const Params& params, std::index_sequence<I...>) {
    Invocation inv;
    inv.op_id = K::op_id;
    inv.version = version_of<K>();
    if constexpr (on_device) inv.device = home_of(K::op_id, std::get<I>(params)...).device;
    if (inv.device == nullptr) inv.device = &cpu_device();  // which reads files when it is new
    inv.platform = P;
    inv.context = C;
    (add_argument<I>(inv, std::get<I>(params)), ...);
    if constexpr (has_key) {
      if constexpr (check_key<decltype(std::get<I>(params))...>())
        describe_key(inv, hook_key::call(kernel, std::get<I>(params)...));
    } else if constexpr (!std::is_empty_v<K>) {
      inv.members = value_of(kernel);
    }
    return inv;
  }
  template <size_t I>
  static void add_argument(Invocation& inv, const Param<I>& param) {
    std::string_view name;
    if constexpr (is_named<Param<I>>) name = Param<I>::name;
    detail::add_argument(inv, ArgTraits<Param<I>>::describe(param), role_of_raw<Raw<I>>(), name);
  }
  template <class T>
  static void describe_key(Invocation& inv, const T& key) {
    if constexpr (is_a<T, std::tuple> || is_a<T, std::pair>)
      std::apply([&](const auto&... part) { set_key(inv, {describe_part(part)...}); }, key);
    else set_key(inv, {describe_part(key)});
  }
  template <class T>
  static Arg describe_part(const T& part) {
    if constexpr (MadeOfValues<T>) return describe_value(value_of(part));
    else return ArgTraits<T>::describe(part);
  }

  // -- running --------------------------------------------------------------------------------

  template <size_t... I>
  static auto returned(std::index_sequence<I...>) -> std::type_identity<decltype(Run::call(
      std::declval<const K&>(), std::declval<const Config&>(), std::declval<Param<I>&>()...))>;
  // What run returns.
  using Result = typename decltype(returned(Indices{}))::type;

  template <class Params>
  static decltype(auto) run(const K& kernel, const Config& config, Params&& params) {
    return std::apply(
        [&](auto&&... p) -> decltype(auto) {
          return Run::call(kernel, config, static_cast<decltype(p)>(p)...);
        },
        std::forward<Params>(params));
  }

  // -- from a caller's arguments to run's parameters -------------------------------------------

  template <class... A>
  static constexpr size_t positional = (size_t{0} + ... +
                                        (is_keyword<std::remove_cvref_t<A>> ? 0 : 1));

  template <class... A>
  static auto bind_all(A&&... args) {
    if constexpr (positional < A... >> arity) {
      static_cast<void>(mistake::wrong_number_of_arguments<K, positional<A...>, arity>{});
      return []<size_t... I>(std::index_sequence<I...>) {
        return std::tuple<Param<I>&...>(no_value<Param<I>>()...);
      }
      (Indices{});
    } else {
      if constexpr (on_device) check_devices(K::op_id, P, args...);
      auto passed = std::forward_as_tuple(std::forward<A>(args)...);
      return [&]<size_t... I>(std::index_sequence<I...>) {
        if constexpr (positional<A...> < sizeof...(A)) {
          check_names(passed);
          (check_given_once<I, A...>(passed), ...);
        }
        return std::tuple<decltype(bind_one<I, A...>(passed))...>(bind_one<I, A...>(passed)...);
      }
      (Indices{});
    }
  }

  template <size_t I, class... A>
  static decltype(auto) bind_one(std::tuple<A&&...>& passed) {
    if constexpr (I < positional<A...>)
      return bind<K, static_cast<int>(I), Raw<I>>(Place{K::op_id, static_cast<int>(I), {}, P},
                                                  std::get<I>(std::move(passed)));
    else if constexpr (is_named<Param<I>>) return find_named<Param<I>>(passed);
    else {
      static_cast<void>(mistake::wrong_number_of_arguments<K, positional<A...>, arity>{});
      return no_value<Param<I>>();
    }
  }

  template <class N, class... A>
  static N find_named(const std::tuple<A...>& passed) {
    N out = default_of(std::type_identity<N>{});
    bool given = has_default(std::type_identity<N>{});
    std::apply([&](const auto&... a) { (take_named(a, out, given), ...); }, passed);
    if (!given) missing_keyword(K::op_id, N::name);
    return out;
  }
  template <class A, class N>
  static void take_named(const A& arg, N& out, bool& given) {
    if constexpr (is_keyword<A>) {
      if (arg.name != N::name) return;
      using T = typename Wrapped<N>::type;
      const Place place{K::op_id, -1, N::name, P};
      // Names are known at run time only, so are mistakes with what they name.
      if constexpr (is_mistake(way_of<T, decltype((arg.value))>()))
        wrong_type(place, type_name<std::remove_cvref_t<decltype(arg.value)>>(), type_name<T>());
      else out = N(bind<K, -1, T>(place, arg.value));
      given = true;
    }
  }
  template <FixedString N, class T, auto... D>
  static Named<N, T, D...> default_of(std::type_identity<Named<N, T, D...>>) {
    if constexpr (sizeof...(D) == 1) return Named<N, T, D...>(D...);
    else return {};
  }
  template <FixedString N, class T, auto... D>
  static constexpr bool has_default(std::type_identity<Named<N, T, D...>>) {
    return sizeof...(D) == 1 || is_a<T, std::optional>;
  }
  template <class... A>
  static void check_names(const std::tuple<A...>& passed) {
    std::apply([](const auto&... a) { (check_name(a), ...); }, passed);
  }
  template <class A>
  static void check_name(const A& arg) {
    if constexpr (is_keyword<A>) {
      bool known = false;
      std::string names;
      [&]<size_t... I>(std::index_sequence<I...>) {
        ((known = known || is_name<I>(arg.name)), ...);
        if (!known) (add_name<I>(names), ...);
      }
      (Indices{});
      if (!known) wrong_keyword(K::op_id, arg.name, names.empty() ? "none" : names);
    }
  }
  template <size_t I, class... A>
  static void check_given_once(const std::tuple<A&&...>& passed) {
    if constexpr (is_named<Param<I>>) {
      size_t times = I < positional<A...> ? 1 : 0;
      auto count = [&](const auto& arg) {
        if constexpr (is_keyword<std::remove_cvref_t<decltype(arg)>>)
          times += arg.name == Param<I>::name;
      };
      std::apply([&](const auto&... a) { (count(a), ...); }, passed);
      if (times > 1) repeated_keyword(K::op_id, Param<I>::name);
    }
  }
  template <size_t I>
  static bool is_name(std::string_view name) {
    if constexpr (is_named<Param<I>>) return Param<I>::name == name;
    else return false;
  }
  template <size_t I>
  static void add_name(std::string& names) {
    if constexpr (is_named<Param<I>>)
      names += (names.empty() ? "" : ", ") + std::string(Param<I>::name);
  }
};

// Of a kernel of which the compiler has said what is wrong: there is nothing to call.
template <class K, Context C, Platform P>
requires(!is_sound<K, C, P>()) struct Plan<K, C, P> {
  static constexpr bool sound = false;
  struct Config {};
};

// ---- which plan a call has ---------------------------------------------------------------------

constexpr Platform first_of(Platforms platforms) {
  return static_cast<Platform>(std::countr_zero(platforms));
}

// Of the platforms that the arguments leave open, those that the kernel has a run for. One for all
// platforms is the CPU's where the CPU is among them.
template <class K, Context C, Platforms Open>
consteval Platforms platforms_with_run() {
  if constexpr (std::has_single_bit(Open) || std::is_final_v<K>) return Open & -Open;
  else {
    using OnCpu = hook_t<K, run_family, C, Platform::cpu>;
    Platforms found = 0;
    if (includes(Open, Platform::cpu) && OnCpu::found) found |= on_cpu;
    const auto look = [&]<Platform P>(std::integral_constant<Platform, P>) {
      using Run = hook_t<K, run_family, C, P>;
      if (includes(Open, P) && Run::found && !(found != 0 && std::same_as<Run, OnCpu>))
        found |= only(P);
    };
    look(std::integral_constant<Platform, Platform::opencl>{});
    look(std::integral_constant<Platform, Platform::cuda>{});
    return found != 0 ? found : only(first_of(Open));
  }
}

template <class Param, class A>
consteval bool is_of_another_platform() {
  if constexpr (is_keyword<std::remove_cvref_t<A>>) return false;  // which one is known at run time
  else return way_of<Param, A>() == Way::other_platform;
}
// Whether run for a platform can take arguments of these types, as far as platforms go.
template <class K, class Run, class... Args>
consteval bool takes_types() {
  using Raws = ParametersOf<K, Run>;
  using Passed = std::tuple<Args&&...>;
  constexpr size_t taken = std::tuple_size_v<Raws>, given = sizeof...(Args);
  return []<size_t... I>(std::index_sequence<I...>) {
    return !(is_of_another_platform<std::remove_cvref_t<std::tuple_element_t<I, Raws>>,
                                    std::tuple_element_t<I, Passed>>() ||
             ...);
  }
  (std::make_index_sequence<(taken < given ? taken : given)>{});
}
// Of these platforms, those whose run takes such arguments; all if none does. A view of the CPU
// beside tensors leaves the CPU. What prepare makes of arguments is not known here.
template <class K, Context C, Platforms Open, class... Args>
consteval Platforms platforms_that_take() {
  if constexpr (std::has_single_bit(Open)) return Open;  // a final kernel can be asked for no hook
  else if constexpr (has<K, hook_prepare>) return Open;
  else {
    Platforms found = Open;
    const auto look = [&]<Platform P>(std::integral_constant<Platform, P>) {
      using Run = hook_t<K, run_family, C, P>;
      if constexpr (includes(Open, P))
        if constexpr (Run::template unique<K>)
          if (!takes_types<K, Run, Args...>()) found &= static_cast<Platforms>(~only(P));
    };
    look(std::integral_constant<Platform, Platform::cpu>{});
    look(std::integral_constant<Platform, Platform::opencl>{});
    look(std::integral_constant<Platform, Platform::cuda>{});
    return found != 0 ? found : Open;
  }
}

// Where a call with these arguments may run. One platform: known at compile time.
template <class K, Context C, class... Args>
inline constexpr Platforms call_platforms_of =
    platforms_that_take<K, C, platforms_with_run<K, C, call_platforms<Args...>()>(), Args...>();
template <class K, Context C, class... Args>
using FirstPlan = Plan<K, C, first_of(call_platforms_of<K, C, Args...>)>;

}  // namespace detail
}  // namespace ejk
