// SPDX-License-Identifier: Apache-2.0
// What is wrong with a kernel, in words of the library, each mistake once.
#pragma once

#include <concepts>
#include <cstddef>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include <ejk/argument.h>
#include <ejk/config.h>
#include <ejk/detail/argument_containers.h>
#include <ejk/detail/export.h>
#include <ejk/detail/hooks.h>
#include <ejk/detail/misspelt_hooks.h>

namespace EJK_EXPORT ejk {
namespace detail {

// One struct per mistake: the compiler's first line names the kernel, the assertion what to do.
namespace mistake {
template <class Kernel>
struct kernel_has_no_config {
  static_assert(sizeof(Kernel) == 0,
                "ejk: the kernel needs a nested type `Config` (an empty struct will do)");
};
template <class Kernel>
struct kernel_is_final {
  static_assert(sizeof(Kernel) == 0,
                "ejk: the kernel must not be final: its hooks are found by deriving from it");
};
template <class Kernel>
struct config_cannot_be_written {
  static_assert(sizeof(Kernel) == 0,
                "ejk: the kernel's Config must be made of bools, numbers, enums, strings, "
                "optionals, vectors, arrays, "
                "tuples, maps and plain structs, and have defaults; one with a base, C arrays or "
                "more than 24 fields "
                "names its fields with EJK_CONFIG");
};
template <class Kernel>
struct kernel_has_no_op_id {
  static_assert(sizeof(Kernel) == 0,
                "ejk: the kernel needs `static constexpr std::string_view op_id = \"name\";`");
};
template <class Kernel>
struct kernel_has_no_run_for_this_platform {
  static_assert(
      sizeof(Kernel) == 0,
      "ejk: the kernel needs `R run(const Config&, arguments...) const` (or run_{platform} for the "
      "platform its arguments live on; run_gpu is for OpenCL and CUDA)");
};
template <class Kernel>
struct run_is_overloaded_or_a_template {
  static_assert(
      sizeof(Kernel) == 0,
      "ejk: the kernel's run is overloaded or a template, so its parameters are unknown; make the "
      "struct the template, or name them: using Arguments = ejk::list<...>;");
};
template <class Kernel>
struct run_is_not_const {
  static_assert(sizeof(Kernel) == 0, "ejk: the kernel's run must be const (or static)");
};
template <class Kernel>
struct run_does_not_take_the_config_first {
  static_assert(sizeof(Kernel) == 0,
                "ejk: the first parameter of the kernel's run must be `const Config&`; that of a "
                "run_{platform} may be another struct of plain values");
};
template <class Kernel, int Number, class Parameter>
struct parameter_cannot_be_keyed {
  static_assert(
      sizeof(Kernel) == 0,
      "ejk: a parameter of the kernel's run (<Kernel, number, type>) is of a type the library does "
      "not know; add `void ejk_key(ejk::KeySink&, const Type&)` beside it, or take an ejk::View");
};
template <class Kernel>
struct data_members_cannot_be_keyed {
  static_assert(
      sizeof(Kernel) == 0,
      "ejk: the kernel has data members that cannot be found; make it an aggregate of plain "
      "values, or add a `key` hook that says what counts");
};
template <class Kernel>
struct heuristic_cfg_has_another_signature {
  static_assert(sizeof(Kernel) == 0,
                "ejk: the kernel's heuristic_cfg must be `Config heuristic_cfg(const "
                "ejk::Invocation&) const`");
};
template <class Kernel>
struct candidate_cfgs_has_another_signature {
  static_assert(
      sizeof(Kernel) == 0,
      "ejk: the kernel's candidate_cfgs must be `std::vector<Config> (or ejk::Space<Config>) "
      "candidate_cfgs(const ejk::Invocation&) const`");
};
template <class Kernel>
struct is_valid_has_another_signature {
  static_assert(sizeof(Kernel) == 0,
                "ejk: the kernel's is_valid must be `bool is_valid(const Config&, const "
                "ejk::Invocation&) const`");
};
template <class Kernel>
struct numerics_has_another_signature {
  static_assert(sizeof(Kernel) == 0,
                "ejk: the kernel's numerics must be `auto numerics(const Config&) const` or `auto "
                "numerics(const Config&, const ejk::Invocation&) const`, and return a number, a "
                "text, a tuple or a plain struct of them");
};
template <class Kernel>
struct reference_has_another_signature {
  static_assert(
      sizeof(Kernel) == 0,
      "ejk: the kernel's reference must take run's parameters without the config, be const and "
      "return what run returns");
};
template <class Kernel>
struct key_has_another_signature {
  static_assert(sizeof(Kernel) == 0,
                "ejk: the kernel's key must take run's parameters without the config, be const and "
                "return what "
                "counts: one value or a std::tuple of values");
};
template <class Kernel, size_t Given, size_t Wanted>
struct wrong_number_of_arguments {
  static_assert(
      sizeof(Kernel) == 0,
      "ejk: the call has another number of arguments than the kernel's run has parameters after "
      "the config (<Kernel, given, wanted>)");
};
template <class Kernel>
struct prepare_does_not_return_a_tuple {
  static_assert(sizeof(Kernel) == 0,
                "ejk: the kernel's prepare must return a std::tuple of run's arguments");
};
}  // namespace mistake

template <class K>
concept HasConfig = requires {
  typename K::Config;
};
template <class K>
concept HasOpId = requires {
  { K::op_id } -> std::convertible_to<std::string_view>;
};
template <class K>
concept NamesArguments = requires {
  typename K::Arguments;
};

template <class T>
struct ListToTuple;
template <class... T>
struct ListToTuple<list<T...>> {
  using type = std::tuple<T...>;
};
template <class T>
struct DropFirst;
template <class A, class... T>
struct DropFirst<std::tuple<A, T...>> {
  using First = A;
  using type = std::tuple<T...>;
};
template <>
struct DropFirst<std::tuple<>> {
  using First = void;
  using type = std::tuple<>;
};

// run's parameters after the config, as written. Of a run that has them, see has_parameters.
template <class K, class Run>
consteval auto find_parameters() {
  if constexpr (Run::template unique<K>)
    return std::type_identity<
        typename DropFirst<typename Signature<typename Run::template Type<K>>::Parameters>::type>{};
  else return std::type_identity<typename ListToTuple<typename K::Arguments>::type>{};
}
template <class K, class Run>
using ParametersOf = typename decltype(find_parameters<K, Run>())::type;

template <class K, class Hook>
consteval auto find_first_parameter() {
  if constexpr (!Hook::found) return std::type_identity<void>{};
  else if constexpr (!Hook::template unique<K>) return std::type_identity<void>{};
  else {
    using S = Signature<typename Hook::template Type<K>>;
    if constexpr (!S::is_const) return std::type_identity<void>{};
    else
      return std::type_identity<
          std::remove_cvref_t<typename DropFirst<typename S::Parameters>::First>>{};
  }
}
// Of a hook that is const and not overloaded; else void.
template <class K, class Hook>
using FirstParameter = typename decltype(find_first_parameter<K, Hook>())::type;

// Stands for the config of a kernel that has none.
struct NoConfig {};
template <class K>
consteval auto find_config_of_run() {
  if constexpr (HasConfig<K>) return std::type_identity<typename K::Config>{};
  else return std::type_identity<NoConfig>{};
}
template <class K>
using ConfigOfRun = typename decltype(find_config_of_run<K>())::type;

template <class P>
concept PlainConfig = !requires(const P& p) {
  ArgTraits<P>::array(p);
}
&&!DynamicTensor<P> && !HasKey<P> && Reflected<P>;

template <class K, class Run>
consteval auto find_config() {
  using First = FirstParameter<K, Run>;
  if constexpr (std::same_as<Run, hook_run>) return std::type_identity<ConfigOfRun<K>>{};
  else if constexpr (PlainConfig<First>) return std::type_identity<First>{};
  else return std::type_identity<ConfigOfRun<K>>{};
}
// Config for `run`, and for what does not say. The other hooks say it by their first parameter.
template <class K, class Run>
using ConfigOf = typename decltype(find_config<K, Run>())::type;

// ---- checks: each says what is wrong, by a mistake of its own, and gives false ------------------

template <class K, Context C, Platform P>
consteval bool has_all_parts() {
  if constexpr (std::is_final_v<K>) return static_cast<void>(mistake::kernel_is_final<K>{}), false;
  else if constexpr (std::same_as<ConfigOf<K, hook_t<K, run_family, C, P>>, NoConfig>)
    return static_cast<void>(mistake::kernel_has_no_config<K>{}), false;
  else if constexpr (!HasOpId<K>)
    return static_cast<void>(mistake::kernel_has_no_op_id<K>{}), false;
  else if constexpr (!hook_t<K, run_family, C, P>::found)
    return static_cast<void>(mistake::kernel_has_no_run_for_this_platform<K>{}), false;
  else return true;
}

template <class K, class Run>
consteval bool has_parameters() {
  if constexpr (Run::template unique<K>) {
    using S = Signature<typename Run::template Type<K>>;
    if constexpr (!S::is_const) return static_cast<void>(mistake::run_is_not_const<K>{}), false;
    else if constexpr (!std::same_as<FirstParameter<K, Run>, ConfigOf<K, Run>>)
      return static_cast<void>(mistake::run_does_not_take_the_config_first<K>{}), false;
    else return true;
  } else if constexpr (!NamesArguments<K>)
    return static_cast<void>(mistake::run_is_overloaded_or_a_template<K>{}), false;
  else return true;
}

template <class K, class Config>
consteval bool config_can_be_written() {
  if constexpr (!MadeOfValues<Config> || !std::default_initializable<Config>)
    return static_cast<void>(mistake::config_cannot_be_written<K>{}), false;
  else return true;
}

// Of several only the first is named.
template <class K, class Raws, size_t I = 0>
consteval bool parameters_can_be_keyed() {
  if constexpr (I == std::tuple_size_v<Raws>) return true;
  else {
    using P = std::remove_cvref_t<std::tuple_element_t<I, Raws>>;
    if constexpr (Argument<P>) return parameters_can_be_keyed<K, Raws, I + 1>();
    else
      return static_cast<void>(mistake::parameter_cannot_be_keyed<K, static_cast<int>(I), P>{}),
             false;
  }
}

template <class K>
consteval bool members_can_be_keyed() {
  if constexpr (!std::is_empty_v<K> && !has<K, hook_key> && !MadeOfValues<K>)
    return static_cast<void>(mistake::data_members_cannot_be_keyed<K>{}), false;
  else return true;
}

// Whether calls of the kernel can be planned. If not, the compiler has said why.
template <class K, Context C, Platform P>
consteval bool is_sound() {
  if constexpr (!has_all_parts<K, C, P>()) return false;
  else {
    using Run = hook_t<K, run_family, C, P>;
    using Config = ConfigOf<K, Run>;
    if constexpr (!has_parameters<K, Run>()) return false;
    else if constexpr (!config_can_be_written<K, Config>()) return false;
    else {
      using Raws = ParametersOf<K, Run>;
      if constexpr (!parameters_can_be_keyed<K, Raws>()) return false;
      else
        return members_can_be_keyed<K>() &&
               spells_hooks_right<K, Config>(std::type_identity<Raws>{});
    }
  }
}

// Stands for the result of a call that cannot be made, so that nothing is said of its uses.
struct NoResult {
  template <class T>
  operator T() const;
};

}  // namespace detail
}  // namespace ejk
