// SPDX-License-Identifier: Apache-2.0
// Finds a kernel's hooks by name, most specific first.
#pragma once

#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include <ejk/detail/export.h>
#include <ejk/device.h>
#include <ejk/invocation.h>

namespace EJK_EXPORT ejk {
namespace detail {

struct NoHook {
  static constexpr bool found = false;
  static constexpr std::string_view text = "";
};

#define EJK_DETAIL_HOOKS_OF(each, method)                                                      \
  each(method) each(method##_cpu) each(method##_opencl) each(method##_cuda) each(method##_gpu) \
      each(method##_shard_map) each(method##_shard_map_cpu) each(method##_shard_map_opencl)    \
          each(method##_shard_map_cuda) each(method##_batch) each(method##_batch_cpu)          \
              each(method##_batch_opencl) each(method##_batch_cuda)
#define EJK_DETAIL_HOOKS(each)                  \
  EJK_DETAIL_HOOKS_OF(each, run)                \
  EJK_DETAIL_HOOKS_OF(each, heuristic_cfg)      \
  EJK_DETAIL_HOOKS_OF(each, candidate_cfgs)     \
  EJK_DETAIL_HOOKS_OF(each, fwd_with_residuals) \
  EJK_DETAIL_HOOKS_OF(each, vjp)                \
  each(prepare) each(key) each(is_valid) each(numerics) each(reference) each(custom_vjp)

// A name is looked up by what it hides: in a struct that inherits both the kernel and a member of
// that name, the name is ambiguous exactly if the kernel has it, be it overloaded or a template.
// (Testing whether it can be called would silently pass over a hook with a mistyped signature.)
#define EJK_DETAIL_MEMBER(name) int name;
struct HookNames {
  EJK_DETAIL_HOOKS(EJK_DETAIL_MEMBER)
};
template <class K>
struct WithHookNames : K, HookNames {};

#define EJK_DETAIL_HOOK(name)                                         \
  struct hook_##name {                                                \
    static constexpr bool found = true;                               \
    static constexpr std::string_view text = #name;                   \
    template <class K>                                                \
    using Type = decltype(&K::name);                                  \
    template <class K>                                                \
    static constexpr bool unique = requires {                         \
      &K::name;                                                       \
    };                                                                \
    template <class K, class... A>                                    \
    static constexpr bool callable = requires(const K& k, A&&... a) { \
      k.name(static_cast<A&&>(a)...);                                 \
    };                                                                \
    template <class K, class... A>                                    \
    static decltype(auto) call(const K& k, A&&... a) {                \
      return k.name(static_cast<A&&>(a)...);                          \
    }                                                                 \
  };
EJK_DETAIL_HOOKS(EJK_DETAIL_HOOK)

template <class K, class Hook>
concept has = !requires {
  typename Hook::template Type<WithHookNames<K>>;
};

// The hooks of one method for a context and a platform, in order of precedence.
#define EJK_DETAIL_FAMILY(method)                                                                 \
  struct method##_family {                                                                        \
    static constexpr std::string_view text = #method;                                             \
    using plain = std::tuple<hook_##method##_cpu, hook_##method##_opencl, hook_##method##_cuda,   \
                             hook_##method, hook_##method##_gpu>;                                 \
    using shard_map = std::tuple<hook_##method##_shard_map_cpu, hook_##method##_shard_map_opencl, \
                                 hook_##method##_shard_map_cuda, hook_##method##_shard_map>;      \
    using batch = std::tuple<hook_##method##_batch_cpu, hook_##method##_batch_opencl,             \
                             hook_##method##_batch_cuda, hook_##method##_batch>;                  \
  };
EJK_DETAIL_FAMILY(run)
EJK_DETAIL_FAMILY(heuristic_cfg)
EJK_DETAIL_FAMILY(candidate_cfgs)
EJK_DETAIL_FAMILY(fwd_with_residuals)
EJK_DETAIL_FAMILY(vjp)

#undef EJK_DETAIL_FAMILY
#undef EJK_DETAIL_HOOK
#undef EJK_DETAIL_MEMBER
#undef EJK_DETAIL_HOOKS
#undef EJK_DETAIL_HOOKS_OF

template <class Family, Context C>
using in_context = std::conditional_t<
    C == Context::shard_map, typename Family::shard_map,
    std::conditional_t<C == Context::batch, typename Family::batch, typename Family::plain>>;

template <class K, class Hook, Platform P>
consteval bool has_for_gpus() {
  if constexpr (P == Platform::cpu) return false;
  else return has<K, Hook>;
}

// {method}_{context}_{platform} > {method}_{context} > {method}_{platform} > {method}_gpu >
// {method}
template <class K, class Family, Context C, Platform P>
consteval auto find_hook() {
  constexpr size_t p = static_cast<size_t>(P), generic = 3, gpu = 4;
  using InContext = in_context<Family, C>;
  using Plain = typename Family::plain;
  if constexpr (has<K, std::tuple_element_t<p, InContext>>)
    return std::tuple_element_t<p, InContext>{};
  else if constexpr (C != Context::plain && has<K, std::tuple_element_t<generic, InContext>>)
    return std::tuple_element_t<generic, InContext>{};
  else if constexpr (has<K, std::tuple_element_t<p, Plain>>)
    return std::tuple_element_t<p, Plain>{};
  else if constexpr (has_for_gpus<K, std::tuple_element_t<gpu, Plain>, P>())
    return std::tuple_element_t<gpu, Plain>{};
  else if constexpr (has<K, std::tuple_element_t<generic, Plain>>)
    return std::tuple_element_t<generic, Plain>{};
  else return NoHook{};
}
template <class K, class Family, Context C, Platform P>
using hook_t = decltype(find_hook<K, Family, C, P>());

// The parameters of a member function, const or static; others are `void`.
template <class F>
struct Signature {
  static constexpr bool is_const = false;
};
template <class R, class... A>
struct SignatureOf {
  static constexpr bool is_const = true;
  using Result = R;
  using Parameters = std::tuple<A...>;
};
template <class R, class K, class... A>
struct Signature<R (K::*)(A...) const> : SignatureOf<R, A...> {};
template <class R, class K, class... A>
struct Signature<R (K::*)(A...) const noexcept> : SignatureOf<R, A...> {};
template <class R, class... A>
struct Signature<R (*)(A...)> : SignatureOf<R, A...> {};
template <class R, class... A>
struct Signature<R (*)(A...) noexcept> : SignatureOf<R, A...> {};

}  // namespace detail
}  // namespace ejk
