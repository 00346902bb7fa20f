// SPDX-License-Identifier: Apache-2.0
// A warm call allocates nothing and makes no system call.
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

#include "fake_device.h"
#include "fakes.h"

namespace {
std::atomic<long> allocations{0};
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define EJK_COUNTS_ALLOCATIONS 1
// Not inlined: the compiler would see a malloc freed by delete and complain.
[[gnu::noinline]] void* operator new(size_t n) {
  ++allocations;
  if (void* p = std::malloc(n)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(size_t n, std::align_val_t a) {
  ++allocations;
  const size_t align = static_cast<size_t>(a);
  if (void* p = std::aligned_alloc(align, (n + align - 1) / align * align)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t, std::align_val_t) noexcept { std::free(p); }
#endif

namespace {

struct Fixed {
  static constexpr std::string_view op_id = "fixed";
  struct Config {
    int block = 1;
  };
  void run(const Config& c, ejk::View<const float, 2> a, ejk::View<float, 2> b, float alpha) const {
    b.data[0] = a.data[0] * alpha + static_cast<float>(c.block);
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const { return {{1}, {2}}; }
};

// Strings, optionals, strides and long keys take the general way.
struct General {
  static constexpr std::string_view op_id = "general";
  struct Config {
    int block = 1;
  };
  int factor = 3;
  void run(const Config&, const ejk::Tensor& a, ejk::AnyView b, std::optional<int> n,
           const std::string& mode, ejk::Keyed<std::array<int, 60>> many,
           ejk::Named<"causal", bool, false> causal) const {
    static_cast<float*>(b.data)[0] =
        static_cast<float>(a.size() + n.value_or(0) + many.value[0] + factor) +
        static_cast<float>(mode.size()) + (causal ? 1.f : 0.f);
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const { return {{1}, {2}}; }
};

// Outputs, and shapes that only is_valid is asked about.
struct Checked {
  static constexpr std::string_view op_id = "checked";
  using Config = Fixed::Config;
  void run(const Config& c, ejk::Out<ejk::View<float, 2>> y,
           ejk::Unkeyed<std::span<float>> scratch) const {
    y->data[0] = scratch.value[0] + static_cast<float>(c.block);
  }
  bool is_valid(const Config&, const ejk::Invocation&) const { return true; }
  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const { return {{1}, {2}}; }
};
struct Shared : Checked {
  static constexpr std::string_view op_id = "shared";
  int key(const ejk::Out<ejk::View<float, 2>>&, const ejk::Unkeyed<std::span<float>>&) const {
    return 0;
  }
};

// Where its arrays live is known at run time.
struct Anywhere {
  static constexpr std::string_view op_id = "anywhere";
  using Config = Fixed::Config;
  struct Tile {
    int rows = 1;
  };
  int run(const Config& c, const ejk::Tensor&, ejk::View<float, 1>) const { return c.block; }
  int run_gpu(const Tile& c, const ejk::Tensor&, ejk::DeviceView<float, 1>) const { return c.rows; }
  Tile heuristic_cfg_gpu(const ejk::Invocation&) const { return {}; }
  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }
};

class WarmPath : public testing::Test {
 protected:
  ejk::SelectorOptions options() {
    ejk::SelectorOptions o;
    o.policy = ejk::AutotunePolicy{};
    o.tuner = std::make_shared<fakes::FakeTuner>();
    return o;
  }
  void call() { call(executor); }
  void call(const ejk::Executor& caller) {
    caller(Fixed{}, ejk::View<const float, 2>{data, {2, 2}}, ejk::View<float, 2>{data, {2, 2}},
           2.f);
    caller(Checked{}, ejk::View<float, 2>{data, {2, 2}}, std::span<float>(data));
    caller(Shared{}, ejk::View<float, 2>{data, {2, 2}}, std::span<float>(data));
    caller(General{}, tensor, other, std::optional<int>(4), mode, many, ejk::kw("causal", true));
    caller(Anywhere{}, tensor, other);
    caller(Anywhere{}, there, there);
    caller(Anywhere{}, there, ejk::device_view<float, 1>(there));
  }

  float data[4] = {};
  ejk::Tensor tensor = ejk::Tensor::of<float>({3, 5}).transposed({1, 0}),
              other = ejk::Tensor::of<float>({9});
  fakes::FakeGpu gpu;
  ejk::Tensor there = other.to(gpu.device);
  std::string mode = "a mode whose name is longer than any small string";
  ejk::Keyed<std::array<int, 60>> many{};
  ejk::Executor executor{options()};
};

TEST_F(WarmPath, AllocatesNothing) {
#ifndef EJK_COUNTS_ALLOCATIONS
  GTEST_SKIP() << "the sanitizer has the allocator";
#endif
  call();
  call();
  const long before = allocations;
  for (int i = 0; i < 1000; ++i) call();
  EXPECT_EQ(allocations, before);
}

// Counts the looks at it: two for each timed call.
struct CountingStopwatch : ejk::Stopwatch {
  double now() override { return ++looks, ejk::system_stopwatch()->now(); }
  ejk::Elapsed time(const std::function<void()>& work, ejk::Clock clock) override {
    return ejk::system_stopwatch()->time(work, clock);
  }
  bool beside_other_threads() override { return ejk::system_stopwatch()->beside_other_threads(); }
  int looks = 0;
};

// Its calls are watched, and always faster than that.
struct LongEvidence : ejk::Tuner {
  explicit LongEvidence(std::shared_ptr<ejk::Stopwatch> stopwatch)
      : Tuner(ejk::TunerOptions{.stopwatch = std::move(stopwatch)}) {}
  ejk::TuneResult tune(const ejk::TuneTask& task) override {
    auto result = fake.tune(task);
    result.evidence.seconds = 1;
    return result;
  }
  fakes::FakeTuner fake;
};

TEST_F(WarmPath, AllocatesNothingForCallsThatAreWatched) {
#ifndef EJK_COUNTS_ALLOCATIONS
  GTEST_SKIP() << "the sanitizer has the allocator";
#endif
  auto watching = options();
  watching.policy->drift_watch = true;
  const auto stopwatch = std::make_shared<CountingStopwatch>();
  watching.tuner = std::make_shared<LongEvidence>(stopwatch);
  const ejk::Executor watched(watching);
  call(watched);
  call(watched);
  const long before = allocations;
  for (int i = 0; i < 10'000; ++i) call(watched);  // some windows of timed calls
  EXPECT_EQ(allocations, before);
  EXPECT_GE(stopwatch->looks, 2 * 3 * 9);
}

// Any system call but the end of the process kills it.
void forbid_system_calls() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
  };
  const sock_fprog program{static_cast<unsigned short>(std::size(filter)), filter};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
    _exit(77);
}

TEST_F(WarmPath, MakesNoSystemCall) {
#ifndef EJK_COUNTS_ALLOCATIONS
  GTEST_SKIP() << "the sanitizer makes its own";
#endif
  call();
  call();
  auto child = [&](bool cheat) {
    const pid_t pid = fork();
    if (pid == 0) {
      forbid_system_calls();
      for (int i = 0; i < 10000; ++i) call();
      if (cheat) static_cast<void>(getppid());
      _exit(0);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    return status;
  };
  const int status = child(false);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) GTEST_SKIP() << "no seccomp here";
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "killed by a forbidden system call";
  EXPECT_TRUE(WIFSIGNALED(child(true))) << "the filter itself does not work";
}

}  // namespace
