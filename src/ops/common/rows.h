// SPDX-License-Identifier: Apache-2.0
// Rows of matrices for operations over the last axis, whose elements lie side by side.
#pragma once

#include <algorithm>
#include <cstdint>

#include <ejk/tensor.h>

#include "ops/common/aligned.h"
#include "ops/common/parts.h"

namespace ejk::ops {

// One row of memory per part, aligned for vectors.
template <class T>
class RowBuffers {
 public:
  RowBuffers(bool needed, int64_t parts, int64_t columns)
      : step_(needed ? (columns + 63) / 64 * 64 : 0),
        memory_(needed ? aligned<T>(parts * step_) : nullptr) {}
  T* operator[](int64_t part) const { return memory_.get() + part * step_; }

 private:
  int64_t step_;
  Aligned<T> memory_;
};

template <class T>
bool adjacent(const StridedView<T, 2>& m) {
  return m.strides[1] == 1 || m.shape[1] <= 1;
}

// The rows of a matrix to read: they themselves, or copies if their elements are not adjacent.
template <class T>
class RowsIn {
 public:
  RowsIn(const StridedView<const T, 2>& m, T* copy) : m_(m), copy_(adjacent(m) ? nullptr : copy) {}

  const T* operator[](int64_t row) const {
    const T* first = m_.data + row * m_.strides[0];
    if (copy_ == nullptr) return first;
    for (int64_t c = 0; c < m_.shape[1]; ++c) copy_[c] = first[c * m_.strides[1]];
    return copy_;
  }
  // The row after this one, to be asked for in advance; the row itself if there is none.
  const T* next(int64_t row) const { return in_place(std::min(row + 1, m_.shape[0] - 1)); }
  // The row where it lies, also if its elements are not adjacent.
  const T* in_place(int64_t row) const { return m_.data + row * m_.strides[0]; }

 private:
  StridedView<const T, 2> m_;
  T* copy_;
};

// The rows of a matrix to write; done() puts a copy into its place.
template <class T>
class RowsOut {
 public:
  RowsOut(const StridedView<T, 2>& m, T* copy) : m_(m), copy_(adjacent(m) ? nullptr : copy) {}

  T* operator[](int64_t row) const {
    return copy_ == nullptr ? m_.data + row * m_.strides[0] : copy_;
  }
  void done(int64_t row) const {
    if (copy_ == nullptr) return;
    for (int64_t c = 0; c < m_.shape[1]; ++c) m_(row, c) = copy_[c];
  }

 private:
  StridedView<T, 2> m_;
  T* copy_;
};

// Rows whose contributions to sums over rows (gradients of weights) are added up together, then
// group after group: the order of additions depends on the number of rows alone.
inline int64_t rows_per_group(int64_t rows) { return std::max<int64_t>(16, (rows + 63) / 64); }

}  // namespace ejk::ops
