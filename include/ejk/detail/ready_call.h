// SPDX-License-Identifier: Apache-2.0
// A call whose arrays come later, again and again: kernel, config and values are read once.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ejk/config.h>
#include <ejk/detail/export.h>
#include <ejk/detail/gradient.h>
#include <ejk/detail/reflect.h>
#include <ejk/detail/sketch.h>
#include <ejk/error.h>

namespace EJK_EXPORT ejk {

// May be used by several threads.
class ReadyCall {
 public:
  virtual ~ReadyCall() = default;
  // `arrays`: what {"given": i} of the arguments names. Gives the tensors that `run` returns.
  virtual std::vector<Tensor> run(const std::vector<Tensor>& arrays) const = 0;
  // Runs forward and back: what the kernel's vjp gives, in its order, for the cotangents of all
  // results (arrays that are written, then tensors that are returned). Arrays that the kernel
  // writes must be there as for run. Throws Error(invalid_argument) if the kernel has no gradient
  // or one that arrays cannot be given to.
  virtual std::vector<std::optional<Tensor>> pull(const std::vector<Tensor>& arrays,
                                                  const std::vector<Tensor>& cotangents) const = 0;
};

namespace detail {

// The same array, read only.
template <class V>
struct ReadOnly {
  using type = V;
};
template <class V>
struct ReadOnly<Out<V>> : ReadOnly<V> {};
template <class T>
struct ReadOnly<std::span<T>> {
  using type = std::span<const T>;
};
template <class T, int Rank>
struct ReadOnly<View<T, Rank>> {
  using type = View<const T, Rank>;
};
template <class T, int Rank>
struct ReadOnly<StridedView<T, Rank>> {
  using type = StridedView<const T, Rank>;
};

template <class T>
concept MadeFromAView = requires {
  ArrayTarget<T>::make(Place{"", -1}, AnyView{});
};
template <class P, class Indices = typename P::Indices>
struct ParameterTypes;
template <class P, size_t... I>
struct ParameterTypes<P, std::index_sequence<I...>> {
  using Params = std::tuple<typename P::template Param<I>...>;
  // Whether run can write parameter i: a view that is not const, however it is passed.
  static constexpr std::array<bool, sizeof...(I) + 1> written = {
      !std::same_as<typename ReadOnly<typename P::template Param<I>>::type,
                    typename P::template Param<I>>...};
};
template <class P>
using ParamsOf = typename ParameterTypes<P>::Params;

[[noreturn]] void wrong_number(size_t given, const std::vector<std::string_view>& needed);
[[noreturn]] void wrong_argument(size_t place, std::string_view type, const Error& error);

template <class T>
T rebuilt_param(const Value& sketch, size_t place, RebuiltData& data) {
  try {
    return rebuild<T>(sketch, data);
  } catch (const Error& error) {
    wrong_argument(place, type_name<T>(), error);
  }
}

// The arguments of `run` from their sketches. They refer to `data`.
template <class P>
ParamsOf<P> rebuilt_params(const Value& arguments, RebuiltData& data) {
  if (arguments.is_null()) cannot_rebuild("the record has none");
  const auto& sketches = arguments.as_array();
  return [&]<size_t... I>(std::index_sequence<I...>) {
    if (sketches.size() != P::arity)
      wrong_number(sketches.size(), {type_name<typename P::template Param<I>>()...});
    return ParamsOf<P>{rebuilt_param<typename P::template Param<I>>(sketches[I], I, data)...};
  }
  (typename P::Indices{});
}

// ---- what run returns, as tensors ---------------------------------------------------------------

template <class R>
void append_tensors(const R& result, std::vector<Tensor>& tensors) {
  if constexpr (std::same_as<R, Tensor>) tensors.push_back(result);
  else if constexpr (Element<R>) tensors.push_back(Tensor::of<R>({}, std::span(&result, 1)));
  else if constexpr (is_a<R, std::tuple> || is_a<R, std::pair>)
    std::apply([&](const auto&... part) { (append_tensors(part, tensors), ...); }, result);
}

template <class P, class Params>
std::vector<Tensor> run_for_tensors(const typename P::Kernel& kernel,
                                    const typename P::Config& config, Params& params) {
  std::vector<Tensor> returned;
  if constexpr (std::is_void_v<typename P::Result>) P::run(kernel, config, params);
  else append_tensors(P::run(kernel, config, params), returned);
  return returned;
}

// ---- cotangents and gradients, as tensors -------------------------------------------------------

template <class T>
inline constexpr bool made_from_tensors = std::same_as<T, Tensor> || Element<T> || MadeFromAView<T>;
template <class... T>
inline constexpr bool made_from_tensors<std::tuple<T...>> = (made_from_tensors<T> && ...);
template <class A, class B>
inline constexpr bool made_from_tensors<std::pair<A, B>> =
    made_from_tensors<A>&& made_from_tensors<B>;

[[noreturn]] void too_few_cotangents(size_t given);
[[noreturn]] void wrong_number_of_cotangents(size_t taken, size_t given);

template <class T>
T from_tensors(const std::vector<Tensor>& tensors, size_t& at) {
  if constexpr (is_a<T, std::tuple> || is_a<T, std::pair>) {
    return [&]<size_t... I>(std::index_sequence<I...>) {
      return T{from_tensors<std::tuple_element_t<I, T>>(tensors, at)...};
    }
    (std::make_index_sequence<std::tuple_size_v<T>>{});
  } else {
    if (at == tensors.size()) too_few_cotangents(at);
    const Tensor& tensor = tensors[at++];
    if constexpr (std::same_as<T, Tensor>) return tensor;
    else if constexpr (Element<T>) return *tensor.data<T>();
    else return ArrayTarget<T>::make(Place{"", -1}, tensor.any());
  }
}

using TensorGradients = std::vector<std::optional<Tensor>>;
void append_gradient(std::optional<Tensor> gradient, TensorGradients& to);
[[noreturn]] void no_gradient_as_tensor(std::string_view type);

// One for each part of a tuple, nothing for an empty optional.
template <class G>
void append_gradients(const G& gradient, TensorGradients& to) {
  if constexpr (is_a<G, std::tuple> || is_a<G, std::pair>)
    std::apply([&](const auto&... part) { (append_gradients(part, to), ...); }, gradient);
  else if constexpr (is_a<G, std::optional>) {
    if (gradient) append_gradients(*gradient, to);
    else append_gradient({}, to);
  } else if constexpr (std::same_as<G, Tensor>) append_gradient(gradient, to);
  else if constexpr (Element<G>) append_gradient(Tensor::of<G>({}, std::span(&gradient, 1)), to);
  else if constexpr (is_array_vector<G>) {
    using T = typename G::value_type;
    append_gradient(Tensor::of<T>({std::ssize(gradient)}, std::span<const T>(gradient)), to);
  } else no_gradient_as_tensor(type_name<G>());
}

// The cotangent of the only array that run writes; void if there is none, or several.
template <class P>
struct CotangentOfWritten {
  static constexpr auto& written = ParameterTypes<P>::written;
  static constexpr auto which =
      static_cast<size_t>(std::ranges::find(written, true) - written.begin());
  static constexpr bool is_one = std::ranges::count(written, true) == 1;
  template <size_t I>
  static auto type_at() {
    if constexpr (is_one) return ReadOnly<typename P::template Param<I>>{};
    else return std::type_identity<void>{};
  }
  using type = typename decltype(type_at<which>())::type;
};

template <class P>
class TypedReadyCall final : public ReadyCall {
 public:
  using K = typename P::Kernel;

  TypedReadyCall(Value arguments, const Value& config)
      : arguments_(std::move(arguments)), config_(from_value<typename P::Config>(config)) {}

  std::vector<Tensor> run(const std::vector<Tensor>& arrays) const override {
    RebuiltData data(arrays);
    auto params = rebuilt_params<P>(arguments_, data);
    return run_for_tensors<P>(kernel_, config_, params);
  }

  TensorGradients pull(const std::vector<Tensor>& arrays,
                       const std::vector<Tensor>& cotangents) const override {
    if constexpr (has_gradient<P>) {
      RebuiltData data(arrays);
      auto [out, pull] = run_forward<P>(kernel_, config_, rebuilt_params<P>(arguments_, data));
      using Out = std::remove_cvref_t<decltype(out)>;
      if constexpr (!std::same_as<Out, NoOutput>) {
        if constexpr (made_from_tensors<Out>) return pulled<Out>(pull, cotangents);
      } else {
        using Dy = typename CotangentOfWritten<P>::type;
        if constexpr (!std::is_void_v<Dy>)
          if constexpr (std::remove_cvref_t<decltype(pull)>::template takes<Dy>())
            return pulled<Dy>(pull, cotangents);
      }
      throw Error(ErrorKind::invalid_argument,
                  "its vjp takes a cotangent that cannot be made of arrays");
    } else
      throw Error(ErrorKind::invalid_argument,
                  "the kernel has no gradient: add fwd_with_residuals and vjp, or custom_vjp");
  }

 private:
  template <class Dy, class Pull>
  static TensorGradients pulled(const Pull& pull, const std::vector<Tensor>& cotangents) {
    size_t used = 0;
    const Dy dy = from_tensors<Dy>(cotangents, used);
    if (used != cotangents.size()) wrong_number_of_cotangents(used, cotangents.size());
    TensorGradients gradients;
    append_gradients(pull(dy), gradients);
    return gradients;
  }

  K kernel_ = {};
  Value arguments_;
  typename P::Config config_;
};

template <class K>
std::unique_ptr<ReadyCall> make_ready(const Value& arguments, const Value& config) {
  if constexpr (std::default_initializable<K>)
    return std::unique_ptr<ReadyCall>(
        new TypedReadyCall<Plan<K, Context::plain, Platform::cpu>>(arguments, config));
  else cannot_rebuild("the kernel itself, which has no default constructor");
}

}  // namespace detail
}  // namespace ejk
