// SPDX-License-Identifier: Apache-2.0
// bench/ops: matrix products, ours and those of BLAS libraries that are loaded by name.
#pragma once

#include <dlfcn.h>

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

// sgemm LIBRARY M N K: LIBRARY openblas, blis or onednn.
inline Case make_sgemm(const Words& words) {
  const std::string& library = word(words, 1);
  const int m = static_cast<int>(number(words, 2)), n = static_cast<int>(number(words, 3)),
            k = static_cast<int>(number(words, 4));
  const bool onednn = library == "onednn";
  const std::string file = onednn                  ? "libdnnl.so.2"
                           : library == "openblas" ? "libopenblas.so.0"
                                                   : "libblis.so.4";
  void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) throw std::runtime_error(dlerror());
  void* function = dlsym(handle, onednn ? "dnnl_sgemm" : "cblas_sgemm");
  if (function == nullptr) throw std::runtime_error(file + " has no sgemm");
  const ejk::Tensor a = random_tensor<float>({m, k}), b = random_tensor<float>({k, n});
  const ejk::Tensor c = ejk::Tensor::of<float>({m, n});
  if (onednn) {
    using Sgemm = int (*)(char, char, int64_t, int64_t, int64_t, float, const float*, int64_t,
                          const float*, int64_t, float, float*, int64_t);
    return {[=] {
      const int status = reinterpret_cast<Sgemm>(function)(
          'N', 'N', m, n, k, 1, a.data<float>(), k, b.data<float>(), n, 0, c.data<float>(), n);
      if (status != 0) throw std::runtime_error("dnnl_sgemm failed");
    }};
  }
  using Sgemm = void (*)(int, int, int, int, int, int, float, const float*, int, const float*, int,
                         float, float*, int);
  return {[=] {
    constexpr int row_major = 101, as_it_is = 111;
    reinterpret_cast<Sgemm>(function)(row_major, as_it_is, as_it_is, m, n, k, 1, a.data<float>(), k,
                                      b.data<float>(), n, 0, c.data<float>(), n);
  }};
}

}  // namespace bench
