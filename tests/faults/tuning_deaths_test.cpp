// SPDX-License-Identifier: Apache-2.0
// Processes that die while they tune, and what the next ones make of it.
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>
#include <new>
#include <string>
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
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

// ---- what all processes see --------------------------------------------------------------------

struct Shared {
  struct Run {
    char config[16];
    pid_t process;
  };
  std::atomic<int> runs{0};  // may be more than are kept
  Run kept[256];
  // The process that shall die in its first run of "fast", and how; -1: of a lack of memory.
  std::atomic<pid_t> victim{0};
  std::atomic<int> signal{0};
};

Shared& shared() {
  static Shared* const all = [] {
    void* pages =
        ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return new (pages) Shared{};
  }();
  return *all;
}

// The runs since the last look, in their order.
std::vector<Shared::Run> take_runs() {
  const auto count = std::min<ptrdiff_t>(shared().runs.exchange(0), std::ssize(shared().kept));
  return {shared().kept, shared().kept + count};
}

std::vector<std::string> names(const std::vector<Shared::Run>& runs) {
  std::vector<std::string> all;
  for (const auto& run : runs)
    if (std::ranges::find(all, run.config) == all.end()) all.emplace_back(run.config);
  return all;  // in the order of first runs
}

// ---- the kernels -------------------------------------------------------------------------------

// As in a destructor: what it throws cannot be caught.
void run_out_of_memory() noexcept { allocate_without_end(); }

// Good candidates, of which "fast" is by far the fastest; "crash" is offered if `deadly`.
template <int Version>
struct Steps {
  static constexpr std::string_view op_id = "steps", version = Version == 1 ? "1" : "2";
  using Config = Does;
  static inline bool deadly = false;

  double run(const Config& c, double x) const {
    note(c.does);
    if (c.does == "fast" && ::getpid() == shared().victim) die();
    if (c.does == "crash") std::abort();
    work(c.does == "fast" || c.does == "crash" ? 2 : 60);
    return 2 * x;
  }
  std::vector<Config> candidate_cfgs(const Invocation&) const {
    if (deadly) return {{"slow"}, {"crash"}, {"fast"}};
    return {{"slow"}, {"fast"}, {"slow too"}};
  }
  Config heuristic_cfg(const Invocation&) const { return {"slow"}; }

 private:
  static void note(const std::string& name) {
    const size_t at = static_cast<size_t>(shared().runs.fetch_add(1));
    if (at >= std::size(shared().kept)) return;
    Shared::Run& run = shared().kept[at];
    std::strncpy(run.config, name.c_str(), sizeof run.config - 1);
    run.process = ::getpid();
  }
  static void die() {
    if (shared().signal < 0) run_out_of_memory();
    ::kill(::getpid(), shared().signal);
    ::pause();
  }
};
using First = Steps<1>;
using Second = Steps<2>;

// Its guess is by far the fastest and kills all processes that run it, or the victim only.
struct Guessing {
  static constexpr std::string_view op_id = "guessing", version = "1";
  using Config = Does;
  static inline bool kills_all = false;

  double run(const Config& c, double x) const {
    if (c.does == "guess" && (kills_all || ::getpid() == shared().victim)) std::abort();
    work(c.does == "guess" ? 2 : 60);
    return 2 * x;
  }
  std::vector<Config> candidate_cfgs(const Invocation&) const {
    return {{"slow"}, {"guess"}, {"slow too"}};
  }
  Config heuristic_cfg(const Invocation&) const { return {"guess"}; }
};

// More than are raced.
struct Many {
  static constexpr std::string_view op_id = "many", version = "1";
  using Config = Does;
  double run(const Config& c, double x) const {
    if (c.does == "crash") std::abort();
    work(c.does == "fast" ? 2 : 60);
    return 2 * x;
  }
  std::vector<Config> candidate_cfgs(const Invocation&) const {
    std::vector<Config> all;
    for (int i = 0; i < 60; ++i) all.push_back({"slow " + std::to_string(i)});
    all[20] = {"crash"}, all[40] = {"fast"};
    return all;
  }
  Config heuristic_cfg(const Invocation&) const { return {"slow 0"}; }
};

// ---- processes ---------------------------------------------------------------------------------

class TuningDeaths : public ::testing::Test {
 protected:
  TuningDeaths() {
    take_runs();
    shared().victim = 0;
    First::deadly = Second::deadly = false;
  }

  // Another process that calls body(executor); how it ended.
  int process(bool guard, const std::function<void(const Executor&)>& body) {
    return process({.guard = guard, .resume_share = 1e9}, body);
  }
  int process(const AutotunePolicy& policy, const std::function<void(const Executor&)>& body) {
    const pid_t child = start_child([&] {
      std::signal(SIGABRT, SIG_DFL);  // not that of a sanitizer
      const rlimit no_core{0, 0};
      ::setrlimit(RLIMIT_CORE, &no_core);
      const auto quiet = [](const std::string&) {};
      SelectorOptions options = scripted_options_on(store(), quiet, policy);
      options.is_busy = [] { return false; };
      body(Executor(std::move(options)));
      return true;
    });
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    return status;
  }
  template <class K = First>
  int calls(bool guard) {
    return process(guard, [](const Executor& e) {
      if (e(K{}, 4.) != 8) std::_Exit(2);
    });
  }
  // A call under `background`, and the tuning that follows in a process of its own.
  int tunes_later() {
    return process({.cache_miss_fallback = Fallback::background, .background_share = 1},
                   [](const Executor& e) {
                     if (e(First{}, 4.) != 8) std::_Exit(2);
                     wait_until([&] { return e.chain().idle(0) == 0; }, "the tuning");
                   });
  }
  template <class K = First>
  int tunes_anew() {
    return process(true, [](const Executor& e) { e.tune(K{}, 4.); });
  }
  static bool well(int status) { return WIFEXITED(status) && WEXITSTATUS(status) == 0; }

  std::string store() const { return scratch / "store"; }
  Entry only_entry() const {
    const auto entries = entries_in(store());
    EXPECT_THAT(entries, SizeIs(1));
    return entries.empty() ? Entry{} : entries[0];
  }
  std::string kind_of_crash(const Entry& entry) {
    const Measurement* m = measured(entry, "crash");
    return m == nullptr ? "" : m->kind;
  }

  Scratch scratch;
};

// ---- deaths that a candidate is innocent of ----------------------------------------------------

// Signals; -1: the memory ends.
class InnocentCandidates : public TuningDeaths, public ::testing::WithParamInterface<int> {
 protected:
  void let_a_process_die(bool guard) {
    if (GetParam() < 0 && sanitized) GTEST_SKIP() << "sanitizers need their addresses";
    const int status = process(guard, [](const Executor& e) {
      shared().signal = GetParam(), shared().victim = ::getpid();
      const rlimit little{size_t{1} << 30, size_t{1} << 30};
      if (GetParam() < 0) ::setrlimit(RLIMIT_AS, &little);
      else std::signal(GetParam(), SIG_DFL);
      e(First{}, 4.);
    });
    ASSERT_TRUE(WIFSIGNALED(status));
    EXPECT_EQ(WTERMSIG(status), GetParam() < 0 ? SIGABRT : GetParam());
    EXPECT_THAT(names(take_runs()), Contains("fast"));
    EXPECT_THAT(entries_in(store()), IsEmpty());
  }
};

TEST_P(InnocentCandidates, AreTriedLastAndGuardedAndMayWin) {
  let_a_process_die(false);
  if (IsSkipped() || HasFatalFailure()) return;
  EXPECT_TRUE(well(calls(true)));
  const auto runs = take_runs();
  EXPECT_THAT(names(runs), ::testing::ElementsAre("slow", "slow too", "fast"));
  const auto first = std::ranges::find(runs, std::string("fast"), &Shared::Run::config);
  const pid_t next = runs.back().process;  // the race is run by the process itself
  EXPECT_NE(first->process, next);
  EXPECT_EQ(name_of(only_entry().config), "fast");
  EXPECT_TRUE(only_entry().evidence.complete);
  EXPECT_THAT(quarantine_list(store()), IsEmpty());
  EXPECT_THAT(files_below(store()), Not(Contains(HasSubstr(".suspects"))));
  EXPECT_THAT(files_below(store()), Not(Contains(HasSubstr(".intent"))));
}

TEST_P(InnocentCandidates, AreTriedLastAlsoIfTheyHadPassedInAChild) {
  let_a_process_die(true);
  if (IsSkipped() || HasFatalFailure()) return;
  EXPECT_TRUE(well(calls(true)));
  EXPECT_THAT(names(take_runs()), ::testing::ElementsAre("slow", "slow too", "fast"));
  EXPECT_EQ(name_of(only_entry().config), "fast");
  EXPECT_THAT(quarantine_list(store()), IsEmpty());
}

TEST_P(InnocentCandidates, GetOneMoreChanceWithoutAGuard) {
  let_a_process_die(false);
  if (IsSkipped() || HasFatalFailure()) return;
  EXPECT_TRUE(well(calls(false)));
  EXPECT_THAT(names(take_runs()), ::testing::ElementsAre("slow", "slow too", "fast"));
  EXPECT_EQ(name_of(only_entry().config), "fast");
  EXPECT_THAT(quarantine_list(store()), IsEmpty());
}

TEST_P(InnocentCandidates, SurviveManyDeaths) {
  for (int i = 0; i < 2; ++i) {
    let_a_process_die(false);
    if (IsSkipped() || HasFatalFailure()) return;
  }
  EXPECT_TRUE(well(calls(false)));  // too risky here, but the call has its answer
  EXPECT_THAT(names(take_runs()), Not(Contains("fast")));
  const Entry cautious = only_entry();
  EXPECT_FALSE(cautious.evidence.complete);
  ASSERT_NE(measured(cautious, "fast"), nullptr);
  EXPECT_EQ(measured(cautious, "fast")->status, "untried");
  EXPECT_THAT(measured(cautious, "fast")->why, HasSubstr("2 processes died"));

  EXPECT_TRUE(well(calls(true)));  // goes on where it can be done in a child
  EXPECT_EQ(name_of(only_entry().config), "fast");
  EXPECT_TRUE(only_entry().evidence.complete);
  EXPECT_THAT(quarantine_list(store()), IsEmpty());
}

TEST_P(InnocentCandidates, AreNotWaitedForAtEveryStart) {
  for (int i = 0; i < 2; ++i) {
    let_a_process_die(false);
    if (IsSkipped() || HasFatalFailure()) return;
  }
  for (int i = 0; i < 2; ++i)
    EXPECT_TRUE(well(calls(false)));  // the second goes on and finds nothing new
  EXPECT_TRUE(only_entry().evidence.complete);
  EXPECT_EQ(measured(only_entry(), "fast")->status, "untried");
  take_runs();
  EXPECT_TRUE(well(calls(false)));
  EXPECT_THAT(take_runs(), ::testing::SizeIs(1));  // the call itself
}

TEST_P(InnocentCandidates, AreLeftOpenByTheBackground) {
  let_a_process_die(false);
  if (IsSkipped() || HasFatalFailure()) return;
  EXPECT_TRUE(well(tunes_later()));
  EXPECT_THAT(names(take_runs()), Not(Contains("fast")));
  const Entry cautious = only_entry();
  EXPECT_FALSE(cautious.evidence.complete);
  ASSERT_NE(measured(cautious, "fast"), nullptr);
  EXPECT_EQ(measured(cautious, "fast")->status, "untried");
  EXPECT_EQ(measured(cautious, "fast")->kind, "");
  EXPECT_THAT(measured(cautious, "fast")->why, HasSubstr("processes that died"));

  EXPECT_TRUE(well(calls(true)));  // goes on where it can be tried
  EXPECT_EQ(name_of(only_entry().config), "fast");
  EXPECT_TRUE(only_entry().evidence.complete);
}

TEST_P(InnocentCandidates, AreNotTunedInTheBackgroundOfEveryProgram) {
  let_a_process_die(false);
  if (IsSkipped() || HasFatalFailure()) return;
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(well(tunes_later()));
  EXPECT_TRUE(only_entry().evidence.complete);
  EXPECT_EQ(measured(only_entry(), "fast")->status, "untried");
}

INSTANTIATE_TEST_SUITE_P(Deaths, InnocentCandidates,
                         ::testing::Values(SIGKILL, SIGINT, SIGTERM, -1));

// ---- a deadly candidate ------------------------------------------------------------------------

class DeadlyCandidate : public TuningDeaths {
 protected:
  DeadlyCandidate() { First::deadly = Second::deadly = true; }
  void let_it_kill_and_be_condemned() {
    const int status = calls(false);
    ASSERT_TRUE(WIFSIGNALED(status));
    EXPECT_EQ(WTERMSIG(status), SIGABRT);
    EXPECT_THAT(quarantine_list(store()), IsEmpty());  // one death proves nothing
    EXPECT_TRUE(well(calls(true)));
    EXPECT_EQ(kind_of_crash(only_entry()), "crashed");
    EXPECT_EQ(name_of(only_entry().config), "fast");
    take_runs();
  }
};

TEST_F(DeadlyCandidate, IsCondemnedByTheNextProcessAndNeverRunAgain) {
  let_it_kill_and_be_condemned();
  const auto records = quarantine_list(store());
  ASSERT_THAT(records, SizeIs(1));
  EXPECT_EQ(records[0].id.op, "steps@v1");
  EXPECT_EQ(name_of(records[0].config), "crash");
  EXPECT_THAT(records[0].why, HasSubstr("SIGABRT"));
  EXPECT_NE(records[0].time, "");

  EXPECT_TRUE(well(calls(true)));  // the stored answer
  EXPECT_TRUE(well(tunes_anew()));
  EXPECT_THAT(names(take_runs()), AllOf(Contains("fast"), Not(Contains("crash"))));
  EXPECT_EQ(kind_of_crash(only_entry()), "quarantined");
  EXPECT_THAT(measured(only_entry(), "crash")->why, HasSubstr("SIGABRT"));
}

TEST_F(DeadlyCandidate, IsNotRunWithoutAGuardEither) {
  let_it_kill_and_be_condemned();
  PersistentCache(store()).erase(only_entry().id);
  EXPECT_TRUE(well(calls(false)));
  EXPECT_THAT(names(take_runs()), Not(Contains("crash")));
  EXPECT_EQ(kind_of_crash(only_entry()), "quarantined");
}

TEST_F(DeadlyCandidate, IsNotRunInTheBackgroundEither) {
  let_it_kill_and_be_condemned();
  PersistentCache(store()).erase(only_entry().id);
  EXPECT_TRUE(well(tunes_later()));
  EXPECT_THAT(names(take_runs()), AllOf(Contains("fast"), Not(Contains("crash"))));
  EXPECT_EQ(kind_of_crash(only_entry()), "quarantined");
  EXPECT_THAT(measured(only_entry(), "crash")->why, HasSubstr("SIGABRT"));
  EXPECT_TRUE(only_entry().evidence.complete);
}

TEST_F(DeadlyCandidate, IsTriedAgainByAnotherVersion) {
  let_it_kill_and_be_condemned();
  EXPECT_TRUE(well(calls<Second>(true)));
  EXPECT_THAT(names(take_runs()), Contains("crash"));
  for (const Entry& entry : entries_in(store())) EXPECT_EQ(kind_of_crash(entry), "crashed");
  const auto records = quarantine_list(store());
  EXPECT_THAT(records, SizeIs(1));  // the second version killed no process
}

TEST_F(DeadlyCandidate, IsTriedAgainAfterTheQuarantineWasCleared) {
  let_it_kill_and_be_condemned();
  EXPECT_EQ(quarantine_clear(store(), "other"), 0u);
  EXPECT_EQ(quarantine_clear(store(), "steps@v2"), 0u);
  EXPECT_EQ(quarantine_clear(store(), "steps@v1"), 2u);  // condemned here, suspect elsewhere
  EXPECT_TRUE(well(tunes_anew()));
  EXPECT_THAT(names(take_runs()), Contains("crash"));
  EXPECT_EQ(kind_of_crash(only_entry()), "crashed");
}

TEST_F(TuningDeaths, ASearchGoesOnWithoutTheCandidateThatCausedThem) {
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(WIFSIGNALED(calls<Many>(false))) << i;
  ASSERT_TRUE(well(calls<Many>(false)));
  const Entry entry = only_entry();
  EXPECT_EQ(name_of(entry.config), "fast");
  const Measurement* crash = measured(entry, "crash");
  ASSERT_NE(crash, nullptr);
  EXPECT_THAT(crash->why, HasSubstr("processes died"));
  const auto untried = std::ranges::count(entry.candidates, "untried", &Measurement::status);
  EXPECT_EQ(untried, 1);
}

// ---- a deadly heuristic ------------------------------------------------------------------------

class DeadlyHeuristic : public TuningDeaths {
 protected:
  int next_process(bool guard, bool victim = true) {
    return process(guard, [victim](const Executor& e) {
      shared().victim = victim ? ::getpid() : 0;
      if (e(Guessing{}, 4.) != 8) std::_Exit(2);
    });
  }
  void expect_left_out_after(int deaths, bool guard) {
    for (int i = 0; i < deaths; ++i) ASSERT_TRUE(WIFSIGNALED(next_process(guard))) << i;
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(well(next_process(guard))) << i;
    const Entry entry = only_entry();
    EXPECT_THAT(name_of(entry.config), HasSubstr("slow"));
    EXPECT_TRUE(entry.evidence.complete);
    const Measurement* guess = measured(entry, "guess");
    ASSERT_NE(guess, nullptr);
    EXPECT_EQ(guess->status, "untried");
    EXPECT_THAT(guess->why, HasSubstr("processes died"));
  }
};

TEST_F(DeadlyHeuristic, IsLeftOutAfterTwoDeathsWithoutAGuard) {
  Guessing::kills_all = true;
  expect_left_out_after(2, false);
}

TEST_F(DeadlyHeuristic, IsLeftOutAfterFourDeathsIfItPassesInChildren) {
  Guessing::kills_all = false;
  expect_left_out_after(4, true);
}

TEST_F(DeadlyHeuristic, ThatWasInnocentHasAnotherChanceWhereThereIsAGuard) {
  Guessing::kills_all = false;
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(WIFSIGNALED(next_process(false))) << i;
  ASSERT_TRUE(well(next_process(false)));
  EXPECT_THAT(name_of(only_entry().config), HasSubstr("slow"));
  EXPECT_FALSE(only_entry().evidence.complete);
  ASSERT_TRUE(well(next_process(true, false)));
  EXPECT_EQ(name_of(only_entry().config), "guess");
  EXPECT_TRUE(only_entry().evidence.complete);
}

}  // namespace
}  // namespace ejk
