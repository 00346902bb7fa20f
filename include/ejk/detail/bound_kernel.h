// SPDX-License-Identifier: Apache-2.0
// A kernel with the arguments of one call, erased for the core, and its trials.
#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ejk/detail/device_trial.h>
#include <ejk/detail/export.h>
#include <ejk/detail/gradient.h>
#include <ejk/detail/kernel_traits.h>
#include <ejk/detail/parcel.h>
#include <ejk/detail/sketch.h>
#include <ejk/kernel.h>
#include <ejk/space.h>

namespace EJK_EXPORT ejk {
namespace detail {

// ---- what a run returned, as arrays that can be compared --------------------------------------

template <class T>
void append_result(const T& result, std::vector<OutputBytes>& outputs) {
  if constexpr (Element<T>) {
    const int64_t one[1] = {1};
    append_output({const_cast<T*>(&result), dtype_of<T>, Platform::cpu, one, {}, false}, outputs);
  } else if constexpr (DynamicTensor<T>) append_output(any_view_of(result), outputs);
  else if constexpr (requires {
                       typename ArgTraits<T>;
                       ArgTraits<T>::array(result);
                     })
    append_output(ArgTraits<T>::array(result).any(), outputs);
  else if constexpr (is_a<T, std::optional>) {
    if (result) append_result(*result, outputs);
  } else if constexpr (is_a<T, std::tuple> || is_a<T, std::pair>)
    std::apply([&](const auto&... part) { (append_result(part, outputs), ...); }, result);
  else if constexpr (is_a<T, std::vector> || is_std_array<T>) {
    if constexpr (ArrayElement<typename T::value_type>) {
      const int64_t size[1] = {static_cast<int64_t>(result.size())};
      append_output({const_cast<typename T::value_type*>(result.data()),
                     dtype_of<typename T::value_type>,
                     Platform::cpu,
                     size,
                     {},
                     false},
                    outputs);
    } else
      for (const auto& part : result) append_result(part, outputs);
  } else if constexpr (PlainStruct<T>)
    for_each_field(result,
                   [&](std::string_view, const auto& field) { append_result(field, outputs); });
  // Anything else (strings, handles) is not compared.
}

// ---- trials -----------------------------------------------------------------------------------

// What a call gives back, by value; nothing for void.
template <class R>
using Kept = std::conditional_t<std::is_void_v<R>, NoOutput, std::remove_cvref_t<R>>;

// The private copy of argument I.
template <size_t I, class Copy>
struct ArgumentCopy {
  template <class Param>
  ArgumentCopy(ArrayGuards& guards, const Param& param, Role role)
      : ArgumentCopy(ArrayGuards::Collect(guards, I), param, role) {}
  Copy copy;

 private:
  template <class Param>
  ArgumentCopy(const ArrayGuards::Collect&, const Param& param, Role role) : copy(param, role) {}
};

template <class P, class Indices = typename P::Indices>
class ArgumentCopies;
template <class P, size_t... I>
class ArgumentCopies<P, std::index_sequence<I...>> {
 public:
  template <class Params>
  ArgumentCopies(ArrayGuards& guards, const Params& params)
      : copies_{{guards, std::get<I>(params), role_of_raw<typename P::template Raw<I>>()}...} {}
  template <class F>
  decltype(auto) apply(F&& f) {
    return f(static_cast<Of<I>&>(copies_).copy...);
  }

 private:
  template <size_t J>
  using Of = ArgumentCopy<J, typename ArgTraits<typename P::template Param<J>>::Copy>;
  struct All : Of<I>... {};
  All copies_;
};

template <class P>
class TypedTrial final : public Trial {
 public:
  using K = typename P::Kernel;
  using Config = typename P::Config;

  template <class Params>
  TypedTrial(const K& kernel, const Params& params, bool backward)
      : kernel_(kernel), backward_(backward), copies_(guards_, params) {
    if constexpr (P::on_device)
      device_ = std::apply([](const auto&... p) { return home_of(K::op_id, p...).device; }, params);
  }

  void reset() override {
    if (fresh_) return;
    copies_.apply([](auto&... c) { (c.reset(), ...); });
    append_results_ = nullptr;
    ran_.reset();
    guards_.repair();
    fresh_ = true;
  }

  void run(const AnyConfig& config) override {
    fresh_ = false;
    if constexpr (has_gradient<P>)
      if (backward_) return run_backward(config.as<Config>());
    if constexpr (std::is_void_v<typename P::Result>)
      P::run(kernel_, config.as<Config>(), params());
    else ran_.emplace(P::run(kernel_, config.as<Config>(), params()));
  }

  const Device* device() const override { return device_; }
  void wait() override { wait_for(device_); }
  std::shared_ptr<const Parcel> parcel() override {
    if constexpr (P::on_device && std::is_trivially_copyable_v<K>) {
      reset();
      return pack<P, TypedTrial>(kernel_, params(), backward_);
    } else return nullptr;
  }

  bool run_reference() override {
    if constexpr (!has<K, hook_reference>) return false;
    else {
      if (backward_) return false;  // a reference has no gradient to compare
      fresh_ = false;
      std::apply(
          [&](auto&... p) {
            if constexpr (P::on_device && !hook_reference::callable<K, decltype(p)...>)
              call_reference_on_cpu(std::make_index_sequence<sizeof...(p)>{}, p...);
            else call_reference(p...);
          },
          params());
      return true;
    }
  }

  std::vector<OutputBytes> outputs() override {
    std::vector<OutputBytes> found;
    copies_.apply([&](const auto&... c) { (c.append_outputs(found), ...); });
    if (ran_) append_result(*ran_, found);
    if (append_results_) append_results_(found);
    return found;
  }

  bool leaves_backward_out() const override {
    if constexpr (!has_gradient<P>) return false;
    else
      return backward_ && !can_pull<decltype(std::declval<TypedTrial&>().forward(
                              std::declval<const Config&>()))>();
  }

  bool repeatable() const override {
    if (guards_.any_in_out())
      return false;  // a view that is not const is one, however it is passed
    return []<size_t... I>(std::index_sequence<I...>) {
      return ((role_of_raw<typename P::template Raw<I>>() != Role::in_out) && ...);
    }
    (typename P::Indices{});
  }
  std::vector<std::span<std::byte>> memory() override { return guards_.memory(); }
  std::optional<Tolerance> tolerance(DType dtype) const override {
    if constexpr (requires { &K::tolerance; }) {
      static_assert(
          requires(const K& k) {
            { k.tolerance(dtype) } -> std::convertible_to<std::optional<Tolerance>>;
          },
          "ejk: `tolerance` must be `std::optional<ejk::Tolerance> tolerance(ejk::DType) const`");
      return kernel_.tolerance(dtype);
    } else return std::nullopt;
  }

  void arm() override { guards_.arm(); }
  std::optional<std::string> overrun() const override { return guards_.overrun(); }
  std::optional<std::string> trespass(const void* address) const override {
    return guards_.trespass(address);
  }

 private:
  auto params() {
    return copies_.apply([](auto&... c) { return std::tie(c.get()...); });
  }

  template <class... A>
  void call_reference(A&... args) {
    if constexpr (!hook_reference::callable<K, A&...>)
      static_cast<void>(mistake::reference_has_another_signature<K>{});
    else if constexpr (!std::is_same_v<
                           std::remove_cvref_t<decltype(hook_reference::call(kernel_, args...))>,
                           std::remove_cvref_t<typename P::Result>>)
      static_cast<void>(mistake::reference_has_another_signature<K>{});
    else if constexpr (std::is_void_v<decltype(hook_reference::call(kernel_, args...))>)
      hook_reference::call(kernel_, args...);
    else
      append_results_ =
          [value = std::make_shared<Kept<decltype(hook_reference::call(kernel_, args...))>>(
               hook_reference::call(kernel_, args...))](auto& found) {
            append_result(*value, found);
          };
  }

  // A reference that takes arrays of the CPU gets copies of those on the device.
  template <size_t... I, class... A>
  void call_reference_on_cpu(std::index_sequence<I...>, A&... args) {
    if constexpr (!hook_reference::unique<K>)
      static_cast<void>(mistake::reference_has_another_signature<K>{});
    else {
      using Raws = typename Signature<typename hook_reference::Type<K>>::Parameters;
      if constexpr (std::tuple_size_v<Raws> != sizeof...(A))
        static_cast<void>(mistake::reference_has_another_signature<K>{});
      else {
        CpuCopies copies;
        std::apply([&](auto&&... p) { call_reference(p...); },
                   std::tuple<decltype(bind<K, static_cast<int>(I), std::tuple_element_t<I, Raws>>(
                       Place{K::op_id, static_cast<int>(I)}, on_the_cpu(args, copies)))...>(
                       bind<K, static_cast<int>(I), std::tuple_element_t<I, Raws>>(
                           Place{K::op_id, static_cast<int>(I)}, on_the_cpu(args, copies))...));
        copies.put_back();
      }
    }
  }

  // A cotangent for the pull-back: the output itself is as good as any, and finite. A kernel that
  // returns nothing has written what it was given as Out: that, or all of those as a tuple.
  template <class Out, class Params>
  static auto cotangent(const Out& out, const Params& params) {
    if constexpr (!std::is_same_v<Out, NoOutput>) return out;
    else {
      auto written =
          std::apply([](const auto&... p) { return std::tuple_cat(view_if_out(p)...); }, params);
      if constexpr (std::tuple_size_v<decltype(written)> == 1) return std::get<0>(written);
      else return written;
    }
  }
  template <class T>
  static auto view_if_out(const T& param) {
    if constexpr (is_a<T, Out>) return std::tuple(param.view);
    else return std::tuple<>{};
  }

  auto forward(const Config& config) {
    return run_forward<P>(kernel_, config,
                          copies_.apply([](auto&... c) { return std::make_tuple(c.get()...); }));
  }
  void run_backward(const Config& config) {
    const auto [out, pull] = forward(config);
    const auto dy = cotangent(out, pull.params());
    if constexpr (can_pull<std::pair<decltype(out), decltype(pull)>>()) {
      auto results = std::make_shared<decltype(std::pair(out, pull(dy)))>(out, pull(dy));
      append_results_ = [results](auto& found) { append_result(*results, found); };
    }
  }
  template <class Forwarded>
  static consteval bool can_pull() {
    using Pulled = std::remove_const_t<typename Forwarded::second_type>;
    using Dy = decltype(cotangent(std::declval<const typename Forwarded::first_type&>(),
                                  std::declval<const Pulled&>().params()));
    return Pulled::template takes<Dy>();
  }

  const K& kernel_;
  const bool backward_;
  ArrayGuards guards_;  // of the arrays in the copies, which come after it
  ArgumentCopies<P> copies_;
  const Device* device_ = nullptr;
  bool fresh_ = false;  // nothing ran since the last reset: large arrays are not copied again
  std::optional<Kept<typename P::Result>>
      ran_;  // compared only when asked: not while the clock runs
  std::function<void(std::vector<OutputBytes>&)> append_results_;
};

// ---- the erased call ----------------------------------------------------------------------------

template <class T, class Config>
inline constexpr bool offers_configs = requires(const T& offered) {
  { *offered.begin() } -> std::convertible_to<const Config&>;
};
template <class Config>
inline constexpr bool offers_configs<Space<Config>, Config> = true;

template <class Config, class T>
std::shared_ptr<const CandidateSet> to_candidates(const T& offered) {
  if constexpr (std::same_as<T, Space<Config>>) return offered.candidates();
  else {
    std::vector<AnyConfig> list;
    for (const auto& c : offered) list.push_back(make_config<Config>(c));
    return candidate_list(std::move(list));
  }
}

template <class P, class Params>
class BoundKernel;

// Of all arrays among the arguments.
size_t array_bytes(const Invocation& inv);

// ---- what is whole without its caller

// Whether a copied value needs nothing that its caller owns. A string_view, a pointer or a type
// with a key of its own may.
template <class T>
consteval bool owns_its_value() {
  if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T> || Element<T> ||
                std::same_as<T, std::string> || std::same_as<T, Value> ||
                std::same_as<T, std::nullptr_t> || std::same_as<T, std::nullopt_t>)
    return true;
  else if constexpr (is_a<T, std::optional> || is_a<T, std::vector>)
    return owns_its_value<typename T::value_type>();
  else if constexpr (SettingsStruct<T>)
    return []<class... Field>(std::type_identity<std::tuple<Field&...>>) {
      return (owns_its_value<std::remove_cvref_t<Field>>() && ...);
    }(std::type_identity<decltype(fields_of(std::declval<T&>()))>{});
  else return false;
}

template <class Copy>
inline constexpr bool copies_all = false;
template <class P, class Rebuild>
inline constexpr bool copies_all<ArrayCopy<P, Rebuild>> = true;
template <>
inline constexpr bool copies_all<TensorCopy> = true;
template <class P>
inline constexpr bool copies_all<VectorCopy<P>> = true;
template <class V>
inline constexpr bool copies_all<OutCopy<V>> = true;
template <class P, Argument T>
inline constexpr bool copies_all<WrappedCopy<P, T>> = copies_all<typename ArgTraits<T>::Copy>;
template <class P, class T>
inline constexpr bool copies_all<ListCopy<P, T>> = copies_all<typename ArgTraits<T>::Copy>;
template <class P, class T>
requires requires { typename P::key_type; }
inline constexpr bool copies_all<ListCopy<P, T>> =
    owns_its_value<typename P::key_type>() && copies_all<typename ArgTraits<T>::Copy>;
template <class T>
inline constexpr bool copies_all<ValueCopy<T>> = owns_its_value<T>();
template <class T>
inline constexpr bool copies_all<ValueCopy<Keyed<T>>> = owns_its_value<T>();

template <class P, class Indices = typename P::Indices>
inline constexpr bool outlives_its_caller = false;
template <class P, size_t... I>
inline constexpr bool outlives_its_caller<P, std::index_sequence<I...>> =
    (std::is_empty_v<typename P::Kernel> || owns_its_value<typename P::Kernel>()) &&
    std::is_copy_constructible_v<typename P::Kernel> &&
    (copies_all<typename ArgTraits<typename P::template Param<I>>::Copy> && ...);

template <class P>
class TypedCall final : public KeptCall {
 public:
  template <class Params>
  TypedCall(const typename P::Kernel& kernel, const Params& params, size_t bytes)
      : kernel_(kernel), bytes_(bytes), copies_(guards_, params) {}

  size_t bytes() const override { return bytes_; }
  void with_kernel(const std::function<void(const AnyKernel&)>& work) const override {
    const auto params = copies_.apply([](auto&... c) { return std::tie(c.get()...); });
    work(BoundKernel<P, std::remove_const_t<decltype(params)>>(kernel_, params));
  }

 private:
  const typename P::Kernel kernel_;
  const size_t bytes_;
  ArrayGuards guards_;                // of the arrays in the copies, which come after it
  mutable ArgumentCopies<P> copies_;  // never written: a trial copies them again
};

template <class P, class Params>
class BoundKernel final : public AnyKernel {
 public:
  using K = typename P::Kernel;
  using Config = typename P::Config;
  BoundKernel(const K& kernel, const Params& params) : kernel_(kernel), params_(params) {}

  const ConfigType& config_type() const override { return ejk::config_type<Config>(); }

  std::optional<AnyConfig> heuristic_cfg(const Invocation& inv) const override {
    using H = typename P::Heuristic;
    if constexpr (!H::found) return std::nullopt;
    else if constexpr (!H::template callable<K, const Invocation&>) {
      static_cast<void>(mistake::heuristic_cfg_has_another_signature<K>{});
      return std::nullopt;
    } else {
      if constexpr (std::is_convertible_v<decltype(H::call(kernel_, inv)), Config>)
        return make_config<Config>(H::call(kernel_, inv));
      else {
        if constexpr (!P::template may_be_of_run<H>)
          static_cast<void>(mistake::heuristic_cfg_has_another_signature<K>{});
        return std::nullopt;
      }
    }
  }

  std::shared_ptr<const CandidateSet> candidate_cfgs(const Invocation& inv) const override {
    using C = typename P::Candidates;
    if constexpr (!C::found) return nullptr;
    else if constexpr (!C::template callable<K, const Invocation&>) {
      static_cast<void>(mistake::candidate_cfgs_has_another_signature<K>{});
      return nullptr;
    } else {
      using Offered = std::remove_cvref_t<decltype(C::call(kernel_, inv))>;
      if constexpr (offers_configs<Offered, Config>)
        return to_candidates<Config, Offered>(C::call(kernel_, inv));
      else {
        if constexpr (!P::template may_be_of_run<C>)
          static_cast<void>(mistake::candidate_cfgs_has_another_signature<K>{});
        return nullptr;
      }
    }
  }

  bool is_valid(const AnyConfig& config, const Invocation& inv) const override {
    if constexpr (!P::has_is_valid) return true;
    else if constexpr (!hook_is_valid::callable<K, const Config&, const Invocation&>) {
      static_cast<void>(mistake::is_valid_has_another_signature<K>{});
      return true;
    } else if constexpr (!std::is_convertible_v<decltype(hook_is_valid::call(
                                                    kernel_, config.as<Config>(), inv)),
                                                bool>) {
      static_cast<void>(mistake::is_valid_has_another_signature<K>{});
      return true;
    } else return hook_is_valid::call(kernel_, config.as<Config>(), inv);
  }

  bool has_is_valid() const override { return P::has_is_valid; }

  Value numerics(const AnyConfig& config, const Invocation& inv) const override {
    if constexpr (!P::has_numerics) return {};
    else if constexpr (P::numerics_sees_call)
      return class_of(hook_numerics::call(kernel_, config.as<Config>(), inv));
    else if constexpr (hook_numerics::callable<K, const Config&>)
      return class_of(hook_numerics::call(kernel_, config.as<Config>()));
    else return wrong_numerics();
  }

  bool words_tell_shapes() const override { return P::words_tell_shapes(typename P::Indices{}); }

  bool offers(const AnyConfig& config, const Invocation& inv) const override {
    using C = typename P::Candidates;
    if constexpr (C::found) {
      if constexpr (C::template callable<K, const Invocation&>) {
        using Offered = std::remove_cvref_t<decltype(C::call(kernel_, inv))>;
        if constexpr (std::same_as<Offered, Space<Config>>)
          return C::call(kernel_, inv).contains(config.as<Config>());  // its points are not counted
      }
    }
    return AnyKernel::offers(config, inv);
  }

  std::unique_ptr<Trial> trial(const Invocation& inv) const override {
    return std::unique_ptr<Trial>(new TypedTrial<P>(kernel_, params_, inv.backward));
  }

  std::unique_ptr<KeptCall> keep(const Invocation& inv, size_t max_bytes) const override {
    if constexpr (!P::Candidates::found || !outlives_its_caller<P>) return nullptr;
    else {
      const size_t bytes = array_bytes(inv);
      if (bytes > max_bytes) return nullptr;
      return std::unique_ptr<KeptCall>(new TypedCall<P>(kernel_, params_, bytes));
    }
  }

  Value sketch() const override {
    return [&]<size_t... I>(std::index_sequence<I...>) {
      Value out = Value::array();
      (out.push_back(sketch_of<typename P::template Param<I>>(
           std::get<I>(params_), role_of_raw<typename P::template Raw<I>>())),
       ...);
      return out;
    }
    (typename P::Indices{});
  }

 private:
  template <class T>
  static Value class_of(const T& returned) {
    if constexpr (MadeOfValues<T>) return value_of(returned);
    else return wrong_numerics();
  }
  static Value wrong_numerics() {
    static_cast<void>(mistake::numerics_has_another_signature<K>{});
    return {};
  }

  const K& kernel_;
  const Params& params_;
};

}  // namespace detail
}  // namespace ejk
