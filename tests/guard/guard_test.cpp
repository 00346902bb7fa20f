// SPDX-License-Identifier: Apache-2.0
// Candidates that crash, hang, throw and run wild beside good ones, which must not suffer.
#include "guard/guard.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ejk/ejk.h>

#include "fakes.h"
#include "store_fixture.h"

namespace ejk {
namespace {

using namespace detail;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// ---- fakes -------------------------------------------------------------------------------------

AnyConfig config(int value) { return make_config(value); }

// Config n does acts[n], if there is one, and then leaves n.
class ActingTrial : public Trial {
 public:
  std::map<int, std::function<void()>> acts;
  std::function<void()> reference;
  std::vector<int> left;

  void reset() override { left = {-1}; }
  void run(const AnyConfig& c) override {
    const int n = c.as<int>();
    if (const auto act = acts.find(n); act != acts.end()) act->second();
    left.assign(left.size(), n);
  }
  bool run_reference() override {
    if (reference) reference(), left = {100};
    return static_cast<bool>(reference);
  }
  std::vector<OutputBytes> outputs() override {
    const auto* bytes = reinterpret_cast<const std::byte*>(left.data());
    return {{DType::int32, {bytes, bytes + left.size() * sizeof(int)}}};
  }
};

GuardLimits quick() {
  GuardLimits limits;
  limits.min_deadline_seconds = 0.3, limits.control_deadline_seconds = 2;
  return limits;
}

int left_in(const Finding& f) {
  int value = -2;
  if (f.outputs.size() == 1 && f.outputs[0].bytes.size() >= sizeof value)
    std::memcpy(&value, f.outputs[0].bytes.data(), sizeof value);
  return value;
}

void spin_for_ever() {
  volatile unsigned x = 0;
  for (;;) x = x + 1;
}

// Config 0 is the control.
class Guarding : public ::testing::Test {
 protected:
  // The findings of these configs, in their order.
  std::vector<Finding> run(std::vector<int> values, bool with_control = true,
                           GuardLimits limits = quick()) {
    Guard guard(trial, limits);
    if (with_control) {
      const Finding control = guard.prove(config(0));
      EXPECT_TRUE(guard.usable()) << guard.why_not();
      EXPECT_EQ(left_in(control), 0);
    }
    std::vector<AnyConfig> configs;
    for (int v : values) configs.push_back(config(v));
    std::vector<Finding> findings(values.size());
    size_t told = 0;
    guard.run(configs, [&](size_t i, Finding f) {
      findings.at(i) = std::move(f);
      ++told;
      return true;
    });
    EXPECT_EQ(told, values.size());
    return findings;
  }

  // What happens to config 1, between two good ones that must pass.
  Finding finding_of(std::function<void()> act, GuardLimits limits = quick()) {
    trial.acts[1] = std::move(act);
    std::vector<Finding> found = run({2, 1, 3}, true, limits);
    expect_passed(found[0], 2), expect_passed(found[2], 3);
    return found[1];
  }

  static void expect_passed(const Finding& f, int value) {
    EXPECT_TRUE(f.passed()) << f.why;
    EXPECT_EQ(left_in(f), value);
    EXPECT_EQ(f.why, "");
  }

  void TearDown() override {
    EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "a child is left";
    EXPECT_EQ(errno, ECHILD);
  }

  ActingTrial trial;
};

// ---- each kind ---------------------------------------------------------------------------------

TEST_F(Guarding, ARunIsGivenUpWhenTheTuningEnds) {
  trial.acts[1] = spin_for_ever;
  GuardLimits patient;
  patient.min_deadline_seconds = 600;
  bool proven = false;
  int asked = 0;
  Guard guard(trial, patient, [&] { return proven && ++asked > 2; });
  EXPECT_TRUE(guard.prove(config(0)).passed());
  proven = true;
  std::vector<AnyConfig> configs{config(1), config(2)};
  int told = 0;
  guard.run(configs, [&](size_t i, const Finding& f) {
    EXPECT_EQ(i, 0u);
    EXPECT_EQ(f.rejection, Rejection::unknown);
    EXPECT_EQ(f.why, "the tuning ended before it did");
    return ++told < 1;
  });
  EXPECT_EQ(told, 1);
}

TEST_F(Guarding, GoodCandidatesPassWithTheirOutputsAndTimes) {
  trial.acts[2] = [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); };
  const auto found = run({1, 2, 3});
  for (int i = 0; i < 3; ++i) expect_passed(found[static_cast<size_t>(i)], i + 1);
  EXPECT_GE(found[1].seconds, 0.02);
  EXPECT_TRUE(trial.left.empty()) << "the host's own trial was run";
}

TEST_F(Guarding, ASegmentationFaultIsACrash) {
  const Finding f = finding_of([] { ::raise(SIGSEGV); });
  EXPECT_EQ(f.rejection, Rejection::crashed);
  EXPECT_TRUE(f.fatal_signal);
  EXPECT_EQ(f.sentence(), "crashed: SIGSEGV");
  const Finding null = finding_of([] { *static_cast<volatile int*>(nullptr) = 1; });
  EXPECT_EQ(null.rejection, sanitized ? null.rejection : Rejection::crashed) << null.why;
  EXPECT_FALSE(null.passed());
}

TEST_F(Guarding, EveryFatalSignalIsNamed) {
  for (const auto& [signal, name] : std::map<int, std::string>{
           {SIGBUS, "SIGBUS"}, {SIGFPE, "SIGFPE"}, {SIGILL, "SIGILL"}, {SIGSYS, "SIGSYS"}}) {
    const Finding f = finding_of([s = signal] { ::raise(s); });
    EXPECT_EQ(f.rejection, Rejection::crashed);
    EXPECT_TRUE(f.fatal_signal);
    EXPECT_EQ(f.sentence(), "crashed: " + name);
  }
}

TEST_F(Guarding, AnAbortTellsTheLastLineOfStderr) {
  const Finding f = finding_of([] {
    std::fputs("first line\nassertion `x' failed\n\n", stderr);
    std::abort();
  });
  EXPECT_EQ(f.rejection, Rejection::crashed);
  EXPECT_EQ(f.sentence(), "crashed: SIGABRT (assertion `x' failed)");
}

TEST_F(Guarding, AHostsOwnSignalHandlersDoNotRunInTheChild) {
  struct sigaction mine {
  }, before{};
  mine.sa_handler = [](int) { ::_exit(0); };
  ::sigaction(SIGABRT, &mine, &before);
  EXPECT_EQ(finding_of([] { std::abort(); }).rejection, Rejection::crashed);
  ::sigaction(SIGABRT, &before, nullptr);
}

TEST_F(Guarding, ABlockedFatalSignalStillEndsTheChild) {
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, &before);
  EXPECT_EQ(finding_of([] { ::raise(SIGFPE); }).rejection, Rejection::crashed);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

TEST_F(Guarding, AnExceptionIsTold) {
  const Finding f = finding_of([] { throw std::runtime_error("block too large"); });
  EXPECT_EQ(f.rejection, Rejection::threw);
  EXPECT_FALSE(f.fatal_signal);
  EXPECT_EQ(f.sentence(), "threw: block too large");
  EXPECT_EQ(finding_of([] { throw 5; }).rejection, Rejection::threw);
  EXPECT_EQ(finding_of([] { throw std::string(100'000, 'x'); }).why.substr(0, 3), "xxx");
}

TEST_F(Guarding, AnExceptionInAThreadOfItsOwnIsACrash) {
  const Finding f =
      finding_of([] { std::thread([] { throw std::runtime_error("from a thread"); }).join(); });
  EXPECT_EQ(f.rejection, Rejection::crashed);
  EXPECT_THAT(f.why, HasSubstr("from a thread"));
}

struct TellsAtExit {
  ~TellsAtExit() {
    if (armed) ::kill(armed, SIGKILL);
  }
  static inline pid_t armed = 0;
} const host_static;

TEST_F(Guarding, ExitingIsTold) {
  TellsAtExit::armed = 0;
  const Finding f = finding_of([] { std::exit(3); });
  EXPECT_EQ(f.rejection, Rejection::exited);
  EXPECT_EQ(f.why, "called exit(3)");
  EXPECT_EQ(finding_of([] { ::_exit(4); }).why, "called _exit(4)");
  EXPECT_EQ(finding_of([] { ::_exit(0); }).rejection, Rejection::exited);
  EXPECT_EQ(finding_of([] { std::quick_exit(5); }).why, "called quick_exit");
  // UBSan takes the catch of a forced unwinding for a null reference, and may tell that for long.
  if (!sanitized) {
    const Finding thread = finding_of([] { ::pthread_exit(nullptr); });
    EXPECT_EQ(thread.rejection, Rejection::exited);
    EXPECT_EQ(thread.why, "ended its thread");
  }
}

TEST_F(Guarding, NoStaticDestructorOfTheHostRunsInAChild) {
  TellsAtExit::armed = ::getpid();  // a destructor that ran would kill this process
  EXPECT_EQ(finding_of([] { std::exit(0); }).rejection, Rejection::exited);
  TellsAtExit::armed = 0;
}

TEST_F(Guarding, AnEndlessLoopRunsOutOfTime) {
  const Finding f = finding_of(spin_for_ever);
  EXPECT_EQ(f.rejection, Rejection::timed_out) << f.why;
  EXPECT_THAT(f.why, StartsWith("ran longer than 0."));
  EXPECT_FALSE(f.fatal_signal);
}

// In a host without other threads there is nothing it could wait for.
TEST_F(Guarding, ACandidateThatSleepsForEverDoesNotPass) {
  const Finding f = finding_of([] { ::pause(); });
  EXPECT_THAT(f.rejection, ::testing::AnyOf(Rejection::timed_out, Rejection::unknown)) << f.why;
}

TEST_F(Guarding, ADeadlineFollowsTheControl) {
  trial.acts[0] = [] { std::this_thread::sleep_for(std::chrono::milliseconds(50)); };
  trial.acts[1] = [] { std::this_thread::sleep_for(std::chrono::milliseconds(500)); };
  GuardLimits limits = quick();  // 0.3 s at least
  limits.deadline_over_control = 1000;
  expect_passed(run({1}, true, limits)[0], 1);
}

TEST_F(Guarding, AllocatingWithoutEndIsStopped) {
  if (sanitized) GTEST_SKIP() << "sanitizers need terabytes of addresses themselves";
  GuardLimits limits = quick();
  limits.memory_bytes = 256 << 20, limits.min_deadline_seconds = 5;
  const Finding f = finding_of(
      [] {
        for (std::vector<std::vector<char>> all;;) all.emplace_back(8 << 20, 'x');
      },
      limits);
  EXPECT_EQ(f.rejection, Rejection::out_of_memory);
  EXPECT_FALSE(f.fatal_signal);
}

// Else a limit of here and now would be remembered as a crash.
TEST_F(Guarding, MemoryThatRunsOutInAThreadIsNotACrash) {
  if (sanitized) GTEST_SKIP() << "sanitizers need terabytes of addresses themselves";
  const Finding f =
      finding_of([] { std::thread([] { std::vector<char> huge(size_t{1} << 46); }).join(); });
  EXPECT_EQ(f.rejection, Rejection::out_of_memory);
  EXPECT_FALSE(f.fatal_signal);
  EXPECT_THAT(f.why, HasSubstr("bad_alloc"));
}

TEST_F(Guarding, AnEndlessRecursionIsACrash) {
  if (sanitized) GTEST_SKIP() << "too slow";
  std::function<int(int)> deeper = [&](int n) {
    volatile char room[4096] = {};
    return n < 0 ? room[0] : deeper(n + 1) + room[1];
  };
  EXPECT_EQ(finding_of([&] { deeper(0); }).sentence(), "crashed: SIGSEGV");
}

TEST_F(Guarding, ProcessesThatAChildStartedEndWithIt) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  finding_of([&] {
    if (::fork() == 0) ::pause();  // holds the pipe open
    spin_for_ever();
  });
  ::close(ends[1]);
  char byte;
  EXPECT_EQ(::read(ends[0], &byte, 1), 0);
  ::close(ends[0]);
}

// ---- good ones ---------------------------------------------------------------------------------

TEST_F(Guarding, GoodOnesAmongAllKindsOfBadOnesPass) {
  trial.acts[1] = [] { ::raise(SIGSEGV); };
  trial.acts[3] = [] { throw 1; };
  trial.acts[5] = [] { ::_exit(1); };
  trial.acts[7] = spin_for_ever;
  trial.acts[9] = [] { std::abort(); };
  const auto found = run({1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  for (size_t i = 0; i < found.size(); i += 2) EXPECT_FALSE(found[i].passed());
  for (size_t i = 1; i < found.size(); i += 2) expect_passed(found[i], static_cast<int>(i) + 1);
}

// Damage that one leaves behind in a shared child must not be blamed on its neighbour.
TEST_F(Guarding, TheVictimOfANeighbourPasses) {
  static bool damaged = false;
  trial.acts[1] = [] { damaged = true; };
  trial.acts[2] = [] {
    if (damaged) ::raise(SIGSEGV);
  };
  const auto found = run({1, 2, 3});
  expect_passed(found[0], 1), expect_passed(found[1], 2), expect_passed(found[2], 3);
}

TEST_F(Guarding, ACandidateThatCrashesNowAndThenIsNotJudged) {
  int* runs = static_cast<int*>(
      ::mmap(nullptr, sizeof(int), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  trial.acts[1] = [runs] {
    if (++*runs == 1) ::raise(SIGSEGV);
  };
  const auto found = run({1, 2});
  EXPECT_EQ(found[0].rejection, Rejection::unknown);
  EXPECT_THAT(found[0].why, HasSubstr("not when it was repeated"));
  expect_passed(found[1], 2);
  ::munmap(runs, sizeof(int));
}

TEST_F(Guarding, ACandidateThatIsKilledFromOutsideIsNotJudged) {
  const Finding f = finding_of([] { ::kill(::getpid(), SIGKILL); });
  EXPECT_EQ(f.rejection, Rejection::unknown);
  EXPECT_FALSE(f.fatal_signal);
  EXPECT_EQ(f.why, "was killed by SIGKILL");
}

TEST_F(Guarding, CtrlCDoesNotReachTheChild) {
  const Finding f = finding_of([] { ::raise(SIGINT); });
  expect_passed(f, 1);
}

TEST_F(Guarding, HugeOutputsComeBack) {
  trial.acts[1] = [this] { trial.left.resize(4 << 20); };
  GuardLimits limits;
  limits.min_deadline_seconds = 10;  // sanitizers are slow at filling it
  const auto found = run({1, 2}, true, limits);
  ASSERT_TRUE(found[0].passed()) << found[0].why;
  ASSERT_EQ(found[0].outputs[0].bytes.size(), size_t{16} << 20);
  EXPECT_EQ(left_in(found[0]), 1);
  expect_passed(found[1], 2);
}

TEST_F(Guarding, CandidatesMayUseThreads) {
  static std::atomic<int> sum;
  const auto add_in_threads = [] {
    sum = 0;
    std::vector<std::jthread> workers;
    for (int i = 0; i < 4; ++i) workers.emplace_back([] { ++sum; });
    workers.clear();
    if (sum != 4) throw std::runtime_error("not all ran");
  };
  for (int n : {0, 1, 2}) trial.acts[n] = add_in_threads;
  const auto found = run({1, 2});
  expect_passed(found[0], 1), expect_passed(found[1], 2);
}

TEST_F(Guarding, ChattyCandidatesPass) {
  const Finding f = finding_of([] {
    for (int i = 0; i < 20'000; ++i) std::fputs("a line for nobody to read\n", stderr);
    std::puts("and one more");
  });
  expect_passed(f, 1);
}

TEST_F(Guarding, NothingBufferedIsPrintedTwice) {
  const ejk::testing::Scratch scratch;
  FILE* file = std::fopen((scratch / "out").c_str(), "w");
  std::fputs("once\n", file);
  const auto found = finding_of([] { std::exit(0); });
  std::fclose(file);
  EXPECT_EQ(ejk::testing::read_text(scratch / "out"), "once\n");
}

// ---- without a control -------------------------------------------------------------------------

TEST_F(Guarding, WithoutAControlTheFirstThatPassesIsIt) {
  trial.acts[1] = [] { ::raise(SIGSEGV); };
  trial.acts[2] = spin_for_ever;
  GuardLimits limits = quick();
  limits.control_deadline_seconds = 0.5;
  const auto found = run({1, 2, 3, 4}, false, limits);
  EXPECT_EQ(found[0].rejection, Rejection::crashed);
  EXPECT_EQ(found[1].rejection, Rejection::timed_out);
  expect_passed(found[2], 3), expect_passed(found[3], 4);
}

TEST_F(Guarding, WithoutAnyThatPassesOnlyWaitingSaysNothing) {
  trial.acts[1] = [] { ::raise(SIGSEGV); };
  trial.acts[2] = spin_for_ever;
  trial.acts[3] = [] { throw 1; };
  trial.acts[4] = [] { ::pause(); };
  GuardLimits limits = quick();
  limits.control_deadline_seconds = 0.5;
  const auto found = run({1, 2, 3, 4}, false, limits);
  EXPECT_EQ(found[0].rejection, Rejection::crashed);
  EXPECT_EQ(found[1].rejection, Rejection::timed_out) << found[1].why;
  EXPECT_EQ(found[2].rejection, Rejection::threw);
  EXPECT_EQ(found[3].rejection, Rejection::unknown) << found[3].why;
}

TEST_F(Guarding, WithoutAControlASlowOneStillGetsItsTime) {
  trial.acts[1] = [] { throw 1; };
  trial.acts[2] = trial.acts[3] = [] {
    volatile unsigned x = 0;
    for (const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(800);
         std::chrono::steady_clock::now() < end;)
      x = x + 1;
  };
  const auto found = run({1, 2, 3}, false);  // quick() gives 0.3 s at first
  EXPECT_EQ(found[0].rejection, Rejection::threw);
  expect_passed(found[1], 2), expect_passed(found[2], 3);
}

TEST_F(Guarding, TheCallerCanStop) {
  Guard guard(trial, quick());
  guard.prove(config(0));
  const std::vector<AnyConfig> configs{config(1), config(2), config(3)};
  int told = 0;
  guard.run(configs, [&](size_t, const Finding&) { return ++told < 2; });
  EXPECT_EQ(told, 2);
  EXPECT_THROW(guard.run(configs, [](size_t, const Finding&) -> bool { throw 1; }), int);
}

TEST_F(Guarding, TheReferenceRunsInAChildToo) {
  Guard guard(trial, quick());
  EXPECT_FALSE(guard.reference());
  guard.rest();  // the next child sees what has changed here
  trial.reference = [] {};
  const auto found = guard.reference();
  ASSERT_TRUE(found);
  EXPECT_EQ(left_in(*found), 100);
  guard.rest();
  trial.reference = [] { ::raise(SIGSEGV); };
  EXPECT_EQ(guard.reference()->rejection, Rejection::crashed);
}

// ---- guards that cannot be used ----------------------------------------------------------------

TEST_F(Guarding, AControlThatNeedsTheHostsThreadsMakesTheGuardUnusable) {
  std::mutex mutex;
  std::condition_variable asked, answered;
  int question = 0, answer = 0;
  std::jthread pool([&](const std::stop_token& stop) {
    std::unique_lock lock(mutex);
    while (!stop.stop_requested()) {
      asked.wait_for(lock, std::chrono::milliseconds(20), [&] { return question != answer; });
      answer = question;
      answered.notify_all();
    }
  });
  trial.acts[0] = [&] {
    std::unique_lock lock(mutex);
    ++question;
    asked.notify_all();
    answered.wait(lock, [&] { return answer == question; });
  };
  trial.run(config(0));  // works here
  Guard guard(trial, quick());
  EXPECT_FALSE(guard.prove(config(0)).passed());
  EXPECT_FALSE(guard.usable());
  EXPECT_THAT(guard.why_not(), HasSubstr("the control does not pass in a child process"));
  trial.left.clear();
}

// ---- real kernels ------------------------------------------------------------------------------

// What the guard finds about the candidates of a call.
class GuardingTuner : public Tuner {
 public:
  TuneResult tune(const TuneTask& task) override {
    Guard guard(*task.trial, quick());
    if (task.heuristic) guard.prove(*task.heuristic);
    why_not = guard.why_not();
    std::vector<AnyConfig> configs;
    for (uint64_t i = 0; i < task.candidates->size(); ++i)
      configs.push_back(task.candidates->config(i));
    found.resize(configs.size());
    guard.run(configs, [&](size_t i, Finding f) {
      found.at(i) = std::move(f);
      return true;
    });
    TuneResult result;
    result.outcome = Outcome::tuned, result.winner = 0;
    result.candidates.resize(task.candidates->size());
    return result;
  }
  std::vector<Finding> found;
  std::string why_not;
};

// Adds 1 to y[i + offset] for all i: past an end if the offset is not 0.
struct Shifted {
  static constexpr std::string_view op_id = "shifted", version = "1";
  struct Config {
    int offset = 0;
    bool spoil = false;
  };
  void run(const Config& c, std::span<const float> x, std::span<float> y) const {
    volatile float* to = y.data() + c.offset;
    for (size_t i = 0; i < y.size(); ++i) to[i] = to[i] + 1;
    if (c.spoil) *const_cast<volatile float*>(x.data()) = 7;
  }
  Config heuristic_cfg(const Invocation&) const { return {}; }
  std::vector<Config> candidate_cfgs(const Invocation&) const {
    return {{0}, {1}, {0}, {1024}, {-1}, {-2048}, {0, true}, {0}};
  }
};

// The same on tensors. A const one may be written: it shares its elements.
struct ShiftedTensors : Shifted {
  static constexpr std::string_view op_id = "shifted_tensors";
  void run(const Config& c, const Tensor& x, Tensor& y) const {
    Shifted::run(c, x.view<float, 2>().span(), y.view<float, 2>().span());
  }
};

template <class Kernel, class Array>
std::vector<Finding> findings_of(const Kernel& kernel, const Array& x, Array& y) {
  const auto tuner = std::make_shared<GuardingTuner>();
  SelectorOptions options;
  options.policy = AutotunePolicy{};
  options.tuner = tuner;
  options.persistent = std::make_shared<PersistentCache>(std::vector<std::shared_ptr<Store>>{});
  Executor{options}(kernel, x, y);
  EXPECT_EQ(tuner->why_not, "");
  return tuner->found;
}

std::vector<Finding> findings_of_shifted(size_t size) {
  std::vector<float> x(size), y(size);
  const auto found = findings_of(Shifted{}, x, y);
  EXPECT_EQ(y[0], 1);
  EXPECT_EQ(x[0], 0);
  return found;
}

void expect_bounds_are_watched(size_t size) {
  const std::vector<Finding> found = findings_of_shifted(size);
  ASSERT_EQ(found.size(), 8u);
  for (size_t good : {0, 2, 7}) EXPECT_TRUE(found[good].passed()) << found[good].why;
  for (size_t bad : {1, 3, 4, 5, 6})
    EXPECT_EQ(found[bad].rejection, Rejection::out_of_bounds) << bad << ": " << found[bad].why;
  const std::string y = " argument 1 (float32[" + std::to_string(size) + "])";
  EXPECT_THAT(found[1].why, HasSubstr(" past the end of" + y));
  EXPECT_THAT(found[3].why, HasSubstr("past the end of" + y));
  EXPECT_THAT(found[4].why, HasSubstr(" before the begin of" + y));
  EXPECT_THAT(found[6].why, HasSubstr("wrote into argument 0 (float32["));
}

TEST(GuardedKernels, RunningPastTheEndsOfArraysIsFound) {
  expect_bounds_are_watched(1000);  // with room between its ends and the pages around it
  expect_bounds_are_watched(10);
}

// Looks at what a reset does to an in-out array of 5.
class ResettingTuner : public Tuner {
 public:
  TuneResult tune(const TuneTask& task) override {
    task.trial->reset();
    float* first = nullptr;
    for (const auto array : task.trial->memory())
      if (auto* at = reinterpret_cast<float*>(array.data()); *at == 5) first = at;
    *first = 7;
    task.trial->reset();
    without_run = *first;
    task.trial->run(task.candidates->config(0));
    task.trial->reset();
    after_run = *first;
    TuneResult result;
    result.outcome = Outcome::tuned, result.winner = 0;
    result.candidates.resize(task.candidates->size());
    return result;
  }
  float without_run = 0, after_run = 0;
};

TEST(GuardedKernels, AnArrayIsCopiedAgainOnlyAfterARun) {
  const auto tuner = std::make_shared<ResettingTuner>();
  SelectorOptions options;
  options.policy = AutotunePolicy{};
  options.tuner = tuner;
  std::vector<float> x(10), y(10, 5);
  Executor{options}(Shifted{}, x, y);
  EXPECT_EQ(tuner->without_run, 7);
  EXPECT_EQ(tuner->after_run, 5);
}

TEST(GuardedKernels, RunningPastTheEndsOfTensorsIsFound) {
  const Tensor x = Tensor::of<float>({10, 100});
  Tensor y = Tensor::of<float>({10, 100});
  const std::vector<Finding> found = findings_of(ShiftedTensors{}, x, y);
  ASSERT_EQ(found.size(), 8u);
  for (size_t good : {0, 2, 6, 7}) EXPECT_TRUE(found[good].passed()) << found[good].why;
  for (size_t bad : {1, 3, 4, 5})
    EXPECT_EQ(found[bad].rejection, Rejection::out_of_bounds) << bad << ": " << found[bad].why;
  EXPECT_THAT(found[1].why, HasSubstr(" past the end of argument 1 (float32[10, 100])"));
}

TEST(GuardedKernels, TheFirstBytePastAnArrayThatEndsWithAPageIsFound) {
  const std::vector<Finding> found = findings_of_shifted(1024);
  EXPECT_TRUE(found[0].passed());
  EXPECT_EQ(found[1].rejection, Rejection::out_of_bounds);
  EXPECT_TRUE(found[1].fatal_signal);
  EXPECT_EQ(found[1].why, "read or wrote 1 byte past the end of argument 1 (float32[1024])");
  EXPECT_EQ(found[4].why, "read or wrote 4 bytes before the begin of argument 1 (float32[1024])");
}

}  // namespace
}  // namespace ejk
