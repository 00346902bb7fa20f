// SPDX-License-Identifier: Apache-2.0
// Gradients: forward with residuals, and the pull-back in whichever form the kernel has it.
#pragma once

#include <bit>
#include <concepts>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <ejk/detail/export.h>
#include <ejk/detail/kernel_traits.h>

namespace EJK_EXPORT ejk {
namespace detail {

namespace mistake {
template <class Kernel>
struct kernel_has_no_gradient {
  static_assert(sizeof(Kernel) == 0,
                "ejk: the kernel has no gradient; add fwd_with_residuals and vjp, or custom_vjp "
                "(see kernel.h)");
};
template <class Kernel>
struct fwd_with_residuals_has_another_signature {
  static_assert(sizeof(Kernel) == 0,
                "ejk: the kernel's fwd_with_residuals must be const and take run's parameters, the "
                "config first");
};
template <class Kernel, class Cotangent>
struct vjp_has_another_signature {
  static_assert(
      sizeof(Kernel) == 0,
      "ejk: the kernel's vjp must be const and take (const Config&, const Residuals&, dy), the "
      "same "
      "followed by run's arguments, or either with the output y before dy (<Kernel, type of dy>)");
};
template <class Kernel, class Cotangent>
struct custom_vjp_has_another_signature {
  static_assert(sizeof(Kernel) == 0,
                "ejk: the kernel's custom_vjp must be const and take (const Config&, const "
                "std::tuple<arguments...>&, dy) (<Kernel, type of dy>)");
};
template <class Kernel, class Given>
struct vjp_keeps_views_of_its_arguments {
  static_assert(
      sizeof(Kernel) == 0,
      "ejk: vjp keeps views of its arguments for the pull-back, so an owning temporary (<Kernel, "
      "type>) would dangle; give it a name first");
};
template <class Kernel>
struct gradients_of_platforms_return_different_types {
  static_assert(sizeof(Kernel) == 0,
                "ejk: where the arrays of a call live is known at run time only, and the kernel's "
                "fwd_with_residuals or vjp returns another type on each platform; return the same, "
                "pass views, or name the platform: vjp<ejk::Platform::opencl>(...)");
};
}  // namespace mistake

template <class P>
inline constexpr bool has_two_step_gradient = P::Forward::found&& P::Vjp::found;
template <class P>
consteval bool has_custom_vjp() {
  if constexpr (!has<typename P::Kernel, hook_custom_vjp>) return false;
  else return P::template IfOfThisConfig<hook_custom_vjp>::found;
}
template <class P>
inline constexpr bool has_gradient = has_two_step_gradient<P> || has_custom_vjp<P>();

// fwd_with_residuals returns {out, residuals}, or the residuals alone if run returns nothing.
template <class T>
struct ForwardResult {
  T residuals;
  static constexpr bool has_out = false;
};
template <class Out, class Residuals>
struct ForwardResult<std::pair<Out, Residuals>> {
  Out out;
  Residuals residuals;
  static constexpr bool has_out = true;
};

// Which of the four forms a kernel's vjp has. The documented order is (residuals, y, dy, args...);
// where two forms have the same number of parameters, the types decide, the documented one first.
enum class VjpForm { none, output_and_arguments, output, arguments, cotangent };

template <class P, class Residuals, class Out, class Dy, class... Param>
consteval VjpForm vjp_form(const std::tuple<Param...>*) {
  using K = typename P::Kernel;
  using V = typename P::Vjp;
  using C = const typename P::Config&;
  using R = const Residuals&;
  using Y = const Out&;
  using D = const Dy&;
  if constexpr (V::template callable<K, C, R, Y, D, const Param&...>)
    return VjpForm::output_and_arguments;
  else if constexpr (V::template callable<K, C, R, Y, D>) return VjpForm::output;
  else if constexpr (V::template callable<K, C, R, D, const Param&...>) return VjpForm::arguments;
  else if constexpr (V::template callable<K, C, R, D>) return VjpForm::cotangent;
  else return VjpForm::none;
}

struct NoOutput {};

// The view that vjp takes for dy, which is parameter `At` after the config; NoOutput: none.
template <class P, class Residuals, class Out, class Params, size_t At>
consteval auto find_view_at() {
  using Taken = ParametersOf<typename P::Kernel, typename P::Vjp>;
  if constexpr (At < std::tuple_size_v<Taken>) {
    using T = std::remove_cvref_t<std::tuple_element_t<At, Taken>>;
    if constexpr (ArrayTarget<T>::is_array) {
      using enum VjpForm;
      constexpr VjpForm form = vjp_form<P, Residuals, Out, T>(static_cast<const Params*>(nullptr));
      constexpr size_t place = form == output_and_arguments || form == output ? 2 : 1;
      if constexpr (form != none && place == At) return std::type_identity<T>{};
      else return std::type_identity<NoOutput>{};
    } else return std::type_identity<NoOutput>{};
  } else return std::type_identity<NoOutput>{};
}
// The same, behind the output and the residuals or behind the residuals alone.
template <class P, class Residuals, class Out, class Params>
consteval auto find_view_of_cotangent() {
  if constexpr (!has_two_step_gradient<P>) return std::type_identity<NoOutput>{};
  else if constexpr (!P::Vjp::template unique<typename P::Kernel>)
    return std::type_identity<NoOutput>{};
  else {
    constexpr auto second = find_view_at<P, Residuals, Out, Params, 2>();
    if constexpr (std::same_as<decltype(second), const std::type_identity<NoOutput>>)
      return find_view_at<P, Residuals, Out, Params, 1>();
    else return second;
  }
}

// Keeps what the pull-back needs: pull(dy) gives the gradients.
template <class P, class Residuals, class Out, class Params>
class Pull {
 public:
  static constexpr Platform platform = P::platform;

  Pull(typename P::Kernel kernel, typename P::Config config, Residuals residuals, Out out,
       Params params)
      : kernel_(std::move(kernel)),
        config_(std::move(config)),
        residuals_(std::move(residuals)),
        out_(std::move(out)),
        params_(std::move(params)) {}

  // Whether the kernel's gradient can be asked with such a cotangent, or with a view of it.
  template <class Dy>
  static consteval bool takes() {
    return takes_itself<Dy>() || takes_view_of<Dy>();
  }

  template <class Dy>
  auto operator()(const Dy& dy) const {
    if constexpr (takes_itself<Dy>()) {
      if constexpr (has_two_step_gradient<P>) return call_vjp(dy);
      else return hook_custom_vjp::call(kernel_, config_, params_, dy);
    } else if constexpr (takes_view_of<Dy>()) {
      const Place place{P::Kernel::op_id, -1, "dy", P::platform};
      return call_vjp(ArrayTarget<Cotangent>::make(place, any_view_of(dy)));
    } else {
      using K = typename P::Kernel;
      if constexpr (has_two_step_gradient<P>)
        static_cast<void>(mistake::vjp_has_another_signature<K, Dy>{});
      else static_cast<void>(mistake::custom_vjp_has_another_signature<K, Dy>{});
      return std::tuple<>{};
    }
  }
  const typename P::Config& config() const { return config_; }
  const Params& params() const { return params_; }

 private:
  using Cotangent = typename decltype(find_view_of_cotangent<P, Residuals, Out, Params>())::type;

  template <class Dy>
  static consteval VjpForm form() {
    return vjp_form<P, Residuals, Out, Dy>(static_cast<const Params*>(nullptr));
  }
  template <class Dy>
  static consteval bool takes_itself() {
    if constexpr (has_two_step_gradient<P>) return form<Dy>() != VjpForm::none;
    else
      return hook_custom_vjp::callable<typename P::Kernel, const typename P::Config&, const Params&,
                                       const Dy&>;
  }

  // A tensor knows at run time only what it is.
  template <class Dy>
  static consteval bool takes_view_of() {
    return DynamicTensor<Dy> && ArrayTarget<Cotangent>::is_array;
  }

  template <class Dy>
  decltype(auto) call_vjp(const Dy& dy) const {
    using V = typename P::Vjp;
    return std::apply(
        [&](const auto&... p) -> decltype(auto) {
          if constexpr (form<Dy>() == VjpForm::output_and_arguments)
            return V::call(kernel_, config_, residuals_, out_, dy, p...);
          else if constexpr (form<Dy>() == VjpForm::output)
            return V::call(kernel_, config_, residuals_, out_, dy);
          else if constexpr (form<Dy>() == VjpForm::arguments)
            return V::call(kernel_, config_, residuals_, dy, p...);
          else return V::call(kernel_, config_, residuals_, dy);
        },
        params_);
  }

  typename P::Kernel kernel_;
  typename P::Config config_;
  Residuals residuals_;
  Out out_;
  Params params_;
};

template <class P, class... A>
auto call_forward(const typename P::Kernel& kernel, const typename P::Config& config, A&... args) {
  if constexpr (P::Forward::template callable<typename P::Kernel, const typename P::Config&, A&...>)
    return P::Forward::call(kernel, config, args...);
  else {
    static_cast<void>(mistake::fwd_with_residuals_has_another_signature<typename P::Kernel>{});
    return NoOutput{};
  }
}

// Runs forward; gives {out, pull}. Kernels that return nothing give a NoOutput.
template <class P, class Params>
auto run_forward(const typename P::Kernel& kernel, const typename P::Config& config,
                 Params params) {
  if constexpr (has_two_step_gradient<P>) {
    auto result =
        std::apply([&](auto&... p) { return call_forward<P>(kernel, config, p...); }, params);
    using R = ForwardResult<decltype(result)>;
    if constexpr (R::has_out) {
      auto& [out, residuals] = result;
      using Out = std::remove_cvref_t<decltype(out)>;
      using Res = std::remove_cvref_t<decltype(residuals)>;
      Pull<P, Res, Out, Params> pull(kernel, config, std::move(residuals), out, std::move(params));
      return std::pair<Out, Pull<P, Res, Out, Params>>(std::move(out), std::move(pull));
    } else {
      using Res = decltype(result);
      return std::pair(NoOutput{}, Pull<P, Res, NoOutput, Params>(kernel, config, std::move(result),
                                                                  NoOutput{}, std::move(params)));
    }
  } else {
    using Result = std::remove_cvref_t<typename P::Result>;
    if constexpr (std::is_void_v<Result>) {
      P::run(kernel, config, params);
      return std::pair(NoOutput{}, Pull<P, NoOutput, NoOutput, Params>(kernel, config, {}, {},
                                                                       std::move(params)));
    } else {
      Result out = P::run(kernel, config, params);
      return std::pair<Result, Pull<P, NoOutput, NoOutput, Params>>(
          std::move(out),
          Pull<P, NoOutput, NoOutput, Params>(kernel, config, {}, {}, std::move(params)));
    }
  }
}

// ---- where the arrays' platform is known at run time only ---------------------------------------

// A hook for all platforms may be for the CPU's arrays alone.
template <class P, class Indices = typename P::Indices>
inline constexpr bool forward_takes_its_arrays = false;
template <class P, size_t... I>
inline constexpr bool forward_takes_its_arrays<P, std::index_sequence<I...>> =
    P::Forward::template callable<typename P::Kernel, const typename P::Config&,
                                  typename P::template Param<I>&...>;
template <class P>
consteval bool has_gradient_there() {
  if constexpr (!P::sound) return false;
  else if constexpr (!has_gradient<P>) return false;
  else if constexpr (!P::on_device || !has_two_step_gradient<P>) return true;
  else if constexpr (names_a_platform(P::Forward::text)) return true;
  else return forward_takes_its_arrays<P>;
}

template <Platform... P>
struct PlatformList {};

// Of the platforms that a call may run on, those with a gradient; the first if there is none.
template <class K, Context C, Platforms Open>
consteval Platforms platforms_with_gradient() {
  if constexpr (std::has_single_bit(Open)) return Open;
  else {
    Platforms found = 0;
    const auto look = [&]<Platform P>(std::integral_constant<Platform, P>) {
      if constexpr (includes(Open, P))
        if (has_gradient_there<Plan<K, C, P>>()) found |= only(P);
    };
    look(std::integral_constant<Platform, Platform::cpu>{});
    look(std::integral_constant<Platform, Platform::opencl>{});
    look(std::integral_constant<Platform, Platform::cuda>{});
    return found != 0 ? found : only(first_of(Open));
  }
}
template <Platforms Open, Platform... P>
consteval auto as_list(PlatformList<P...> so_far) {
  if constexpr (Open == 0) return so_far;
  else return as_list<(Open & (Open - 1))>(PlatformList<P..., first_of(Open)>{});
}

[[noreturn]] void no_gradient_there(const Home& home);
[[noreturn]] void wrong_cotangent(std::string_view op, Platform there, std::string_view given);

// K, but depending on `There`: clang checks what does not depend on it in branches not taken too.
template <class K, class There>
using KernelOf = std::enable_if_t<!std::is_void_v<There>, K>;

// The pull-back of the platform that the arrays of a call lived on: one of several.
template <class K, class... Pulls>
class PullThere {
 public:
  template <class Pull>
  explicit PullThere(std::in_place_type_t<Pull> which, Pull pull) : pull_(which, std::move(pull)) {}

  template <class Dy>
  static consteval bool takes() {
    return (Pulls::template takes<Dy>() || ...);
  }
  // Throws Error(invalid_argument) if the gradient there takes another type.
  template <class Dy>
  auto operator()(const Dy& dy) const {
    using Taker = typename decltype(taker<Dy, Pulls...>())::type;
    using Given = decltype(std::declval<const Taker&>()(dy));
    return std::visit(
        [&]<class Pull>(const Pull& pull) -> Given {
          if constexpr (!Pull::template takes<Dy>() && takes<Dy>())
            wrong_cotangent(K::op_id, Pull::platform, type_name<Dy>());
          else if constexpr (std::same_as<decltype(pull(dy)), Given>) return pull(dy);
          else {
            static_cast<void>(
                mistake::gradients_of_platforms_return_different_types<KernelOf<K, Pull>>{});
            wrong_cotangent(K::op_id, Pull::platform, type_name<Dy>());
          }
        },
        pull_);
  }

 private:
  // The first that takes such a cotangent.
  template <class Dy, class Pull, class... Rest>
  static consteval auto taker() {
    if constexpr (sizeof...(Rest) == 0 || Pull::template takes<Dy>())
      return std::type_identity<Pull>{};
    else return taker<Dy, Rest...>();
  }

  std::variant<Pulls...> pull_;
};

// {out, pull} of the one of these platforms that `home` is on; `on(platform)` makes it. The kernel
// has a gradient for all of them.
template <class K, Platform First, Platform... Rest, class On>
auto gradient_where_arrays_live(PlatformList<First, Rest...>, const Home& home, const On& on) {
  using FirstResult = decltype(on(std::integral_constant<Platform, First>{}));
  if constexpr (sizeof...(Rest) == 0) {
    if (home.platform() != First) no_gradient_there(home);
    return on(std::integral_constant<Platform, First>{});
  } else {
    // What run writes is an argument: views of it that differ need not be given.
    constexpr bool out_differs = !(
        std::same_as<typename FirstResult::first_type,
                     typename decltype(on(std::integral_constant<Platform, Rest>{}))::first_type> &&
        ...);
    using Out =
        std::conditional_t<out_differs &&
                               std::is_void_v<typename Plan<K, Context::plain, First>::Result>,
                           NoOutput, typename FirstResult::first_type>;
    using There =
        PullThere<K, typename FirstResult::second_type,
                  typename decltype(on(std::integral_constant<Platform, Rest>{}))::second_type...>;
    std::optional<std::pair<Out, There>> made;
    const auto make_if_there = [&]<Platform P>(std::integral_constant<Platform, P> platform) {
      using Result = decltype(on(platform));
      constexpr bool gives_none = std::same_as<Out, NoOutput>;
      if constexpr (!gives_none && !std::same_as<typename Result::first_type, Out>)
        static_cast<void>(
            mistake::gradients_of_platforms_return_different_types<KernelOf<K, Result>>{});
      else if (home.platform() == P) {
        auto [out, pull] = on(platform);
        There there(std::in_place_type<typename Result::second_type>, std::move(pull));
        if constexpr (gives_none) made.emplace(NoOutput{}, std::move(there));
        else made.emplace(std::move(out), std::move(there));
      }
    };
    make_if_there(std::integral_constant<Platform, First>{});
    (make_if_there(std::integral_constant<Platform, Rest>{}), ...);
    if (!made) no_gradient_there(home);
    return std::move(*made);
  }
}

// Whether a view of a T that is gone would dangle.
template <class T>
inline constexpr bool owns_memory = is_std_array<T> || HasView<T>;
template <class T, class A>
inline constexpr bool owns_memory<std::vector<T, A>> = true;
template <>
inline constexpr bool owns_memory<Tensor> = true;
template <>
inline constexpr bool owns_memory<std::string> = true;
template <class T>
inline constexpr bool owns_memory<KeywordArgument<T>> = owns_memory<T>;  // T& for what has a name

// A compile error if vjp would keep a view of an argument that is gone when it returns.
template <class K, class A>
void refuse_temporary() {
  if constexpr (!std::is_lvalue_reference_v<A> && owns_memory<std::remove_cvref_t<A>>)
    static_cast<void>(mistake::vjp_keeps_views_of_its_arguments<K, std::remove_cvref_t<A>>{});
}

// A pull-back whose views are of what `prepare` made, which it therefore keeps.
template <class Prepared, class Pull>
struct PreparedPull {
  static constexpr Platform platform = Pull::platform;
  std::shared_ptr<const Prepared> prepared;
  Pull pull;
  template <class Dy>
  static consteval bool takes() {
    return Pull::template takes<Dy>();
  }
  template <class Dy>
  auto operator()(const Dy& dy) const {
    return pull(dy);
  }
  decltype(auto) config() const { return pull.config(); }
};

}  // namespace detail
}  // namespace ejk
