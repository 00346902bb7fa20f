// SPDX-License-Identifier: Apache-2.0
// One product per group of rows, and the same on tensors.
#include <ejk/ops/grouped_matmul.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "ops/matmul/products.h"

namespace ejk::ops {
namespace {

constexpr std::string_view op = "grouped_matmul";

template <class View>
Matrix rows_from(const View& v, int64_t row) {
  return {v.data + row * v.strides[0], dtype_of<typename View::element_type>, v.strides[0],
          v.strides[1]};
}

template <class A, class B, class C>
void check_shapes(const A& a, const B& b, std::span<const int32_t> sizes, const C& c) {
  if (a.shape[1] != b.shape[1] || c.shape[0] != a.shape[0] || c.shape[1] != b.shape[2] ||
      !std::cmp_equal(sizes.size(), b.shape[0]))
    refuse(op,
           fmt::format("a{}, b{}, group_sizes[{}], c{}", shape_text(a.shape), shape_text(b.shape),
                       sizes.size(), shape_text(c.shape)),
           "a[rows, k], b[groups, k, n], group_sizes[groups], c[rows, n]");
  int64_t sum = 0;
  for (size_t g = 0; g < sizes.size(); ++g) {
    if (sizes[g] < 0)
      refuse(op, fmt::format("group_sizes[{}] = {}", g, sizes[g]), "no negative sizes");
    sum += sizes[g];
  }
  if (sum > a.shape[0])
    refuse(op, fmt::format("group_sizes that add up to {}, a{}", sum, shape_text(a.shape)),
           "at most as many rows as a has");
}

template <class A, class B, class C>
void check_memory(const A& a, const B& b, std::span<const int32_t> sizes, const C& c) {
  using Numbers = StridedView<const int32_t, 1>;
  const auto count = static_cast<int64_t>(sizes.size());
  check_product_memory(op, a, b, "a c that overlaps group_sizes",
                       std::optional(Numbers(sizes.data(), {count}, {1})), c);
}

// Calls f(group, first row, rows) for groups that have rows. Gives the number of rows of all
// groups.
template <class F>
int64_t for_each_group(std::span<const int32_t> sizes, const F& f) {
  int64_t row = 0;
  for (size_t g = 0; g < sizes.size(); ++g) {
    if (sizes[g] > 0) f(static_cast<int64_t>(g), row, int64_t{sizes[g]});
    row += sizes[g];
  }
  return row;
}

template <class View>
void zero_rows(const View& c, int64_t first) {
  for (int64_t i = first; i < c.shape[0]; ++i)
    for (int64_t j = 0; j < c.shape[1]; ++j) c(i, j) = {};
}

// c = rows of a, each times the matrix of its group; zeros behind the last group.
template <class A, class B, class C>
void multiply(const MatmulBlocking& blocking, const A& a, const B& b,
              std::span<const int32_t> sizes, const C& c) {
  std::vector<Gemm> problems;
  const int64_t used = for_each_group(sizes, [&](int64_t group, int64_t row, int64_t rows) {
    problems.push_back({rows, c.shape[1], a.shape[1], rows_from(a, row), matrix(b, group),
                        rows_from(c, row), nullptr});
  });
  gemm(problems, blocking);
  zero_rows(c, used);
}

struct Shape {
  int64_t groups, rows, n, k;  // rows of an average group
};

Shape shape_of(const Invocation& inv) {
  const auto &a = inv.args[0].shape, &b = inv.args[1].shape;
  const int64_t groups = std::max<int64_t>(1, b[0]);
  return {groups, (a[0] + groups - 1) / groups, b[2], a[1]};
}

}  // namespace

template <Element In, Element Result>
void GroupedMatmul<In, Result>::run(const Config& config, const Rows& a, const Matrices& b,
                                    Sizes sizes, const Output& c) const {
  check_shapes(a, b, sizes, *c);
  check_memory(a, b, sizes, *c);
  check_blocking(op, "forward", config.forward);
  multiply(config.forward, a, b, sizes, *c);
}

template <Element In, Element Result>
void GroupedMatmul<In, Result>::reference(const Rows& a, const Matrices& b, Sizes sizes,
                                          const Output& out) const {
  const StridedView<Result, 2>& c = *out;
  check_shapes(a, b, sizes, c);
  check_memory(a, b, sizes, c);
  const int64_t used = for_each_group(sizes, [&](int64_t group, int64_t row, int64_t rows) {
    for (int64_t i = row; i < row + rows; ++i)
      for (int64_t j = 0; j < c.shape[1]; ++j) {
        double sum = 0;
        for (int64_t k = 0; k < a.shape[1]; ++k)
          sum += double{static_cast<float>(a(i, k))} * double{static_cast<float>(b(group, k, j))};
        c(i, j) = static_cast<Result>(static_cast<float>(sum));
      }
  });
  zero_rows(c, used);
}

template <Element In, Element Result>
auto GroupedMatmul<In, Result>::heuristic_cfg(const Invocation& inv) const -> Config {
  const Shape s = shape_of(inv);
  return product_heuristic<Config>(s.groups, s.rows, s.n, s.k, matrix_of(inv.args[0]),
                                   matrix_of(inv.args[1]));
}

template <Element In, Element Result>
auto GroupedMatmul<In, Result>::candidate_cfgs(const Invocation& inv) const -> Space<Config> {
  const Shape s = shape_of(inv);
  return product_space(inv, heuristic_cfg(inv), s.rows, s.n, s.k);
}

template <Element In, Element Result>
bool GroupedMatmul<In, Result>::is_valid(const Config& config, const Invocation&) const {
  return products_can_run(config);
}

template <Element In, Element Result>
auto GroupedMatmul<In, Result>::numerics(const Config& config, const Invocation& inv) const
    -> std::array<std::string, 3> {
  const auto &shape_a = inv.args[0].shape, &shape_b = inv.args[1].shape;
  const int64_t rows = shape_a[0], k = shape_a[1], n = shape_b[2];
  const Matrix a = matrix_of(inv.args[0]), b = matrix_of(inv.args[1]);
  const auto cotangents = any_cotangent(rows, n);
  return {gemm_sums({rows, n, k, a, b, {}, nullptr}, config.forward),
          sums_in(cotangents,
                  [&](const Matrix& dc) {
                    return gemm_sums({rows, k, n, dc, b.transposed(), {}, nullptr}, config.grad_a);
                  }),
          sums_in(cotangents, [&](const Matrix& dc) {
            return gemm_sums({k, n, rows, a.transposed(), dc, {}, nullptr}, config.grad_b,
                             Depth::up_to_k);
          })};
}

template <Element In, Element Result>
auto GroupedMatmul<In, Result>::gradients(const Config& config, const Rows& a, const Matrices& b,
                                          Sizes sizes, const StridedView<const Result, 2>& dc) const
    -> Gradients {
  check_shapes(a, b, sizes, dc);
  check_blocking(op, "grad_a", config.grad_a);
  check_blocking(op, "grad_b", config.grad_b);
  Tensor da = Tensor::of<In>({a.shape[0], a.shape[1]});
  multiply(config.grad_a, dc, transposed(b), sizes, da.strided<In, 2>());
  // a^T dc of each group; those without rows stay zero, as the tensor is made.
  Tensor db = Tensor::of<In>({b.shape[0], b.shape[1], b.shape[2]});
  const StridedView<In, 3> to = db.strided<In, 3>();
  std::vector<Gemm> problems;
  for_each_group(sizes, [&](int64_t group, int64_t row, int64_t rows) {
    problems.push_back({a.shape[1], dc.shape[1], rows, rows_from(a, row).transposed(),
                        rows_from(dc, row), matrix(to, group), nullptr});
  });
  gemm(problems, config.grad_b);
  return {std::move(da), std::move(db)};
}

template struct GroupedMatmul<float>;
template struct GroupedMatmul<BFloat16>;
template struct GroupedMatmul<BFloat16, BFloat16>;

// ---- tensors ------------------------------------------------------------------------------------

namespace {

void check(const Tensor& a, const Tensor& b, const Tensor& sizes, DType result) {
  const std::string given = fmt::format("{}, {}, {}", described("a", a), described("b", b),
                                        described("group_sizes", sizes));
  if (a.rank() != 2 || b.rank() != 3 || sizes.rank() != 1)
    refuse(op, given, "a[rows, k], b[groups, k, n], group_sizes[groups]");
  if (!has_product_elements(a) || b.dtype() != a.dtype() || sizes.dtype() != DType::int32 ||
      !sizes.packed())
    refuse(op, given, "a and b of float32 or both of bfloat16, group_sizes of packed int32");
  check_result(op, given, a, result);
  check_one_place(op, a, {{"b", &b}, {"group_sizes", &sizes}});
}

std::span<const int32_t> numbers(const Tensor& sizes) {
  return {sizes.data<int32_t>(), static_cast<size_t>(sizes.size())};
}

template <class T, int Rank>
StridedView<const T, Rank> input(const Tensor& t) {
  return t.strided<T, Rank>();
}

}  // namespace

Tensor grouped_matmul(const Executor& executor, const Tensor& a, const Tensor& b,
                      const Tensor& sizes, DType result) {
  check(a, b, sizes, result);
  Tensor c(result, {a.shape()[0], b.shape()[2]}, a.device());
  with_types(a, result, [&]<class In, class Result>() {
    if (a.on_cpu())
      executor(GroupedMatmul<In, Result>{}, input<In, 2>(a), input<In, 3>(b), numbers(sizes),
               Out(c.strided<Result, 2>()));
    else
      executor(GroupedMatmul<In, Result>{}, device_view<const In, 2>(packed(a)),
               device_view<const In, 3>(packed(b)), device_view<const int32_t, 1>(sizes),
               Out(device_view<Result, 2>(c)));
  });
  return c;
}

Tensor grouped_matmul(const Tensor& a, const Tensor& b, const Tensor& sizes, DType result) {
  return grouped_matmul(default_executor(), a, b, sizes, result);
}

std::pair<Tensor, std::function<std::pair<Tensor, Tensor>(const Tensor&)>> grouped_matmul_vjp(
    const Executor& executor, const Tensor& a, const Tensor& b, const Tensor& sizes, DType result) {
  check(a, b, sizes, result);
  Tensor c(result, {a.shape()[0], b.shape()[2]}, a.device());
  using Pulled = std::function<std::pair<Tensor, Tensor>(const Tensor&)>;
  return with_types(a, result, [&]<class In, class Result>() -> std::pair<Tensor, Pulled> {
    // `view` makes what the kernel's pull-back takes of dc.
    const auto pulled = [&](auto pull, const Tensor& rows, const Tensor& matrices,
                            auto view) -> Pulled {
      return [pull = std::move(pull), rows, matrices, sizes, c, view](const Tensor& dc) {
        check_cotangent(op, c, dc);
        const Tensor kept = dc.on_cpu() ? dc : packed(dc);
        auto [da, db] = pull(view(kept));
        return std::pair(std::move(da), std::move(db));
      };
    };
    const GroupedMatmul<In, Result> kernel;
    if (a.on_cpu())
      return {c, pulled(executor
                            .vjp(kernel, input<In, 2>(a), input<In, 3>(b), numbers(sizes),
                                 Out(c.strided<Result, 2>()))
                            .second,
                        a, b, input<Result, 2>)};
    const Tensor rows = packed(a), matrices = packed(b);
    return {c, pulled(executor
                          .vjp(kernel, device_view<const In, 2>(rows),
                               device_view<const In, 3>(matrices),
                               device_view<const int32_t, 1>(sizes), Out(device_view<Result, 2>(c)))
                          .second,
                      rows, matrices, device_view<const Result, 2>)};
  });
}

}  // namespace ejk::ops
