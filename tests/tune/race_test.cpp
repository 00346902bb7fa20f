// SPDX-License-Identifier: Apache-2.0
// Who wins a race, and how it is measured: on scripted times, and on noise that was recorded on a
// busy machine. The same on every machine.
#include <cmath>
#include <map>
#include <random>
#include <thread>

#include <gtest/gtest.h>

#include "../../bench/recorded.h"
#include "paths.h"
#include "replay.h"
#include "tune/decide.h"
#include "tune/sample.h"

namespace ejk {
namespace {

using replay::Race;

Elapsed computing(double seconds) { return {seconds, seconds, seconds, 0}; }

// Candidates that take that long, give or take some percent in every execution.
replay::Script noisy(std::vector<double> seconds, double noise = 0.05) {
  return [seconds = std::move(seconds), noise, random = std::make_shared<std::mt19937>(1)](
             size_t candidate, int) {
    const double share = std::uniform_real_distribution(-noise, noise)(*random);
    return computing(seconds[candidate] * (1 + share));
  };
}

// From 0.1 us to 1 ms, more of them where a sample is one, two or three executions.
std::vector<double> lengths() {
  std::vector<double> list = {8.9e-6, 11.1e-6, 13.3e-6};
  for (int i = 0; i <= 40; ++i) list.push_back(1e-7 * std::pow(10, i / 10.));
  for (int i = 0; i < 200; ++i) list.push_back(5e-6 + 0.1e-6 * i);
  return list;
}

// ---- measured alike ----------------------------------------------------------------------------

// What a sample costs by itself weighs more where it has fewer executions: equals must have the
// same number of them, although their warm-ups differ.
TEST(Race, EqualsOfEveryLengthGiveTheFirst) {
  for (const double seconds : lengths()) {
    const Race race{.candidates = 8,
                    .script = noisy(std::vector<double>(8, seconds)),
                    .per_sample = 3e-6,
                    .after_reset = 2e-6};
    EXPECT_EQ(replay::tune(race).winner, 0u) << seconds;
  }
}

TEST(Race, EqualCandidatesAreUnresolved) {
  const TuneResult result =
      replay::tune({.candidates = 8, .script = noisy(std::vector<double>(8, 1e-5), 0)});
  EXPECT_EQ(result.outcome, Outcome::unresolved);
  for (size_t i = 1; i < 8; ++i) EXPECT_EQ(result.candidates[i].status, "tied");
}

TEST(Race, EqualsOfEveryLengthLeaveTheHeuristic) {
  for (const double seconds : lengths()) {
    const Race race{.candidates = 4,
                    .script = noisy(std::vector<double>(4, seconds)),
                    .per_sample = 3e-6,
                    .after_reset = 2e-6,
                    .heuristic = 2};
    EXPECT_EQ(replay::tune(race).winner, 2u) << seconds;
  }
}

TEST(Race, FivePercentAreFoundAtEveryLength) {
  for (const double seconds : lengths()) {
    std::vector<double> all(8, 1.05 * seconds);
    all[5] = seconds;
    const Race race{.candidates = 8, .script = noisy(all, 0.02), .per_sample = 0.2e-6};
    EXPECT_EQ(replay::tune(race).winner, 5u) << seconds;
  }
}

// Of one race: the fastest, two that are close to it, and some that are slower by up to 10^4.
TEST(Race, MixedLengthsGiveTheFastest) {
  for (const double seconds : lengths()) {
    const std::vector<double> all = {3 * seconds,   10 * seconds,   1.06 * seconds, seconds,
                                     100 * seconds, 1.05 * seconds, 1e4 * seconds};
    const Race race{.candidates = all.size(),
                    .script = noisy(all, 0.01),
                    .per_sample = 3e-6,
                    .after_reset = 2e-6};
    const TuneResult result = replay::tune(race);
    EXPECT_EQ(result.winner, 3u) << seconds;
    for (size_t slow : {1, 4, 6}) EXPECT_LE(result.candidates[slow].samples, 2) << seconds;
  }
}

// Something else had the core while it was warmed up.
TEST(Race, ADisturbedWarmUpIsForgotten) {
  for (const double seconds : {1e-6, 13.3e-6, 50e-6}) {
    const auto script = [=, runs = 0, used = 0.](size_t candidate, int) mutable {
      if (candidate != 1) return computing(seconds);
      const bool disturbed = ++runs == 1 || used < 0.2e-3;  // first run and warm-up
      if (runs > 1) used += 10 * seconds;
      return computing(disturbed ? 10 * seconds : 0.9 * seconds);
    };
    EXPECT_EQ(replay::tune({.candidates = 3, .script = script, .per_sample = 0.6e-6}).winner, 1u)
        << seconds;
  }
}

// By the wall, a thread that computes for others has to wait for a core like every other thread.
// What all threads computed shows it, unless another one of them spins until it is woken up.
TEST(Race, WaitingForACoreInTheFirstRoundsIsForgotten) {
  for (const bool another_spins : {false, true}) {
    const auto script = [&](size_t candidate, int round) -> Elapsed {
      // wall, this thread, all threads, waits, preemptions
      if (candidate == 0) return {1.5e-3, 5e-6, 1.5e-3, 1, 0};
      if (round < 2) return {10e-3, 5e-6, another_spins ? 10e-3 : 10e-6, 1, 1};
      return {10e-6, 5e-6, 10e-6, 1, 0};
    };
    EXPECT_EQ(replay::tune({.candidates = 2, .script = script}).winner, 1u) << another_spins;
  }
}

// A table, a pool: guarded first runs make it in a child, so the warm-up makes it again.
TEST(Race, WorkThatACandidateDoesOnceIsForgotten) {
  for (const double seconds : {0.2e-6, 5e-6, 13.3e-6}) {
    const auto script = [=, runs = 0](size_t candidate, int) mutable {
      if (candidate != 1) return computing(seconds);
      return computing(++runs == 2 ? 300e-6 : 0.9 * seconds);  // after its first run
    };
    const Race race{.candidates = 3, .script = script, .per_sample = 3e-6, .after_reset = 2e-6};
    EXPECT_EQ(replay::tune(race).winner, 1u) << seconds;
  }
}

TEST(Race, TheFirstRunOfASampleIsNotTimed) {
  const Race race{.script = noisy({5e-6, 5e-6}, 0), .after_reset = 3e-6};
  EXPECT_NEAR(replay::tune(race).evidence.seconds, 5e-6, 1e-12);
}

// ---- decided -----------------------------------------------------------------------------------

TEST(Race, IsOverSoonWhereTheWinnerIsClear) {
  const TuneResult result = replay::tune({.candidates = 3, .script = noisy({1e-4, 3e-4, 9e-4}, 0)});
  EXPECT_EQ(result.winner, 0u);
  EXPECT_LE(result.evidence.samples, 3);
}

TEST(Race, NoCandidateHasMoreThanEightyTurns) {
  const TuneResult result =
      replay::tune({.candidates = 4, .script = noisy({1.02e-4, 1.01e-4, 1e-4, 1.01e-4}, 0.3)});
  for (const Measurement& m : result.candidates) EXPECT_LE(m.samples, 80);
}

// Rounds in which all candidates are disturbed say as much as the others.
TEST(Race, ASlownessOfAWholeRoundDoesNotCount) {
  const auto script = [](size_t candidate, int round) {
    const double disturbed = round % 3 == 0 ? 5 : round % 2 == 0 ? 1.7 : 1;
    return computing(disturbed * (candidate == 2 ? 97e-6 : 100e-6));
  };
  EXPECT_EQ(replay::tune({.candidates = 4, .script = script}).winner, 2u);
}

TEST(Race, ACandidateThatWasLuckyOnceDoesNotWin) {
  const auto script = [](size_t candidate, int round) {
    return computing(candidate == 1 && round < 3 ? 50e-6 : 100e-6);
  };
  EXPECT_EQ(replay::tune({.candidates = 3, .script = script}).winner, 0u);
}

TEST(Race, LeavingRoundsDoesNotMoveTheOthers) {
  constexpr double none = std::numeric_limits<double>::quiet_NaN();
  std::vector<double> stays, slow, rival;
  for (int r = 0; r < 20; ++r) {
    const double level = r < 10 ? 1 : 3;  // the machine became slower after one had left
    stays.push_back(level), rival.push_back(1.01 * level),
        slow.push_back(r < 10 ? 2 * level : none);
  }
  const detail::Standings standings({stays, slow, rival});
  EXPECT_NEAR(standings.behind(1, 0), std::log(2), 1e-9);
  EXPECT_NEAR(standings.behind(2, 0), std::log(1.01), 1e-9);
}

// ---- recorded noise ----------------------------------------------------------------------------

std::vector<replay::Trace> traces() {
  std::vector<replay::Trace> list;
  for (const auto& file : bench::recorded_files(test::data("noise")))
    list.push_back(replay::read_trace(file.filename().string(), bench::unzipped(file)));
  return list;
}

// winner(trace, best) of several parts of every trace.
void for_each_race(double factor,
                   const std::function<void(std::optional<uint64_t>, size_t)>& seen) {
  const std::vector<replay::Trace> all = traces();
  ASSERT_EQ(all.size(), 5u);
  for (const replay::Trace& trace : all)
    for (size_t first = 0; first + detail::max_rounds <= trace.rounds(); first += 40) {
      SCOPED_TRACE(trace.name + " from " + std::to_string(first));
      const size_t best = first / 40 % 8;
      std::vector<double> factors(8, factor);
      factors[best] = 1;
      const Race race{.candidates = 8,
                      .script = replay::script_of(trace, first, {0, 1, 2, 3, 4, 5, 6, 7}, factors)};
      seen(replay::tune(race).winner, best);
    }
}

TEST(RecordedNoise, TenPercentAreFound) {
  for_each_race(1.1, [](auto winner, size_t best) { EXPECT_EQ(winner, best); });
}

TEST(RecordedNoise, FivePercentAreFound) {
  for_each_race(1.05, [](auto winner, size_t best) { EXPECT_EQ(winner, best); });
}

TEST(RecordedNoise, EqualsGiveTheFirst) {
  for_each_race(1, [](auto winner, size_t) { EXPECT_EQ(winner, 0u); });
}

// ---- the clocks of this machine ----------------------------------------------------------------

TEST(SystemStopwatch, SeesThatAThreadWaits) {
  const auto sleep = [] { std::this_thread::sleep_for(std::chrono::milliseconds(3)); };
  const Elapsed elapsed = system_stopwatch()->time(sleep, Clock::thread_cpu);
  EXPECT_GT(elapsed.waits, 0);
  EXPECT_TRUE(detail::needs_wall(elapsed));
}

TEST(SystemStopwatch, SeesWhatOtherThreadsCompute) {
  const auto elsewhere = [] {
    std::jthread([] {
      const auto stopwatch = system_stopwatch();
      for (double cpu = 0; cpu < 5e-3;)
        cpu += stopwatch
                   ->time(
                       [] {
                         for (volatile int i = 0; i < 1000;) i = i + 1;
                       },
                       Clock::thread_cpu)
                   .thread_cpu;
    });
  };
  EXPECT_TRUE(detail::needs_wall(system_stopwatch()->time(elsewhere, Clock::thread_cpu)));
}

}  // namespace
}  // namespace ejk
