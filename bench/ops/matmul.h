// SPDX-License-Identifier: Apache-2.0
// bench/ops: matrix products, ours and those of BLAS libraries that are loaded by name.
#pragma once

#include <dlfcn.h>

#include <ejk/ops/grouped_matmul.h>
#include <ejk/ops/matmul.h>

#include "case.h"

namespace bench {

// matmul TYPE M N K HOW [nt]: TYPE f32 or bf16, HOW heuristic, tuned or a config's JSON.
template <class T>
Case matmul_case(const Words& words) {
  using Kernel = ejk::ops::Matmul<T>;
  const int64_t m = number(words, 2), n = number(words, 3), k = number(words, 4);
  const ejk::Tensor a = random_tensor<T>({1, m, k}), b = random_tensor<T>({1, k, n});
  const ejk::Tensor c = ejk::Tensor::of<float>({1, m, n});
  const typename Kernel::Input va = a.strided<T, 3>(), vb = b.strided<T, 3>();
  const typename Kernel::Output vc = c.strided<float, 3>();
  const std::string& how = word(words, 5);
  const typename Kernel::Config config =
      how[0] == '{' ? typename Kernel::Config{ejk::from_json<ejk::ops::MatmulBlocking>(how), {}, {}}
                    : config_for(how, Kernel{}, va, vb, typename Kernel::Bias{}, vc);
  return {[=] {
            static_cast<void>(a), static_cast<void>(b), static_cast<void>(c),
                Kernel{}.run(config, va, vb, {}, vc);
          },
          ejk::to_json(config.forward)};
}

inline Case make_matmul(const Words& words) {
  return word(words, 1) == "bf16" ? matmul_case<ejk::BFloat16>(words) : matmul_case<float>(words);
}

// Rows of groups that differ in size: group i begins at row begin(rows, groups, i).
inline int64_t group_begin(int64_t rows, int64_t groups, int64_t i) {
  return rows * i * i / (groups * groups);
}

// grouped_matmul TYPE GROUPS ROWS N K HOW: HOW heuristic or tuned.
template <class T>
Case grouped_case(const Words& words) {
  using Kernel = ejk::ops::GroupedMatmul<T>;
  const int64_t groups = number(words, 2), rows = number(words, 3), n = number(words, 4),
                k = number(words, 5);
  const ejk::Tensor a = random_tensor<T>({rows, k}), b = random_tensor<T>({groups, k, n});
  const ejk::Tensor c = ejk::Tensor::of<float>({rows, n});
  const ejk::Tensor sizes = ejk::Tensor::of<int32_t>({groups});
  for (int64_t i = 0; i < groups; ++i)
    sizes.data<int32_t>()[i] =
        static_cast<int32_t>(group_begin(rows, groups, i + 1) - group_begin(rows, groups, i));
  const typename Kernel::Rows va = a.strided<T, 2>();
  const typename Kernel::Matrices vb = b.strided<T, 3>();
  const typename Kernel::Sizes vs = sizes.view<const int32_t, 1>().span();
  const typename Kernel::Output vc = c.strided<float, 2>();
  const auto config = config_for(word(words, 6), Kernel{}, va, vb, vs, vc);
  return {[=] {
            static_cast<void>(a), static_cast<void>(b), static_cast<void>(c),
                static_cast<void>(sizes), Kernel{}.run(config, va, vb, vs, vc);
          },
          ejk::to_json(config.forward)};
}

inline Case make_grouped_matmul(const Words& words) {
  return word(words, 1) == "bf16" ? grouped_case<ejk::BFloat16>(words) : grouped_case<float>(words);
}

// c = a b, row-major and packed.
using Sgemm = std::function<void(int m, int n, int k, const float* a, const float* b, float* c)>;

inline Sgemm sgemm_of(const std::string& library) {
  const bool onednn = library == "onednn";
  const std::string file = onednn                  ? "libdnnl.so.2"
                           : library == "openblas" ? "libopenblas.so.0"
                                                   : "libblis.so.4";
  void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) throw std::runtime_error(dlerror());
  void* function = dlsym(handle, onednn ? "dnnl_sgemm" : "cblas_sgemm");
  if (function == nullptr) throw std::runtime_error(file + " has no sgemm");
  if (onednn) {
    using Function = int (*)(char, char, int64_t, int64_t, int64_t, float, const float*, int64_t,
                             const float*, int64_t, float, float*, int64_t);
    return [f = reinterpret_cast<Function>(function)](int m, int n, int k, const float* a,
                                                      const float* b, float* c) {
      if (f('N', 'N', m, n, k, 1, a, k, b, n, 0, c, n) != 0)
        throw std::runtime_error("dnnl_sgemm failed");
    };
  }
  using Function = void (*)(int, int, int, int, int, int, float, const float*, int, const float*,
                            int, float, float*, int);
  return [f = reinterpret_cast<Function>(function)](int m, int n, int k, const float* a,
                                                    const float* b, float* c) {
    constexpr int row_major = 101, as_it_is = 111;
    f(row_major, as_it_is, as_it_is, m, n, k, 1, a, k, b, n, 0, c, n);
  };
}

// sgemm LIBRARY M N K: LIBRARY openblas, blis or onednn.
inline Case make_sgemm(const Words& words) {
  const int m = static_cast<int>(number(words, 2)), n = static_cast<int>(number(words, 3)),
            k = static_cast<int>(number(words, 4));
  const Sgemm sgemm = sgemm_of(word(words, 1));
  const ejk::Tensor a = random_tensor<float>({m, k}), b = random_tensor<float>({k, n});
  const ejk::Tensor c = ejk::Tensor::of<float>({m, n});
  return {[=] { sgemm(m, n, k, a.data<float>(), b.data<float>(), c.data<float>()); }};
}

// grouped_sgemm LIBRARY GROUPS ROWS N K: one product after the other.
inline Case make_grouped_sgemm(const Words& words) {
  const int64_t groups = number(words, 2), rows = number(words, 3), n = number(words, 4),
                k = number(words, 5);
  const Sgemm sgemm = sgemm_of(word(words, 1));
  const ejk::Tensor a = random_tensor<float>({rows, k}), b = random_tensor<float>({groups, k, n});
  const ejk::Tensor c = ejk::Tensor::of<float>({rows, n});
  return {[=] {
    for (int64_t i = 0; i < groups; ++i) {
      const int64_t first = group_begin(rows, groups, i), last = group_begin(rows, groups, i + 1);
      if (first < last)
        sgemm(static_cast<int>(last - first), static_cast<int>(n), static_cast<int>(k),
              a.data<float>() + first * k, b.data<float>() + i * k * n,
              c.data<float>() + first * n);
    }
  }};
}

}  // namespace bench
