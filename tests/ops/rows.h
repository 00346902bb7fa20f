// SPDX-License-Identifier: Apache-2.0
// Matrices for the tests of operations over rows: random, of any strides, compared with others.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>

#include <ejk/tensor.h>
#include <gtest/gtest.h>

namespace rows {

using Random = std::mt19937;

// A matrix in exactly as much memory as it needs, in which its elements lie as the strides say,
// beginning at a multiple of 64 bytes or `offset` elements behind.
template <class T>
class Matrix {
 public:
  Matrix(int64_t rows, int64_t columns) : Matrix(rows, columns, columns, 1) {}
  Matrix(int64_t rows, int64_t columns, int64_t row_stride, int64_t column_stride,
         int64_t offset = 0) {
    const int64_t row_reach = std::max<int64_t>(rows - 1, 0) * row_stride;
    const int64_t column_reach = std::max<int64_t>(columns - 1, 0) * column_stride;
    const int64_t low = std::min<int64_t>(row_reach, 0) + std::min<int64_t>(column_reach, 0);
    const int64_t size = rows * columns == 0 ? 0 : std::abs(row_reach) + std::abs(column_reach) + 1;
    void* memory = nullptr;
    const auto bytes = static_cast<size_t>(offset + size) * sizeof(T);
    if (posix_memalign(&memory, 64, bytes) != 0) std::abort();
    memory_.reset(static_cast<T*>(memory));
    std::fill_n(memory_.get(), offset + size, T(0.f));
    view_ = {memory_.get() + offset - low, {rows, columns}, {row_stride, column_stride}};
  }
  Matrix(Matrix&&) = default;

  Matrix& fill(const auto& value_at) {
    for (int64_t r = 0; r < view_.shape[0]; ++r)
      for (int64_t c = 0; c < view_.shape[1]; ++c)
        view_(r, c) = T(static_cast<float>(value_at(r, c)));
    return *this;
  }
  Matrix& fill_normal(Random& random, float size = 1, float mean = 0) {
    std::normal_distribution<float> normal(mean, size);
    return fill([&](int64_t, int64_t) { return normal(random); });
  }

  ejk::StridedView<T, 2> view() const { return view_; }
  ejk::StridedView<const T, 2> in() const { return view_; }
  float operator()(int64_t row, int64_t column) const {
    return static_cast<float>(view_(row, column));
  }
  // The first row, which must be packed.
  std::span<const T> line() const { return {view_.data, static_cast<size_t>(view_.shape[1])}; }

 private:
  struct Free {
    void operator()(T* memory) const { std::free(memory); }
  };
  std::unique_ptr<T, Free> memory_;
  ejk::StridedView<T, 2> view_;
};

// A matrix of random strides: packed, with gaps, transposed, reversed, every other column.
template <class T>
Matrix<T> random_layout(Random& random, int64_t rows, int64_t columns) {
  switch (random() % 6) {
    case 0:
    case 1:
      return {rows, columns};
    case 2:
      return {rows, columns, columns + static_cast<int64_t>(random() % 5), 1,
              static_cast<int64_t>(random() % 4)};
    case 3:
      return {rows, columns, 1, rows + static_cast<int64_t>(random() % 3)};
    case 4:
      return {rows, columns, -columns - 1, 1};
    default:
      return {rows, columns, 2 * columns + 1, random() % 2 == 0 ? 2 : -2};
  }
}

// How far the type's rounding lets a result be off, of the element and of the usual element.
template <class T>
inline constexpr double type_tolerance = std::is_same_v<T, float> ? 3e-6 : 8e-3;

// Equal up to the tolerance; NaN equals NaN.
template <class T>
testing::AssertionResult close(const ejk::StridedView<const T, 2>& got,
                               const ejk::StridedView<const T, 2>& wanted,
                               double tolerance = type_tolerance<T>, double usual = 1) {
  for (int64_t r = 0; r < got.shape[0]; ++r)
    for (int64_t c = 0; c < got.shape[1]; ++c) {
      const auto a = double{static_cast<float>(got(r, c))};
      const auto b = double{static_cast<float>(wanted(r, c))};
      const bool same = std::isnan(a) || std::isnan(b) ? std::isnan(a) && std::isnan(b)
                        : std::isinf(a) || std::isinf(b)
                            ? a == b
                            : std::abs(a - b) <= tolerance * (std::abs(b) + usual);
      if (!same)
        return testing::AssertionFailure()
               << "at " << r << ", " << c << " of " << ejk::shape_text(got.shape) << ": " << a
               << " instead of " << b;
    }
  return testing::AssertionSuccess();
}

template <class T>
bool same_bits(const ejk::StridedView<const T, 2>& a, const ejk::StridedView<const T, 2>& b) {
  for (int64_t r = 0; r < a.shape[0]; ++r)
    for (int64_t c = 0; c < a.shape[1]; ++c)
      if (std::memcmp(&a(r, c), &b(r, c), sizeof(T)) != 0) return false;
  return a.shape == b.shape;
}
inline bool same_bits(const ejk::Tensor& a, const ejk::Tensor& b) {
  const ejk::AnyView x = a.any(), y = b.any();
  return a.shape() == b.shape() && a.dtype() == b.dtype() &&
         (x.bytes() == 0 || std::memcmp(x.data, y.data, x.bytes()) == 0);
}

}  // namespace rows
