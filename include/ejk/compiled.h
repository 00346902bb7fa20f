// SPDX-License-Identifier: Apache-2.0
// A kernel with its configuration chosen once, as Executor::compile makes it.
#pragma once

#include <tuple>
#include <utility>

#include <ejk/cache.h>
#include <ejk/detail/export.h>
#include <ejk/detail/kernel_traits.h>

namespace EJK_EXPORT ejk {

// A kernel with its configuration chosen once, which Executor::compile makes for you. It owns
// copies of the kernel and the config, and refers to neither the executor nor the example
// arguments.
//
// A call is the kernel's `prepare`, if it has one, and the platform's `run`, nothing else:
//   - the config stays the same for arguments of other shapes; is_valid is not asked
//   - events, hooks, recordings and scopes do not see it
//   - a better config that is found later does not take over
// Several threads may call it at once if the kernel's `run` allows that.
template <class P>
class Compiled {
 public:
  // The kernel's config on the platform of the arguments.
  using Config = typename P::Config;
  Compiled(typename P::Kernel kernel, Config config, Origin origin)
      : kernel_(std::move(kernel)), config_(std::move(config)), origin_(origin) {}

  // Gives what `run` returns, and throws what it throws. Throws Error(invalid_argument) for
  // arguments that `run` cannot take, as an array on another platform.
  template <class... Args>
  decltype(auto) operator()(Args&&... args) const {
    if constexpr (P::has_prepare)
      return P::run(kernel_, config_,
                    prepared(detail::hook_prepare::call(kernel_, std::forward<Args>(args)...)));
    else return P::run(kernel_, config_, P::bind_all(std::forward<Args>(args)...));
  }
  // What was chosen, and by which tier; Origin::override_ if the config was given to `compile`.
  const Config& config() const noexcept { return config_; }
  Origin origin() const noexcept { return origin_; }

 private:
  template <class Tuple>
  static auto prepared(Tuple&& tuple) {
    return std::apply([](auto&&... a) { return P::bind_all(std::forward<decltype(a)>(a)...); },
                      tuple);
  }
  typename P::Kernel kernel_;
  Config config_;
  Origin origin_;
};

}  // namespace ejk
