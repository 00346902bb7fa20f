// SPDX-License-Identifier: Apache-2.0
// Tunings of fake kernels whose time is scripted, and the comparison of their outputs.
#include <ejk/config.h>
#include <ejk/tuner.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "base/shuffle.h"
#include "replay.h"
#include "tune/output_check.h"
#include "tune/statistics.h"

namespace ejk {
namespace {

// ---- fakes -------------------------------------------------------------------------------------

AnyConfig config(int value) { return make_config(value); }

std::vector<AnyConfig> configs(std::initializer_list<int> values) {
  std::vector<AnyConfig> list;
  for (int v : values) list.push_back(config(v));
  return list;
}

// A kernel whose config is how many microseconds it takes, unless a test says otherwise. It adds 1
// to an in-out argument and writes 2 into an output. Its time passes on a stopwatch of its own.
class FakeTrial : public Trial {
 public:
  std::shared_ptr<replay::ScriptedStopwatch> stopwatch =
      std::make_shared<replay::ScriptedStopwatch>();
  void compute(double microseconds) { stopwatch->pass(1e-6 * microseconds); }
  void wait(double microseconds) { stopwatch->pass({1e-6 * microseconds, 0, 0, 1}); }

  std::function<void(int)> work = [this](int microseconds) { compute(microseconds); };
  std::function<void(int, FakeTrial&)> write;  // instead of the right results
  std::function<void(FakeTrial&)> reference;
  float in_out = 10, output = 0;
  std::vector<std::pair<char, int>> log;  // 'r' reset, 'x' run

  void reset() override {
    in_out = 10;
    std::memset(&output, 0xff, sizeof output);
    log.emplace_back('r', 0);
  }
  void run(const AnyConfig& c) override {
    const int value = c.as<int>();
    log.emplace_back('x', value);
    work(value);
    if (write) write(value, *this);
    else in_out += 1, output = 2;
  }
  bool run_reference() override {
    if (reference) reference(*this);
    return static_cast<bool>(reference);
  }
  std::vector<OutputBytes> outputs() override {
    std::vector<OutputBytes> list;
    for (const float* v : {&in_out, &output}) {
      const auto* bytes = reinterpret_cast<const std::byte*>(v);
      list.push_back({DType::float32, {bytes, bytes + sizeof *v}});
    }
    return list;
  }
};

TuneTask task_of(Trial& trial, const std::vector<AnyConfig>& candidates,
                 std::optional<AnyConfig> heuristic = std::nullopt) {
  TuneTask task;
  task.op = "fake@v1";
  task.trial = &trial;
  task.candidates = candidate_list(candidates);
  task.heuristic = std::move(heuristic);
  return task;
}

Tuner tuner_of(const FakeTrial& trial, int warmup = 1, int iters = 3) {
  return Tuner(TunerOptions{.warmup = warmup, .iters = iters, .stopwatch = trial.stopwatch});
}

TuneResult tune(FakeTrial& trial, const std::vector<AnyConfig>& candidates,
                std::optional<AnyConfig> heuristic = std::nullopt) {
  return tuner_of(trial).tune(task_of(trial, candidates, std::move(heuristic)));
}

// ---- choosing ----------------------------------------------------------------------------------

TEST(Tuning, TheFasterCandidateWinsWhereverItStands) {
  const auto winner = [](std::initializer_list<int> candidates) {
    FakeTrial trial;
    const TuneResult result = tune(trial, configs(candidates));
    EXPECT_EQ(result.outcome, Outcome::tuned);
    return result.winner;
  };
  EXPECT_EQ(winner({50, 80, 120}), 0u);
  EXPECT_EQ(winner({80, 50, 120}), 1u);
  EXPECT_EQ(winner({120, 80, 50}), 2u);
}

TEST(Tuning, TheEvidenceIsComplete) {
  FakeTrial trial;
  const TuneResult result = tune(trial, configs({200, 50}), config(200));
  ASSERT_EQ(result.winner, 1u);
  const Evidence& e = result.evidence;
  EXPECT_NEAR(e.seconds, 50e-6, 1e-12);
  EXPECT_NEAR(e.seconds_low, 50e-6, 1e-12);
  EXPECT_NEAR(e.seconds_high, 50e-6, 1e-12);
  EXPECT_NEAR(e.heuristic_seconds, 200e-6, 1e-12);
  EXPECT_EQ(e.heuristic_config, result.candidates[0].config);
  EXPECT_NEAR(e.speedup, 4, 1e-6);
  EXPECT_NEAR(e.speedup_low, 4, 1e-6);
  EXPECT_GE(e.noise, 0);
  EXPECT_GE(e.samples, 3);
  EXPECT_TRUE(e.complete);
  EXPECT_EQ(e.strategy, "race");
  EXPECT_EQ(e.data, "call");
  EXPECT_EQ(e.library, library_version());
  EXPECT_EQ(e.time.size(), std::string("2000-01-01T00:00:00Z").size());
  ASSERT_EQ(result.candidates.size(), 2u);
  EXPECT_EQ(result.candidates[0].config, Value(200));
  EXPECT_EQ(result.candidates[0].status, "slower");
  EXPECT_EQ(result.candidates[0].ratio, 1);
  EXPECT_EQ(result.candidates[1].status, "ok");
  EXPECT_NEAR(result.candidates[1].ratio, 0.25, 1e-6);
  EXPECT_GE(result.candidates[1].samples, 3);
}

TEST(Tuning, ABeatenHeuristicDoesNotStay) {
  FakeTrial trial;
  trial.work = [&](int c) { trial.compute(c == 3 ? 100 : 30); };
  const TuneResult result = tune(trial, configs({1, 2, 3, 4}), config(3));
  EXPECT_EQ(result.winner, 0u);
  EXPECT_EQ(result.outcome, Outcome::tuned);
}

TEST(Tuning, AHeuristicThatIsNoCandidateIsNeverTheAnswer) {
  FakeTrial trial;
  const TuneResult result = tune(trial, configs({150, 100}), config(20));
  EXPECT_EQ(result.winner, 1u);
  EXPECT_EQ(result.outcome, Outcome::tuned);
  EXPECT_NEAR(result.evidence.speedup, 0.2, 1e-6);
  EXPECT_NEAR(result.evidence.heuristic_seconds, 20e-6, 1e-12);
}

TEST(Tuning, EqualConfigsAreMeasuredOnce) {
  FakeTrial trial;
  const TuneResult result = tune(trial, configs({300, 50, 300, 50}));
  EXPECT_EQ(result.winner, 1u);
  ASSERT_EQ(result.candidates.size(), 4u);
  EXPECT_EQ(result.candidates[1].seconds, result.candidates[3].seconds);
  EXPECT_EQ(result.candidates[1].samples, result.candidates[3].samples);
  EXPECT_EQ(result.candidates[3].status, "ok");
}

// ---- rejecting ---------------------------------------------------------------------------------

TEST(Tuning, AWrongResultIsRejectedHoweverFastItIs) {
  FakeTrial trial;
  trial.write = [](int c, FakeTrial& t) { t.in_out += 1, t.output = c == 5 ? 2.01f : 2.f; };
  const TuneResult result = tune(trial, configs({5, 60}), config(60));
  EXPECT_EQ(result.winner, 1u);
  EXPECT_EQ(result.candidates[0].status, "rejected");
  EXPECT_NE(result.candidates[0].why.find("output 1"), std::string::npos);
}

TEST(Tuning, TheReferenceHasTheLastWord) {
  FakeTrial trial;
  trial.reference = [](FakeTrial& t) { t.in_out = 11, t.output = 2; };
  trial.write = [](int c, FakeTrial& t) { t.in_out += 1, t.output = c == 5 ? 3.f : 2.f; };
  const TuneResult result = tune(trial, configs({5, 60}), config(5));
  EXPECT_EQ(result.winner, 1u);
  EXPECT_EQ(result.candidates[0].status, "rejected");
  EXPECT_NE(result.heuristic_problem.find("output"), std::string::npos);
}

TEST(Tuning, AThrowingReferenceIsToldAndReplaced) {
  FakeTrial trial;
  trial.reference = [](FakeTrial&) { throw std::runtime_error("no reference today"); };
  const TuneResult result = tune(trial, configs({5, 60}));
  EXPECT_EQ(result.winner, 0u);
  EXPECT_EQ(result.note,
            "the reference threw: no reference today: results are compared with those of the first "
            "config that runs");
}

TEST(Tuning, UntouchedOutputsAreRejectedEvenInTheFirstCandidate) {
  FakeTrial trial;
  trial.write = [](int c, FakeTrial& t) {
    if (c != 5) t.in_out += 1, t.output = 2;
  };
  const TuneResult result = tune(trial, configs({5, 60, 61}));
  EXPECT_EQ(result.winner, 1u);
  EXPECT_EQ(result.candidates[0].status, "rejected");
}

TEST(Tuning, UntouchedOutputsAreRejectedWhereNanIsRight) {
  FakeTrial trial;
  trial.write = [](int c, FakeTrial& t) {
    t.in_out += 1;
    if (c != 5) t.output = std::numeric_limits<float>::quiet_NaN();
  };
  const TuneResult result = tune(trial, configs({60, 5}));
  EXPECT_EQ(result.winner, 0u);
  EXPECT_EQ(result.candidates[1].status, "rejected");
  EXPECT_NE(result.candidates[1].why.find("nothing written"), std::string::npos);
}

TEST(Tuning, AnExceptionOfAnyTypeIsTheReason) {
  FakeTrial trial;
  trial.work = [&](int c) {
    if (c == 1) throw std::runtime_error("one");
    if (c == 2) throw "two";
    if (c == 3) throw std::string("three");
    if (c == 4) throw 4;
    trial.compute(30);
  };
  const TuneResult result = tune(trial, configs({1, 2, 3, 4, 5}));
  EXPECT_EQ(result.winner, 4u);
  EXPECT_EQ(result.candidates[0].why, "one");
  EXPECT_EQ(result.candidates[1].why, "two");
  EXPECT_EQ(result.candidates[2].why, "three");
  EXPECT_NE(result.candidates[3].why.find("not a std::exception"), std::string::npos);
}

TEST(Tuning, ACandidateThatThrowsInTheMiddleOfTheRaceIsRejected) {
  for (int victim : {5, 60}) {  // the incumbent and another one
    FakeTrial trial;
    trial.work = [&, runs = 0](int c) mutable {
      if (c == victim && ++runs > 2000) throw std::runtime_error("tired");
      trial.compute(c);
    };
    const std::vector<AnyConfig> candidates = configs({5, 60, 200});
    const TuneResult result = tuner_of(trial, 1, 2000).tune(task_of(trial, candidates));
    EXPECT_EQ(result.winner, victim == 5 ? 1u : 0u);
    EXPECT_NE(result.candidates[victim == 5 ? 0 : 1].status, "ok");
  }
}

TEST(Tuning, AllFailingIsAFailureWithReasons) {
  FakeTrial trial;
  trial.work = [&](int c) { throw std::runtime_error("no " + std::to_string(c)); };
  const TuneResult result = tune(trial, configs({1, 2}), config(7));
  EXPECT_EQ(result.outcome, Outcome::failed);
  EXPECT_FALSE(result.winner);
  EXPECT_EQ(result.candidates[0].why, "no 1");
  EXPECT_EQ(result.candidates[1].why, "no 2");
  EXPECT_FALSE(result.evidence.time.empty());
}

TEST(Tuning, NoCandidatesIsAFailure) {
  FakeTrial trial;
  EXPECT_EQ(tune(trial, {}).outcome, Outcome::failed);
  EXPECT_EQ(tune(trial, {}, config(3)).outcome, Outcome::failed);
  const TuneResult empty = tune(trial, {AnyConfig()});
  EXPECT_EQ(empty.outcome, Outcome::failed);
  EXPECT_EQ(empty.candidates[0].status, "rejected");
}

TEST(Tuning, MisuseIsAnError) {
  EXPECT_THROW(Tuner(-1), Error);
  EXPECT_THROW(Tuner(1, -1), Error);
  EXPECT_THROW(Tuner().tune(TuneTask{}), Error);
}

// ---- measuring ---------------------------------------------------------------------------------

TEST(Tuning, InOutArgumentsAreRestoredBeforeEverySample) {
  FakeTrial trial;
  std::set<float> seen;
  trial.work = [&](int c) { seen.insert(trial.in_out), trial.compute(c); };
  // Long enough that no sample repeats the execution.
  tune(trial, configs({4000, 6000}));
  EXPECT_EQ(seen, std::set<float>{10});
}

// Kernels that are long enough run once per sample, so a round of three is three runs.
TEST(Tuning, RoundsAreInterleavedAndShuffled) {
  FakeTrial trial;
  trial.work = [&](int) { trial.compute(3000); };
  TuneTask task = task_of(trial, configs({1, 2, 3}));
  std::vector<size_t> ends;
  task.on_progress = [&](const TuneProgress& p) {
    if (p.kind == TuneProgress::Kind::round) ends.push_back(trial.log.size());
  };
  tuner_of(trial, 1, 6).tune(task);
  ASSERT_GE(ends.size(), 6u);
  std::set<std::vector<int>> orders;
  for (size_t r = 1; r < std::min<size_t>(ends.size(), 8); ++r) {
    std::vector<int> round;
    for (size_t i = ends[r - 1]; i < ends[r]; ++i)
      if (trial.log[i].first == 'x') round.push_back(trial.log[i].second);
    orders.insert(round);
    std::ranges::sort(round);
    EXPECT_EQ(round, (std::vector<int>{1, 2, 3}));
  }
  EXPECT_GT(orders.size(), 1u);
}

TEST(Tuning, ACandidateThatWaitsForcesTheWallClock) {
  FakeTrial trial;
  trial.work = [&](int c) { c == 1 ? trial.wait(3000) : trial.compute(300); };
  const TuneResult result = tune(trial, configs({1, 2}));
  EXPECT_EQ(result.evidence.clock, "wall");
  EXPECT_EQ(result.winner, 1u);  // by the thread's time the first would take nothing
}

// A warm-up that is over after one long run does not see it.
TEST(Tuning, ACandidateThatWaitsFromItsSecondRunForcesTheWallClock) {
  FakeTrial trial;
  trial.work = [&, runs = 0](int c) mutable {
    if (c == 1 && ++runs > 2) trial.wait(5000);
    else trial.compute(c == 1 ? 5000 : 300);
  };
  TuneTask task = task_of(trial, configs({1, 2}));
  task.guard = false;  // its runs in a child would not be counted
  const TuneResult result = tuner_of(trial).tune(task);
  EXPECT_EQ(result.evidence.clock, "wall");
  EXPECT_EQ(result.winner, 1u);
}

TEST(Tuning, ACandidateThatUsesThreadsForcesTheWallClock) {
  FakeTrial trial;
  trial.work = [&](int c) {
    if (c == 1) trial.stopwatch->pass({2e-3, 1e-3, 3e-3, 0});
    else trial.compute(300);
  };
  EXPECT_EQ(tune(trial, configs({1, 2})).evidence.clock, "wall");
}

TEST(Tuning, PlainComputationIsTimedByItsOwnThread) {
  FakeTrial trial;
  EXPECT_EQ(tune(trial, configs({100, 300})).evidence.clock, "thread_cpu");
}

// Others took the core for a while: that is not the candidate's own cost.
TEST(Tuning, TimeThatOthersTookDoesNotCount) {
  FakeTrial trial;
  trial.work = [&](int c) {
    trial.compute(c);
    if (c == 100) trial.stopwatch->pass({1e-3, 0, 0, 0});
  };
  const TuneResult result = tune(trial, configs({100, 130}));
  EXPECT_EQ(result.evidence.clock, "thread_cpu");
  EXPECT_EQ(result.winner, 0u);
}

TEST(Tuning, ASpentBudgetStillGivesOneThatIsRight) {
  FakeTrial trial;
  const std::vector<AnyConfig> candidates = configs({200, 100});
  TuneTask task = task_of(trial, candidates);
  task.budget.seconds = 0;
  const TuneResult result = tuner_of(trial).tune(task);
  EXPECT_EQ(result.winner, 0u);
  EXPECT_FALSE(result.evidence.complete);
  EXPECT_EQ(result.candidates[1].status, "untried");
}

TEST(Tuning, WithoutOneRoundTheVerifyingRunsDecide) {
  FakeTrial trial;
  // Three verifying runs, then a warm-up that takes more than the budget.
  trial.work = [&, runs = 0](int c) mutable { trial.compute(1e3 * (++runs > 3 ? 900 : c)); };
  const std::vector<AnyConfig> candidates = configs({60, 10, 1});
  TuneTask task = task_of(trial, candidates);
  task.guard = false;
  task.budget.seconds = 0.8;
  const TuneResult result = tuner_of(trial).tune(task);
  EXPECT_EQ(result.winner, 2u);
  EXPECT_EQ(result.outcome, Outcome::tuned);
  EXPECT_EQ(result.evidence.strategy, "single run");
  EXPECT_FALSE(result.evidence.complete);
  EXPECT_NEAR(result.evidence.seconds, 1e-3, 1e-9);
  EXPECT_EQ(result.evidence.samples, 1);
}

TEST(Tuning, ALongRaceIsCutByItsBudget) {
  FakeTrial trial;
  trial.work = [&](int) { trial.compute(20'000); };
  const std::vector<AnyConfig> candidates = configs({1, 2, 3});
  TuneTask task = task_of(trial, candidates);
  task.budget.seconds = 0.5;
  const TuneResult result = tuner_of(trial, 1, 1000).tune(task);
  EXPECT_FALSE(result.evidence.complete);
  EXPECT_TRUE(result.winner);
  EXPECT_EQ(result.evidence.samples, 7);  // of 60 ms each, after a warm-up
}

// ---- going on with an earlier tuning -----------------------------------------------------------

Measurement known(int value, const std::string& status, double ratio) {
  Measurement m;
  m.config = config(value).to_value(), m.status = status;
  m.ratio = m.ratio_low = m.ratio_high = ratio;
  m.seconds = 1e-3 * ratio, m.samples = 20;
  return m;
}

Measurement known_invalid(int value) {
  Measurement m;
  m.config = config(value).to_value(), m.status = "rejected", m.kind = "invalid";
  return m;
}

bool was_run(const FakeTrial& trial, int value) {
  return std::ranges::find(trial.log, std::pair{'x', value}) != trial.log.end();
}

const Measurement& of(const TuneResult& result, int value) {
  const auto found =
      std::ranges::find(result.candidates, config(value).to_value(), &Measurement::config);
  if (found == result.candidates.end()) throw std::runtime_error("not listed");
  return *found;
}

ProgressSink stop_at(std::atomic<bool>& stop, TuneProgress::Kind kind, uint64_t tried = 0) {
  return [&stop, kind, tried](const TuneProgress& p) {
    if (p.kind == kind && p.tried >= tried) stop = true;
  };
}

TEST(GoingOn, IsNotCompleteIfItWasStoppedAfterOneRound) {
  FakeTrial trial;
  std::atomic<bool> stop = false;
  TuneTask task = task_of(trial, configs({100, 150, 30}));
  task.known = {known(100, "ok", 1), known(150, "slower", 1.5)};
  task.known_winner = config(100).to_value();
  task.stop = &stop;
  task.on_progress = stop_at(stop, TuneProgress::Kind::round);
  const TuneResult result = tuner_of(trial).tune(task);
  EXPECT_EQ(result.evidence.samples, 1);
  EXPECT_FALSE(result.evidence.complete);
  EXPECT_FALSE(was_run(trial, 150));
}

TEST(GoingOn, AHeuristicThatWonStaysIfOneRoundIsAllThereWas) {
  FakeTrial trial;
  std::atomic<bool> stop = false;
  TuneTask task = task_of(trial, configs({150, 160, 300}), config(60));
  task.heuristic_may_win = true;
  task.known = {known(150, "slower", 2.5), known(160, "slower", 2.7), known(60, "ok", 1)};
  task.known_winner = config(60).to_value();
  task.stop = &stop;
  task.on_progress = stop_at(stop, TuneProgress::Kind::round);
  const TuneResult result = tuner_of(trial).tune(task);
  ASSERT_TRUE(result.winner);
  EXPECT_EQ(result.config.as<int>(), 60);
  EXPECT_FALSE(result.evidence.complete);
}

// ---- large sets --------------------------------------------------------------------------------

// 0, 1, ...
std::vector<AnyConfig> first_configs(int count) {
  std::vector<AnyConfig> list;
  for (int i = 0; i < count; ++i) list.push_back(config(i));
  return list;
}

TEST(Searching, DoesNotRecallWhatTheCallRefuses) {
  FakeTrial trial;
  trial.work = [&](int c) { trial.compute(c == 7 ? 10 : 60); };
  TuneTask task = task_of(trial, first_configs(60));
  for (int i = 0; i < 10; ++i) task.known.push_back(known(i, i == 3 ? "ok" : "tied", 1));
  task.known[7].ratio = 0.2;
  task.known_winner = config(3).to_value();
  task.known_complete = false;
  task.is_valid = [](const AnyConfig& c) { return c.as<int>() != 7; };
  task.budget.evaluations = 20;
  task.guard = false;
  const TuneResult result = tuner_of(trial).tune(task);
  ASSERT_TRUE(result.winner);
  EXPECT_NE(result.winner, 7u);
  EXPECT_FALSE(was_run(trial, 7));
  EXPECT_EQ(of(result, 7).kind, "invalid");
}

TEST(Searching, ACandidateThatWasRefusedBeforeCostsNoEvaluations) {
  FakeTrial trial;
  trial.work = [&](int) { trial.compute(60); };
  TuneTask task = task_of(trial, first_configs(400));
  task.is_valid = [](const AnyConfig& c) { return c.as<int>() % 10 == 0; };
  for (int i = 0; i < 100; ++i)
    task.known.push_back(i % 10 == 0 ? known(i, i == 0 ? "ok" : "tied", 1) : known_invalid(i));
  task.known_winner = config(0).to_value();
  task.known_complete = false;
  task.budget.evaluations = 20;
  std::set<int64_t> fresh;
  task.on_progress = [&](const TuneProgress& p) {
    if (p.kind == TuneProgress::Kind::candidate && p.config.as_int() >= 100)
      fresh.insert(p.config.as_int());
  };
  tuner_of(trial).tune(task);
  EXPECT_EQ(fresh.size(), 10u);  // ten are known
}

// What is known is in units of a winner that fails now; 20 is the best of the rest.
TEST(Searching, GoesOnInTheSameUnitWithoutTheEarlierWinner) {
  FakeTrial trial;
  trial.work = [&](int c) {
    if (c == 100) throw std::runtime_error("no longer");
    trial.compute(c == 0 ? 400 : c == 20 ? 50 : 200);
  };
  TuneTask task = task_of(trial, first_configs(300), config(0));
  task.known = {known(0, "slower", 10), known(100, "ok", 1)};
  for (int i = 1; i <= 30; ++i) task.known.push_back(known(i, "slower", i == 20 ? 1.25 : 5));
  task.known_winner = config(100).to_value();
  task.known_complete = false;
  task.budget.evaluations = 60;
  const TuneResult result = tuner_of(trial).tune(task);
  EXPECT_EQ(result.winner, 20u);
  EXPECT_EQ(of(result, 100).kind, "threw");
}

TEST(Searching, ThatIsStoppedWhenItGoesOnKeepsWhatWasMeasured) {
  FakeTrial trial;
  trial.work = [&](int c) { trial.compute(c == 3 ? 40 : 240); };
  std::atomic<bool> stop = false;
  TuneTask task = task_of(trial, first_configs(300));
  for (int i = 0; i < 30; ++i)
    task.known.push_back(known(i, i == 3 ? "ok" : i < 10 ? "tied" : "slower", 1 + 0.01 * i));
  task.known[3].ratio = 1;
  task.known_winner = config(3).to_value();
  task.known_complete = false;
  task.stop = &stop;
  task.on_progress = stop_at(stop, TuneProgress::Kind::candidate, 2);
  const TuneResult result = tuner_of(trial).tune(task);
  EXPECT_EQ(result.winner, 3u);
  EXPECT_FALSE(result.evidence.complete);
  for (const Measurement& m : task.known) {
    const int value = static_cast<int>(m.config.as_int());
    if (value == 3) continue;
    EXPECT_NE(of(result, value).status, "untried") << value;
    EXPECT_EQ(of(result, value).ratio, m.ratio) << value;
    EXPECT_EQ(of(result, value).samples, m.samples) << value;
  }
}

TEST(Searching, OnesThatDoNothingDoNotFillTheFinal) {
  FakeTrial trial;
  trial.work = [&](int c) { trial.compute(c < 16 ? 0.1 : c == 40 ? 40 : 160); };
  trial.write = [](int c, FakeTrial& t) {
    if (c >= 16) t.in_out += 1, t.output = 2;
  };
  TuneTask task = task_of(trial, first_configs(64));
  const TuneResult result =
      Tuner(TunerOptions{.strategy = "exhaustive", .stopwatch = trial.stopwatch}).tune(task);
  for (int i = 0; i < 16; ++i) EXPECT_EQ(of(result, i).kind, "wrong") << i;
  EXPECT_EQ(result.winner, 40u);
}

TEST(Searching, ThatIsStoppedGivesTheBestItFound) {
  FakeTrial trial;
  trial.work = [&](int c) { trial.compute(c >= 100 ? 50 : 150); };
  std::atomic<bool> stop = false;
  TuneTask task = task_of(trial, first_configs(200), config(0));
  task.stop = &stop;
  task.on_progress = stop_at(stop, TuneProgress::Kind::candidate, 40);
  const TuneResult result = tuner_of(trial).tune(task);
  ASSERT_TRUE(result.winner);
  EXPECT_GE(*result.winner, 100u);
  EXPECT_FALSE(result.evidence.complete);
}

// The very first run is a slow one, of which nothing follows for the others.
TEST(Searching, EndsWithTheFirstThatIsFastEnough) {
  FakeTrial trial;
  trial.work = [&, runs = 0](int c) mutable {
    if (runs++ == 0) trial.compute(100'000);
    trial.compute(c % 2 == 0 ? 20 : 1000);
  };
  TuneTask task = task_of(trial, first_configs(300), config(1));
  task.budget.target_seconds = 200e-6;
  task.guard = false;
  uint64_t tried = 0;
  task.on_progress = [&](const TuneProgress& p) { tried = p.tried; };
  const TuneResult result = tuner_of(trial).tune(task);
  ASSERT_TRUE(result.winner);
  EXPECT_EQ(*result.winner % 2, 0u);
  EXPECT_LE(tried, 60u);
  EXPECT_TRUE(result.evidence.complete);
}

TEST(Searching, WithAsManyEvaluationsAsAllowedIsComplete) {
  for (int heuristic : {0, 1000}) {  // a candidate, and a config that is not a candidate
    FakeTrial trial;
    trial.work = [&](int) { trial.compute(60); };
    TuneTask task = task_of(trial, first_configs(300), config(heuristic));
    task.budget.evaluations = 8;
    uint64_t tried = 0;
    task.on_progress = [&](const TuneProgress& p) { tried = p.tried; };
    const TuneResult result = tuner_of(trial).tune(task);
    EXPECT_TRUE(result.evidence.complete) << heuristic;
    EXPECT_EQ(tried, 8u) << heuristic;
    for (const Measurement& m : result.candidates) EXPECT_NE(m.status, "untried") << heuristic;
  }
}

// ---- plain functions ---------------------------------------------------------------------------

TEST(Autotune, ReturnsTheFastestAndLeavesOutTheBroken) {
  const auto stopwatch = std::make_shared<replay::ScriptedStopwatch>();
  Tuner tuner(TunerOptions{.stopwatch = stopwatch});
  const auto make = [&](int units) {
    if (units == 7) throw std::runtime_error("cannot be made");
    return [&stopwatch, units](int times) {
      if (units == 1) throw std::runtime_error("cannot run");
      stopwatch->pass(1e-6 * units * times);
      return units;
    };
  };
  EXPECT_EQ(tuner.autotune(make, std::vector<int>{7, 1, 100, 40, 80}, 2), 40);
  EXPECT_THROW(tuner.autotune(make, std::vector<int>{}, 2), Error);
  try {
    tuner.autotune(make, std::vector<int>{1, 7}, 2);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::no_configuration);
    EXPECT_NE(std::string(e.what()).find("cannot be made"), std::string::npos);
  }
}

TEST(Autotune, MeasureGivesSecondsOrWhatWasThrown) {
  const auto stopwatch = std::make_shared<replay::ScriptedStopwatch>();
  Tuner tuner(TunerOptions{.stopwatch = stopwatch});
  const auto compute = [&](int microseconds) { stopwatch->pass(1e-6 * microseconds); };
  EXPECT_NEAR(tuner.measure(compute, 100), 100e-6, 1e-12);
  EXPECT_NEAR(tuner.measure(compute, 10), 10e-6, 1e-12);
  EXPECT_THROW(tuner.measure([](int) { throw std::out_of_range("x"); }, 1), std::out_of_range);
}

// ---- statistics --------------------------------------------------------------------------------

TEST(Statistics, MedianIntervalsAreOrderStatistics) {
  std::vector<double> values(6);
  for (size_t i = 0; i < 6; ++i) values[i] = static_cast<double>(6 - i);
  const detail::Interval six = detail::median_interval(values, 0.95);
  EXPECT_EQ(six.low, 1);
  EXPECT_EQ(six.median, 3.5);
  EXPECT_EQ(six.high, 6);
  values.resize(100);
  for (size_t i = 0; i < 100; ++i) values[i] = static_cast<double>(i + 1);
  const detail::Interval hundred = detail::median_interval(values, 0.95);
  EXPECT_EQ(hundred.low, 40);  // as tables of the sign test say
  EXPECT_EQ(hundred.high, 61);
  EXPECT_EQ(detail::median_interval({}, 0.95).median, 0);
  values.assign(20000, 3);
  EXPECT_EQ(detail::median_interval(values, 0.95).median, 3);
}

TEST(Statistics, MissingRoundsAreLeftOutOfPairs) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<double> a{2, nan, 6, 8}, b{1, 2, nan, 2};
  EXPECT_EQ(detail::paired_ratios(a, b), (std::vector<double>{2, 4}));
}

TEST(Statistics, ShufflesAreTheSameForTheSameSeed) {
  std::mt19937_64 a(7), b(7);
  const std::vector<size_t> once = ejk::base::shuffled(20, a);
  EXPECT_EQ(once, ejk::base::shuffled(20, b));
  EXPECT_NE(once, ejk::base::shuffled(20, a));
  EXPECT_EQ(std::set<size_t>(once.begin(), once.end()).size(), 20u);
}

// ---- comparing ---------------------------------------------------------------------------------

template <class T>
std::vector<OutputBytes> output(DType dtype, std::vector<T> values) {
  const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
  return {{dtype, {bytes, bytes + values.size() * sizeof(T)}}};
}

template <class T>
bool agree(std::vector<T> got, std::vector<T> expected, DType dtype = dtype_of<T>) {
  const detail::Expected reference({}, output(dtype, std::move(expected)));
  return !reference.difference(output(dtype, std::move(got)));
}

TEST(Comparing, IntegersMustBeEqual) {
  EXPECT_TRUE(agree<int32_t>({1, -2}, {1, -2}));
  EXPECT_FALSE(agree<int64_t>({1000000001}, {1000000000}));
  EXPECT_FALSE(agree<uint8_t>({1}, {0}, DType::boolean));
  EXPECT_FALSE(agree<uint8_t>({0x21}, {0x12}, DType::int4));
}

TEST(Comparing, FloatsMayDifferByRoundingRelativeToTheirNeighbours) {
  EXPECT_TRUE(agree<float>({1.00001f, 2}, {1, 2}));
  EXPECT_FALSE(agree<float>({1.001f, 2}, {1, 2}));
  EXPECT_TRUE(agree<float>({1e-6f, 1, 1}, {0, 1, 1}));         // near zero among ones
  EXPECT_FALSE(agree<float>({2e-8f, 1e-8f}, {1e-8f, 1e-8f}));  // small, but all are
  EXPECT_FALSE(agree<double>({1.00001}, {1}));
  EXPECT_TRUE(agree<Half>({Half(1.005f)}, {Half(1)}));
  EXPECT_FALSE(agree<Half>({Half(1.05f)}, {Half(1)}));
  EXPECT_TRUE(agree<BFloat16>({BFloat16(1.02f)}, {BFloat16(1)}));
  EXPECT_FALSE(agree<BFloat16>({BFloat16(1.2f)}, {BFloat16(1)}));
  EXPECT_FALSE(agree<float>({1, 0, 3, 5}, {1, 0, 3, 4}, DType::complex64));
}

TEST(Comparing, AHugeMarkerDoesNotExcuseTheRest) {
  EXPECT_TRUE(agree<float>({-1e30f, 1, 2, 3}, {-1e30f, 1, 2, 3}));
  EXPECT_FALSE(agree<float>({-1e30f, 1, 2, 4}, {-1e30f, 1, 2, 3}));
}

TEST(Comparing, NanAndInfinityMustBeInTheSamePlaces) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  EXPECT_TRUE(agree<float>({nan, inf, -inf, 1}, {nan, inf, -inf, 1}));
  EXPECT_FALSE(agree<float>({nan, 1}, {1, 1}));
  EXPECT_FALSE(agree<float>({1, 1}, {nan, 1}));
  EXPECT_FALSE(agree<float>({inf}, {-inf}));
  EXPECT_FALSE(agree<float>({3e38f}, {inf}));
}

TEST(Comparing, EightBitFloatsAreReadByTheirOwnRules) {
  EXPECT_TRUE(agree<uint8_t>({0x39}, {0x38}, DType::float8_e4m3fn));     // 1.125 and 1
  EXPECT_FALSE(agree<uint8_t>({0x40}, {0x38}, DType::float8_e4m3fn));    // 2 and 1
  EXPECT_TRUE(agree<uint8_t>({0xff}, {0x7f}, DType::float8_e4m3fn));     // both NaN
  EXPECT_FALSE(agree<uint8_t>({0x7c}, {0xfc}, DType::float8_e5m2));      // inf and -inf
  EXPECT_FALSE(agree<uint8_t>({0x80}, {0x00}, DType::float8_e4m3fnuz));  // NaN and 0
  EXPECT_FALSE(agree<uint8_t>({0x82}, {0x7f}, DType::float8_e8m0fnu));   // 8 and 1
}

TEST(Comparing, OtherShapesAreDifferences) {
  const detail::Expected reference({}, output<float>(DType::float32, {1, 2}));
  EXPECT_TRUE(reference.difference({}));
  EXPECT_TRUE(reference.difference(output<float>(DType::float32, {1})));
  EXPECT_TRUE(reference.difference(output<int32_t>(DType::int32, {1, 2})));
  const auto text = reference.difference(output<float>(DType::float32, {1, 3}));
  ASSERT_TRUE(text);
  EXPECT_NE(text->find("1 of 2 elements"), std::string::npos);
}

}  // namespace
}  // namespace ejk
