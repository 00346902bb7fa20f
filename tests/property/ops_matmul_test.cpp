// SPDX-License-Identifier: Apache-2.0
// matmul and its gradient against plain loops in double, over random shapes, layouts and configs.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <new>
#include <span>
#include <stdexcept>

#include <ejk/ops/matmul.h>

#include "ops/common.h"
#include "ops/random_arrays.h"

namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr int problems = 12;  // per instruction set
#else
constexpr int problems = 120;
#endif

using ejk::BFloat16;
using ejk::StridedView;
using ejk::ops::Matmul;
using ejk::ops::MatmulBlocking;
using ejk::testing::Strided;
using ejk::testing::up_to;
using ops_test::on_every_target;

MatmulBlocking any_blocking(std::mt19937& random) {
  const std::array packs{MatmulBlocking::Pack::none, MatmulBlocking::Pack::b,
                         MatmulBlocking::Pack::a_and_b};
  const std::array vectors{1, 2, 3, 4, 8};
  return {.pack = packs[static_cast<size_t>(up_to(random, 2))],
          .kc = static_cast<int>(1 + up_to(random, up_to(random, 1) == 0 ? 40 : 100)),
          .mc = static_cast<int>(1 + up_to(random, 40)),
          .nc = static_cast<int>(1 + up_to(random, 400)),
          .vectors = vectors[static_cast<size_t>(up_to(random, 4))],
          .threads = static_cast<int>(1 + up_to(random, 2))};
}

int64_t any_size(std::mt19937& random, int64_t most) {
  const int64_t kind = up_to(random, 9);
  return kind == 0 ? 0 : kind <= 2 ? 1 : up_to(random, most);
}

// How far a sum of k products of numbers up to 1 may be off, as the element type allows.
template <class Result>
double allowed(int64_t k, double value) {
  const double sum = 3e-7 * static_cast<double>(k + 1);
  return std::is_same_v<Result, float> ? sum : sum + std::abs(value) / 200 + 1e-30;
}

template <class View>
auto at(const View& v, int64_t batch, int64_t i, int64_t j) {
  return double{static_cast<float>(v(v.shape[0] == 1 ? 0 : batch, i, j))};
}

template <class In, class Result>
struct Problem {
  int64_t batch, m, n, k;
  Strided<In, 3> a, b;
  Strided<In, 1> bias;
  bool has_bias;
  Strided<Result, 3> c;

  explicit Problem(std::mt19937& random)
      : batch(up_to(random, 3) == 0 ? any_size(random, 4) : 1),
        m(any_size(random, 40)),
        n(up_to(random, 7) == 0 ? 256 + up_to(random, 60) : any_size(random, 150)),  // walks
        k(any_size(random, up_to(random, 2) == 0 ? 18 : 90)),  // short ones stay in registers
        a(random, {up_to(random, 3) == 0 ? 1 : batch, m, k}, up_to(random, 1) == 0),
        b(random, {up_to(random, 3) == 0 ? 1 : batch, k, n}, up_to(random, 1) == 0),
        bias(random, {n}),
        has_bias(up_to(random, 2) == 0),
        c(random, {batch, m, n}, up_to(random, 1) == 0) {}

  typename Matmul<In, Result>::Bias given_bias() const {
    if (has_bias) return bias;
    return std::nullopt;
  }
  std::string name() const {
    return ejk::shape_text(a.view.shape) + ejk::shape_text(a.view.strides) +
           ejk::shape_text(b.view.shape) + ejk::shape_text(b.view.strides) +
           ejk::shape_text(c.view.strides) + (has_bias ? " bias" : "");
  }
};

template <class In, class Result>
void check_forward(std::mt19937& random) {
  const Problem<In, Result> p(random);
  const typename Matmul<In, Result>::Config config{any_blocking(random), {}, {}};
  SCOPED_TRACE(p.name() + ejk::to_json(config.forward));
  const std::vector<Result> before = p.c.memory;
  Matmul<In, Result>{}.run(config, p.a, p.b, p.given_bias(), p.c.view);
  for (int64_t batch = 0; batch < p.batch; ++batch)
    for (int64_t i = 0; i < p.m; ++i)
      for (int64_t j = 0; j < p.n; ++j) {
        double sum = 0;
        for (int64_t k = 0; k < p.k; ++k)
          sum += at(p.a.view, batch, i, k) * at(p.b.view, batch, k, j);
        if (p.has_bias) sum += double{static_cast<float>(p.bias.view(j))};
        ASSERT_NEAR(at(p.c.view, batch, i, j), sum, allowed<Result>(p.k, sum))
            << batch << ' ' << i << ' ' << j;
      }
  // What lies between the elements of c is not touched.
  const std::vector<Result> after = p.c.memory;
  std::vector<bool> is_element(after.size());
  for (int64_t batch = 0; batch < p.batch; ++batch)
    for (int64_t i = 0; i < p.m; ++i)
      for (int64_t j = 0; j < p.n; ++j)
        is_element[static_cast<size_t>(&p.c.view(batch, i, j) - p.c.view.data)] = true;
  for (size_t i = 0; i < after.size(); ++i)
    if (!is_element[i]) {
      ASSERT_TRUE(after[i] == before[i]) << i;
    }
}

TEST(OpsMatmulProperty, AnyShapeLayoutAndConfigGivesTheProduct) {
  on_every_target([] {
    std::mt19937 random(1);
    for (int i = 0; i < problems && !testing::Test::HasFatalFailure(); ++i) {
      check_forward<float, float>(random);
      check_forward<BFloat16, float>(random);
      check_forward<BFloat16, BFloat16>(random);
    }
  });
}

// Memory whose end is that of the last page: what lies behind it cannot be read nor written.
class AtTheEdge {
 public:
  AtTheEdge() {
    void* got =
        ::mmap(nullptr, bytes + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (got == MAP_FAILED) throw std::bad_alloc();
    end_ = static_cast<char*>(got) + bytes;
    if (::mprotect(end_, page, PROT_NONE) != 0) throw std::runtime_error("mprotect");
  }
  std::span<float> floats(int64_t count) const {
    return {reinterpret_cast<float*>(end_) - count, static_cast<size_t>(count)};
  }

 private:
  static constexpr size_t bytes = size_t{1} << 18, page = size_t{1} << 16;
  char* end_;
};

void check_exactly(int64_t m, int64_t n, int64_t k, const MatmulBlocking& blocking) {
  SCOPED_TRACE(ejk::shape_text(std::array{m, n, k}) + ejk::to_json(blocking));
  static const AtTheEdge edges[4];
  const auto numbers = [](const AtTheEdge& edge, int64_t count) {
    const std::span<float> out = edge.floats(count);
    for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(i * 7 % 13) - 6;
    return out;
  };
  const std::span<float> a = numbers(edges[0], m * k), b = numbers(edges[1], k * n),
                         bias = numbers(edges[2], m % 2 * n), c = edges[3].floats(m * n);
  std::ranges::fill(c, 0.f);
  using In = StridedView<const float, 3>;
  Matmul<float>{}.run(
      {blocking, {}, {}}, In(a.data(), {1, m, k}, {m * k, k, 1}),
      In(b.data(), {1, k, n}, {k * n, n, 1}),
      bias.empty() ? Matmul<float>::Bias{} : StridedView<const float, 1>(bias.data(), {n}, {1}),
      StridedView<float, 3>(c.data(), {1, m, n}, {m * n, n, 1}));
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      // Of small whole numbers: exact.
      float sum = bias.empty() ? 0 : bias[static_cast<size_t>(j)];
      for (int64_t l = 0; l < k; ++l)
        sum += a[static_cast<size_t>(i * k + l)] * b[static_cast<size_t>(l * n + j)];
      ASSERT_EQ(c[static_cast<size_t>(i * n + j)], sum) << i << ' ' << j;
    }
}

TEST(OpsMatmulProperty, WalksOfEverySizeStayWithinTheirMatrices) {
  on_every_target([] {
    for (int64_t m = 1; m <= 5; ++m)
      for (int64_t k = 1; k <= 17; ++k)
        for (const int64_t n : {256, 263, 281})
          check_exactly(
              m, n, k,
              {.pack = MatmulBlocking::Pack::none, .kc = 8, .mc = 8, .nc = 4096, .vectors = 2});
  });
}

TEST(OpsMatmulProperty, TilesOfEverySizeStayWithinTheirMatrices) {
  on_every_target([] {
    for (const auto pack :
         {MatmulBlocking::Pack::none, MatmulBlocking::Pack::b, MatmulBlocking::Pack::a_and_b})
      for (const int vectors : {1, 2, 3, 4, 8})
        for (int64_t m = 1; m <= 9; ++m)
          for (int64_t n = 1; n <= 70; n += n < 36 ? 1 : 7)
            check_exactly(m, n, 11, {.pack = pack, .kc = 6, .vectors = vectors});
  });
}

TEST(OpsMatmulProperty, ShortDepthsOfEverySizeStayWithinTheirMatrices) {
  on_every_target([] {
    for (const int vectors : {1, 2, 3, 4})
      for (const int64_t m : {1, 2, 9})
        for (int64_t n = 1; n <= 70; n += n < 36 ? 1 : 7)
          for (int64_t k = 1; k <= 17; ++k)
            check_exactly(m, n, k,
                          {.pack = MatmulBlocking::Pack::none, .mc = 4, .vectors = vectors});
  });
}

TEST(OpsMatmulProperty, DotsOfEverySizeStayWithinTheirMatrices) {
  on_every_target([] {
    for (int64_t m = 1; m <= 17; ++m)
      for (int64_t n = 1; n <= 15; ++n)
        for (const int64_t k : {1, 5, 16, 23, 40})
          check_exactly(m, n, k, {.pack = MatmulBlocking::Pack::b});
  });
}

TEST(OpsMatmulProperty, TheReferenceGivesTheProduct) {
  std::mt19937 random(2);
  for (int round = 0; round < 50; ++round) {
    const Problem<float, float> p(random);
    Strided<float, 3> expected(random, p.c.view.shape);
    Matmul<float>{}.reference(p.a, p.b, p.given_bias(), expected.view);
    Matmul<float>{}.run({}, p.a, p.b, p.given_bias(), p.c.view);
    for (int64_t batch = 0; batch < p.batch; ++batch)
      for (int64_t i = 0; i < p.m; ++i)
        for (int64_t j = 0; j < p.n; ++j)
          ASSERT_NEAR(p.c.view(batch, i, j), expected.view(batch, i, j), 3e-7 * double(p.k + 1));
  }
}

TEST(OpsMatmulProperty, TheNumberOfThreadsChangesNoBit) {
  on_every_target([] {
    std::mt19937 random(3);
    for (int round = 0; round < problems / 2; ++round) {
      const Problem<float, float> p(random);
      Matmul<float>::Config config{any_blocking(random), any_blocking(random),
                                   any_blocking(random)};
      SCOPED_TRACE(p.name() + ejk::to_json(config.forward));
      std::vector<std::vector<float>> results;
      std::vector<Matmul<float>::Gradients> gradients;
      for (const int threads : {1, 2, 3, 5, 8}) {
        for (MatmulBlocking* b : {&config.forward, &config.grad_a, &config.grad_b})
          b->threads = threads;
        Matmul<float>{}.run(config, p.a, p.b, p.given_bias(), p.c.view);
        results.push_back(p.c.memory);
        const StridedView<const float, 3> dc = p.c;
        gradients.push_back(
            Matmul<float>{}.vjp(config, {}, dc, p.a, p.b, p.given_bias(), p.c.view));
      }
      const auto same = [](const void* x, const void* y, size_t bytes) {
        return bytes == 0 || std::memcmp(x, y, bytes) == 0;  // empty ones may have no address
      };
      const auto equal = [&](const ejk::Tensor& x, const ejk::Tensor& y) {
        return same(x.any().data, y.any().data, x.any().bytes());
      };
      for (size_t i = 1; i < results.size(); ++i) {
        ASSERT_TRUE(same(results[0].data(), results[i].data(), results[0].size() * sizeof(float)));
        ASSERT_TRUE(equal(std::get<0>(gradients[0]), std::get<0>(gradients[i])));
        ASSERT_TRUE(equal(std::get<1>(gradients[0]), std::get<1>(gradients[i])));
      }
    }
  });
}

// A part of one column lies as a row does here, and is computed as the whole is all the same.
TEST(OpsMatmulProperty, TheNumberOfThreadsChangesNoBitOfAProductWithShiftedRows) {
  on_every_target([] {
    std::mt19937 random(4);
    constexpr int64_t m = 3, k = 40;
    for (const int64_t n : {2, 17, 33}) {
      const Strided<float, 3> a(random, {1, m, k}), numbers(random, {1, 1, k + n}, true);
      const StridedView<const float, 3> b(numbers.view.data, {1, k, n}, {0, 1, 1});
      std::vector<std::vector<float>> results;
      for (const int threads : {1, 2, 3, 5}) {
        std::vector<float> c(static_cast<size_t>(m * n));
        const MatmulBlocking blocking{
            .pack = MatmulBlocking::Pack::none, .kc = 64, .vectors = 1, .threads = threads};
        Matmul<float>{}.run({blocking, {}, {}}, a, b, {},
                            StridedView<float, 3>(c.data(), {1, m, n}, {m * n, n, 1}));
        results.push_back(c);
      }
      for (const auto& result : results) ASSERT_EQ(result, results[0]) << n;
    }
  });
}

// sum(c * dc) in double, with one element of an argument moved: what finite differences look at.
template <class A, class B, class D>
double weighted(const A& a, const B& b, const D& dc) {
  double total = 0;
  for (int64_t batch = 0; batch < dc.shape[0]; ++batch)
    for (int64_t i = 0; i < dc.shape[1]; ++i)
      for (int64_t j = 0; j < dc.shape[2]; ++j) {
        double sum = 0;
        for (int64_t k = 0; k < a.shape[2]; ++k)
          sum += a(a.shape[0] == 1 ? 0 : batch, i, k) * b(b.shape[0] == 1 ? 0 : batch, k, j);
        total += sum * dc(batch, i, j);
      }
  return total;
}

struct Doubles {
  std::vector<double> memory;
  StridedView<double, 3> view;
  template <class View>
  explicit Doubles(const View& v) {
    memory.resize(static_cast<size_t>(v.size()));
    view = ejk::View<double, 3>{memory.data(), v.shape};
    for (int64_t b = 0; b < v.shape[0]; ++b)
      for (int64_t i = 0; i < v.shape[1]; ++i)
        for (int64_t j = 0; j < v.shape[2]; ++j)
          view(b, i, j) = double{static_cast<float>(v(b, i, j))};
  }
};

template <class In, class Result>
void check_gradient(std::mt19937& random) {
  const Problem<In, Result> p(random);
  const typename Matmul<In, Result>::Config config{any_blocking(random), any_blocking(random),
                                                   any_blocking(random)};
  SCOPED_TRACE(p.name() + ejk::to_json(config));
  const Strided<Result, 3> dc(random, p.c.view.shape, up_to(random, 1) == 0);
  const StridedView<const Result, 3> dy = dc;
  const auto [da, db, dbias] =
      Matmul<In, Result>{}.vjp(config, {}, dy, p.a, p.b, p.given_bias(), p.c.view);
  Doubles a(p.a.view), b(p.b.view);
  const Doubles d(dc.view);
  const double terms = double(p.batch * std::max({p.m, p.n, p.k}) + 1);
  const auto check = [&](Doubles& x, const ejk::Tensor& gradient) {
    ASSERT_EQ(gradient.shape(), std::vector<int64_t>(x.view.shape.begin(), x.view.shape.end()));
    for (int sample = 0; sample < 5 && !x.memory.empty(); ++sample) {
      const auto i = static_cast<size_t>(up_to(random, int64_t(x.memory.size()) - 1));
      const double original = x.memory[i];
      x.memory[i] = original + 0.5;  // the sum is linear in every element: no step is too wide
      const double above = weighted(a.view, b.view, d.view);
      x.memory[i] = original - 0.5;
      const double expected = above - weighted(a.view, b.view, d.view);
      x.memory[i] = original;
      const double found = double{static_cast<float>(gradient.data<In>()[i])};
      const double rounding = std::is_same_v<In, float> ? 0 : std::abs(expected) / 200;
      ASSERT_NEAR(found, expected, 1e-6 * terms + rounding);
    }
  };
  check(a, da);
  check(b, db);
  ASSERT_EQ(dbias.has_value(), p.has_bias);
  if (p.has_bias)
    for (int64_t j = 0; j < p.n; ++j) {
      double sum = 0;
      for (int64_t batch = 0; batch < p.batch; ++batch)
        for (int64_t i = 0; i < p.m; ++i) sum += d.view(batch, i, j);
      ASSERT_NEAR(double{static_cast<float>(dbias->template data<In>()[j])}, sum,
                  1e-6 * terms + std::abs(sum) / (std::is_same_v<In, float> ? 1e6 : 200));
    }
}

TEST(OpsMatmulProperty, GradientsAreThoseOfFiniteDifferences) {
  on_every_target([] {
    std::mt19937 random(4);
    for (int i = 0; i < 25 && !testing::Test::HasFatalFailure(); ++i) {
      check_gradient<float, float>(random);
      check_gradient<BFloat16, float>(random);
      check_gradient<BFloat16, BFloat16>(random);
    }
  });
}

}  // namespace
