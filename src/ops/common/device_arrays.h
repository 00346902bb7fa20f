// SPDX-License-Identifier: Apache-2.0
// What operations on devices ask of their arrays and of the device.
#pragma once

#include <bit>
#include <cstdint>

#include <ejk/device.h>
#include <ejk/device_view.h>
#include <ejk/invocation.h>
#include <ejk/names.h>

#include "platform/device_kind.h"

namespace ejk::ops {

// A CPU behind OpenCL: one item per group and vectors of the native width are fastest there, and
// local memory and barriers are slow.
inline bool runs_on_cpu(const Device& device) {
  return device_kind(device) == name_of(ejk::detail::DeviceKind::cpu);
}

inline bool is_power_of_two(int64_t n) {
  return n > 0 && std::has_single_bit(static_cast<uint64_t>(n));
}
// The largest power of two up to n, which is positive.
inline int power_of_two_below(int64_t n) {
  return static_cast<int>(std::bit_floor(static_cast<uint64_t>(n)));
}

// The bytes of a packed array in its memory, an address on CUDA and a handle on OpenCL.
template <class V, class W>
bool overlap_on_device(const V& view, const W& other) {
  const bool addresses = view.device != nullptr && view.device->platform == Platform::cuda;
  if (view.device != other.device || (!addresses && view.memory != other.memory)) return false;
  const auto begin_of = [&](const auto& v) { return addresses ? v.cuda() : v.offset; };
  const auto end_of = [&](const auto& v) {
    using T = typename std::remove_cvref_t<decltype(v)>::element_type;
    return begin_of(v) + static_cast<size_t>(v.size()) * sizeof(T);
  };
  return begin_of(view) < end_of(other) && begin_of(other) < end_of(view);
}

template <class V, class W>
bool same_on_device(const V& view, const W& other) {
  return view.memory == other.memory && view.offset == other.offset && view.shape == other.shape;
}

}  // namespace ejk::ops
