// SPDX-License-Identifier: Apache-2.0
// Kernels in plain C++ that the tour and the tests tune: saxpy, matmul, rms_norm, transpose.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ejk/ejk.h>

namespace examples {

[[noreturn]] inline void refuse(std::string_view op, const std::string& given,
                                const std::string& needed) {
  throw ejk::Error(ejk::ErrorKind::invalid_argument,
                   "[" + std::string(op) + "] given " + given + "; needed: " + needed);
}

// A config that is passed with a call can hold anything.
inline void check_positive(std::string_view op, std::string_view field, int value) {
  if (value <= 0)
    refuse(op, "config." + std::string(field) + " = " + std::to_string(value), "a positive number");
}

// y += alpha x. The scalar does not change what is fastest, so it is not part of the key.
struct Saxpy {
  static constexpr std::string_view op_id = "example_saxpy", version = "1";
  struct Config {
    int block = 1024;  // elements a thread takes at a time
    int threads = 1;
  };

  void run(const Config& config, ejk::Unkeyed<float> alpha, std::span<const float> x,
           std::span<float> y) const {
    check(x, y);
    check_positive(op_id, "block", config.block);
    check_positive(op_id, "threads", config.threads);
    const auto size = static_cast<int64_t>(y.size());
    const int64_t block = config.block, stride = block * config.threads;
    ejk::in_parts(config.threads, config.threads, [&](int64_t thread, int64_t) {
      for (int64_t begin = thread * block; begin < size; begin += stride)
        add(alpha, x.data() + begin, y.data() + begin, std::min(block, size - begin));
    });
  }
  void reference(ejk::Unkeyed<float> alpha, std::span<const float> x, std::span<float> y) const {
    check(x, y);
    for (size_t i = 0; i < y.size(); ++i) y[i] += alpha * x[i];
  }

  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }
  auto candidate_cfgs(const ejk::Invocation&) const {
    return ejk::space<Config>()
        .param(&Config::block, {64, 256, 1024, 4096, 16384, 65536})
        .param(&Config::threads, ejk::thread_counts());
  }

 private:
  static void check(std::span<const float> x, std::span<float> y) {
    if (x.size() != y.size())
      refuse(op_id, "x[" + std::to_string(x.size()) + "], y[" + std::to_string(y.size()) + "]",
             "x and y of one size");
  }
  static void add(float alpha, const float* x, float* y, int64_t size) {
    for (int64_t i = 0; i < size; ++i) y[i] += alpha * x[i];
  }
};

// c = a b, row-major, in tiles of b.
struct Matmul {
  static constexpr std::string_view op_id = "example_matmul", version = "1";
  enum class Order {
    dot,    // for each row of a and column of b: their product, as it stands in the textbook
    broad,  // for each element of a: its multiple of a row of b is added to a row of c
  };
  struct Config {
    Order order = Order::broad;
    int tile = 64;  // rows and columns of b that are used together; 0: all of it
    int threads = 1;
  };
  using In = ejk::View<const float, 2>;
  using Result = ejk::Out<ejk::View<float, 2>>;

  void run(const Config& config, const In& a, const In& b, const Result& c) const {
    check(a, b, c);
    check_positive(op_id, "threads", config.threads);
    const int64_t depth = a.shape[1], columns = b.shape[1];
    const int64_t tile = config.tile > 0 ? config.tile : std::max({depth, columns, int64_t{1}});
    ejk::in_parts(a.shape[0], config.threads, [&](int64_t first, int64_t last) {
      std::fill(c->data + first * columns, c->data + last * columns, 0.f);
      for (int64_t k = 0; k < depth; k += tile)
        for (int64_t j = 0; j < columns; j += tile) {
          const Block block{
              first, last, k, std::min(depth, k + tile), j, std::min(columns, j + tile)};
          if (config.order == Order::dot) add_dot(block, a, b, *c);
          else add_broad(block, a, b, *c);
        }
    });
  }
  void reference(const In& a, const In& b, const Result& c) const {
    check(a, b, c);
    for (int64_t i = 0; i < a.shape[0]; ++i)
      for (int64_t j = 0; j < b.shape[1]; ++j) {
        double sum = 0;
        for (int64_t k = 0; k < a.shape[1]; ++k) sum += double{a(i, k)} * double{b(k, j)};
        (*c)(i, j) = static_cast<float>(sum);
      }
  }

  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }
  auto candidate_cfgs(const ejk::Invocation& inv) const {
    const auto& b = inv.args[1].shape;
    const int64_t longest = std::max(b[0], b[1]);
    return ejk::space<Config>()
        .param(&Config::order, {Order::dot, Order::broad})
        .param(&Config::tile, {0, 16, 64, 256})
        .param(&Config::threads, ejk::thread_counts())
        .where([longest](const Config& c) { return c.tile < longest; });  // else the same as 0
  }

 private:
  struct Block {
    int64_t first_row, last_row, first_k, last_k, first_column, last_column;
  };
  static void add_dot(const Block& at, const In& a, const In& b, const ejk::View<float, 2>& c) {
    for (int64_t i = at.first_row; i < at.last_row; ++i)
      for (int64_t j = at.first_column; j < at.last_column; ++j) {
        float sum = 0;
        for (int64_t k = at.first_k; k < at.last_k; ++k) sum += a(i, k) * b(k, j);
        c(i, j) += sum;
      }
  }
  static void add_broad(const Block& at, const In& a, const In& b, const ejk::View<float, 2>& c) {
    for (int64_t i = at.first_row; i < at.last_row; ++i)
      for (int64_t k = at.first_k; k < at.last_k; ++k) {
        const float factor = a(i, k);
        const float* from = b.data + k * b.shape[1];
        float* to = c.data + i * c.shape[1];
        for (int64_t j = at.first_column; j < at.last_column; ++j) to[j] += factor * from[j];
      }
  }
  static void check(const In& a, const In& b, const Result& c) {
    if (a.shape[1] == b.shape[0] && c->shape[0] == a.shape[0] && c->shape[1] == b.shape[1]) return;
    refuse(op_id,
           "a" + ejk::shape_text(a.shape) + ", b" + ejk::shape_text(b.shape) + ", c" +
               ejk::shape_text(c->shape),
           "a[m, k], b[k, n], c[m, n]");
  }
};

// out = weight x / sqrt(mean(x^2) + eps), row by row.
struct RmsNorm {
  static constexpr std::string_view op_id = "example_rms_norm", version = "1";
  struct Config {
    int lanes = 4;  // sums that are built side by side: one would wait for itself at every element
    int threads = 1;
  };
  using In = ejk::View<const float, 2>;
  using Weight = std::span<const float>;
  using Result = ejk::Out<ejk::View<float, 2>>;

  void run(const Config& config, const In& x, Weight weight, const Result& out, float eps) const {
    check(x, weight, out);
    const SumOfSquares sum = sum_with(config.lanes);
    if (sum == nullptr)
      refuse(op_id, "config.lanes = " + std::to_string(config.lanes), "1, 4, 8, 16 or 32");
    check_positive(op_id, "threads", config.threads);
    const int64_t columns = x.shape[1];
    ejk::in_parts(x.shape[0], config.threads, [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) {
        const float* from = x.data + row * columns;
        float* to = out->data + row * columns;
        const float scale = 1 / std::sqrt(sum(from, columns) / static_cast<float>(columns) + eps);
        for (int64_t i = 0; i < columns; ++i)
          to[i] = from[i] * scale * weight[static_cast<size_t>(i)];
      }
    });
  }
  void reference(const In& x, Weight weight, const Result& out, float eps) const {
    check(x, weight, out);
    for (int64_t row = 0; row < x.shape[0]; ++row) {
      double sum = 0;
      for (int64_t i = 0; i < x.shape[1]; ++i) sum += double{x(row, i)} * double{x(row, i)};
      const double scale = 1 / std::sqrt(sum / static_cast<double>(x.shape[1]) + double{eps});
      for (int64_t i = 0; i < x.shape[1]; ++i)
        (*out)(row, i) = static_cast<float>(x(row, i) * scale * weight[static_cast<size_t>(i)]);
    }
  }

  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }
  auto candidate_cfgs(const ejk::Invocation&) const {
    return ejk::space<Config>()
        .param(&Config::lanes, {1, 4, 8, 16, 32})
        .param(&Config::threads, ejk::thread_counts());
  }
  // Only these are compiled; a stored config may be from another version of this file.
  bool is_valid(const Config& config, const ejk::Invocation&) const {
    return sum_with(config.lanes) != nullptr;
  }

 private:
  using SumOfSquares = float (*)(const float*, int64_t);
  template <int Lanes>
  static float sum_of_squares(const float* x, int64_t size) {
    std::array<float, Lanes> sums{};
    int64_t i = 0;
    for (; i + Lanes <= size; i += Lanes)
      for (int64_t lane = 0; lane < Lanes; ++lane)
        sums[static_cast<size_t>(lane)] += x[i + lane] * x[i + lane];
    float sum = 0;
    for (; i < size; ++i) sum += x[i] * x[i];
    for (float s : sums) sum += s;
    return sum;
  }
  static SumOfSquares sum_with(int lanes) {
    switch (lanes) {
      case 1:
        return sum_of_squares<1>;
      case 4:
        return sum_of_squares<4>;
      case 8:
        return sum_of_squares<8>;
      case 16:
        return sum_of_squares<16>;
      case 32:
        return sum_of_squares<32>;
      default:
        return nullptr;
    }
  }
  static void check(const In& x, Weight weight, const Result& out) {
    if (out->shape == x.shape && std::cmp_equal(weight.size(), x.shape[1])) return;
    refuse(op_id,
           "x" + ejk::shape_text(x.shape) + ", weight[" + std::to_string(weight.size()) + "], out" +
               ejk::shape_text(out->shape),
           "x[rows, columns], weight[columns], out[rows, columns]");
  }
};

// out = the transposed matrix, in tiles that stay in the cache.
struct Transpose {
  static constexpr std::string_view op_id = "example_transpose", version = "1";
  struct Config {
    int rows = 32, columns = 32;  // of a tile of the input
  };
  using In = ejk::View<const float, 2>;
  using Result = ejk::Out<ejk::View<float, 2>>;

  void run(const Config& config, const In& in, const Result& out) const {
    check(in, out);
    check_positive(op_id, "rows", config.rows);
    check_positive(op_id, "columns", config.columns);
    const int64_t rows = in.shape[0], columns = in.shape[1];
    for (int64_t row = 0; row < rows; row += config.rows)
      for (int64_t column = 0; column < columns; column += config.columns) {
        const int64_t last_row = std::min(rows, row + config.rows);
        const int64_t last_column = std::min(columns, column + config.columns);
        for (int64_t j = column; j < last_column; ++j)
          for (int64_t i = row; i < last_row; ++i)
            out->data[j * rows + i] = in.data[i * columns + j];
      }
  }
  void reference(const In& in, const Result& out) const {
    check(in, out);
    for (int64_t i = 0; i < in.shape[0]; ++i)
      for (int64_t j = 0; j < in.shape[1]; ++j) (*out)(j, i) = in(i, j);
  }

  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }
  auto candidate_cfgs(const ejk::Invocation&) const {
    return ejk::space<Config>()
        .param(&Config::rows, {4, 8, 16, 32, 64})
        .param(&Config::columns, {4, 8, 16, 32, 64})
        .where([](const Config& c) { return c.rows * c.columns >= 64; });
  }

 private:
  static void check(const In& in, const Result& out) {
    if (out->shape[0] == in.shape[1] && out->shape[1] == in.shape[0]) return;
    refuse(op_id, "in" + ejk::shape_text(in.shape) + ", out" + ejk::shape_text(out->shape),
           "in[rows, columns], out[columns, rows]");
  }
};

}  // namespace examples
