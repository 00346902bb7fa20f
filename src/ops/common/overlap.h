// SPDX-License-Identifier: Apache-2.0
// Whether arrays share memory, so that an output can be refused that would change an input.
#pragma once

#include <algorithm>
#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>

#include <ejk/tensor.h>

namespace ejk::ops {

namespace detail {

// The bytes from the first to behind the last element, and the axes. Those of one element lead
// nowhere: their step is 0.
template <int rank>
struct Span {
  struct Axis {
    int64_t step = 0, size = 1;
    auto operator<=>(const Axis&) const = default;
  };
  intptr_t begin = 0, end = 0;
  std::array<Axis, static_cast<size_t>(rank)> axes{};

  bool empty() const { return begin == end; }

  template <class V>
  explicit Span(const V& view) {
    constexpr auto item = static_cast<int64_t>(sizeof(typename V::element_type));
    begin = reinterpret_cast<intptr_t>(view.data);
    if (view.size() == 0) {
      end = begin;
      return;
    }
    end = begin + item;
    for (size_t d = 0; d < axes.size(); ++d) {
      if (view.shape[d] == 1) continue;
      const int64_t step = view.strides[d] * item;
      (step < 0 ? begin : end) += step * (view.shape[d] - 1);
      axes[d] = {std::abs(step), view.shape[d]};
    }
  }

  Axis widest() const { return *std::ranges::max_element(axes); }

  // Whether every step leads over all that the axes behind it reach, elements of `item` bytes.
  bool nested(int64_t item) const {
    int64_t reach = item;
    for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
      if (axis->size > 1 && axis->step < reach) return false;
      reach += axis->step * (axis->size - 1);
    }
    return true;
  }
};
template <class V>
Span(const V&) -> Span<V::rank>;

}  // namespace detail

// True if two elements of a view lie at the same place (or could: steps that are no multiples of
// each other are not looked into).
template <class V>
bool overlaps_itself(const V& view) {
  constexpr auto item = static_cast<int64_t>(sizeof(typename V::element_type));
  detail::Span span(view);
  if (span.empty() || span.nested(item)) return false;
  std::ranges::sort(span.axes, std::greater());
  return !span.nested(item);
}

// True if the two share memory, or could. Different columns of one larger matrix do not.
template <class V, class W>
bool overlap(const V& view, const W& other) {
  const detail::Span x(view);
  const detail::Span y(other);
  if (x.end <= y.begin || y.end <= x.begin || x.empty() || y.empty()) return false;
  // Rows of the same pitch: the columns decide, if neither window wraps around.
  const int64_t pitch = x.widest().step;
  if (pitch == 0 || pitch != y.widest().step) return true;
  const auto width = [&](const auto& s) {
    return (s.end - s.begin) - pitch * (s.widest().size - 1);
  };
  const intptr_t origin = std::min(x.begin, y.begin);
  const int64_t left_x = (x.begin - origin) % pitch, left_y = (y.begin - origin) % pitch;
  if (left_x + width(x) > pitch || left_y + width(y) > pitch) return true;
  return left_x < left_y + width(y) && left_y < left_x + width(x);
}

}  // namespace ejk::ops
