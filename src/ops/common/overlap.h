// SPDX-License-Identifier: Apache-2.0
// Whether arrays share memory, so that an output can be refused that would change an input.
// Every call asks, and mostly the first and the last byte tell: that much is inline and short.
#pragma once

#include <algorithm>
#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include <ejk/tensor.h>

namespace ejk::ops {

namespace detail {

// The bytes from the first to behind the last element; none of an empty view.
struct Reach {
  intptr_t begin = 0, end = 0;

  template <class V>
  explicit Reach(const V& view) {
    constexpr auto item = static_cast<int64_t>(sizeof(typename V::element_type));
    int64_t low = 0, high = 1;
    bool empty = false;
    for (size_t d = 0; d < size_t{V::rank}; ++d) {
      const int64_t last = view.strides[d] * (view.shape[d] - 1);
      (last < 0 ? low : high) += last;
      empty |= view.shape[d] == 0;
    }
    if (empty) return;
    begin = reinterpret_cast<intptr_t>(view.data) + low * item;
    end = reinterpret_cast<intptr_t>(view.data) + high * item;
  }

  bool meets(const Reach& other) const { return begin < other.end && other.begin < end; }
};

struct Axis {
  int64_t step = 0, size = 1;
  auto operator<=>(const Axis&) const = default;
};

// In bytes. Axes of one element lead nowhere: their step is 0.
template <class V>
auto axes_of(const V& view) {
  constexpr auto item = static_cast<int64_t>(sizeof(typename V::element_type));
  std::array<Axis, size_t{V::rank}> axes{};
  for (size_t d = 0; d < axes.size(); ++d)
    if (view.shape[d] > 1) axes[d] = {std::abs(view.strides[d] * item), view.shape[d]};
  return axes;
}

// Two views whose reaches meet. Rows of the same pitch: the columns decide, if neither window wraps
// around.
template <class V, class W>
[[gnu::noinline]] bool windows_meet(const V& view, const W& other) {
  const Reach x(view), y(other);
  const Axis rows_x = std::ranges::max(axes_of(view)), rows_y = std::ranges::max(axes_of(other));
  const int64_t pitch = rows_x.step;
  if (pitch == 0 || pitch != rows_y.step) return true;
  const int64_t width_x = (x.end - x.begin) - pitch * (rows_x.size - 1);
  const int64_t width_y = (y.end - y.begin) - pitch * (rows_y.size - 1);
  const intptr_t origin = std::min(x.begin, y.begin);
  const int64_t left_x = (x.begin - origin) % pitch, left_y = (y.begin - origin) % pitch;
  if (left_x + width_x > pitch || left_y + width_y > pitch) return true;
  return left_x < left_y + width_y && left_y < left_x + width_x;
}

template <class V>
[[gnu::noinline]] bool overlaps_itself_in_any_order(const V& view) {
  auto axes = axes_of(view);
  std::ranges::sort(axes);
  int64_t reach = sizeof(typename V::element_type);
  for (const Axis& axis : axes) {
    if (axis.size > 1 && axis.step < reach)
      return std::ranges::find(view.shape, 0) == view.shape.end();
    reach += axis.step * (axis.size - 1);
  }
  return false;
}

}  // namespace detail

// True if two elements of a view lie at the same place (or could: steps that are not multiples of
// each other are not looked into).
template <class V>
bool overlaps_itself(const V& view) {
  // Mostly every step leads over all that the axes behind it reach.
  int64_t reach = 1;
  for (size_t d = size_t{V::rank}; d-- > 0;) {
    if (view.shape[d] <= 1) continue;
    if (view.strides[d] < reach) return detail::overlaps_itself_in_any_order(view);
    reach += view.strides[d] * (view.shape[d] - 1);
  }
  return false;
}

// True if the two share memory, or could. Different columns of one larger matrix do not.
template <class V, class W>
[[gnu::always_inline]] inline bool overlap(const V& view, const W& other) {
  return detail::Reach(view).meets(detail::Reach(other)) && detail::windows_meet(view, other);
}

}  // namespace ejk::ops
