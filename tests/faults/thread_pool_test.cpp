// SPDX-License-Identifier: Apache-2.0
// Programs with a thread pool: its threads do not exist in a forked child, where its users wait for
// ever.
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ejk/ejk.h>

#include "fakes.h"
#include "faults/tuning_fixture.h"
#include "store_fixture.h"

namespace ejk {
namespace {

using namespace ejk::testing;

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// ---- pools -------------------------------------------------------------------------------------

// One worker for the life of the program, without a handler for forks.
class OwnPool {
 public:
  void run_twice(const std::function<void()>& part) {
    std::unique_lock lock(mutex_);
    part_ = &part;
    changed_.notify_all();
    lock.unlock();
    part();
    lock.lock();
    changed_.wait(lock, [&] { return part_ == nullptr; });
  }
  ~OwnPool() {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return stop_ || part_ != nullptr; });
      if (stop_) return;
      (*part_)();
      part_ = nullptr;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void()>* part_ = nullptr;
  bool stop_ = false;
  std::jthread worker_{[this] { work(); }};
};

void run_in_own_pool(const std::function<void()>& part) {
  static OwnPool pool;
  pool.run_twice(part);
}

#ifdef _OPENMP
void run_in_openmp(const std::function<void()>& part) {
#pragma omp parallel num_threads(2)
  part();
}
#endif

using RunTwice = void (*)(const std::function<void()>&);

// ---- the kernels -------------------------------------------------------------------------------

// Runs with more than one thread, and of what may not run here, in all processes. Made before any
// fork.
struct Counts {
  std::atomic<int> in_children{0}, here{0}, dangerous{0}, dangerous_here{0};
};
Counts& counts() {
  static Counts* const all = [] {
    void* page =
        ::mmap(nullptr, sizeof(Counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return new (page) Counts{};
  }();
  return *all;
}
pid_t host = 0;

// It would end this process, or hang it: here it comes back, so that a test can tell.
void be_dangerous(bool crashes_first) {
  const bool first = counts().dangerous++ == 0;
  if (::getpid() == host) ++counts().dangerous_here;
  else if (first && crashes_first) std::abort();
  else
    for (;;) ::pause();
}

struct Threads {
  int threads = 1;
  std::string does = {};
};
// The same, where nothing says that it is a number of threads.
struct Ways {
  int ways = 1;
  std::string does = {};
};
int ways_of(const Threads& c) { return c.threads; }
int ways_of(const Ways& c) { return c.ways; }

// By the real clock, on which threads wait for each other.
void compute() {
  volatile unsigned x = 0;
  for (int i = 0; i < 1000; ++i) x = x + 1;
}

// y = 2 x. Who wins is not looked at: a busy machine lets threads wait for each other.
template <class C>
struct Pooled {
  static constexpr std::string_view op_id = "pooled", version = "1";
  using Config = C;
  static inline RunTwice in_pool = nullptr;
  static inline std::vector<Config> offered;
  static inline Config guess;

  void run(const Config& c, std::span<const float> x, Out<std::span<float>> y) const {
    if (c.does == "crash") std::abort();
    if (c.does == "wait") be_dangerous(false);
    if (c.does == "crash, then wait") be_dangerous(true);
    if (c.does == "be killed" && ::getpid() != host) ::raise(SIGKILL);
    if (ways_of(c) > 1) {
      ++(::getpid() == host ? counts().here : counts().in_children);
      in_pool([] { compute(); });
    } else compute();
    for (size_t i = 0; i < x.size(); ++i) (*y)[i] = (c.does == "be wrong" ? 3.f : 2.f) * x[i];
  }
  std::vector<Config> candidate_cfgs(const Invocation&) const { return offered; }
  Config heuristic_cfg(const Invocation&) const { return guess; }
};

// ---- a program with a pool ---------------------------------------------------------------------

class ThreadPools : public ::testing::TestWithParam<RunTwice> {
 protected:
  ThreadPools() {
    host = ::getpid();
    Pooled<Threads>::in_pool = Pooled<Ways>::in_pool = GetParam();
    GetParam()([] {});  // from here on there is a pool
    counts().in_children = counts().here = counts().dangerous = counts().dangerous_here = 0;
  }

  template <class K>
  Entry tuned(const K& kernel) {
    const std::vector<float> x(100, 4);
    std::vector<float> y(100);
    Executor(options_on(scratch / "store", warnings.sink()))(kernel, x, y);
    EXPECT_THAT(y, ::testing::Each(8.f));
    const auto entries = entries_in(scratch / "store");
    EXPECT_THAT(entries, SizeIs(1));
    return entries.empty() ? Entry{} : entries[0];
  }
  static void expect_all_raced(const Entry& entry) {
    for (const Measurement& m : entry.candidates) {
      EXPECT_THAT(m.status, AnyOf("ok", "tied", "slower")) << stable_json(m.config) << m.why;
      EXPECT_GT(m.samples, 0) << stable_json(m.config);
    }
  }

  Scratch scratch;
  fakes::WarningLog warnings;
};

TEST_P(ThreadPools, LeaveThreadedCandidatesInTheRace) {
  Pooled<Threads>::offered = {{1, "a"}, {2, "a"}, {1, "b"}, {2, "b"}, {2, "c"}, {2, "d"}};
  Pooled<Threads>::guess = {1, "a"};
  const Entry entry = tuned(Pooled<Threads>{});
  expect_all_raced(entry);
  EXPECT_TRUE(entry.evidence.complete);
  EXPECT_EQ(entry.evidence.guard, "mixed");
  EXPECT_EQ(counts().in_children, 1) << "one that waits is enough to know of the others";
  EXPECT_THAT(warnings.take(), ElementsAre(AllOf(HasSubstr("[pooled@v1]"),
                                                 HasSubstr("only wait in a child process"))));
}

TEST_P(ThreadPools, AreWaitedForOnceByEachConfigThatDoesNotSayThreads) {
  Pooled<Ways>::offered = {{1, "a"}, {2, "a"}, {1, "b"}, {2, "b"}, {2, "c"}};
  Pooled<Ways>::guess = {1, "a"};
  const Entry entry = tuned(Pooled<Ways>{});
  expect_all_raced(entry);
  EXPECT_TRUE(entry.evidence.complete);
  EXPECT_EQ(counts().in_children, 3);
}

TEST_P(ThreadPools, LeaveAThreadedHeuristicInTheRace) {
  Pooled<Threads>::offered = {{1, "a"}, {2, "a"}, {2, "b"}, {1, "be wrong"}};
  Pooled<Threads>::guess = {2, "a"};
  const Entry entry = tuned(Pooled<Threads>{});
  EXPECT_GT(entry.evidence.heuristic_seconds, 0);
  EXPECT_EQ(entry.candidates[3].kind, "wrong") << "compared with the heuristic";
  for (size_t i : {0, 1, 2}) EXPECT_GT(entry.candidates[i].samples, 0) << i;
  EXPECT_TRUE(entry.evidence.complete);
  EXPECT_EQ(entry.evidence.guard, "mixed");
}

TEST_P(ThreadPools, AreNoReasonToRunTheOthersUnguarded) {
  Pooled<Threads>::offered = {{2, "a"}, {1, "crash"}, {1, "a"}, {2, "b"}};
  Pooled<Threads>::guess = {1, "a"};
  const Entry entry = tuned(Pooled<Threads>{});
  EXPECT_EQ(entry.candidates[1].kind, "crashed");
  for (size_t i : {0, 2, 3}) EXPECT_GT(entry.candidates[i].samples, 0) << i;
}

TEST_P(ThreadPools, ThatEveryConfigNeedsEndTheGuardSoon) {
  Pooled<Ways>::guess = {2, "guess"};
  Pooled<Ways>::offered.clear();
  for (char name = 'a'; name <= 'j'; ++name) Pooled<Ways>::offered.push_back({2, {name}});
  const Entry entry = tuned(Pooled<Ways>{});
  expect_all_raced(entry);
  EXPECT_TRUE(entry.evidence.complete);
  EXPECT_EQ(entry.evidence.guard, "none");
  EXPECT_LE(counts().in_children, 4);
  EXPECT_THAT(warnings.take(), ElementsAre(HasSubstr("first runs are not guarded")));
}

TEST_P(ThreadPools, AreNoReasonToRunWhatCrashedInAChildAndWaitedWhenItWasRepeated) {
  Pooled<Ways>::offered = {{1, "a"}, {1, "crash, then wait"}};
  Pooled<Ways>::guess = {1, "a"};
  const Entry entry = tuned(Pooled<Ways>{});
  EXPECT_EQ(counts().dangerous, 2);
  EXPECT_EQ(counts().dangerous_here, 0);
  EXPECT_EQ(entry.candidates[1].status, "untried");
  EXPECT_THAT(entry.candidates[1].why, HasSubstr("SIGABRT"));
  EXPECT_FALSE(entry.evidence.complete);
}

TEST_P(ThreadPools, AreNotWhatAConfigWithOneThreadWaitsFor) {
  Pooled<Threads>::offered = {{1, "a"}, {1, "wait"}, {2, "a"}};
  Pooled<Threads>::guess = {1, "a"};
  const Entry entry = tuned(Pooled<Threads>{});
  EXPECT_EQ(counts().dangerous_here, 0);
  EXPECT_EQ(entry.candidates[1].status, "untried");
  EXPECT_THAT(entry.candidates[1].why, HasSubstr("waited"));
  EXPECT_GT(entry.candidates[2].samples, 0);
  EXPECT_FALSE(entry.evidence.complete);
}

// What crashes here is remembered, as it is without a guard.
struct Crashing : Pooled<Threads> {
  void run(const Config& c, std::span<const float> x, Out<std::span<float>> y) const {
    Pooled::run(c, x, y);
    if (c.does == "crash here" && ::getpid() == host) std::_Exit(7);
  }
};

class DeathsWithThreadPools : public ThreadPools {
 protected:
  DeathsWithThreadPools() {
    Pooled<Threads>::offered = {{1, "a"}, {2, "crash here"}};
    Pooled<Threads>::guess = {1, "a"};
  }
  // The exit code of another program, with a pool of its own, that tunes.
  int exit_code() {
    const pid_t program = start_child([&] {
      host = ::getpid();
      static OwnPool pool;
      Pooled<Threads>::in_pool = [](const std::function<void()>& part) { pool.run_twice(part); };
      tuned(Crashing{});
      return true;
    });
    int status = 0;
    EXPECT_EQ(::waitpid(program, &status, 0), program);
    EXPECT_TRUE(WIFEXITED(status));
    return WEXITSTATUS(status);
  }
};

TEST_P(DeathsWithThreadPools, AreInTheJournal) {
  EXPECT_EQ(exit_code(), 7);
  EXPECT_THAT(files_below(scratch / "store"), Contains(HasSubstr(".intent")));
}

TEST_P(DeathsWithThreadPools, AreNotRepeatedByWhatOnlyWaitsInAChild) {
  EXPECT_EQ(exit_code(), 7);
  EXPECT_EQ(exit_code(), 0);
  const auto entries = entries_in(scratch / "store");
  ASSERT_THAT(entries, SizeIs(1));
  EXPECT_EQ(entries[0].candidates[1].status, "untried");
  EXPECT_THAT(entries[0].candidates[1].why, HasSubstr("died"));
  EXPECT_FALSE(entries[0].evidence.complete);
}

// Not a matter of threads: whatever keeps the guard from trying one keeps the entry open.
TEST_P(ThreadPools, ATuningThatTheGuardKeptFromSomeIsNotComplete) {
  Pooled<Threads>::offered = {{1, "a"}, {1, "be killed"}};
  Pooled<Threads>::guess = {1, "a"};
  for (int process = 0; process < 2; ++process) {
    const Entry entry = tuned(Pooled<Threads>{});
    EXPECT_EQ(entry.candidates[1].status, "untried");
    EXPECT_THAT(entry.candidates[1].why, HasSubstr("SIGKILL"));
    EXPECT_FALSE(entry.evidence.complete);
  }
}

std::vector<RunTwice> pools() {
  return {
      run_in_own_pool,
#ifdef _OPENMP
      run_in_openmp,
#endif
  };
}
std::string name_of_pool(const ::testing::TestParamInfo<RunTwice>& pool) {
  return pool.index == 0 ? "Own" : "OpenMP";
}
INSTANTIATE_TEST_SUITE_P(Each, ThreadPools, ::testing::ValuesIn(pools()), name_of_pool);
INSTANTIATE_TEST_SUITE_P(Each, DeathsWithThreadPools, ::testing::Values(run_in_own_pool),
                         name_of_pool);

}  // namespace
}  // namespace ejk
