// SPDX-License-Identifier: Apache-2.0
// Functions of a kernel that look like hooks and are not: nothing would call them, in silence.
#pragma once

#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>

#include <ejk/detail/export.h>
#include <ejk/detail/hooks.h>
#include <ejk/invocation.h>
#include <ejk/tensor.h>

namespace EJK_EXPORT ejk {
namespace detail {

// A name that comes to mind instead of a hook's. Templates and overloaded functions do not count:
// they are helpers that take anything, and asking whether they take this would compile them.
#define EJK_DETAIL_NAME(name)                                                        \
  struct function_##name {                                                           \
    template <class K>                                                               \
    using Type = decltype(&K::name);                                                 \
    template <class K, class... Args>                                                \
    using Result = decltype(std::declval<const K&>().name(std::declval<Args>()...)); \
  };
EJK_DETAIL_NAME(heuristic)
EJK_DETAIL_NAME(heuristics)
EJK_DETAIL_NAME(heuristic_cfgs)
EJK_DETAIL_NAME(heuristic_config)
EJK_DETAIL_NAME(heuristics_cfg)
EJK_DETAIL_NAME(heuristics_config)
EJK_DETAIL_NAME(heuristicCfg)
EJK_DETAIL_NAME(heuristicConfig)
EJK_DETAIL_NAME(default_cfg)
EJK_DETAIL_NAME(default_config)
EJK_DETAIL_NAME(candidate)
EJK_DETAIL_NAME(candidates)
EJK_DETAIL_NAME(candidate_cfg)
EJK_DETAIL_NAME(candidate_config)
EJK_DETAIL_NAME(candidate_configs)
EJK_DETAIL_NAME(candidates_cfg)
EJK_DETAIL_NAME(candidates_cfgs)
EJK_DETAIL_NAME(candidateCfgs)
EJK_DETAIL_NAME(candidateConfigs)
EJK_DETAIL_NAME(config_space)
EJK_DETAIL_NAME(search_space)
EJK_DETAIL_NAME(space)
EJK_DETAIL_NAME(valid)
EJK_DETAIL_NAME(isvalid)
EJK_DETAIL_NAME(isValid)
EJK_DETAIL_NAME(is_valid_cfg)
EJK_DETAIL_NAME(is_valid_config)
EJK_DETAIL_NAME(validate)
EJK_DETAIL_NAME(can_run)
EJK_DETAIL_NAME(tol)
EJK_DETAIL_NAME(tolerances)
EJK_DETAIL_NAME(keys)
EJK_DETAIL_NAME(cache_key)
EJK_DETAIL_NAME(make_key)
EJK_DETAIL_NAME(get_key)
EJK_DETAIL_NAME(ref)
EJK_DETAIL_NAME(references)
EJK_DETAIL_NAME(reference_run)
EJK_DETAIL_NAME(run_reference)
EJK_DETAIL_NAME(fwd_residuals)
EJK_DETAIL_NAME(fwd_with_residual)
EJK_DETAIL_NAME(forward_with_residuals)
#undef EJK_DETAIL_NAME

namespace mistake {
template <class Kernel, class Function>
struct function_is_not_heuristic_cfg {
  static_assert(sizeof(Kernel) == 0,
                "ejk: the kernel has a function (<Kernel, name>) that is not a hook and is never "
                "called; did you mean heuristic_cfg?");
};
template <class Kernel, class Function>
struct function_is_not_candidate_cfgs {
  static_assert(sizeof(Kernel) == 0,
                "ejk: the kernel has a function (<Kernel, name>) that is not a hook and is never "
                "called; did you mean candidate_cfgs?");
};
template <class Kernel, class Function>
struct function_is_not_is_valid {
  static_assert(sizeof(Kernel) == 0,
                "ejk: the kernel has a function (<Kernel, name>) that is not a hook and is never "
                "called; did you mean is_valid?");
};
template <class Kernel, class Function>
struct function_is_not_tolerance {
  static_assert(sizeof(Kernel) == 0,
                "ejk: the kernel has a function (<Kernel, name>) that is not a hook and is never "
                "called; did you mean tolerance?");
};
template <class Kernel, class Function>
struct function_is_not_key {
  static_assert(sizeof(Kernel) == 0,
                "ejk: the kernel has a function (<Kernel, name>) that is not a hook and is never "
                "called; did you mean key?");
};
template <class Kernel, class Function>
struct function_is_not_reference {
  static_assert(sizeof(Kernel) == 0,
                "ejk: the kernel has a function (<Kernel, name>) that is not a hook and is never "
                "called; did you mean reference?");
};
template <class Kernel, class Function>
struct function_is_not_fwd_with_residuals {
  static_assert(sizeof(Kernel) == 0,
                "ejk: the kernel has a function (<Kernel, name>) that is not a hook and is never "
                "called; did you mean fwd_with_residuals?");
};
}  // namespace mistake

template <class K, class Name, class... Args>
concept HasFunction = requires {
  typename Name::template Type<K>;
  typename Name::template Result<K, Args...>;
};

// Whether the kernel has a function of such a name that takes what the hook takes. One that takes
// something else is a function of its own.
template <class... Names>
struct Like {
  template <class K, class... Args>
  static consteval bool is_there() {
    return (HasFunction<K, Names, Args...> || ...);
  }
  // The compiler says so, of the first.
  template <template <class, class> class Mistake, class K, class... Args>
  static consteval bool is_a_mistake() {
    return is_a_mistake<Mistake, K>(std::type_identity<std::tuple<Args...>>{},
                                    std::type_identity<std::tuple<Names...>>{});
  }

 private:
  template <template <class, class> class Mistake, class K, class... Args, class First,
            class... Rest>
  static consteval bool is_a_mistake(std::type_identity<std::tuple<Args...>> args,
                                     std::type_identity<std::tuple<First, Rest...>>) {
    if constexpr (HasFunction<K, First, Args...>)
      return static_cast<void>(Mistake<K, First>{}), true;
    else return is_a_mistake<Mistake, K>(args, std::type_identity<std::tuple<Rest...>>{});
  }
};
using like_heuristic_cfg =
    Like<function_heuristic, function_heuristics, function_heuristic_cfgs,
         function_heuristic_config, function_heuristics_cfg, function_heuristics_config,
         function_heuristicCfg, function_heuristicConfig, function_default_cfg,
         function_default_config>;
using like_candidate_cfgs =
    Like<function_candidate, function_candidates, function_candidate_cfg, function_candidate_config,
         function_candidate_configs, function_candidates_cfg, function_candidates_cfgs,
         function_candidateCfgs, function_candidateConfigs, function_config_space,
         function_search_space, function_space>;
using like_is_valid =
    Like<function_valid, function_isvalid, function_isValid, function_is_valid_cfg,
         function_is_valid_config, function_validate, function_can_run>;
using like_tolerance = Like<function_tol, function_tolerances>;
using like_key = Like<function_keys, function_cache_key, function_make_key, function_get_key>;
using like_reference =
    Like<function_ref, function_references, function_reference_run, function_run_reference>;
using like_fwd_with_residuals =
    Like<function_fwd_residuals, function_fwd_with_residual, function_forward_with_residuals>;

template <class K, class Family>
consteval bool has_hook_of() {
  return []<class... H>(std::type_identity<std::tuple<H...>>) {
    return (has<K, H> || ...);
  }(std::type_identity<decltype(std::tuple_cat(std::declval<typename Family::plain>(),
                                               std::declval<typename Family::shard_map>(),
                                               std::declval<typename Family::batch>()))>{});
}

// False if a hook is missing and a function looks like it. That is looked for first: few kernels
// have one, and hooks have many names.
template <class K, class PlanConfig, class... Params>
consteval bool spells_hooks_right(std::type_identity<std::tuple<Params...>>) {
  using Config = const PlanConfig&;
  using Inv = const Invocation&;
  using namespace mistake;
  bool wrong = false;
  if constexpr (like_heuristic_cfg::is_there<K, Inv>())
    if constexpr (!has_hook_of<K, heuristic_cfg_family>())
      wrong |= like_heuristic_cfg::is_a_mistake<function_is_not_heuristic_cfg, K, Inv>();
  if constexpr (like_candidate_cfgs::is_there<K, Inv>())
    if constexpr (!has_hook_of<K, candidate_cfgs_family>())
      wrong |= like_candidate_cfgs::is_a_mistake<function_is_not_candidate_cfgs, K, Inv>();
  if constexpr (like_is_valid::is_there<K, Config, Inv>())
    if constexpr (!has<K, hook_is_valid>)
      wrong |= like_is_valid::is_a_mistake<function_is_not_is_valid, K, Config, Inv>();
  if constexpr (like_tolerance::is_there<K, DType>())
    if constexpr (!requires { &K::tolerance; })
      wrong |= like_tolerance::is_a_mistake<function_is_not_tolerance, K, DType>();
  if constexpr (sizeof...(Params) > 0) {
    if constexpr (like_key::is_there<K, std::remove_cvref_t<Params>&...>())
      if constexpr (!has<K, hook_key>)
        wrong |= like_key::is_a_mistake<function_is_not_key, K, std::remove_cvref_t<Params>&...>();
    if constexpr (like_reference::is_there<K, std::remove_cvref_t<Params>&...>())
      if constexpr (!has<K, hook_reference>)
        wrong |= like_reference::is_a_mistake<function_is_not_reference, K,
                                              std::remove_cvref_t<Params>&...>();
  }
  if constexpr (like_fwd_with_residuals::is_there<K, Config, std::remove_cvref_t<Params>&...>())
    if constexpr (!has_hook_of<K, fwd_with_residuals_family>())
      wrong |= like_fwd_with_residuals::is_a_mistake<function_is_not_fwd_with_residuals, K, Config,
                                                     std::remove_cvref_t<Params>&...>();
  return !wrong;
}

}  // namespace detail
}  // namespace ejk
