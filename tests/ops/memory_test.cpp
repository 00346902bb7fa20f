// SPDX-License-Identifier: Apache-2.0
// Operations that do not get the memory they need say so; the program goes on.
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <new>

#include <gtest/gtest.h>

#include <ejk/ops.h>

#include "ops/common.h"

namespace {

using ejk::Tensor;
using ops_test::normals;

// From now on this process gets hardly any more memory.
void limit_memory() {
  size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t bytes = pages * static_cast<size_t>(sysconf(_SC_PAGESIZE)) + (size_t{1} << 20);
  const rlimit limit{bytes, bytes};
  if (setrlimit(RLIMIT_AS, &limit) != 0) std::_Exit(3);
  // Nor what earlier tests gave back, but for a little. The process ends soon.
  void* volatile last = nullptr;
  while (void* const more = std::malloc(size_t{1} << 20)) last = more;
  std::free(last);
}

template <class F>
[[noreturn, maybe_unused]] void end_after(const F& f) {
  limit_memory();
  try {
    f();
  } catch (const std::bad_alloc&) {
    std::fputs("out of memory", stderr);
    std::_Exit(0);
  }
  std::_Exit(1);
}

template <class F>
void expect_out_of_memory(const F& f) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  static_cast<void>(f);
  GTEST_SKIP() << "sanitizers need memory of their own";
#else
  EXPECT_EXIT(end_after(f), testing::ExitedWithCode(0), "out of memory");
#endif
}

TEST(OpsMemory, AttentionThatDoesNotFitIsAnErrorWithAnyNumberOfThreads) {
  const Tensor q = normals({1, 2, 2, 512}, 1), k = normals({1, 8192, 1, 512}, 2);
  for (const int threads : {1, 2})
    expect_out_of_memory([&] {
      ejk::ops::FlashAttention::Config config;
      config.fwd.q_blocksize = 1, config.fwd.kv_blocksize = 8192, config.threads = threads;
      ejk::ops::FlashAttention{}.run(config, q, k, k, {});
    });
}

TEST(OpsMemory, GradientsOfAttentionThatDoNotFitAreAnError) {
  const ejk::ops::FlashAttention kernel;
  const Tensor q = normals({1, 2, 2, 512}, 1), k = normals({1, 4096, 1, 512}, 2);
  const auto [out, residuals] = kernel.fwd_with_residuals({}, q, k, k, {});
  for (const int threads : {1, 2})
    expect_out_of_memory([&] {
      kernel.vjp({.fwd = {}, .bwd = {}, .threads = threads}, residuals, out, out, q, k, k, {});
    });
}

TEST(OpsMemory, DecodingThatDoesNotFitIsAnError) {
  const Tensor q = normals({1, 512, 8}, 1), k = normals({1, 20000, 1, 8}, 2);
  for (const int threads : {1, 2})
    expect_out_of_memory([&] {
      ejk::ops::DecodeAttention{}.run({.splits = 2, .k_block = 20000, .threads = threads}, q, k, k,
                                      {}, {});
    });
}

TEST(OpsMemory, ProductsThatDoNotFitAreAnError) {
  const Tensor a = normals({1, 64, 4096}, 1), b = normals({1, 4096, 1024}, 2);
  const Tensor c = Tensor::of<float>({1, 64, 1024});
  expect_out_of_memory([&] {
    ejk::ops::Matmul<float>::Config config;
    config.forward = {.kc = 4096, .mc = 64, .nc = 1024};
    ejk::ops::Matmul<float>{}.run(config, a.strided<float, 3>(), b.strided<float, 3>(), {},
                                  c.strided<float, 3>());
  });
}

}  // namespace
