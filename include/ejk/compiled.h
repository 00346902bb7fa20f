// SPDX-License-Identifier: Apache-2.0
// A kernel with its configuration chosen once, as Executor::compile makes it.
#pragma once

#include <tuple>
#include <utility>

#include <ejk/cache.h>
#include <ejk/detail/export.h>
#include <ejk/detail/kernel_traits.h>

namespace EJK_EXPORT ejk {

// A kernel with its configuration chosen once. Calling it is calling the kernel: prepare and the
// platform's run, nothing else. Safe to call from several threads if the kernel is.
template <class P>
class Compiled {
 public:
  // The kernel's config on the platform of the arguments.
  using Config = typename P::Config;
  Compiled(typename P::Kernel kernel, Config config, Origin origin)
      : kernel_(std::move(kernel)), config_(std::move(config)), origin_(origin) {}

  template <class... Args>
  decltype(auto) operator()(Args&&... args) const {
    if constexpr (P::has_prepare)
      return P::run(kernel_, config_,
                    prepared(detail::hook_prepare::call(kernel_, std::forward<Args>(args)...)));
    else return P::run(kernel_, config_, P::bind_all(std::forward<Args>(args)...));
  }
  // What was chosen, and by which tier.
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
