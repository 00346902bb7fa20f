// SPDX-License-Identifier: Apache-2.0
// Tunings go on where they ended, and keep to their budget.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <numeric>
#include <thread>

#include "tunings.h"

namespace {

using namespace tunings;
using ejk::Origin;
using std::chrono::milliseconds;
using testing::AnyOf;
using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;
using testing::UnorderedElementsAre;

// ---- going on ----------------------------------------------------------------------------------

class Resuming : public Tunings {
 protected:
  // What calls of four threads get at once.
  template <class K>
  std::vector<int64_t> units_in_threads(const ejk::Executor& executor, const K& kernel) {
    std::vector<int64_t> units(4);
    std::vector<std::jthread> threads;
    for (int64_t& mine : units)
      threads.emplace_back([&] {
        std::vector<float> out(8);
        mine = executor.choose_config(kernel, x, out).config.units;
      });
    threads.clear();
    return units;
  }
};

TEST_F(Resuming, ATuningCutByEvaluationsGoesOnWithoutWhatIsKnown) {
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

TEST_F(Resuming, ATuningCutBySecondsGoesOn) {
  Work::offered = {60, 300, 400, 30, 90, 10, 250, 350};
  Work::heuristic = 60;
  Work::work = [](int) { spin(30'000); };
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

TEST_F(Resuming, AStoppedTuningGoesOn) {
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

// The first run of all is a cold one.
TEST_F(Resuming, ACandidateThatASingleRunCalledSlowerIsMeasuredAgain) {
  Work::offered = {20, 100, 101, 102};
  Work::work = [](int units) {
    if (units == 20 && runs[20] == 1) spin(200'000);
    spin(units);
  };
  std::atomic<bool> stop = false;
  auto o = stored_options();
  o.stop = &stop;
  o.on_progress = [&](const ejk::TuneProgress& p) { stop = p.tried >= 3; };
  EXPECT_NE(tuned(ejk::Executor(o), Unguessed{}), 20);
  EXPECT_EQ(statuses(stored(Unguessed{})).at(20), "slower");
  EXPECT_EQ(runs[20], 1);
  EXPECT_EQ(tuned(ejk::Executor(stored_options()), Unguessed{}), 20);
  EXPECT_TRUE(stored(Unguessed{}).evidence.complete);
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
  ASSERT_TRUE(store()->put(entry, ejk::IfPresent::replace));
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

TEST_F(Resuming, ATuningAnewThatIsCutShortDoesNotReplaceACompleteOne) {
  Work::offered = {60, 300, 10};
  Work::heuristic = 60;
  ASSERT_EQ(tuned(ejk::Executor(stored_options())), 10);
  const ejk::Entry before = stored();
  ASSERT_TRUE(before.evidence.complete);
  std::atomic<bool> stop = false;
  auto o = stored_options();
  o.stop = &stop;
  o.on_progress = [&](const ejk::TuneProgress& p) { stop = p.tried >= 2; };
  EXPECT_EQ(ejk::Executor(o).tune(Work{}, x, y).config.units, 60);  // 10 had no turn
  EXPECT_EQ(stored().config, before.config);
  EXPECT_TRUE(stored().evidence.complete);
  EXPECT_EQ(stored().evidence.samples, before.evidence.samples);
}

TEST_F(Resuming, ThatIsStoppedAtOnceKeepsTheEvidenceOfTheRoundsBefore) {
  Work::offered = {60, 61};
  Work::heuristic = 60;
  Work::work = [](int) { spin(60); };
  std::atomic<bool> stop = false;
  auto o = stored_options();
  o.tuner = scripted_tuner({.iters = 20});  // so many rounds in any case
  o.stop = &stop;
  o.on_progress = [&](const ejk::TuneProgress& p) { stop = p.round >= 12; };
  ASSERT_EQ(tuned(ejk::Executor(o)), 60);
  ASSERT_FALSE(stored().evidence.complete);
  const int rounds = stored().evidence.samples;
  EXPECT_GE(rounds, 12);
  stop = false;
  o.on_progress = [&](const ejk::TuneProgress&) { stop = true; };
  EXPECT_EQ(tuned(ejk::Executor(o)), 60);
  EXPECT_EQ(stored().evidence.samples, rounds);
  EXPECT_EQ(stored().evidence.strategy, "race");
  EXPECT_FALSE(stored().evidence.complete);
}

TEST_F(Resuming, ThatIsCutIsNotCompleteAlsoIfTheEvidenceOfTheEarlierWinnerIsKept) {
  Work::offered = {60, 30};
  Work::heuristic = 60;
  ASSERT_EQ(tuned(ejk::Executor(stored_options())), 30);
  const int samples = stored().evidence.samples;
  Work::offered = {60, 30, 200, 10};
  std::atomic<bool> stop = false;
  auto o = stored_options();
  o.stop = &stop;
  o.on_progress = [&](const ejk::TuneProgress& p) { stop = p.tried >= 3; };
  EXPECT_EQ(tuned(ejk::Executor(o)), 30);
  EXPECT_EQ(stored().evidence.samples, samples);
  EXPECT_FALSE(stored().evidence.complete);
  EXPECT_EQ(statuses(stored()).at(10), "untried");
  EXPECT_EQ(tuned(ejk::Executor(stored_options())), 10);
  EXPECT_TRUE(stored().evidence.complete);
}

// Its candidates may have become wrong since they were stored.
struct Compared : Work {
  static constexpr std::string_view op_id = "compared";
  static inline bool wrong = false;
  void run(const Config& c, std::span<const float> x, ejk::Out<std::span<float>> y) const {
    Work::run(c, x, y);
    if (wrong && c.units != heuristic) (*y)[0] += 1;
  }
  void reference(std::span<const float> x, ejk::Out<std::span<float>> y) const {
    std::ranges::copy(x, (*y).begin());
  }
};

class ResumingWithWrongCandidates : public Resuming {
 protected:
  ResumingWithWrongCandidates() {
    Work::offered = {30, 20, 10};
    Work::heuristic = 60;
    Compared::wrong = false;
    auto o = stored_options();
    o.policy->budget_evaluations = 2;
    EXPECT_EQ(tuned(ejk::Executor(o), Compared{}), 30);
    EXPECT_FALSE(stored(Compared{}).evidence.complete);
    Compared::wrong = true;
  }
};

TEST_F(ResumingWithWrongCandidates, TakesNoneThatWasFoundWrong) {
  for (int process = 0; process < 2; ++process) {
    const auto chosen = ejk::Executor(stored_options()).choose_config(Compared{}, x, y);
    EXPECT_EQ(chosen.config.units, 60);
    EXPECT_EQ(chosen.origin, Origin::heuristics);
    EXPECT_EQ(stored(Compared{}).outcome, ejk::Outcome::failed);
  }
}

TEST_F(ResumingWithWrongCandidates, TakesNoneThatAnotherThreadFoundWrong) {
  const ejk::Executor executor(stored_options());
  EXPECT_THAT(units_in_threads(executor, Compared{}), Each(60));
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
  EXPECT_THAT(units_in_threads(executor, Work{}), Each(10));
  EXPECT_EQ(std::ranges::count(events.take(), "autotune_start"), 1);
}

// Its seconds are counted in the entry before they are spent.
TEST_F(Resuming, AThreadThatComesMeanwhileWaitsForIt) {
  Work::offered = {60, 300, 30, 10};
  Work::heuristic = 60;
  begin(3);
  auto o = stored_options();
  std::unique_ptr<ejk::Executor> executor;
  std::jthread other;
  int64_t seen = 0;
  o.on_progress = [&](const ejk::TuneProgress&) {
    if (!other.joinable())
      other = std::jthread([&] {
        std::vector<float> out(8);
        seen = executor->choose_config(Work{}, x, out).config.units;
      });
  };
  executor = std::make_unique<ejk::Executor>(o);
  EXPECT_EQ(executor->choose_config(Work{}, x, y).config.units, 10);
  other.join();
  EXPECT_EQ(seen, 10);
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
  o.policy->target_seconds = 200e-6;
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
  Work::work = [](int) { spin(20'000); };  // no 4 times by chance
  Work::offered = {60, 30, 20};
  for (int heuristic : {60, 77}) {  // a candidate, and a config that is not a candidate
    for (bool guard : {true, false}) {
      Work::heuristic = heuristic;
      auto o = options();
      o.policy->budget_seconds = 0;
      o.policy->guard = guard;
      const auto result = ejk::Executor(o).tune(Work{}, x, y);
      EXPECT_EQ(result.config.units, heuristic);
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
  for (bool guard : {true, false}) {
    std::atomic<bool> running = false, stop = false;
    Work::work = [&, host = ::getpid()](int) {
      spin(5000);
      if (::getpid() != host) return;
      running = true;
      running.notify_one();
      stop.wait(false);
    };
    auto o = options();
    o.stop = &stop;
    o.policy->guard = guard;
    std::jthread other([&] {
      running.wait(false);
      stop = true;
      stop.notify_one();
    });
    const auto result = ejk::Executor(o).tune(Work{}, x, y);
    EXPECT_FALSE(result.entry.evidence.complete);
  }
}

extern "C" void nothing(int) {}

TEST(Interrupts, AnInterruptIsNotedAndTheHandlerComesBack) {
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

}  // namespace
