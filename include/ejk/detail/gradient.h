// SPDX-License-Identifier: Apache-2.0
// Gradients: forward with residuals, and the pull-back in whichever form the kernel has it.
#pragma once

#include <tuple>
#include <type_traits>
#include <utility>

#include <ejk/detail/kernel_traits.h>

namespace ejk::detail {

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

// Keeps what the pull-back needs: pull(dy) gives the gradients.
template <class P, class Residuals, class Out, class Params>
class Pull {
 public:
  Pull(typename P::Kernel kernel, typename P::Config config, Residuals residuals, Out out,
       Params params)
      : kernel_(std::move(kernel)),
        config_(std::move(config)),
        residuals_(std::move(residuals)),
        out_(std::move(out)),
        params_(std::move(params)) {}

  // Whether the kernel's gradient can be asked with such a cotangent.
  template <class Dy>
  static consteval bool takes() {
    if constexpr (has_two_step_gradient<P>) return form<Dy>() != VjpForm::none;
    else
      return hook_custom_vjp::callable<typename P::Kernel, const typename P::Config&, const Params&,
                                       const Dy&>;
  }

  template <class Dy>
  auto operator()(const Dy& dy) const {
    if constexpr (takes<Dy>()) {
      if constexpr (has_two_step_gradient<P>) return call_vjp(dy);
      else return hook_custom_vjp::call(kernel_, config_, params_, dy);
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
  template <class Dy>
  static consteval VjpForm form() {
    return vjp_form<P, Residuals, Out, Dy>(static_cast<const Params*>(nullptr));
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

}  // namespace ejk::detail
