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

// What the rows of all operations have: some of those of a call, on one thread.
template <class T>
struct ForwardRows {
  RowsIn<T> x;
  RowsOut<T> out;
  int64_t columns;
  bool streamed, ahead;
};
template <class T>
struct GradientRows {
  RowsIn<T> dy, x;
  RowsOut<T> dx;
  int64_t columns;
  bool streamed;
};

}  // namespace ejk::ops

// Per instruction set: `function`, which takes Rows<T> and the first and the last of them, for both
// element types.
#define EJK_ROWS_OF_THIS_SET(Rows, function)   \
  EJK_ROWS_OF_TYPE(Rows, function, f32, float) \
  EJK_ROWS_OF_TYPE(Rows, function, bf16, BFloat16)
#define EJK_ROWS_OF_TYPE(Rows, function, name, T)                            \
  void function##_##name(const Rows<T>& rows, int64_t first, int64_t last) { \
    if (first < last) function(rows, first, last);                           \
    if (rows.streamed) hwy::FlushStream();                                   \
  }

// Once: run_rows(rows, first, last) is that of the best instruction set.
#define EJK_RUN_ROWS(Rows, function)                \
  EJK_RUN_ROWS_OF_TYPE(Rows, function##_f32, float) \
  EJK_RUN_ROWS_OF_TYPE(Rows, function##_bf16, BFloat16)
#define EJK_RUN_ROWS_OF_TYPE(Rows, function, T)                     \
  HWY_EXPORT(function);                                             \
  void run_rows(const Rows<T>& rows, int64_t first, int64_t last) { \
    HWY_DYNAMIC_DISPATCH(function)(rows, first, last);              \
  }
