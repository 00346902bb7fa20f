// SPDX-License-Identifier: Apache-2.0
// Makes a small call on a device of arrays of the host.
#pragma once

#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ejk/detail/bound_kernel.h>
#include <ejk/tensor.h>

#include "ops/device_cases.h"

namespace ejk::ops {

// The same numbers in every process.
template <class T>
Tensor random_tensor(std::vector<int64_t> shape, unsigned seed) {
  Tensor out = Tensor::of<T>(std::move(shape));
  std::mt19937 engine(seed);
  std::uniform_real_distribution<float> uniform(-2, 2);
  for (int64_t i = 0; i < out.size(); ++i) out.data<T>()[i] = T(uniform(engine));
  return out;
}

inline Tensor on_device(const Tensor& t, const Device& device) { return t.to(device); }
inline std::optional<Tensor> on_device(const std::optional<Tensor>& t, const Device& device) {
  return t ? std::optional(t->to(device)) : std::nullopt;
}
template <class A>
const A& on_device(const A& number, const Device&) {
  return number;
}

template <Platform On, class K, class... A>
void use_case_on(const UseDeviceCase& use, std::string name,
                 std::function<int64_t(const AnyConfig&, bool)> local_bytes, const K& kernel,
                 A&... there) {
  using P = ejk::detail::Plan<K, Context::plain, On>;
  const auto params = P::bind_all(there...);
  const Invocation call = P::invocation(kernel, params, typename P::Indices{});
  const ejk::detail::BoundKernel<P, decltype(params)> bound(kernel, params);
  const auto run = [&](const AnyConfig& config) {
    P::run(kernel, config.as<typename P::Config>(), params);
    ejk::detail::wait_for(call.device);
  };
  use({std::move(name), bound, call, run, std::move(local_bytes)});
}

// The kernel's call with these arguments of run, arrays as tensors of the host, copied to the
// device. `local_bytes(config, with_gradient)` is what DeviceCase has, of a typed config.
template <class K, class L, class... A>
void use_case(const Device& device, const UseDeviceCase& use, std::string name,
              const L& local_bytes, const K& kernel, const A&... host) {
  auto there = std::make_tuple(on_device(host, device)...);
  const auto of_any = [&local_bytes](const AnyConfig& config, bool with_gradient) -> int64_t {
    return local_bytes(config.as<typename K::GpuConfig>(), with_gradient);
  };
  std::apply(
      [&](auto&... a) {
        if (device.platform == Platform::opencl)
          use_case_on<Platform::opencl>(use, std::move(name), of_any, kernel, a...);
        else use_case_on<Platform::cuda>(use, std::move(name), of_any, kernel, a...);
      },
      there);
}

template <class K, class... A>
std::vector<OutputBytes> gradient_on_cpu(const K& kernel, const A&... host) {
  using P = ejk::detail::Plan<K, Context::plain, Platform::cpu>;
  const auto params = P::bind_all(host...);
  Invocation call = P::invocation(kernel, params, typename P::Indices{});
  call.backward = true;
  const ejk::detail::BoundKernel<P, decltype(params)> bound(kernel, params);
  const auto trial = bound.trial(call);
  trial->reset();
  trial->run(bound.heuristic_cfg(call).value());
  return trial->outputs();
}

// The same, and its gradient is compared with the CPU's. The cotangent is the output, with which a
// gradient must not vanish.
template <class K, class L, class... A>
void use_case_with_gradient(const Device& device, const UseDeviceCase& use, std::string name,
                            const L& local_bytes, const K& kernel, const A&... host) {
  const auto with_gradient = [&](const DeviceCase& c) {
    use({c.name, c.kernel, c.call, c.run, c.local_bytes,
         [&] { return gradient_on_cpu(kernel, host...); }});
  };
  use_case(device, with_gradient, std::move(name), local_bytes, kernel, host...);
}

}  // namespace ejk::ops
