// SPDX-License-Identifier: Apache-2.0
// Guards in difficult hosts, and journals of processes that were killed.
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ejk/config.h>

#include "guard/child_cgroup.h"
#include "guard/guard.h"
#include "store/crash_journal.h"
#include "store_fixture.h"

namespace ejk {
namespace {

using namespace ejk::testing;
using namespace ejk::detail;
using ::testing::HasSubstr;

AnyConfig config(int value) { return make_config(value); }

// Allocates a little, as kernels do; config n does acts[n] before.
struct Busy : Trial {
  std::map<int, std::function<void()>> acts;
  std::vector<int> left;
  void reset() override { left.assign(64, -1); }
  void run(const AnyConfig& c) override {
    const int n = c.as<int>();
    if (const auto act = acts.find(n); act != acts.end()) act->second();
    left = std::vector<int>(1000, n);
  }
  bool run_reference() override { return false; }
  std::vector<OutputBytes> outputs() override {
    return {{DType::int32, std::vector<std::byte>(left.size() * sizeof(int))}};
  }
};

GuardLimits quick() {
  GuardLimits limits;
  limits.min_deadline_seconds = 0.3, limits.control_deadline_seconds = 2;
  return limits;
}

GuardLimits patient() {
  GuardLimits limits;
  limits.min_deadline_seconds = limits.control_deadline_seconds = 60;
  return limits;
}

std::vector<Finding> findings(Guard& guard, const std::vector<int>& values) {
  std::vector<AnyConfig> configs;
  for (int v : values) configs.push_back(config(v));
  std::vector<Finding> found(values.size());
  guard.run(configs, [&](size_t i, Finding f) {
    found.at(i) = std::move(f);
    return true;
  });
  return found;
}

// All kinds that a host's handling of SIGCHLD could confuse.
void expect_all_kinds_are_told() {
  Busy trial;
  trial.acts[1] = [] { ::raise(SIGSEGV); };
  trial.acts[2] = [] { ::_exit(3); };
  trial.acts[3] = [] {
    volatile unsigned x = 0;
    for (;;) x = x + 1;
  };
  trial.acts[5] = [] { std::exit(3); };
  Guard guard(trial, quick());
  EXPECT_TRUE(guard.prove(config(0)).passed()) << guard.why_not();
  const auto found = findings(guard, {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(found[0].rejection, Rejection::crashed) << found[0].why;
  EXPECT_EQ(found[1].rejection, Rejection::exited) << found[1].why;
  EXPECT_EQ(found[2].rejection, Rejection::timed_out) << found[2].why;
  EXPECT_TRUE(found[3].passed()) << found[3].why;
  EXPECT_EQ(found[4].rejection, Rejection::exited) << found[4].why;
  EXPECT_TRUE(found[5].passed()) << found[5].why;
}

TEST(GuardFaults, AHostThatIgnoresSigchldIsNoProblem) {
  const auto before = ::signal(SIGCHLD, SIG_IGN);
  expect_all_kinds_are_told();
  ::signal(SIGCHLD, before);
}

TEST(GuardFaults, AHostThatReapsAllChildrenIsNoProblem) {
  const auto before = ::signal(SIGCHLD, [](int) {
    const int saved = errno;
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    errno = saved;
  });
  expect_all_kinds_are_told();
  ::signal(SIGCHLD, before);
}

TEST(GuardFaults, AHostWithoutStandardFilesIsNoProblem) {
  EXPECT_TRUE(child_succeeded(start_child([] {
    for (int fd : {0, 1, 2}) ::close(fd);
    Busy trial;
    Guard guard(trial, quick());
    if (!guard.prove(config(0)).passed()) return false;
    trial.acts[1] = [] { std::fputs("x\n", stderr), std::abort(); };
    const auto found = findings(guard, {1, 2});
    return found[0].sentence() == "crashed: SIGABRT (x)" && found[1].passed();
  })));
}

TEST(GuardFaults, ThreadsThatAllocateWhileTheHostForksRejectNoCandidate) {
  std::atomic<bool> stop = false;
  std::vector<std::jthread> others;
  for (int i = 0; i < 3; ++i)
    others.emplace_back([&] {
      static std::mutex mutex;
      while (!stop) {
        std::ostringstream text;
        for (int k = 0; k < 20; ++k) text << k << std::string(static_cast<size_t>(k) * 50, 'x');
        const std::lock_guard lock(mutex);
        std::vector<std::string> kept(50, text.str());
      }
    });
  Busy trial;
  GuardLimits limits;
  limits.min_deadline_seconds = 5;
  Guard guard(trial, limits);
  EXPECT_TRUE(guard.prove(config(0)).passed()) << guard.why_not();
  for (int i = 0; i < 100; ++i)
    for (const Finding& f : findings(guard, {1})) EXPECT_TRUE(f.passed()) << f.why;
  stop = true;
}

// As with a lock that a thread of the host held at the fork.
struct HangsOnce : Busy {
  std::atomic<int>* const resets = static_cast<std::atomic<int>*>(
      ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ~HangsOnce() override { ::munmap(resets, 4096); }
  void reset() override {
    while (*resets == 0 && ++*resets == 1) ::pause();
    Busy::reset();
  }
};

TEST(GuardFaults, AChildThatHangsOutsideOfARunIsReplaced) {
  HangsOnce trial;
  GuardLimits limits = quick();
  limits.own_seconds = 0.5;
  Guard guard(trial, limits);
  EXPECT_TRUE(guard.prove(config(0)).passed()) << guard.why_not();
  EXPECT_TRUE(findings(guard, {1})[0].passed());
}

TEST(GuardFaults, TwoThreadsMayGuardAtOnce) {
  std::vector<std::jthread> hosts;
  std::atomic<int> passed = 0, crashed = 0;
  for (int i = 0; i < 2; ++i)
    hosts.emplace_back([&] {
      Busy trial;
      trial.acts[1] = [] { ::raise(SIGSEGV); };
      GuardLimits limits;
      limits.min_deadline_seconds = 5;
      Guard guard(trial, limits);
      guard.prove(config(0));
      for (int k = 0; k < 10; ++k)
        for (const Finding& f : findings(guard, {2, 1, 3}))
          passed += f.passed(), crashed += f.rejection == Rejection::crashed;
    });
  hosts.clear();
  EXPECT_EQ(passed, 40);
  EXPECT_EQ(crashed, 20);
}

TEST(GuardFaults, WhereNothingCanBeForkedNothingIsRejected) {
  EXPECT_TRUE(as_nobody([] {
    const rlimit none{0, 0};
    if (::setrlimit(RLIMIT_NPROC, &none) != 0) return false;
    Busy trial;
    Guard guard(trial, quick());
    guard.prove(config(0));
    const auto found = findings(guard, {1, 2});
    std::fprintf(stderr, "%s; %s\n", guard.why_not().c_str(), found[0].why.c_str());
    return !guard.usable() && found[0].rejection == Rejection::unknown &&
           found[1].rejection == Rejection::unknown;
  }));
}

TEST(GuardFaults, WithoutRoomForOutputsNothingIsRejected) {
  EXPECT_TRUE(child_succeeded(start_child([] {
    const rlimit small{16, 16};
    ::setrlimit(RLIMIT_FSIZE, &small);
    Busy trial;
    Guard guard(trial, quick());
    const Finding f = guard.prove(config(0));
    return f.rejection == Rejection::unknown || f.passed();
  })));
}

TEST(GuardFaults, AChildThatCrashesBeforeItIsReadyIsNotWaitedFor) {
  struct Crashing final : Busy {
    void arm() override { ::raise(SIGSEGV); }
  } trial;
  Guard guard(trial, quick());
  EXPECT_EQ(guard.prove(config(0)).rejection, Rejection::unknown);
  EXPECT_THAT(guard.why_not(), HasSubstr("did not get ready"));
}

TEST(GuardFaults, AChildDiesWithItsHost) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const pid_t host = start_child([&] {
    Busy trial;
    trial.acts[0] = [&] { ::write(ends[1], "x", 1) == 1 ? ::pause() : 0; };
    GuardLimits limits;
    limits.min_deadline_seconds = 60, limits.control_deadline_seconds = 60;
    Guard(trial, limits).prove(config(0));
    return true;
  });
  char byte;
  EXPECT_EQ(::read(ends[0], &byte, 1), 1);  // it runs
  ::kill(host, SIGKILL);
  ::waitpid(host, nullptr, 0);
  ::close(ends[1]);
  EXPECT_EQ(::read(ends[0], &byte, 1), 0);  // no process holds the other end any more
  ::close(ends[0]);
}

// ---- locks of the host -------------------------------------------------------------------------

// A file of the host, locked while it lives.
class LockedFile {
 public:
  LockedFile() : fd_(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600)) {
    EXPECT_EQ(::write(fd_, "abcd", 4), 4);
    EXPECT_EQ(::lseek(fd_, 2, SEEK_SET), 2);
    EXPECT_EQ(::flock(fd_, LOCK_EX | LOCK_NB), 0);
  }
  ~LockedFile() { close(); }
  LockedFile(const LockedFile&) = delete;
  LockedFile& operator=(const LockedFile&) = delete;
  void close() { ::close(std::exchange(fd_, -1)); }
  int fd() const { return fd_; }
  // Whether another process could have the lock now.
  bool is_free() const {
    const int other = ::open(path_.c_str(), O_RDWR | O_CLOEXEC);
    const bool free = ::flock(other, LOCK_EX | LOCK_NB) == 0;
    ::close(other);
    return free;
  }

 private:
  const Scratch scratch_;
  const std::string path_ = scratch_ / "lock";
  int fd_;
};

TEST(GuardFaults, AChildHoldsNoLockOfItsHost) {
  LockedFile file;
  Busy trial;
  Guard guard(trial, quick());
  const std::vector<AnyConfig> configs{config(1), config(2)};
  bool free = false;
  guard.run(configs, [&](size_t i, const Finding&) {
    if (i == 0) file.close(), free = file.is_free();  // the child lives, and waits for the next
    return true;
  });
  EXPECT_TRUE(free);
}

TEST(GuardFaults, AChildCannotGiveALockOfItsHostAway) {
  const LockedFile file;
  Busy trial;
  trial.acts[1] = [&] { ::flock(file.fd(), LOCK_UN); };
  Guard guard(trial, quick());
  EXPECT_TRUE(findings(guard, {1})[0].passed());
  EXPECT_FALSE(file.is_free());
}

TEST(GuardFaults, ALockedFileCanStillBeReadInAChild) {
  const LockedFile file;
  Busy trial;
  trial.acts[1] = [&] {
    char next = 0;
    if (::read(file.fd(), &next, 1) != 1 || next != 'c') throw std::runtime_error("not c");
  };
  Guard guard(trial, quick());
  EXPECT_TRUE(findings(guard, {1})[0].passed());
}

// ---- processes that a config starts ------------------------------------------------------------

constexpr std::string_view in_a_cgroup = "InACgroup";

// Processes hold an end of a pipe. One that is not ended says so before it leaves.
class Grandchildren : public ::testing::TestWithParam<const char*> {
 protected:
  Grandchildren() { EXPECT_EQ(::pipe2(ends, 0), 0); }
  ~Grandchildren() override { ::close(ends[0]); }

  [[noreturn]] void live_on() const {
    ::sleep(20);
    EXPECT_EQ(::write(ends[1], "x", 1), 1);
    ::_exit(0);
  }
  // In a session of its own, and without a parent.
  void daemonise() const {
    const pid_t first = ::fork();
    if (first == 0) {
      ::setsid();
      if (::fork() == 0) live_on();
      ::_exit(0);
    }
    ::waitpid(first, nullptr, 0);
  }
  // The same by a program that a shell starts.
  void start_daemon(const std::string& first = ":") const {
    const std::string command = "setsid sh -c '" + first + "; sleep 20; echo x >/proc/self/fd/" +
                                std::to_string(ends[1]) + "' >/dev/null 2>&1 &";
    if (std::system(command.c_str()) != 0) throw std::runtime_error("no shell");
  }
  // A shell may be slow to start: only what shall not end gets little time.
  Finding finding_of(std::function<void()> act, GuardLimits limits = patient()) {
    Busy trial;
    trial.acts[1] = std::move(act);
    limits.use_cgroup = GetParam() == in_a_cgroup;
    Guard guard(trial, limits);
    EXPECT_TRUE(guard.prove(config(0)).passed()) << guard.why_not();
    auto found = findings(guard, {2, 1, 3});
    EXPECT_TRUE(found[0].passed()) << found[0].why;
    EXPECT_TRUE(found[2].passed()) << found[2].why;
    return found[1];
  }
  void expect_none_lives() {
    ::close(ends[1]);
    char byte = 0;
    EXPECT_EQ(::read(ends[0], &byte, 1), 0) << "one lived on";
    EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "the host has got a child";
  }

  int ends[2];
};
INSTANTIATE_TEST_SUITE_P(Ended, Grandchildren, ::testing::Values("InACgroup", "ByTheirParents"),
                         [](const auto& way) { return std::string(way.param); });

TEST_P(Grandchildren, ThatLeaveWithEveryRunAreWhyItIsRejected) {
  const Finding f = finding_of([&] { daemonise(); });
  EXPECT_EQ(f.rejection, Rejection::changed_host) << f.why;
  EXPECT_THAT(f.why, HasSubstr("processes"));
  expect_none_lives();
}

TEST_P(Grandchildren, ChildrenOfAShellAreTheReasonOfARejection) {
  const Finding f = finding_of([&] { start_daemon(); });
  EXPECT_EQ(f.rejection, Rejection::changed_host) << f.why;
  expect_none_lives();
}

TEST_P(Grandchildren, ThatLeaveOnceEndWithTheChild) {
  const Finding f = finding_of([&] {
    static const bool once = (start_daemon(), true);
    static_cast<void>(once);
  });
  EXPECT_TRUE(f.passed()) << f.why;
  expect_none_lives();
}

TEST_P(Grandchildren, EndAtTheDeadlineOfACandidateThatHangs) {
  const Finding f = finding_of(
      [&] {
        daemonise();
        start_daemon();
        volatile unsigned x = 0;
        for (;;) x = x + 1;
      },
      quick());
  EXPECT_EQ(f.rejection, Rejection::timed_out) << f.why;
  expect_none_lives();
}

TEST_P(Grandchildren, EndWithACandidateThatCrashes) {
  const Finding f = finding_of([&] {
    daemonise();
    start_daemon();
    ::raise(SIGSEGV);
  });
  EXPECT_EQ(f.rejection, Rejection::crashed) << f.why;
  expect_none_lives();
}

TEST_P(Grandchildren, EndWithACandidateThatExits) {
  const Finding f = finding_of([&] {
    daemonise();
    start_daemon();
    std::exit(3);
  });
  EXPECT_EQ(f.rejection, Rejection::exited) << f.why;
  expect_none_lives();
}

// Without a control group a program whose starter is gone cannot be found.
TEST_P(Grandchildren, EndAlsoIfTheCandidateIsGoneAtOnce) {
  if (GetParam() != in_a_cgroup || !ChildCgroup().made()) GTEST_SKIP() << "there is no group";
  const Finding f = finding_of([&] {
    int ready[2];
    char byte = 0;
    if (::pipe2(ready, 0) != 0) throw std::runtime_error("no pipe");
    start_daemon("echo >/proc/self/fd/" + std::to_string(ready[1]));
    ::_exit(::read(ready[0], &byte, 1) == 1 ? 3 : 4);
  });
  EXPECT_EQ(f.rejection, Rejection::exited) << f.why;
  expect_none_lives();
}

TEST_P(Grandchildren, ThatTakeItsPlaceEndToo) {
  const Finding f = finding_of([&] {
    int ready[2];
    char byte = 0;
    if (::pipe2(ready, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
    if (::fork() != 0) ::_exit(::read(ready[0], &byte, 1) == 1 ? 0 : 1);
    ::setsid();
    EXPECT_EQ(::write(ready[1], "x", 1), 1);
    live_on();
  });
  EXPECT_EQ(f.rejection, Rejection::exited) << f.why;
  expect_none_lives();
}

TEST_P(Grandchildren, AreNotAdoptedByTheHost) {
  int before = -1, after = -1;
  ::prctl(PR_GET_CHILD_SUBREAPER, &before);
  finding_of([&] { daemonise(); });
  ::prctl(PR_GET_CHILD_SUBREAPER, &after);
  EXPECT_EQ(before, after);
  expect_none_lives();
}

TEST_P(Grandchildren, ThatAreWaitedForAreAllowed) {
  const Finding f = finding_of([] {
    const pid_t helper = ::fork();
    if (helper == 0) ::_exit(7);
    int status = 0;
    if (::waitpid(helper, &status, 0) != helper || WEXITSTATUS(status) != 7 ||
        std::system("exit 3") != 3 << 8)
      throw std::runtime_error("helpers do not work");
  });
  EXPECT_TRUE(f.passed()) << f.why;
  expect_none_lives();
}

// Waits for a process that does this; how it ended.
int status_of_helper(void (*act)()) {
  const pid_t helper = ::fork();
  if (helper == 0) act(), ::_exit(99);
  int status = 0;
  if (::waitpid(helper, &status, 0) != helper) throw std::runtime_error("no helper");
  return status;
}

TEST_P(Grandchildren, ThatExitAreNotTakenForIt) {
  const Finding f = finding_of([] {
    if (WEXITSTATUS(status_of_helper([] { std::exit(7); })) != 7 ||
        WEXITSTATUS(status_of_helper([] { std::quick_exit(8); })) != 8)
      throw std::runtime_error("helpers end in another way");
  });
  EXPECT_TRUE(f.passed()) << f.why;
  expect_none_lives();
}

// Some look in this way whether the processor knows an instruction.
TEST_P(Grandchildren, ThatDieAsProbesAreNotTakenForIt) {
  const Finding f = finding_of([] {
    for (void (*die)() : {+[] { static_cast<void>(::raise(SIGILL)); }, +[] { __builtin_trap(); }})
      if (!WIFSIGNALED(status_of_helper(die))) throw std::runtime_error("the probe lived on");
  });
  EXPECT_TRUE(f.passed()) << f.why;
  expect_none_lives();
}

TEST_P(Grandchildren, ThatComeBackFromTheRunDoNotGoOn) {
  const Finding f = finding_of([] { static_cast<void>(::fork()); });
  EXPECT_EQ(f.rejection, Rejection::changed_host) << f.why;
  EXPECT_THAT(f.why, HasSubstr("processes"));
  expect_none_lives();
}

// ---- journals ----------------------------------------------------------------------------------

class KilledTunings : public ::testing::TestWithParam<int> {};

TEST_P(KilledTunings, LeaveASuspectAndNoConvict) {
  const Scratch scratch;
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const pid_t tuning = start_child([&] {
    ::signal(GetParam(), SIG_DFL);  // not that of a sanitizer
    Journal journal(scratch / "store", call_id(1), environment());
    journal.intend(Value(1));
    if (::write(ends[1], "x", 1) == 1) ::pause();
    return true;
  });
  char byte;
  EXPECT_EQ(::read(ends[0], &byte, 1), 1);
  EXPECT_TRUE(Journal(scratch / "store", call_id(1), environment()).suspects().empty());
  ::kill(tuning, GetParam());
  ::waitpid(tuning, nullptr, 0);
  const Journal next(scratch / "store", call_id(1), environment());
  EXPECT_EQ(next.suspects(), (std::map<std::string, int>{{"1", 1}}));
  EXPECT_FALSE(next.condemned(Value(1)));
  ::close(ends[0]), ::close(ends[1]);
}

INSTANTIATE_TEST_SUITE_P(Signals, KilledTunings, ::testing::Values(SIGKILL, SIGINT, SIGSEGV));

TEST(JournalFaults, ManyDeadTuningsAreCountedOnceEachByManyReaders) {
  const Scratch scratch(memory_directory());
  constexpr int dead = 20;
  for (int i = 0; i < dead; ++i) {
    const pid_t tuning = start_child([&] {
      Journal journal(scratch / "store", call_id(1), environment());
      journal.intend(Value(1));
      ::raise(SIGKILL);
      return true;
    });
    ::waitpid(tuning, nullptr, 0);
  }
  std::vector<pid_t> readers;
  for (int i = 0; i < 8; ++i)
    readers.push_back(start_child([&] {
      const Journal journal(scratch / "store", call_id(1), environment());
      return true;
    }));
  for (const pid_t reader : readers) EXPECT_TRUE(child_succeeded(reader));
  const Journal journal(scratch / "store", call_id(1), environment());
  EXPECT_EQ(journal.suspects(), (std::map<std::string, int>{{"1", dead}}));
}

TEST(JournalFaults, AStoreThatMayNotBeWrittenKeepsNothingAndSaysNothing) {
  const Scratch scratch;
  fs::create_directories(scratch / "store");
  fs::permissions(scratch / "store", fs::perms(0555));
  EXPECT_TRUE(as_nobody([&] {
    Warnings warnings;
    Journal journal(scratch / "store", call_id(1), environment(), warnings.sink());
    journal.intend(Value(1));
    journal.done();
    journal.condemn(Value(1), "crashed");
    return warnings.count() == 0 && journal.suspects().empty();
  }));
  EXPECT_TRUE(files_below(scratch / "store").empty());
}

TEST(JournalFaults, AFullDiskIsOneWarning) {
  const Scratch scratch;
  EXPECT_TRUE(child_succeeded(start_child([&] {
    const rlimit small{16, 16};
    ::setrlimit(RLIMIT_FSIZE, &small);
    Warnings warnings;
    Journal journal(scratch / "store", call_id(1), environment(), warnings.sink());
    for (int i = 0; i < 3; ++i) journal.intend(Value(i)), journal.done();
    journal.condemn(Value(1), "crashed");
    return warnings.count() == 1;
  })));
}

}  // namespace
}  // namespace ejk
