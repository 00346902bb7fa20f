// SPDX-License-Identifier: Apache-2.0
// Trials with arrays on devices: waiting for them, and references that compute on the CPU.
#pragma once

#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ejk/detail/bind.h>
#include <ejk/detail/export.h>

namespace EJK_EXPORT ejk {
namespace detail {

// Until all that this thread has begun there is done. Null: nothing to wait for.
void wait_for(const Device* device);

// Copies in CPU memory of arrays that live on devices.
class CpuCopies {
 public:
  const Tensor& add(ArrayRef there);
  // What was written goes to where it came from, unless that is read-only.
  void put_back() const;

 private:
  struct Pair;
  std::vector<std::shared_ptr<const Pair>> pairs_;
};

// The argument with a copy in CPU memory in place of an array on a device.
template <class T>
decltype(auto) on_the_cpu(const T& t, CpuCopies& copies) {
  if constexpr ((platforms_of<T>() & on_gpu) == 0) return (t);
  else if constexpr (is_a<T, Out>) return on_the_cpu(t.view, copies);
  else if constexpr (is_wrapper<T> || is_named<T>) return on_the_cpu(t.value, copies);
  else if constexpr (is_a<T, std::optional>) {
    using Here = std::optional<std::remove_cvref_t<decltype(on_the_cpu(*t, copies))>>;
    return t ? Here(on_the_cpu(*t, copies)) : Here();
  } else if constexpr (DynamicTensor<T>) return copies.add(ArrayRef(any_view_of(t)));
  else if constexpr (requires { ArgTraits<T>::array(t); })
    return copies.add(ArgTraits<T>::array(t));
  else return (t);
}

}  // namespace detail
}  // namespace ejk
