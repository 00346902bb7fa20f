// SPDX-License-Identifier: Apache-2.0
// Candidates that leave something changed in the process they run in: they are rejected with what
// they changed, and the host stays as it was.
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <clocale>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <locale>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ejk/ejk.h>

#include "base/file.h"
#include "fakes.h"
#include "faults/tuning_fixture.h"
#include "replay.h"
#include "store_fixture.h"

namespace ejk {
namespace {

using namespace ejk::testing;
using ::testing::AnyOf;
using ::testing::HasSubstr;

// ---- what candidates do ------------------------------------------------------------------------

void sleep_for_ever() {
  for (;;) ::pause();
}

struct Point : std::numpunct<char> {
  char do_decimal_point() const override { return ','; }
};

struct Act {
  void (*act)();
  std::string said;  // in why it was rejected
  bool stays;        // what it did cannot be undone
};

// What belongs to the thread alone.
const std::set<std::string> modes{"round up", "flush", "trap", "block", "speak here"};

const std::map<std::string, Act> acts {
  {"round up", {[] { std::fesetround(FE_UPWARD); }, "the rounding mode", false}},
#if defined(__x86_64__)
      {"flush",
       {[] { __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040); }, "the flush-to-zero mode",
        false}},
#endif
      {"trap", {[] { ::feenableexcept(FE_DIVBYZERO); }, "the floating-point traps", false}},
      {"block",
       {[] {
          sigset_t set;
          ::sigemptyset(&set);
          ::sigaddset(&set, SIGUSR2);
          ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
        },
        "the signal mask", false}},
      {"handle", {[] { ::signal(SIGUSR2, [](int) {}); }, "the handler of SIGUSR2", false}},
      {"go", {[] { EXPECT_EQ(::chdir("/"), 0); }, "the working directory", false}},
      {"mask", {[] { ::umask(0); }, "the umask", false}},
      {"speak", {[] { std::setlocale(LC_ALL, "C.UTF-8"); }, "the locale", false}},
      {"speak C++",
       {[] { std::locale::global(std::locale(std::locale(), new Point)); }, "the locale", false}},
      {"speak here",
       {[] { ::uselocale(::newlocale(LC_ALL_MASK, "C.UTF-8", nullptr)); }, "the thread's locale",
        false}},
      {"set", {[] { ::setenv("EJK_TEST_NEW", "1", 1); }, "the variable EJK_TEST_NEW", false}},
      {"unset", {[] { ::unsetenv("EJK_TEST_OLD"); }, "the variable EJK_TEST_OLD", false}},
      {"close", {[] { ::close(100); }, "the open file 100", true}},
      {"close all", {[] { ::close_range(3, ~0U, 0); }, "the open file", true}},
      {"open",
       {[] { EXPECT_GT(::open("/dev/null", O_RDONLY | O_CLOEXEC), 0); },
        "leaves more open files behind with every run", true}},
      {"start threads",
       {[] { std::thread(sleep_for_ever).detach(); }, "leaves more threads behind with every run",
        true}},
      {"start processes",
       {[] {
          if (::fork() != 0) return;
          ::prctl(PR_SET_PDEATHSIG, SIGKILL);
          sleep_for_ever();
        },
        "leaves more processes behind with every run", true}},
};

// Harmless, although something stays after the first run.
const std::map<std::string, void (*)()> harmless{
    {"good", [] {}},
    {"good too", [] {}},
    {"good: keeps a thread",
     [] {
       static std::thread* const one = new std::thread(sleep_for_ever);
       (void)one;
     }},
    {"good: keeps a file",
     [] {
       static const int file = ::open("/dev/null", O_RDONLY);
       (void)file;
     }},
    {"good: joins its threads", [] { std::jthread([] {}); }},
    {"good: fills a pool",
     [] {
       static int started = 0;
       if (started++ < 12) std::thread(sleep_for_ever).detach();
     }},
    {"good: waits for a process", [] { EXPECT_EQ(std::system("true"), 0); }},
    {"good: puts all back",
     [] {
       const int before = std::fegetround();
       std::fesetround(FE_DOWNWARD);
       std::fesetround(before);
     }},
};

pid_t host = 0;

// y = 2 x; what a config does beside that is its name.
struct Changing {
  static constexpr std::string_view op_id = "changing", version = "1";
  using Config = Does;
  static inline std::vector<Config> offered;
  static inline bool in_host_only = false;
  static inline int after_runs = 0;

  void run(const Config& c, std::span<const float> x, Out<std::span<float>> y) const {
    static int runs = 0;
    for (size_t i = 0; i < x.size(); ++i) (*y)[i] = 2 * x[i];
    if (const auto act = harmless.find(c.does); act != harmless.end()) return act->second();
    if (in_host_only && ::getpid() != host) return;
    if (const auto act = acts.find(c.does); act != acts.end() && runs++ >= after_runs)
      act->second.act();
  }
  Config heuristic_cfg(const Invocation&) const { return {"guess"}; }
  std::vector<Config> candidate_cfgs(const Invocation&) const { return offered; }
};

// ---- what a host is like -----------------------------------------------------------------------

std::string hosts_settings() {
  std::string all = std::to_string(std::fegetround()) + ' ' + std::to_string(::fegetexcept());
#if defined(__x86_64__)
  all += ' ' + std::to_string(__builtin_ia32_stmxcsr() & ~0x3fU);
#endif
  sigset_t mask{};
  ::pthread_sigmask(SIG_BLOCK, nullptr, &mask);
  for (int s = 1; s < NSIG; ++s) {
    struct sigaction action {};
    ::sigaction(s, nullptr, &action);
    all += ::sigismember(&mask, s) == 1 ? '1' : '0';
    all += std::to_string(reinterpret_cast<uintptr_t>(action.sa_handler)) + ' ';
  }
  all += fs::current_path().string() + ' ';
  const mode_t mode = ::umask(077);
  ::umask(mode);
  all += std::to_string(mode) + ' ' + std::setlocale(LC_ALL, nullptr) + ' ';
  all += std::use_facet<std::numpunct<char>>(std::locale()).decimal_point();
  all += std::to_string(reinterpret_cast<uintptr_t>(::uselocale(nullptr))) + '\n';
  std::vector<std::string> variables;
  for (char** v = environ; *v != nullptr; ++v) variables.emplace_back(*v);
  std::sort(variables.begin(), variables.end());
  for (const std::string& v : variables) all += v + '\n';
  return all;
}

std::string hosts_files_and_threads() {
  std::string all;
  for (const char* where : {"/proc/self/fd", "/proc/self/task"})
    for (const std::string& name : base::list_directory(where)) all += name + ' ';
  return all;
}

// ---- tunings in a program of their own ---------------------------------------------------------

class ChangedHost : public ::testing::TestWithParam<std::string> {
 protected:
  // Not where a sanitizer has a thread: what changed could not be told from what it does.
  static bool alone() { return base::list_directory("/proc/self/task").size() == 1; }
  // True if `f` finds nothing wrong in a program of its own, with one thread.
  static bool in_a_program(const std::function<void()>& f) {
    return child_succeeded(start_child([&] {
      host = ::getpid();
      ::setenv("EJK_TEST_OLD", "1", 1);
      ::dup2(STDERR_FILENO, 100);
      f();
      return !::testing::Test::HasFailure();
    }));
  }

  template <class Kernel = Changing>
  Entry tuned(bool guard, const Kernel& kernel = {}) {
    AutotunePolicy policy;
    policy.guard = guard;
    const std::vector<float> x(100, 4);
    std::vector<float> y(100);
    Executor(options_on(scratch / "store", warnings.sink(), policy))(kernel, x, y);
    EXPECT_THAT(y, ::testing::Each(8.f));
    const auto entries = entries_in(scratch / "store");
    EXPECT_EQ(entries.size(), 1U);
    return entries.empty() ? Entry{} : entries[0];
  }

  static void expect_rejected(const Entry& entry, const std::string& name) {
    const Measurement* m = measured(entry, name);
    ASSERT_NE(m, nullptr);
    EXPECT_EQ(m->status, "rejected");
    EXPECT_EQ(m->kind, "changed_host") << m->why;
    EXPECT_THAT(m->why, HasSubstr(acts.at(name).said));
  }
  static void expect_raced(const Entry& entry, const std::string& name) {
    const Measurement* m = measured(entry, name);
    ASSERT_NE(m, nullptr);
    EXPECT_THAT(m->status, AnyOf("ok", "tied", "slower")) << name << ' ' << m->kind << m->why;
  }

  Scratch scratch;
  fakes::WarningLog warnings;
};

TEST_P(ChangedHost, IsWhatACandidateIsRejectedForInItsFirstRun) {
  EXPECT_TRUE(in_a_program([&] {
    Changing::offered = {{"good"}, {GetParam()}, {"good too"}};
    const std::string settings = hosts_settings(), others = hosts_files_and_threads();
    const Entry entry = tuned(true);
    EXPECT_EQ(hosts_settings(), settings);
    EXPECT_EQ(hosts_files_and_threads(), others);
    expect_rejected(entry, GetParam());
    expect_raced(entry, "good"), expect_raced(entry, "good too");
    EXPECT_EQ(entry.evidence.guard, "child");
    EXPECT_TRUE(entry.evidence.complete);
  }));
}

TEST_P(ChangedHost, IsPutBackWhereFirstRunsAreNotGuarded) {
  if (GetParam() == "close all") GTEST_SKIP() << "the test's own files would be closed";
  EXPECT_TRUE(in_a_program([&] {
    if (!alone()) return;
    Changing::offered = {{"good"}, {GetParam()}, {"good too"}};
    const std::string settings = hosts_settings(), others = hosts_files_and_threads();
    const Entry entry = tuned(false);
    EXPECT_EQ(hosts_settings(), settings);
    if (!acts.at(GetParam()).stays) {
      EXPECT_EQ(hosts_files_and_threads(), others);
    }
    expect_rejected(entry, GetParam());
    expect_raced(entry, "good"), expect_raced(entry, "good too");
  }));
}

// What can be undone.
class ChangedSettings : public ChangedHost {};

// What no other thread can have done.
class ChangedModes : public ChangedHost {};

TEST_P(ChangedModes, ArePutBackAlsoBesideOtherThreads) {
  EXPECT_TRUE(in_a_program([&] {
    std::thread(sleep_for_ever).detach();
    Changing::offered = {{"good"}, {GetParam()}, {"good too"}};
    const std::string settings = hosts_settings();
    const Entry entry = tuned(false);
    EXPECT_EQ(hosts_settings(), settings);
    expect_rejected(entry, GetParam());
  }));
}

TEST_P(ChangedSettings, AreFoundInChildrenBesideOtherThreads) {
  EXPECT_TRUE(in_a_program([&] {
    std::thread(sleep_for_ever).detach();
    Changing::offered = {{"good"}, {GetParam()}, {"good too"}};
    const std::string settings = hosts_settings();
    const Entry entry = tuned(true);
    EXPECT_EQ(hosts_settings(), settings);
    expect_rejected(entry, GetParam());
  }));
}

// Config 1 does it, once `begun`.
struct Acting final : Trial {
  explicit Acting(const std::string& name) : act(acts.at(name).act) {}
  void reset() override {}
  void run(const AnyConfig& c) override {
    if (c.as<int>() != 1 || !begun || runs++ < after || acted == most) return;
    ++acted;
    act();
    if (then) then();
    if (throws) throw std::runtime_error("no such block");
  }
  bool run_reference() override { return false; }
  std::vector<OutputBytes> outputs() override { return {}; }

  void (*act)();
  bool begun = true, throws = false;
  int runs = 0, acted = 0, after = 0, most = -1;
  std::function<void()> then;
};

TuneTask task_of(Acting& trial) {
  TuneTask task;
  task.trial = &trial;
  task.candidates = candidate_list({make_config(0), make_config(1), make_config(2)});
  return task;
}

TEST_P(ChangedSettings, ArePutBackInARace) {
  EXPECT_TRUE(in_a_program([&] {
    if (!alone()) return;
    Acting trial(GetParam());
    trial.begun = false;
    TuneTask task = task_of(trial);
    task.on_progress = [&](const TuneProgress& p) {
      trial.begun = trial.begun || p.kind == TuneProgress::Kind::round;
    };
    const auto stopwatch = std::make_shared<replay::ScriptedStopwatch>();
    stopwatch->per_sample = 1e-3;  // all are equally fast: none drops out before it acts
    const std::string settings = hosts_settings();
    const TuneResult result = Tuner(TunerOptions{.stopwatch = stopwatch}).tune(task);
    EXPECT_EQ(hosts_settings(), settings);
    EXPECT_NE(result.winner, 1U);
    EXPECT_EQ(result.candidates.at(1).kind, "changed_host") << result.candidates.at(1).why;
    EXPECT_THAT(result.candidates.at(1).why, HasSubstr(acts.at(GetParam()).said));
    for (const size_t i : {0, 2}) EXPECT_NE(result.candidates.at(i).status, "rejected");
  }));
}

// It behaves until it is warmed up.
TEST_P(ChangedSettings, ArePutBackAfterAWarmUp) {
  EXPECT_TRUE(in_a_program([&] {
    if (!alone()) return;
    Changing::offered = {{"good"}, {GetParam()}};
    Changing::in_host_only = true;
    Changing::after_runs = 50;
    const std::string settings = hosts_settings();
    const Entry entry = tuned(true);
    EXPECT_EQ(hosts_settings(), settings);
    EXPECT_NE(name_of(entry.config), GetParam());
  }));
}

TEST_P(ChangedSettings, ArePutBackAfterARunThatThrew) {
  EXPECT_TRUE(in_a_program([&] {
    if (!alone()) return;
    Acting trial(GetParam());
    trial.throws = true;
    TuneTask task = task_of(trial);
    const std::string settings = hosts_settings();
    for (const bool guard : {true, false}) {
      task.guard = guard;
      const TuneResult result = Tuner().tune(task);
      EXPECT_EQ(hosts_settings(), settings);
      EXPECT_EQ(result.candidates.at(1).kind, "threw");
      EXPECT_NE(result.candidates.at(2).status, "rejected") << result.candidates.at(2).why;
    }
  }));
}

enum class Which { all, undone, of_a_thread };
std::vector<std::string> names_of_acts(Which which) {
  std::vector<std::string> names;
  for (const auto& [name, act] : acts)
    if (which == Which::all || (which == Which::undone && !act.stays) ||
        (which == Which::of_a_thread && modes.contains(name)))
      names.push_back(name);
  return names;
}
std::string as_identifier(const ::testing::TestParamInfo<std::string>& name) {
  std::string id;
  for (const char c : name.param)
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) id += c;
  return id;
}
INSTANTIATE_TEST_SUITE_P(Each, ChangedHost, ::testing::ValuesIn(names_of_acts(Which::all)),
                         as_identifier);
INSTANTIATE_TEST_SUITE_P(Each, ChangedSettings, ::testing::ValuesIn(names_of_acts(Which::undone)),
                         as_identifier);
INSTANTIATE_TEST_SUITE_P(Each, ChangedModes, ::testing::ValuesIn(names_of_acts(Which::of_a_thread)),
                         as_identifier);

using UnchangedHost = ChangedHost;

// The first candidate that runs starts it.
void start_library() {
  static const bool started = [] {
    ::signal(SIGPIPE, SIG_IGN);
    return ::setenv("EJK_TEST_LIBRARY", "started", 1) == 0;
  }();
  EXPECT_TRUE(started);
}
bool library_is_set_up() {
  struct sigaction now {};
  ::sigaction(SIGPIPE, nullptr, &now);
  const char* variable = ::getenv("EJK_TEST_LIBRARY");
  return now.sa_handler == SIG_IGN && variable != nullptr && variable == std::string("started");
}

struct OnLibrary {
  static constexpr std::string_view op_id = "on_library", version = "1";
  using Config = Does;
  static inline bool changes_directory = false, has_heuristic = true;
  static inline int runs = 0;

  void run(const Config&, std::span<const float> x, Out<std::span<float>> y) const {
    ++runs;
    start_library();
    if (changes_directory) static_cast<void>(::chdir(runs % 2 == 0 ? "/" : "/proc"));
    for (size_t i = 0; i < x.size(); ++i) (*y)[i] = 2 * x[i];
  }
  Config heuristic_cfg(const Invocation&) const {
    if (!has_heuristic) throw std::runtime_error("knows nothing");
    return {"guess"};
  }
  std::vector<Config> candidate_cfgs(const Invocation&) const { return {{"one"}, {"two"}}; }
};

TEST_F(UnchangedHost, IsOneInWhichALibraryHasStarted) {
  for (const bool guard : {true, false})
    EXPECT_TRUE(in_a_program([&] {
      if (!alone()) return;
      fs::remove_all(scratch / "store");
      const Entry entry = tuned(guard, OnLibrary{});
      for (const char* name : {"one", "two"}) expect_raced(entry, name);
      EXPECT_TRUE(library_is_set_up());
    })) << guard;
}

TEST_F(UnchangedHost, IsOneInWhichTheReferenceStartedALibrary) {
  EXPECT_TRUE(in_a_program([] {
    struct Referring final : Trial {
      void reset() override {}
      void run(const AnyConfig&) override {}
      bool run_reference() override { return start_library(), true; }
      std::vector<OutputBytes> outputs() override { return {}; }
    } trial;
    TuneTask task;
    task.trial = &trial;
    task.guard = false;
    task.candidates = candidate_list({make_config(0), make_config(1)});
    Tuner().tune(task);
    EXPECT_TRUE(library_is_set_up());
  }));
}

// No candidate is better than the others: later programs must not be told that there is none to
// choose.
TEST_F(ChangedHost, ByAllIsTheKernelsDoingAndNotStored) {
  for (const bool has_heuristic : {true, false})
    EXPECT_TRUE(in_a_program([&] {
      OnLibrary::changes_directory = true, OnLibrary::has_heuristic = has_heuristic;
      const std::vector<float> x(100, 4);
      std::vector<float> y(100);
      Executor executor(options_on(scratch / "store", warnings.sink()));
      const auto call = [&] { executor(OnLibrary{}, x, y); };
      if (!has_heuristic) {
        EXPECT_THROW(call(), Error);
        EXPECT_TRUE(entries_in(scratch / "store").empty());
        return;
      }
      call();
      EXPECT_TRUE(entries_in(scratch / "store").empty());
      OnLibrary::runs = 0;
      call();
      EXPECT_EQ(OnLibrary::runs, 1) << "it was tuned again";
    })) << has_heuristic;
}

// A thread's modes change the results of the program: not even a library may set them.
TEST_F(UnchangedHost, HasItsRoundingWhateverALibraryStartsWith) {
  EXPECT_TRUE(in_a_program([&] {
    if (!alone()) return;
    Acting trial("round up");
    trial.most = 1;
    TuneTask task = task_of(trial);
    task.guard = false;
    const TuneResult result = Tuner().tune(task);
    for (const Measurement& m : result.candidates) EXPECT_NE(m.status, "rejected") << m.why;
    EXPECT_EQ(std::fegetround(), FE_TONEAREST);
  }));
}

// As the handler of a signal would, which may come at any time.
TEST_F(UnchangedHost, IsWhatTheProgramMakesOfItWhenASignalComes) {
  EXPECT_TRUE(in_a_program([&] {
    if (!alone()) return;
    for (int runs = 0; runs < 100'000; runs = 2 * runs + 1) {
      ::unsetenv("EJK_TEST_NEW");
      Acting trial("set");
      trial.after = runs, trial.most = 1;
      TuneTask task = task_of(trial);
      task.guard = false;
      const TuneResult result = Tuner().tune(task);
      for (const Measurement& m : result.candidates) EXPECT_NE(m.status, "rejected") << m.why;
      EXPECT_EQ(::getenv("EJK_TEST_NEW") != nullptr, trial.acted == 1) << runs;
    }
  }));
}

TEST_F(UnchangedHost, IsNotLookedForOnceTheBudgetIsSpent) {
  struct Hurried final : Stopwatch {
    std::shared_ptr<Stopwatch> real = system_stopwatch();
    double ahead = 0;
    double now() override { return real->now() + ahead; }
    Elapsed time(const std::function<void()>& work, Clock finest) override {
      return real->time(work, finest);
    }
    bool beside_other_threads() override { return real->beside_other_threads(); }
  };
  EXPECT_TRUE(in_a_program([] {
    if (!alone()) return;
    const auto stopwatch = std::make_shared<Hurried>();
    Acting trial("open");
    trial.then = [&] { stopwatch->ahead = 1e6; };
    TuneTask task = task_of(trial);
    task.guard = false;
    Tuner(TunerOptions{.stopwatch = stopwatch}).tune(task);
    EXPECT_EQ(trial.acted, 1);
  }));
}

// Who asks for the end gets it: neither a leak nor a change is looked into any further.
TEST_F(UnchangedHost, IsNotLookedForOnceTheTuningIsStopped) {
  for (const char* act : {"open", "set"})
    EXPECT_TRUE(in_a_program([&] {
      if (!alone()) return;
      std::atomic<bool> stop = false;
      Acting trial(act);
      trial.then = [&] { stop = true; };
      TuneTask task = task_of(trial);
      task.guard = false;
      task.stop = &stop;
      Tuner().tune(task);
      EXPECT_EQ(trial.acted, 1);
    })) << act;
}

TEST_F(UnchangedHost, IsWhatPoolsAndLibrariesThatStartOnceLeave) {
  for (const bool guard : {true, false})
    EXPECT_TRUE(in_a_program([&] {
      fs::remove_all(scratch / "store");
      Changing::offered.clear();
      for (const auto& [name, act] : harmless) Changing::offered.push_back({name});
      const Entry entry = tuned(guard);
      for (const auto& [name, act] : harmless) expect_raced(entry, name);
    })) << guard;
}

// Not the candidate's doing, although it happens in every run: it must not be put back.
TEST_F(UnchangedHost, KeepsWhatOtherThreadsOfTheProgramChangeMeanwhile) {
  EXPECT_TRUE(in_a_program([&] {
    static std::atomic<int> turn = 0;  // odd: the other thread's
    static std::atomic<bool> over = false;
    struct Plain final : Trial {
      void reset() override {}
      void run(const AnyConfig&) override {
        const int mine = ++turn;
        turn.notify_all();
        turn.wait(mine);
      }
      bool run_reference() override { return false; }
      std::vector<OutputBytes> outputs() override { return {}; }
    } trial;
    std::jthread other([] {
      for (int last = 0;; last += 2) {
        turn.wait(last);
        if (over) return;
        ::setenv("EJK_TEST_NEW", std::to_string(last).c_str(), 1);
        EXPECT_EQ(::chdir(last % 4 == 0 ? "/" : "/proc"), 0);
        ++turn;
        turn.notify_all();
      }
    });
    TuneTask task;
    task.trial = &trial;
    task.guard = false;
    task.candidates = candidate_list({make_config(0), make_config(1)});
    const TuneResult result = Tuner().tune(task);
    const int last = turn - 2;
    over = true, ++turn;
    turn.notify_all();
    EXPECT_STREQ(::getenv("EJK_TEST_NEW"), std::to_string(last).c_str());
    EXPECT_EQ(fs::current_path(), last % 4 == 0 ? "/" : "/proc");
    for (const Measurement& m : result.candidates) EXPECT_NE(m.status, "rejected") << m.why;
  }));
}

TEST_F(UnchangedHost, IsNotAskedOfFunctionsThatAreOnlyMeasured) {
  EXPECT_TRUE(in_a_program([] {
    EXPECT_GT(Tuner().measure([] { ::setenv("EJK_TEST_NEW", "1", 1); }), 0);
    EXPECT_NE(::getenv("EJK_TEST_NEW"), nullptr);
  }));
}

}  // namespace
}  // namespace ejk
