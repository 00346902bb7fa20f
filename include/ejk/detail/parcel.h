// SPDX-License-Identifier: Apache-2.0
// A trial as data, for a process that was forked before the trial was made.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ejk/detail/export.h>
#include <ejk/detail/kernel_traits.h>
#include <ejk/detail/ready_call.h>
#include <ejk/tuner.h>

namespace EJK_EXPORT ejk {
namespace detail {

// Code has the same addresses in both processes, so functions and types go as they are.
struct Parcel {
  struct Array {
    ArrayRef array;
    bool has_data;  // else it is only written
  };
  // Throws Error for what cannot be made again. `made`: arrays like those below, in their order.
  std::shared_ptr<Trial> (*open)(const Parcel& parcel, std::vector<Tensor> made) = nullptr;
  const ConfigType* config = nullptr;
  std::string kernel;         // its bytes
  Value arguments;            // values as they are, {"given": i} for array i
  std::vector<Array> arrays;  // they live as long as the trial
  bool backward = false;
};

// `TrialOf`: the trial of such a call, made of its kernel, its parameters and `backward`.
template <class P, class TrialOf>
struct UnpackedTrial {
  using K = typename P::Kernel;
  UnpackedTrial(const Parcel& parcel, std::vector<Tensor> arrays)
      : data(std::move(arrays)),
        kernel(kernel_of(parcel.kernel)),
        params(rebuilt_params<P>(parcel.arguments, data)),
        trial(kernel, params, parcel.backward) {}

  static std::shared_ptr<Trial> open(const Parcel& parcel, std::vector<Tensor> arrays) {
    const auto all = std::make_shared<UnpackedTrial>(parcel, std::move(arrays));
    return {all, &all->trial};
  }

  RebuiltData data;
  K kernel;
  ParamsOf<P> params;
  TrialOf trial;

 private:
  static K kernel_of(const std::string& text) {
    std::array<std::byte, sizeof(K)> bytes{};
    std::copy_n(reinterpret_cast<const std::byte*>(text.data()), std::min(text.size(), sizeof(K)),
                bytes.data());
    return std::bit_cast<K>(bytes);
  }
};

template <class P, class TrialOf, class Params>
std::shared_ptr<const Parcel> pack(const typename P::Kernel& kernel, const Params& params,
                                   bool backward) {
  auto parcel = std::make_shared<Parcel>();
  parcel->open = &UnpackedTrial<P, TrialOf>::open;
  parcel->config = &ejk::config_type<typename P::Config>();
  parcel->kernel.assign(reinterpret_cast<const char*>(&kernel), sizeof kernel);
  parcel->arguments = Value::array();
  parcel->backward = backward;
  const auto add_array = [&](const AnyView& view, Role role) {
    parcel->arrays.push_back({ArrayRef(view), role != Role::output});
    return Value::object({{"given", static_cast<int64_t>(parcel->arrays.size()) - 1}});
  };
  [&]<size_t... I>(std::index_sequence<I...>) {
    (parcel->arguments.push_back(argument_value(
         std::get<I>(params), role_of_raw<typename P::template Raw<I>>(), add_array)),
     ...);
  }
  (typename P::Indices{});
  return parcel;
}

}  // namespace detail
}  // namespace ejk
