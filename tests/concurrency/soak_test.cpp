// SPDX-License-Identifier: Apache-2.0
// Memory comes back: whatever threads tune, overlay, put and clear, a program ends where it began.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstddef>
#include <cstdlib>
#include <new>
#include <thread>

#include "fakes.h"
#include "sanitized.h"

namespace {
std::atomic<long> live_bytes{0};
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
namespace {
// Every block has its size in front: what malloc makes of a size depends on what was freed before.
void* allocate(size_t n, size_t align) {
  auto* block =
      static_cast<std::byte*>(std::aligned_alloc(align, (n + 2 * align - 1) / align * align));
  if (block == nullptr) throw std::bad_alloc();
  *reinterpret_cast<size_t*>(block) = n;
  live_bytes += static_cast<long>(n);
  return block + align;
}
void deallocate(void* p, size_t align) {
  if (p == nullptr) return;
  std::byte* block = static_cast<std::byte*>(p) - align;
  live_bytes -= static_cast<long>(*reinterpret_cast<size_t*>(block));
  std::free(block);
}
constexpr size_t usual = alignof(std::max_align_t);
size_t larger(std::align_val_t align) { return std::max(usual, static_cast<size_t>(align)); }
}  // namespace
// Not inlined: the compiler would see a malloc freed by delete and complain.
[[gnu::noinline]] void* operator new(size_t n) { return allocate(n, usual); }
[[gnu::noinline]] void* operator new(size_t n, std::align_val_t a) {
  return allocate(n, larger(a));
}
[[gnu::noinline]] void operator delete(void* p) noexcept { deallocate(p, usual); }
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept { deallocate(p, usual); }
[[gnu::noinline]] void operator delete(void* p, std::align_val_t a) noexcept {
  deallocate(p, larger(a));
}
[[gnu::noinline]] void operator delete(void* p, size_t, std::align_val_t a) noexcept {
  deallocate(p, larger(a));
}
#endif

namespace {

using fakes::Show;

class Soak : public testing::Test {
 protected:
  static constexpr size_t shapes = 20;

  ejk::SelectorOptions options() {
    ejk::SelectorOptions o = setup.options();
    o.on_event = nullptr;
    o.forbid_reautotune = false;
    return o;
  }
  static float call(const ejk::Executor& executor, size_t size) {
    const std::vector<float> x(size);
    std::vector<float> y(size);
    executor(Show{}, x, y);
    return y[0];
  }
  static void put(const ejk::Executor& executor, ejk::ConfigCache& cache, size_t size, int block) {
    const std::vector<float> x(size);
    std::vector<float> y(size);
    const auto inv = executor.describe(Show{}, x, y);
    cache.put(inv.device->fingerprint, inv.op(), inv.call_key(), Show::Config{block});
  }

  // One thread's share: every shape is called warm and cold, under an overlay and without.
  void work(const ejk::Executor& executor, const ejk::ConfigCache& overlay, int rounds) {
    for (int i = 0; i < rounds; ++i) {
      for (size_t size = 1; size <= shapes; ++size) call(executor, size);
      {
        const auto scope = ejk::overlay_cache(overlay);
        if (call(executor, 1) != 100) ++wrong;
      }
      put(executor, executor.chain().cache(), 1 + static_cast<size_t>(i) % shapes, i);
      for (size_t size = 1; size <= shapes; ++size) call(executor, size);
      executor.chain().cache().clear();
    }
  }
  // What is left when four threads have worked and everything but one shape is forgotten.
  long left_after(const ejk::Executor& executor, const ejk::ConfigCache& overlay, int rounds) {
    {
      std::barrier all_at_once(4);
      std::vector<std::jthread> threads;
      for (int t = 0; t < 4; ++t)
        threads.emplace_back([&] {
          call(executor, 1);
          all_at_once.arrive_and_wait();
          work(executor, overlay, rounds);
        });
    }
    executor.chain().cache().clear();
    call(executor, 1);
    EXPECT_EQ(executor.chain().warm().entries(), 1u);
    EXPECT_EQ(executor.chain().cache().size(), 1u);
    return live_bytes;
  }

  fakes::Setup setup;
  std::atomic<int> wrong{0};
};

TEST_F(Soak, FourThreadsThatTuneOverlayPutAndClearEndWhereTheyBegan) {
  const ejk::Executor executor(options());
  ejk::ConfigCache overlay;
  put(executor, overlay, 1, 100);
  call(executor, 1);
  const long began = left_after(executor, overlay, 2);
  EXPECT_EQ(left_after(executor, overlay, sanitized ? 20 : 100), began);
  EXPECT_EQ(wrong, 0);
}

// Sizes of five digits: texts of one length.
TEST_F(Soak, NewShapesWithoutEndTakeTheMemoryOfSoMany) {
  ejk::SelectorOptions o = options();
  o.policy->allow_autotune = false;
  o.most_shapes = 64;
  const ejk::Executor executor(o);
  size_t size = 10000;
  const auto left_after_new_shapes = [&](size_t count) {
    for (const size_t end = size + count; size < end; ++size) {
      call(executor, size);
      EXPECT_LE(executor.chain().warm().entries(), 64u);
      EXPECT_LE(executor.chain().cache().size(), 64u);
    }
    return live_bytes.load();
  };
  const long began = left_after_new_shapes(16 * 20);  // a quarter at a time goes
  EXPECT_EQ(left_after_new_shapes(16 * 100), began);
}

TEST_F(Soak, ShapesThatAreTunedOrFailToBeDoNotPileUpEither) {
  ejk::SelectorOptions o = options();
  o.most_shapes = 64;
  const ejk::Executor executor(o);
  size_t size = 10000;
  const auto left_after_new_shapes = [&](size_t count) {
    for (const size_t end = size + count; size < end; ++size) {
      setup.tuner->outcome = size % 2 == 0 ? ejk::Outcome::tuned : ejk::Outcome::failed;
      call(executor, size);
      setup.warnings.take();
    }
    return live_bytes.load();
  };
  const long began = left_after_new_shapes(16 * 150);  // by then it has warned of enough
  EXPECT_EQ(left_after_new_shapes(16 * 50), began);
}

}  // namespace
