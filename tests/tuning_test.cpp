// SPDX-License-Identifier: Apache-2.0
// What tunings promise: they go on, keep to their budget, search large sets, tell what they do.
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ejk/autotune.h>

#include "fakes.h"
#include "store_fixture.h"

namespace {

using ejk::Origin;
using ejk::Outcome;
using Kind = ejk::TuneProgress::Kind;
using std::chrono::milliseconds;
using testing::AnyOf;
using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::IsSupersetOf;
using testing::Not;
using testing::SizeIs;
using testing::StartsWith;
using testing::UnorderedElementsAre;

// ---- fakes -------------------------------------------------------------------------------------

// Work that takes time in proportion to `units`, about 1 us each.
void spin(int units) {
  volatile unsigned x = 1;
  for (int i = 0; i < units * 400; ++i) x = x * 1664525u + 1013904223u;
}

// Numbers that child processes write too.
class SharedCounts {
 public:
  static constexpr size_t size = 1024;
  SharedCounts()
      : counts_(
            static_cast<std::atomic<int>*>(mmap(nullptr, size * sizeof(int), PROT_READ | PROT_WRITE,
                                                MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  std::atomic<int>& operator[](int i) { return counts_[static_cast<size_t>(i)]; }
  void clear() {
    for (size_t i = 0; i < size; ++i) counts_[i] = 0;
  }

 private:
  std::atomic<int>* counts_;
};
SharedCounts runs;  // by units

// Its config is its amount of work, unless a test says otherwise. What is offered may change from
// one program to the next, which its key does not know.
struct Work {
  static constexpr std::string_view op_id = "work", version = "1";
  struct Config {
    int units = 0;
  };
  static inline std::vector<int> offered;
  static inline int heuristic = 0;
  static inline std::function<void(int)> work = spin;
  static inline std::function<bool(int)> valid;

  void run(const Config& c, std::span<const float> x, ejk::Out<std::span<float>> y) const {
    ++runs[c.units];
    work(c.units);
    std::ranges::copy(x, (*y).begin());
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {heuristic}; }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const {
    std::vector<Config> list;
    for (int units : offered) list.push_back({units});
    return list;
  }
  bool is_valid(const Config& c, const ejk::Invocation&) const { return !valid || valid(c.units); }
};

// The same without a guess.
struct Unguessed {
  static constexpr std::string_view op_id = "unguessed", version = "1";
  using Config = Work::Config;
  void run(const Config& c, std::span<const float> x, ejk::Out<std::span<float>> y) const {
    Work{}.run(c, x, y);
  }
  std::vector<Config> candidate_cfgs(const ejk::Invocation& inv) const {
    return Work{}.candidate_cfgs(inv);
  }
};

struct ProgressLog {
  struct Seen {
    ejk::TuneProgress p;  // its views are gone
    std::string message;
  };
  std::vector<Seen> all;
  ejk::ProgressSink sink() {
    return [this](const ejk::TuneProgress& p) { all.push_back({p, std::string(p.message)}); };
  }
  std::vector<ejk::Value> configs(Kind kind) const {
    std::vector<ejk::Value> list;
    for (const Seen& s : all)
      if (s.p.kind == kind) list.push_back(s.p.config);
    return list;
  }
  size_t count(Kind kind) const { return configs(kind).size(); }
};

class Tunings : public testing::Test {
 protected:
  Tunings() {
    runs.clear();
    Work::offered = {40, 20};
    Work::heuristic = 40;
    Work::work = spin;
    Work::valid = nullptr;
  }

  ejk::SelectorOptions options() {
    ejk::SelectorOptions o;
    o.policy = ejk::AutotunePolicy{};
    o.policy->budget_seconds = 60;  // sanitizers and a busy machine take their time
    o.on_event = events.sink();
    o.on_warning = warnings.sink();
    return o;
  }
  ejk::SelectorOptions stored_options(bool read_only = false) {
    ejk::SelectorOptions o = options();
    o.persistent = store(read_only);
    return o;
  }
  std::shared_ptr<ejk::PersistentCache> store(bool read_only = false) {
    ejk::DirectoryStore::Options directory;
    directory.read_only = read_only;
    directory.on_warning = warnings.sink();
    return std::make_shared<ejk::PersistentCache>(std::vector<std::shared_ptr<ejk::Store>>{
        std::make_shared<ejk::DirectoryStore>(dir.path(), directory)});
  }
  template <class K = Work>
  int tuned(const ejk::Executor& executor, const K& kernel = {}) {
    return executor.choose_config(kernel, x, y).config.units;
  }
  template <class K = Work>
  ejk::Entry stored(const K& kernel = {}) {
    const ejk::Executor executor(options());
    const auto inv = executor.describe(kernel, x, y);
    const auto found =
        store()->get({inv.device->fingerprint, inv.op(), inv.call_key(), inv.spec()});
    if (!found) throw std::runtime_error("nothing is stored");
    return found->entry;
  }
  // A tuning of the first `evaluations` candidates, of which the heuristic is one.
  void begin(int evaluations) {
    auto o = stored_options();
    o.policy->budget_evaluations = evaluations;
    tuned(ejk::Executor(o));
    runs.clear();
    events.take();
  }

  static std::map<int, std::string> statuses(const ejk::Entry& entry) {
    std::map<int, std::string> list;
    for (const auto& m : entry.candidates)
      list[static_cast<int>(m.config.find("units")->as_int())] = m.status;
    return list;
  }
  static ejk::Measurement& of(ejk::Entry& entry, int units) {
    return *std::ranges::find_if(entry.candidates, [&](const ejk::Measurement& m) {
      return m.config.find("units")->as_int() == units;
    });
  }

  fakes::TempDir dir;
  fakes::EventLog events;
  fakes::WarningLog warnings;
  std::vector<float> x = std::vector<float>(8, 1), y = std::vector<float>(8, 0);
};

// ---- going on ----------------------------------------------------------------------------------

class Resuming : public Tunings {};

TEST_F(Resuming, WhatWasCutByEvaluationsGoesOnWithoutWhatIsKnown) {
  Work::offered = {60, 300, 400, 30, 90, 10, 250, 350};
  Work::heuristic = 60;
  auto o = stored_options();
  o.policy->budget_evaluations = 4;
  EXPECT_EQ(tuned(ejk::Executor(o)), 30);
  const ejk::Entry first = stored();
  EXPECT_FALSE(first.evidence.complete);
  EXPECT_THAT(first.candidates, SizeIs(8));
  EXPECT_EQ(statuses(first).at(300), "slower");
  for (int later : {90, 10, 250, 350}) {
    EXPECT_EQ(statuses(first).at(later), "untried");
    EXPECT_EQ(runs[later], 0) << later;
  }
  runs.clear();
  EXPECT_EQ(tuned(ejk::Executor(stored_options())), 10);
  for (int known : {300, 400}) EXPECT_EQ(runs[known], 0) << known;
  for (int open : {60, 30, 90, 10, 250, 350}) EXPECT_GT(runs[open], 0) << open;
  const ejk::Entry second = stored();
  EXPECT_TRUE(second.evidence.complete);
  EXPECT_THAT(statuses(second), testing::Contains(testing::Pair(300, "slower")).Times(1));
  EXPECT_EQ(statuses(second).at(10), "ok");
  EXPECT_EQ(statuses(second).at(250), "slower");
  runs.clear();
  EXPECT_EQ(tuned(ejk::Executor(stored_options())), 10);
  EXPECT_EQ(std::accumulate(&runs[0], &runs[0] + SharedCounts::size, 0), 0);
}

TEST_F(Resuming, WhatWasCutBySecondsGoesOn) {
  Work::offered = {60, 300, 400, 30, 90, 10, 250, 350};
  Work::heuristic = 60;
  Work::work = [](int) { std::this_thread::sleep_for(milliseconds(30)); };
  auto o = stored_options();
  o.policy->budget_seconds = 0.1;
  o.policy->guard = false;
  tuned(ejk::Executor(o));
  const ejk::Entry first = stored();
  EXPECT_FALSE(first.evidence.complete);
  EXPECT_EQ(statuses(first).at(350), "untried");
  Work::work = spin;
  EXPECT_EQ(tuned(ejk::Executor(stored_options())), 10);
  EXPECT_TRUE(stored().evidence.complete);
}

TEST_F(Resuming, WhatWasStoppedGoesOn) {
  Work::offered = {60, 300, 30, 10};
  Work::heuristic = 60;
  std::atomic<bool> stop = false;
  auto o = stored_options();
  o.stop = &stop;
  o.on_progress = [&](const ejk::TuneProgress& p) { stop = p.tried >= 3; };
  tuned(ejk::Executor(o));
  const ejk::Entry first = stored();
  EXPECT_FALSE(first.evidence.complete);
  EXPECT_EQ(statuses(first).at(10), "untried");
  stop = false;
  EXPECT_EQ(tuned(ejk::Executor(stored_options())), 10);
  EXPECT_TRUE(stored().evidence.complete);
}

TEST_F(Resuming, RejectionsStandUnlessTimeOrMemoryWasTheReason) {
  Work::offered = {60, 31, 32, 33, 34, 35, 30};
  Work::heuristic = 60;
  begin(6);
  ejk::Entry entry = stored();
  ASSERT_FALSE(entry.evidence.complete);
  const std::map<int, std::string> kinds = {
      {31, "timed_out"}, {32, "out_of_memory"}, {33, "crashed"}, {34, "threw"}, {35, "wrong"}};
  for (const auto& [units, kind] : kinds) {
    auto& m = of(entry, units);
    m.status = "rejected", m.kind = kind, m.why = "it was so";
  }
  entry.config = of(entry, 60).config;
  ASSERT_TRUE(store()->put(entry, true));
  tuned(ejk::Executor(stored_options()));
  for (int again : {30, 31, 32}) EXPECT_GT(runs[again], 0) << again;
  for (int never : {33, 34, 35}) EXPECT_EQ(runs[never], 0) << never;
  ejk::Entry after = stored();
  EXPECT_TRUE(after.evidence.complete);
  for (int never : {33, 34, 35}) {
    EXPECT_EQ(of(after, never).status, "rejected");
    EXPECT_EQ(of(after, never).kind, kinds.at(never));
    EXPECT_EQ(of(after, never).why, "it was so");
  }
  EXPECT_NE(of(after, 31).status, "rejected");
}

TEST_F(Resuming, NewCandidatesRaceAgainstTheEarlierWinnerOnly) {
  Work::offered = {60, 300, 30, 400};
  Work::heuristic = 60;
  EXPECT_EQ(tuned(ejk::Executor(stored_options())), 30);
  ASSERT_TRUE(stored().evidence.complete);
  Work::offered = {500, 60, 300, 30, 400, 10};
  runs.clear(), events.take();
  EXPECT_EQ(tuned(ejk::Executor(stored_options())), 10);
  EXPECT_THAT(events.take(), Contains("autotune_start"));
  for (int known : {300, 400}) EXPECT_EQ(runs[known], 0) << known;
  for (int racing : {500, 60, 30, 10}) EXPECT_GT(runs[racing], 0) << racing;
  const ejk::Entry entry = stored();
  EXPECT_TRUE(entry.evidence.complete);
  EXPECT_THAT(entry.candidates, SizeIs(6));
}

TEST_F(Resuming, SlowerNewCandidatesLeaveTheEarlierWinner) {
  Work::offered = {60, 30};
  Work::heuristic = 60;
  EXPECT_EQ(tuned(ejk::Executor(stored_options())), 30);
  Work::offered = {60, 30, 200};
  EXPECT_EQ(tuned(ejk::Executor(stored_options())), 30);
  EXPECT_EQ(statuses(stored()).at(200), "slower");
}

TEST_F(Resuming, RemovedCandidatesVanish) {
  Work::offered = {60, 300, 30, 400};
  Work::heuristic = 60;
  EXPECT_EQ(tuned(ejk::Executor(stored_options())), 30);
  Work::offered = {60, 30, 200};
  EXPECT_EQ(tuned(ejk::Executor(stored_options())), 30);
  EXPECT_THAT(statuses(stored()),
              UnorderedElementsAre(testing::Key(60), testing::Key(30), testing::Key(200)));
}

// What was slower than a winner that is gone may be the best of the rest.
TEST_F(Resuming, WithoutTheEarlierWinnerTheSlowerOnesHaveAnotherChance) {
  Work::offered = {10, 40, 200};
  EXPECT_EQ(tuned(ejk::Executor(stored_options()), Unguessed{}), 10);
  Work::offered = {40, 200, 400};
  EXPECT_EQ(tuned(ejk::Executor(stored_options()), Unguessed{}), 40);
}

TEST_F(Resuming, AWinnerThatFailsNowGivesTheSlowerOnesAnotherChance) {
  Work::offered = {10, 40, 200};
  EXPECT_EQ(tuned(ejk::Executor(stored_options()), Unguessed{}), 10);
  Work::offered.push_back(400);
  Work::work = [](int units) {
    if (units == 10) throw std::runtime_error("no longer");
    spin(units);
  };
  EXPECT_EQ(tuned(ejk::Executor(stored_options()), Unguessed{}), 40);
  ejk::Entry entry = stored(Unguessed{});
  EXPECT_EQ(of(entry, 10).kind, "threw");
  EXPECT_EQ(of(entry, 400).status, "slower");
}

TEST_F(Resuming, AllRatiosOfAnEntryAreToOneIncumbent) {
  Work::offered = {60, 300, 6};
  Work::heuristic = 60;
  EXPECT_EQ(tuned(ejk::Executor(stored_options())), 6);
  ejk::Entry before = stored();
  EXPECT_LT(of(before, 300).ratio, 15);  // to the heuristic: about 5
  EXPECT_LT(of(before, 6).ratio, 0.5);
  Work::offered.push_back(200);
  runs.clear();
  EXPECT_EQ(tuned(ejk::Executor(stored_options())), 6);
  EXPECT_EQ(runs[300], 0);
  ejk::Entry after = stored();
  EXPECT_GT(of(after, 300).ratio, 2 * of(before, 300).ratio);  // to the earlier winner: about 50
  EXPECT_GT(of(after, 200).ratio, 4);
  EXPECT_EQ(of(after, 6).ratio, 1);
}

// However few evaluations there are at a time.
TEST_F(Resuming, GetsAheadWithOneNewCandidateAtATime) {
  Work::offered = {60, 30, 29, 28, 200};
  Work::heuristic = 60;
  auto o = stored_options();
  o.policy->budget_evaluations = 1;
  o.policy->guard = false;
  int tunings = 0;
  do tuned(ejk::Executor(o));
  while (!stored().evidence.complete && ++tunings < 20);
  EXPECT_LE(tunings, 6);
  EXPECT_EQ(statuses(stored()).at(200), "slower");
}

TEST_F(Resuming, ABudgetThatIsSpentAtOnceDoesNotLoseTheEarlierWinner) {
  for (bool guard : {true, false}) {
    Work::offered = {60, 300, 400, 30, 90};
    Work::heuristic = 60;
    auto o = stored_options();
    o.policy->budget_evaluations = 4;
    EXPECT_EQ(ejk::Executor(o).tune(Work{}, x, y).config.units, 30);
    ASSERT_FALSE(stored().evidence.complete);
    o = stored_options();
    o.policy->budget_seconds = 0;
    o.policy->guard = guard;
    EXPECT_EQ(tuned(ejk::Executor(o)), 30) << guard;
    EXPECT_EQ(stored().config, ejk::to_value(Work::Config{30})) << guard;
    EXPECT_FALSE(stored().evidence.complete);
  }
}

TEST_F(Resuming, HappensOnlyWhereItIsWantedAndOfUse) {
  Work::offered = {60, 300, 30, 10};
  Work::heuristic = 60;
  begin(3);
  const auto expect_as_it_is = [&](const ejk::SelectorOptions& o, const char* why) {
    const ejk::Executor executor(o);
    const auto chosen = executor.choose_config(Work{}, x, y);
    EXPECT_EQ(chosen.config.units, 30) << why;
    EXPECT_EQ(chosen.origin, Origin::persistent) << why;
    EXPECT_THAT(events.take(), ElementsAre("cache_hit/persistent")) << why;
    EXPECT_FALSE(stored().evidence.complete) << why;
  };
  auto o = stored_options();
  o.policy->resume = false;
  expect_as_it_is(o, "resume = false");
  expect_as_it_is(stored_options(true), "read-only");
  o = stored_options();
  o.persist_autotune = false;
  expect_as_it_is(o, "nothing is persisted");
  o = stored_options();
  o.policy->allow_autotune = false;
  expect_as_it_is(o, "heuristics");
  o.policy->allow_heuristics = false;
  expect_as_it_is(o, "frozen");
  o = stored_options();
  o.policy->cache_miss_fallback = ejk::Fallback::heuristics;
  expect_as_it_is(o, "heuristics first");
  EXPECT_EQ(std::accumulate(&runs[0], &runs[0] + SharedCounts::size, 0), 0);
  {
    const ejk::Executor executor(stored_options());
    const auto scope = ejk::policy_override({.resume = false});
    EXPECT_EQ(executor.choose_config(Work{}, x, y).origin, Origin::persistent);
  }
}

TEST_F(Resuming, IsExplained) {
  Work::offered = {60, 300, 30, 10};
  Work::heuristic = 60;
  begin(3);
  const ejk::Executor executor(stored_options());
  const auto cut = executor.explain(Work{}, x, y);
  EXPECT_THAT(cut.text(), HasSubstr("the tuning goes on, it was cut short"));
  EXPECT_EQ(cut.origin, "autotune");
  EXPECT_FALSE(stored().evidence.complete);  // nothing was done
  tuned(executor);
  Work::offered.push_back(11);
  const ejk::Executor later(stored_options());
  EXPECT_THAT(later.explain(Work{}, x, y).text(),
              HasSubstr("the tuning goes on, there are new candidates"));
  auto o = stored_options();
  o.policy->resume = false;
  EXPECT_EQ(ejk::Executor(o).explain(Work{}, x, y).origin, "persistent");
}

TEST_F(Resuming, ThreadsGoOnOnceTogether) {
  Work::offered = {60, 300, 30, 10};
  Work::heuristic = 60;
  begin(3);
  const ejk::Executor executor(stored_options());
  std::atomic<int> right = 0;
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i)
      threads.emplace_back([&] {
        std::vector<float> out(8);
        right += executor.choose_config(Work{}, x, out).config.units == 10;
      });
  }
  EXPECT_EQ(right, 4);
  EXPECT_EQ(std::ranges::count(events.take(), "autotune_start"), 1);
}

// ---- budgets -----------------------------------------------------------------------------------

class Budgets : public Tunings {};

TEST_F(Budgets, EvaluationsAreAtMostSoMany) {
  Work::offered = {60, 50, 40, 30, 20, 10};
  Work::heuristic = 60;
  for (bool guard : {true, false}) {
    runs.clear();
    ProgressLog log;
    auto o = options();
    o.policy->budget_evaluations = 3;
    o.policy->guard = guard;
    o.on_progress = log.sink();
    const auto result = ejk::Executor(o).tune(Work{}, x, y);
    EXPECT_EQ(log.count(Kind::candidate), 3u);
    EXPECT_EQ(std::ranges::count_if(Work::offered, [](int u) { return runs[u] > 0; }), 3);
    EXPECT_FALSE(result.entry.evidence.complete);
    EXPECT_EQ(result.config.units, 40);
  }
}

TEST_F(Budgets, ATargetEndsTheTuningWithTheFirstThatIsFastEnough) {
  Work::offered = {1000, 20, 21};
  Work::heuristic = 1000;
  auto o = options();
  o.policy->target_seconds = 0.2 * ejk::Tuner().measure([] { spin(1000); });
  const auto result = ejk::Executor(o).tune(Work{}, x, y);
  EXPECT_NE(result.config.units, 1000);  // which is not fast enough
  EXPECT_LT(result.entry.evidence.samples, 15);
  EXPECT_TRUE(result.entry.evidence.complete);
}

TEST_F(Budgets, AHeuristicThatIsFastEnoughStays) {
  Work::offered = {30, 40, 41, 42};
  Work::heuristic = 40;
  auto o = options();
  o.policy->target_seconds = 10;
  const auto result = ejk::Executor(o).tune(Work{}, x, y);
  EXPECT_LT(result.entry.evidence.samples, 15);
}

TEST_F(Budgets, WithoutAnyTimeOneIsStillVerified) {
  Work::offered = {60, 30, 20};
  for (int heuristic : {60, 77}) {  // a candidate, and one that is none
    for (bool guard : {true, false}) {
      Work::heuristic = heuristic;
      auto o = options();
      o.policy->budget_seconds = 0;
      o.policy->guard = guard;
      const auto result = ejk::Executor(o).tune(Work{}, x, y);
      EXPECT_THAT(Work::offered, Contains(result.config.units));
      EXPECT_FALSE(result.entry.evidence.complete);
      EXPECT_EQ(result.entry.evidence.strategy, "single run");
    }
  }
}

TEST_F(Budgets, AWrongFirstCandidateIsPassedOverHoweverLittleTimeThereIs) {
  Work::offered = {60, 30, 20};
  Work::work = [](int units) {
    if (units == 60) throw std::runtime_error("not this one");
  };
  auto o = options();
  o.policy->budget_seconds = 0;
  const auto result = ejk::Executor(o).tune(Unguessed{}, x, y);
  EXPECT_EQ(result.config.units, 30);
}

TEST_F(Budgets, AnotherThreadStopsATuning) {
  Work::offered.resize(30);
  std::iota(Work::offered.begin(), Work::offered.end(), 1);
  Work::heuristic = 1;
  Work::work = [](int) { std::this_thread::sleep_for(milliseconds(5)); };
  for (bool guard : {true, false}) {
    std::atomic<bool> stop = false;
    auto o = options();
    o.stop = &stop;
    o.policy->guard = guard;
    const auto began = std::chrono::steady_clock::now();
    std::jthread other([&] {
      std::this_thread::sleep_for(milliseconds(50));
      stop = true;
    });
    const auto result = ejk::Executor(o).tune(Work{}, x, y);
    EXPECT_FALSE(result.entry.evidence.complete);
    EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(5));
  }
}

extern "C" void nothing(int) {}

TEST(Interrupts, OneIsNotedAndTheHandlerComesBack) {
  struct sigaction own = {}, now = {};
  own.sa_handler = nothing;
  struct sigaction before = {};
  sigaction(SIGINT, &own, &before);
  {
    const ejk::StopOnInterrupt scope;
    EXPECT_FALSE(ejk::StopOnInterrupt::requested());
    raise(SIGINT);
    EXPECT_TRUE(ejk::StopOnInterrupt::requested());
  }
  sigaction(SIGINT, nullptr, &now);
  EXPECT_EQ(now.sa_handler, own.sa_handler);
  {
    const ejk::StopOnInterrupt again;
    EXPECT_FALSE(ejk::StopOnInterrupt::requested());  // an earlier one is forgotten
  }
  sigaction(SIGINT, &before, nullptr);
}

TEST(Interrupts, TheSecondEndsTheProcess) {
  EXPECT_EXIT(
      {
        signal(SIGINT, SIG_DFL);
        const ejk::StopOnInterrupt scope;
        raise(SIGINT);
        if (!ejk::StopOnInterrupt::requested()) _exit(1);
        raise(SIGINT);
        _exit(0);
      },
      testing::KilledBySignal(SIGINT), "");
}

TEST_F(Budgets, AnInterruptEndsATuningWithWhatItHas) {
  Work::offered = {60, 50, 40, 30, 20, 10};
  Work::heuristic = 60;
  const ejk::StopOnInterrupt scope;
  auto o = options();
  o.stop = &ejk::StopOnInterrupt::requested();
  o.on_progress = [](const ejk::TuneProgress& p) {
    if (p.kind == Kind::candidate && p.tried == 2) raise(SIGINT);
  };
  const auto result = ejk::Executor(o).tune(Work{}, x, y);
  EXPECT_FALSE(result.entry.evidence.complete);
  EXPECT_THAT(result.config.units, AnyOf(60, 50));
}

// ---- large sets --------------------------------------------------------------------------------

// Its time is a bowl over the parameters.
struct Bowl {
  static constexpr std::string_view op_id = "bowl", version = "1";
  struct Config {
    int a = 0, b = 0, c = 0, d = 0;
  };
  static inline ejk::Space<Config> space;
  static inline int width = 0, dimensions = 0;
  static inline bool (*valid)(const Config&) = nullptr;

  static void make(int new_width, int new_dimensions) {
    width = new_width, dimensions = new_dimensions, valid = nullptr;
    std::vector<int> values(static_cast<size_t>(width));
    std::iota(values.begin(), values.end(), 0);
    space = ejk::space<Config>();
    space.param(&Config::a, values).param(&Config::b, values).param(&Config::c, values);
    if (dimensions == 4) space.param(&Config::d, values);
  }
  // In units of the best possible.
  static double cost(const Config& c) {
    const auto part = [](int value, double best) {
      const double off = value / static_cast<double>(width) - best;
      return 3 * off * off;
    };
    return 1 + part(c.a, 0.6) + part(c.b, 0.3) + part(c.c, 0.8) +
           (dimensions == 4 ? part(c.d, 0.5) : 0);
  }
  void run(const Config& c, std::span<const float> x, ejk::Out<std::span<float>> y) const {
    volatile unsigned state = 1;
    const int steps = static_cast<int>(4000 * cost(c));
    for (int i = 0; i < steps; ++i) state = state * 1664525u + 1013904223u;
    std::ranges::copy(x, (*y).begin());
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {1, width - 2, 1, 0}; }
  ejk::Space<Config> candidate_cfgs(const ejk::Invocation&) const { return space; }
  bool is_valid(const Config& c, const ejk::Invocation&) const { return !valid || valid(c); }
};

class LargeSets : public Tunings {
 protected:
  static double share_of_better(const Bowl::Config& found) {
    uint64_t better = 0, all = 0;
    for (uint64_t point : Bowl::space.sample(20'000, 7))
      better += Bowl::cost(Bowl::space[point]) < Bowl::cost(found), ++all;
    return static_cast<double>(better) / static_cast<double>(all);
  }
  // Of 200 evaluations; a busy machine and sanitizers blur them.
  static void expect_good(const Bowl::Config& found) {
    EXPECT_TRUE(share_of_better(found) <= (sanitized ? 0.35 : 0.1) || Bowl::cost(found) <= 1.1)
        << Bowl::cost(found) << " times the best, " << share_of_better(found) << " are better";
  }
  static Bowl::Config config_of(const ejk::Value& v) {
    const auto field = [&](const char* name) { return static_cast<int>(v.find(name)->as_int()); };
    return {field("a"), field("b"), field("c"), field("d")};
  }
};

TEST_F(LargeSets, AreSearchedWithFewEvaluations) {
  Bowl::make(28, 3);
  ASSERT_EQ(Bowl::space.size(), 21'952u);
  ProgressLog log;
  auto o = options();
  o.on_progress = log.sink();
  const auto result = ejk::Executor(o).tune(Bowl{}, x, y);
  expect_good(result.config);
  EXPECT_LE(log.count(Kind::candidate), 250u);
  EXPECT_EQ(result.entry.evidence.strategy, "auto");
  EXPECT_TRUE(result.entry.evidence.complete);
  EXPECT_EQ(result.entry.outcome, Outcome::tuned);
  EXPECT_LE(result.entry.candidates.size(), 250u);
  EXPECT_GE(result.entry.candidates.size(), 20u);
  std::set<std::string> tried;
  for (const auto& config : log.configs(Kind::candidate)) tried.insert(ejk::stable_json(config));
  for (const auto& m : result.entry.candidates) {
    EXPECT_TRUE(tried.contains(ejk::stable_json(m.config)));
    EXPECT_NE(m.status, "untried");
  }
}

TEST_F(LargeSets, OfMoreThanAMillionPointsAreSearchedToo) {
  Bowl::make(34, 4);
  Bowl::space.where([](const Bowl::Config& c) { return c.a + c.b + c.c + c.d < 100; });
  ASSERT_GT(Bowl::space.size(), 1'000'000u);
  ProgressLog log;
  auto o = options();
  o.on_progress = log.sink();
  const auto result = ejk::Executor(o).tune(Bowl{}, x, y);
  expect_good(result.config);
  EXPECT_LE(log.count(Kind::candidate), 250u);
  EXPECT_EQ(result.entry.evidence.strategy, "auto");
}

TEST_F(LargeSets, CanBeSearchedByAnotherStrategy) {
  Bowl::make(28, 3);
  auto o = options();
  o.tuner = std::make_shared<ejk::Tuner>(ejk::TunerOptions{.strategy = "random"});
  o.policy->budget_evaluations = 60;
  const auto result = ejk::Executor(o).tune(Bowl{}, x, y);
  EXPECT_EQ(result.entry.evidence.strategy, "random");
  EXPECT_LE(result.entry.candidates.size(), 61u);
  EXPECT_LT(Bowl::cost(result.config), Bowl::cost(Bowl{}.heuristic_cfg({})));
}

TEST_F(LargeSets, InvalidPointsAreNeverRun) {
  Bowl::make(28, 3);
  Bowl::valid = [](const Bowl::Config& c) { return c.a % 2 == 1; };
  ProgressLog log;
  auto o = options();
  o.policy->budget_evaluations = 60;
  o.on_progress = log.sink();
  const auto result = ejk::Executor(o).tune(Bowl{}, x, y);
  EXPECT_EQ(result.config.a % 2, 1);
  for (const auto& config : log.configs(Kind::candidate)) EXPECT_EQ(config_of(config).a % 2, 1);
  for (const auto& m : result.entry.candidates)
    EXPECT_TRUE(config_of(m.config).a % 2 == 1 || m.kind == "invalid");
}

TEST_F(LargeSets, ASearchThatWasStoppedGoesOnWithoutKnownPoints) {
  Bowl::make(28, 3);
  std::atomic<bool> stop = false;
  ProgressLog first, second;
  auto o = stored_options();
  o.stop = &stop;
  o.on_progress = [&, sink = first.sink()](const ejk::TuneProgress& p) {
    sink(p);
    stop = p.tried >= 50;
  };
  ejk::Executor(o).choose_config(Bowl{}, x, y);
  EXPECT_FALSE(stored(Bowl{}).evidence.complete);
  EXPECT_LE(first.count(Kind::candidate), 51u);
  o = stored_options();
  o.on_progress = second.sink();
  expect_good(ejk::Executor(o).choose_config(Bowl{}, x, y).config);
  EXPECT_TRUE(stored(Bowl{}).evidence.complete);
  std::set<std::string> known;
  for (const auto& config : first.configs(Kind::candidate)) known.insert(ejk::stable_json(config));
  size_t again = 0;
  for (const auto& config : second.configs(Kind::candidate))
    again += known.contains(ejk::stable_json(config));
  EXPECT_LE(again, 9u);  // the heuristic and eight finalists
  EXPECT_LE(first.count(Kind::candidate) + second.count(Kind::candidate), 250u);
  second.all.clear();
  ejk::Executor(o).choose_config(Bowl{}, x, y);
  EXPECT_THAT(second.all, IsEmpty());
}

// The same without a guess: known points are compared with what is measured now.
struct UnguessedBowl {
  static constexpr std::string_view op_id = "unguessed_bowl", version = "1";
  using Config = Bowl::Config;
  void run(const Config& c, std::span<const float> x, ejk::Out<std::span<float>> y) const {
    Bowl{}.run(c, x, y);
  }
  ejk::Space<Config> candidate_cfgs(const ejk::Invocation&) const { return Bowl::space; }
};

TEST_F(LargeSets, ASearchWithoutHeuristicGoesOnInTheSameUnit) {
  Bowl::make(28, 3);
  std::atomic<bool> stop = false;
  auto o = stored_options();
  o.stop = &stop;
  o.on_progress = [&](const ejk::TuneProgress& p) { stop = p.tried >= 60; };
  const auto first = ejk::Executor(o).choose_config(UnguessedBowl{}, x, y).config;
  ASSERT_FALSE(stored(UnguessedBowl{}).evidence.complete);
  const auto second = ejk::Executor(stored_options()).choose_config(UnguessedBowl{}, x, y).config;
  expect_good(second);
  EXPECT_LE(Bowl::cost(second), 1.05 * Bowl::cost(first));
  const ejk::Entry entry = stored(UnguessedBowl{});
  EXPECT_TRUE(entry.evidence.complete);
  // ratio / cost is the same for all, up to noise.
  std::vector<double> units;
  for (const auto& m : entry.candidates)
    if (m.ratio > 0) units.push_back(m.ratio / Bowl::cost(config_of(m.config)));
  std::ranges::sort(units);
  ASSERT_GE(units.size(), 20u);
  EXPECT_LT(units[units.size() * 8 / 10], (sanitized ? 3 : 1.8) * units[units.size() * 2 / 10]);
}

TEST_F(LargeSets, ASearchBeginsWhereAnotherCallOfTheOpWasFastest) {
  Bowl::make(28, 3);
  auto o = stored_options();
  const auto best = ejk::Executor(o).choose_config(Bowl{}, x, y).config;
  ProgressLog log;
  o = stored_options();
  o.on_progress = log.sink();
  o.policy->budget_evaluations = 12;
  std::vector<float> more(16, 1), out(16);
  const auto result = ejk::Executor(o).tune(Bowl{}, more, out);
  EXPECT_LE(log.count(Kind::candidate), 13u);
  // The heuristic first, then a batch before anything was measured. Of all points it is about 2.
  const std::vector<ejk::Value> tried = log.configs(Kind::candidate);
  ASSERT_GE(tried.size(), 4u);
  double sum = 0;
  for (size_t i : {1, 2, 3}) sum += Bowl::cost(config_of(tried[i]));
  EXPECT_LT(sum / 3, 1.6);
  EXPECT_LT(Bowl::cost(result.config), 1.5 * Bowl::cost(best));
}

// ---- progress ----------------------------------------------------------------------------------

class Progress : public Tunings {};

TEST_F(Progress, IsToldInOrderWithTheRightNumbers) {
  Work::offered = {60, 300, 400, 30, 90, 13};
  Work::heuristic = 60;
  Work::work = [](int units) {
    if (units == 13) throw std::runtime_error("unlucky");
    spin(units);
  };
  ProgressLog log;
  auto o = options();
  o.on_progress = log.sink();
  const auto result = ejk::Executor(o).tune(Work{}, x, y);
  ASSERT_FALSE(log.all.empty());
  EXPECT_EQ(log.count(Kind::candidate), 6u);
  EXPECT_GE(log.count(Kind::eliminated), 3u);
  EXPECT_GE(log.count(Kind::best), 1u);
  EXPECT_EQ(log.count(Kind::finished), 1u);
  EXPECT_EQ(log.all.back().p.kind, Kind::finished);
  EXPECT_EQ(log.all.back().p.config, result.entry.config);
  EXPECT_EQ(log.all.back().p.rejected, 1u);
  EXPECT_GT(log.all.back().p.best_seconds, 0);
  EXPECT_GT(log.all.back().p.speedup, 1);
  uint64_t tried = 0;
  int round = 0;
  double elapsed = 0;
  size_t racing = SIZE_MAX;
  for (const auto& [p, message] : log.all) {
    EXPECT_EQ(p.candidates, 6u);
    EXPECT_GE(p.elapsed, elapsed);
    EXPECT_GE(p.remaining, 0);
    EXPECT_LE(p.remaining, 60 - p.elapsed + 1e-6);
    elapsed = p.elapsed;
    if (p.kind == Kind::candidate) {
      EXPECT_EQ(round, 0);
      EXPECT_EQ(p.tried, ++tried);
      EXPECT_EQ(message, p.config == ejk::to_value(Work::Config{13}) ? "unlucky" : "");
    } else if (p.kind == Kind::round) {
      EXPECT_EQ(p.round, ++round);
      EXPECT_LE(p.racing, racing);
      racing = p.racing;
    } else {
      EXPECT_GT(round, 0);
    }
  }
  EXPECT_THAT(log.configs(Kind::eliminated), Contains(ejk::to_value(Work::Config{400})));
  EXPECT_THAT(log.configs(Kind::eliminated), Not(Contains(result.entry.config)));
}

TEST_F(Progress, NeverTellsOfMoreTriedThanThereAre) {
  Work::heuristic = 77;  // no candidate, but tried
  ProgressLog log;
  auto o = options();
  o.on_progress = log.sink();
  ejk::Executor(o).tune(Work{}, x, y);
  EXPECT_EQ(log.all.back().p.tried, 3u);
  EXPECT_EQ(log.all.back().p.candidates, 3u);
}

TEST_F(Progress, ASinkThatThrowsDoesNotDisturbTheTuning) {
  Work::offered = {60, 300, 30};
  Work::heuristic = 60;
  for (bool guard : {true, false}) {
    auto o = options();
    o.policy->guard = guard;
    o.on_progress = [](const ejk::TuneProgress&) { throw std::runtime_error("no ears"); };
    const ejk::Executor executor(o);
    const auto chosen = executor.choose_config(Work{}, x, y);
    EXPECT_EQ(chosen.origin, Origin::autotune);
    EXPECT_EQ(chosen.config.units, 30);
  }
}

TEST_F(Progress, IsPrintedAsPlainLinesIfTheEnvironmentAsksForIt) {
  const auto printed = [&](const char* value) {
    if (value) setenv("EJKERNEL_AUTOTUNE_PROGRESS", value, 1);
    else unsetenv("EJKERNEL_AUTOTUNE_PROGRESS");
    testing::internal::CaptureStderr();
    ejk::Executor(options()).tune(Work{}, x, y);
    unsetenv("EJKERNEL_AUTOTUNE_PROGRESS");
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(printed(nullptr), "");
  EXPECT_EQ(printed("0"), "");
  const std::string text = printed("1");
  EXPECT_THAT(text, StartsWith("ejk: work@v1 "));
  EXPECT_THAT(text, HasSubstr("2 of 2 tried"));
  EXPECT_THAT(text, HasSubstr("done in "));
  EXPECT_THAT(text, HasSubstr("{\"units\":20}"));
  EXPECT_THAT(text, testing::EndsWith("\n"));
  EXPECT_EQ(text.find_first_of("\r\033"), std::string::npos);
}

// ---- statuses and evidence ---------------------------------------------------------------------

class TuningEvidence : public Tunings {};

TEST_F(TuningEvidence, TellsWinnersFromTiesAndLosers) {
  Work::offered = {60, 61, 300};
  Work::heuristic = 60;
  Work::work = [](int units) { spin(units == 61 ? 60 : units); };
  const ejk::Entry entry = ejk::Executor(options()).tune(Work{}, x, y).entry;
  auto found = statuses(entry);
  EXPECT_EQ(found[300], "slower");
  EXPECT_EQ(found.at(static_cast<int>(entry.config.find("units")->as_int())), "ok");
  // Equals look different now and then.
  EXPECT_THAT(found[60] + found[61], AnyOf("oktied", "tiedok", "okslower", "slowerok"));
}

TEST_F(TuningEvidence, SaysWhereFirstRunsHappened) {
  auto o = options();
  EXPECT_EQ(ejk::Executor(o).tune(Work{}, x, y).entry.evidence.guard, "child");
  o.policy->guard = false;
  EXPECT_EQ(ejk::Executor(o).tune(Work{}, x, y).entry.evidence.guard, "none");
}

TEST_F(TuningEvidence, NamesTheKindOfEveryRejection) {
  Work::offered = {60, 1, 2, 3, 4, 30};
  Work::heuristic = 60;
  Work::valid = [](int units) { return units != 4; };
  Work::work = [](int units) {
    if (units == 1) throw std::runtime_error("one");
    if (units == 2) abort();
    if (units == 3) _exit(3);
    spin(units);
  };
  ejk::Entry entry = ejk::Executor(options()).tune(Work{}, x, y).entry;
  EXPECT_EQ(of(entry, 1).kind, "threw");
  EXPECT_EQ(of(entry, 1).why, "one");
  EXPECT_EQ(of(entry, 2).kind, "crashed");
  EXPECT_EQ(of(entry, 3).kind, "exited");
  EXPECT_EQ(of(entry, 4).kind, "invalid");
  for (int units : {1, 2, 3, 4}) EXPECT_EQ(of(entry, units).status, "rejected") << units;
  EXPECT_EQ(of(entry, 60).kind, "");
  EXPECT_EQ(entry.config, ejk::to_value(Work::Config{30}));
}

// Follows a chain through memory, one step per cache line.
struct Chase {
  static constexpr std::string_view op_id = "chase", version = "1";
  struct Config {
    int unused = 0;
  };
  void run(const Config&, std::span<const int32_t> next, ejk::Out<std::span<int32_t>> end) const {
    int32_t at = 0;
    for (size_t i = 0; i < next.size() / 16; ++i) at = next[static_cast<size_t>(at)];
    (*end)[0] = at + 1;
  }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const { return {{0}, {1}}; }
};

TEST_F(TuningEvidence, ColdCachesCostWhatTheyCost) {
  constexpr size_t lines = 4096;  // 256 KiB
  std::vector<size_t> order(lines - 1);
  std::iota(order.begin(), order.end(), size_t{1});
  std::shuffle(order.begin(), order.end(), std::mt19937(3));
  std::vector<int32_t> next(lines * 16), end(1);
  size_t at = 0;
  for (size_t line : order) next[at * 16] = static_cast<int32_t>(line * 16), at = line;
  std::map<ejk::CacheState, ejk::Evidence> found;
  for (auto cache : {ejk::CacheState::warm, ejk::CacheState::cold}) {
    auto o = options();
    o.tuner = std::make_shared<ejk::Tuner>(ejk::TunerOptions{.cache = cache});
    found[cache] = ejk::Executor(o).tune(Chase{}, next, end).entry.evidence;
  }
  EXPECT_EQ(found[ejk::CacheState::warm].cache, "warm");
  EXPECT_EQ(found[ejk::CacheState::cold].cache, "cold");
  EXPECT_GT(found[ejk::CacheState::cold].seconds, 1.3 * found[ejk::CacheState::warm].seconds);
}

// Takes 2 us and notes in runs[0] how often its argument was not as the caller gave it.
struct Add {
  static constexpr std::string_view op_id = "add", version = "1";
  struct Config {
    int units = 0;
  };
  void run(const Config& c, std::span<float> y) const {
    ++runs[c.units];
    if (y[0] != 10) ++runs[0];
    spin(2);
    for (float& v : y) v += 1;
  }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const { return {{1}, {2}}; }
};

TEST_F(TuningEvidence, ShortKernelsWithInOutArgumentsStartFromTheCallersDataEveryTime) {
  std::vector<float> in_out(8, 10);
  for (bool guard : {true, false}) {
    auto o = options();
    o.policy->guard = guard;
    ejk::Executor(o).tune(Add{}, in_out);
  }
  EXPECT_GT(runs[1], 100);
  EXPECT_EQ(runs[0], 0);
  EXPECT_EQ(in_out[0], 10);
}

// The second candidate is off by 5 %.
struct Rough {
  static constexpr std::string_view op_id = "rough", version = "1";
  struct Config {
    int exact = 1;
  };
  static inline std::optional<ejk::Tolerance> allowed;
  void run(const Config& c, std::span<const float> x, ejk::Out<std::span<float>> y) const {
    spin(c.exact ? 100 : 20);
    for (size_t i = 0; i < x.size(); ++i) (*y)[i] = c.exact ? x[i] : 1.05f * x[i];
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {1}; }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const { return {{1}, {0}}; }
  std::optional<ejk::Tolerance> tolerance(ejk::DType dtype) const {
    return dtype == ejk::DType::float32 ? allowed : std::nullopt;
  }
};

TEST_F(TuningEvidence, AKernelSaysHowFarItsResultsMayBeOff) {
  const auto status = [&](std::optional<ejk::Tolerance> allowed) {
    Rough::allowed = allowed;
    return ejk::Executor(options()).tune(Rough{}, x, y).entry.candidates[1].kind;
  };
  EXPECT_EQ(status(std::nullopt), "wrong");
  EXPECT_EQ(status(ejk::Tolerance{.relative = 0.01}), "wrong");
  EXPECT_EQ(status(ejk::Tolerance{.relative = 0.1}), "");
  EXPECT_EQ(status(ejk::Tolerance{.absolute = 0.1}), "");
}

TEST_F(TuningEvidence, ATimeThatIsWildlyRandomLeavesTheHeuristic) {
  Work::offered = {1, 2, 3};
  Work::heuristic = 2;
  int stays = 0, unresolved = 0;
  constexpr int times = 6;
  for (int i = 0; i < times; ++i) {
    Work::work = [random = std::mt19937(static_cast<unsigned>(i))](int) mutable {
      spin(std::uniform_int_distribution(30, 300)(random));
    };
    auto o = options();
    o.tuner = std::make_shared<ejk::Tuner>(1, 3, static_cast<uint64_t>(i));
    const auto result = ejk::Executor(o).tune(Work{}, x, y);
    stays += result.config.units == 2;
    unresolved += result.entry.outcome == Outcome::unresolved;
  }
  EXPECT_GE(stays, times - 1);
  EXPECT_GE(unresolved, times / 2);
}

// ---- tuning by hand ----------------------------------------------------------------------------

class ByHand : public Tunings {};

TEST_F(ByHand, AnAutotunerGivesTheFastestAndAllMeasurements) {
  Work::offered = {60, 300, 20};
  Work::heuristic = 60;
  const ejk::Executor executor(options());
  ejk::Autotuner autotuner(executor);
  const auto data = autotuner.autotune(Work{}, x, y);
  EXPECT_EQ(data.fastest_config.units, 20);
  ASSERT_THAT(data.measurements(), SizeIs(3));
  EXPECT_EQ(data.measurements()[0].config, ejk::to_value(Work::Config{60}));
  EXPECT_EQ(data.measurements()[2].status, "ok");
  std::vector<float> more(16, 1), out(16);
  autotuner.autotune(Work{}, more, out);
  EXPECT_THAT(autotuner.result().entries, SizeIs(2));
  EXPECT_EQ(autotuner.result().device, data.entry.id.device);
  EXPECT_NE(autotuner.result().entries[0].id.key, autotuner.result().entries[1].id.key);
}

TEST_F(ByHand, AResultIsAScopeBeforeMemoryAndDisk) {
  Work::offered = {60, 20};
  Work::heuristic = 60;
  const ejk::Executor tuning(options());
  ejk::Autotuner autotuner(tuning);
  autotuner.autotune(Work{}, x, y);
  const auto& id = autotuner.result().entries[0].id;

  Work::offered = {60, 50};  // another winner on disk
  const ejk::Executor on_disk(stored_options());
  EXPECT_EQ(on_disk.tune(Work{}, x, y).config.units, 50);
  const ejk::Executor reader(stored_options()), in_memory(options());
  in_memory.chain().cache().put(id.device, id.op, id.key, Work::Config{77});
  {
    const auto scope = autotuner.result().apply();
    for (const ejk::Executor* e : {&reader, &in_memory, &on_disk}) {
      const auto chosen = e->choose_config(Work{}, x, y);
      EXPECT_EQ(chosen.config.units, 20);
      EXPECT_EQ(chosen.origin, Origin::overlay);
    }
  }
  EXPECT_EQ(tuned(reader), 50);
  EXPECT_EQ(tuned(in_memory), 77);
}

TEST_F(ByHand, AFailedTuningIsAnErrorAndNoPartOfTheResult) {
  Work::work = [](int) { throw std::runtime_error("no"); };
  const ejk::Executor executor(options());
  ejk::Autotuner autotuner(executor);
  EXPECT_THROW(autotuner.autotune(Work{}, x, y), ejk::Error);
  EXPECT_THAT(autotuner.result().entries, IsEmpty());
  const auto scope = autotuner.result().apply();  // of nothing
}

TEST_F(ByHand, OneCallTunesOverTheKernelsOrOnesOwnConfigs) {
  Work::offered = {60, 300, 20};
  Work::heuristic = 60;
  EXPECT_EQ(ejk::autotune(Work{}, {}, x, y).units, 20);
  EXPECT_EQ(
      ejk::autotune(Work{}, {.configs = {{90}, {30}}, .num_warmup = 2, .num_iters = 5}, x, y).units,
      30);
  Work::work = [](int) { throw std::runtime_error("no"); };
  EXPECT_THROW(ejk::autotune(Work{}, {}, x, y), ejk::Error);
}

struct Bare {
  static constexpr std::string_view op_id = "bare", version = "1";
  struct Config {
    int units = 0;
  };
  void run(const Config& c, ejk::Out<std::span<float>> y) const {
    spin(c.units);
    for (float& v : *y) v = 1;
  }
};

TEST_F(ByHand, AKernelWithoutCandidatesIsTunedOverThoseGiven) {
  EXPECT_EQ(ejk::autotune(Bare{}, {.configs = {{90}, {20}, {60}}}, y).units, 20);
  EXPECT_THROW(ejk::autotune(Bare{}, {}, y), ejk::Error);
}

TEST(Benchmark, GivesMillisecondsOrWhatWasThrown) {
  const double slept = ejk::benchmark([] { std::this_thread::sleep_for(milliseconds(4)); }, 3);
  EXPECT_GE(slept, 3.9);
  EXPECT_LT(slept, 1000);
  int calls = 0;
  EXPECT_GT(ejk::benchmark([&] { spin(50), ++calls; }, 20, 5), 0);
  EXPECT_GE(calls, 25);
  EXPECT_THROW(ejk::benchmark([] { throw std::out_of_range("far"); }), std::out_of_range);
  EXPECT_THROW(ejk::benchmark([] {}, -1), ejk::Error);
}

// ---- the clock ---------------------------------------------------------------------------------

class Clocks : public Tunings {};

TEST_F(Clocks, SleepersThreadsAndBothAreTimedByTheWall) {
  Work::offered = {1, 2, 3, 4};
  Work::heuristic = 4;
  Work::work = [](int kind) {
    if (kind == 1) std::this_thread::sleep_for(milliseconds(6));
    if (kind == 2) std::jthread([] { spin(5000); });
    if (kind == 3) {
      std::jthread other([] { spin(2000); });
      spin(1000);
      std::this_thread::sleep_for(milliseconds(5));
    }
    if (kind == 4) spin(1000);  // the longest by its own thread's time, the shortest by the wall
  };
  const auto result = ejk::Executor(options()).tune(Work{}, x, y);
  EXPECT_EQ(result.entry.evidence.clock, "wall");
  EXPECT_EQ(result.config.units, 4);
  for (int kind : {1, 2, 3})
    EXPECT_EQ(result.entry.candidates[static_cast<size_t>(kind - 1)].status, "slower") << kind;
}

}  // namespace
