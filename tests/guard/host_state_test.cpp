// SPDX-License-Identifier: Apache-2.0
// States of threads and processes: what is noticed, put back, and left alone.
#include "guard/host_state.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cfenv>
#include <clocale>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "guard/holdings.h"
#include "store_fixture.h"

namespace ejk::detail {
namespace {

using ejk::testing::child_succeeded;
using ejk::testing::start_child;

TEST(ThreadStates, SayNothingOfWhatAnyOperationDoes) {
  const ThreadState before;
  volatile double zero = 0, inexact = 1. / 3 + 1 / zero;
  static_cast<void>(inexact);
  EXPECT_NE(std::fetestexcept(FE_ALL_EXCEPT), 0);
  EXPECT_EQ(before.put_back(), "");
  EXPECT_NE(std::fetestexcept(FE_ALL_EXCEPT), 0) << "flags are results";
}

TEST(ThreadStates, ArePutBackOnceAndForAll) {
  const ThreadState before;
  std::fesetround(FE_TOWARDZERO);
  sigset_t set;
  ::sigemptyset(&set), ::sigaddset(&set, SIGHUP);
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  EXPECT_EQ(before.put_back(), "the rounding mode, the signal mask");
  EXPECT_EQ(std::fegetround(), FE_TONEAREST);
  ::pthread_sigmask(SIG_BLOCK, nullptr, &set);
  EXPECT_EQ(::sigismember(&set, SIGHUP), 0);
  EXPECT_EQ(before.put_back(), "");
}

TEST(ThreadStates, KeepTheModesThatTheHostHadChosen) {
  std::fesetround(FE_UPWARD);
  const ThreadState before;
  std::fesetround(FE_TONEAREST);
  EXPECT_EQ(before.put_back(), "the rounding mode");
  EXPECT_EQ(std::fegetround(), FE_UPWARD);
  std::fesetround(FE_TONEAREST);
}

#if defined(__x86_64__)
TEST(ThreadStates, SeeBothUnitsOfAnX86) {
  const ThreadState before;
  uint16_t control = 0;
  asm volatile("fnstcw %0" : "=m"(control));
  const uint16_t single = control & static_cast<uint16_t>(~0x300U);
  asm volatile("fldcw %0" : : "m"(single));
  EXPECT_EQ(before.put_back(), "the rounding mode");
  uint16_t now = 0;
  asm volatile("fnstcw %0" : "=m"(now));
  EXPECT_EQ(now, control);
  __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x40);
  EXPECT_EQ(before.put_back(), "the flush-to-zero mode");
  EXPECT_EQ(__builtin_ia32_stmxcsr() & 0x40, 0U);
}
#endif

TEST(ProcessStates, NameEveryVariableOnceAndManyByTheirNumber) {
  ::setenv("EJK_TEST_A", "1", 1), ::setenv("EJK_TEST_B", "1", 1);
  const ProcessState before;
  ::setenv("EJK_TEST_A", "", 1), ::unsetenv("EJK_TEST_B");
  EXPECT_EQ(before.put_back(), "the variable EJK_TEST_A, the variable EJK_TEST_B");
  EXPECT_STREQ(::getenv("EJK_TEST_A"), "1");
  EXPECT_STREQ(::getenv("EJK_TEST_B"), "1");
  for (const char* name : {"EJK_TEST_C", "EJK_TEST_D", "EJK_TEST_E", "EJK_TEST_F"})
    ::setenv(name, "x", 1);
  EXPECT_EQ(before.put_back(), "4 environment variables");
  EXPECT_EQ(::getenv("EJK_TEST_F"), nullptr);
  ::unsetenv("EJK_TEST_A"), ::unsetenv("EJK_TEST_B");
}

TEST(ProcessStates, TakeAnotherOrderOfVariablesForNoChange) {
  ::setenv("EJK_TEST_A", "1", 1), ::setenv("EJK_TEST_B", "1", 1);
  const ProcessState before;
  ::unsetenv("EJK_TEST_A"), ::setenv("EJK_TEST_A", "1", 1);
  EXPECT_EQ(before.put_back(), "");
  ::unsetenv("EJK_TEST_A"), ::unsetenv("EJK_TEST_B");
}

TEST(ProcessStates, LetAnOpenMpRuntimeRegisterItself) {
  const ProcessState before;
  ::setenv("__KMP_REGISTERED_LIB_1", "x", 1);
  EXPECT_EQ(before.put_back(), "");
  EXPECT_NE(::getenv("__KMP_REGISTERED_LIB_1"), nullptr);
  ::unsetenv("__KMP_REGISTERED_LIB_1");
}

TEST(ProcessStates, ALostDirectoryIsReported) {
  const auto here = std::filesystem::current_path();
  std::string gone;
  {
    const ejk::testing::Scratch scratch;
    gone = scratch.path();
    ASSERT_EQ(::chdir(gone.c_str()), 0);
    const ProcessState before;
    ASSERT_EQ(::chdir("/"), 0);
    EXPECT_EQ(before.put_back(), "the working directory");
    EXPECT_EQ(std::filesystem::current_path(), gone);
    std::filesystem::remove_all(gone);
    ASSERT_EQ(::chdir("/"), 0);
    EXPECT_EQ(before.put_back(), "the working directory (which is lost)");
  }
  std::filesystem::current_path(here);
}

TEST(ProcessStates, KeepHandlersWithTheirMasks) {
  struct sigaction mine {};
  mine.sa_handler = [](int) {};
  mine.sa_flags = SA_RESTART;
  ::sigaddset(&mine.sa_mask, SIGHUP);
  struct sigaction original {};
  ::sigaction(SIGUSR1, &mine, &original);
  const ProcessState before;
  EXPECT_EQ(before.put_back(), "");
  ::signal(SIGUSR1, SIG_IGN);
  EXPECT_EQ(before.put_back(), "the handler of SIGUSR1");
  struct sigaction now {};
  ::sigaction(SIGUSR1, &original, &now);
  EXPECT_EQ(now.sa_handler, mine.sa_handler);
  EXPECT_EQ(::sigismember(&now.sa_mask, SIGHUP), 1);
  EXPECT_NE(now.sa_flags & SA_RESTART, 0);
}

TEST(ProcessStates, LeaveAHandlerThatIsCalledOnceAsTheSignalLeftIt) {
  struct sigaction once {};
  once.sa_handler = [](int) {};
  once.sa_flags = static_cast<int>(SA_RESETHAND);
  struct sigaction original {};
  ::sigaction(SIGUSR1, &once, &original);
  const ProcessState before;
  ::raise(SIGUSR1);
  EXPECT_EQ(before.put_back(), "");
  struct sigaction now {};
  ::sigaction(SIGUSR1, &original, &now);
  EXPECT_EQ(now.sa_handler, SIG_DFL);
}

// ---- what a process holds ----------------------------------------------------------------------

TEST(HeldThings, JoinedThreadsAreNotHeld) {
  std::jthread([] {}).join();  // with the first one a sanitizer starts a thread of its own
  for (int i = 0; i < 200; ++i) {
    const Holdings before = current_holdings();
    std::jthread([] {}).join();
    int runs = 0;
    ASSERT_EQ(grows_with_every_run(before, [&] { return ++runs > 0; }), "");
    ASSERT_EQ(runs, 0);
  }
}

TEST(HeldThings, ThatStopGrowingAreKept) {
  EXPECT_TRUE(child_succeeded(start_child([] {
    const Holdings before = current_holdings();
    int runs = 1;
    const auto run = [&] { return ::dup(STDERR_FILENO) >= 0; };
    return run() && grows_with_every_run(before, [&] { return ++runs > 3 || run(); }).empty() &&
           runs == 4;
  })));
}

TEST(HeldThings, ThatGrowWithEveryRunAreNamed) {
  EXPECT_TRUE(child_succeeded(start_child([] {
    const Holdings before = current_holdings();
    const auto run = [] {
      std::thread([] { ::pause(); }).detach();
      return ::dup(STDERR_FILENO) >= 0;
    };
    return run() && grows_with_every_run(before, run) ==
                        "leaves more threads, open files behind with every run";
  })));
}

TEST(HeldThings, AFileThatBecameAnotherOneIsMissing) {
  const int one = ::dup(STDERR_FILENO);
  const OpenFiles files;
  EXPECT_EQ(files.missing(), "");
  const int other = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  EXPECT_EQ(files.missing(), "") << "more of them are no fault";
  ::dup2(other, one);
  EXPECT_EQ(files.missing(), "the open file " + std::to_string(one));
  ::close(one), ::close(other);
  EXPECT_EQ(files.missing(), "the open file " + std::to_string(one));
}

}  // namespace
}  // namespace ejk::detail
