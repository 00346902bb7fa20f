// SPDX-License-Identifier: Apache-2.0
// c = a b + bias for one matrix each, any strides: what the matrix operations are made of.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include <ejk/ops/matmul.h>
#include <ejk/tensor.h>

namespace ejk::ops {

// A matrix of float32 or bfloat16. Strides are counted in elements and may be anything.
struct Matrix {
  const void* data = nullptr;
  DType dtype = DType::float32;
  int64_t row_stride = 0, column_stride = 0;

  Matrix at(int64_t row, int64_t column) const {
    Matrix moved = *this;
    moved.data = static_cast<const char*>(data) +
                 (row * row_stride + column * column_stride) * (dtype == DType::bfloat16 ? 2 : 4);
    return moved;
  }
  Matrix transposed() const { return {data, dtype, column_stride, row_stride}; }
};

// c[m, n] = a[m, k] b[k, n] + bias[n]. No two elements of c share memory, nor does c with the
// others.
struct Gemm {
  int64_t m = 0, n = 0, k = 0;
  Matrix a, b;
  Matrix c;                     // written in spite of its pointer to const
  const float* bias = nullptr;  // packed; null: none

  // The part of c that begins there.
  Gemm part(int64_t row, int64_t rows, int64_t column, int64_t columns) const {
    return {rows,
            columns,
            k,
            a.at(row, 0),
            b.at(0, column),
            c.at(row, column),
            bias != nullptr ? bias + column : nullptr};
  }
};

// Several products with the same n and k, their rows and columns divided among the threads. An
// element of c does not depend on how they are divided.
void gemm(std::span<const Gemm> problems, const MatmulBlocking& blocking);

// Whether gemm knows such tiles and the memory it would need for packing is bounded.
bool gemm_can_run(const MatmulBlocking& blocking);

// What k a description of sums is for.
enum class Depth {
  exactly_k,
  up_to_k,  // whatever the data say
};
// How an element of c is summed over k; of the matrices the strides count. Blockings of which it is
// equal give the same bits.
std::string gemm_sums(const Gemm& problem, const MatmulBlocking& blocking,
                      Depth depth = Depth::exactly_k);

// How much of k stays in registers where b is read as it lies.
int64_t gemm_depth_in_registers();

// In a vector that a product of so many columns is computed with.
int64_t simd_floats(int64_t columns);

}  // namespace ejk::ops
