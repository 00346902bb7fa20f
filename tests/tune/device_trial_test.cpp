// SPDX-License-Identifier: Apache-2.0
// Tunings of what runs on a device: begun here, done there, and never in a fork of this process.
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ejk/tuner.h>

#include "platform/fake_backend.h"
#include "replay.h"

namespace ejk {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Device made_up_device() {
  Device device;
  device.platform = Platform::opencl;
  device.fingerprint = "opencl|made up|0";
  return device;
}

// What a device's clock says of work that took so long there.
using DeviceClock = std::function<double(double)>;

struct Made {
  std::vector<double> seconds;  // of each candidate
  double compile_seconds = 1e-6;
  std::function<double()> wake_up = [] { return 0.; };  // seconds, of the host at the end of a wait
  DeviceClock clock = {};                               // empty: there is none
};

// To begin a run costs all candidates the same; what it takes passes in `wait`.
class DeviceTrial final : public Trial {
 public:
  DeviceTrial(replay::ScriptedStopwatch& stopwatch, Made made)
      : stopwatch_(stopwatch), made_(std::move(made)) {
    if (made_.clock) device_.backend = &backend_;
  }
  const Device* device() const override { return &device_; }
  void reset() override {}
  void run(const AnyConfig& config) override {
    EXPECT_EQ(getpid(), process_) << "in a child process";
    stopwatch_.pass(compiled_.insert(config.as<size_t>()).second ? made_.compile_seconds : 1e-6);
    begun_ += made_.seconds[config.as<size_t>()];
  }
  void wait() override {
    const double begun = std::exchange(begun_, 0);
    stopwatch_.pass({.wall = begun > 0 ? begun + made_.wake_up() : 0});
  }
  bool run_reference() override { return false; }
  std::vector<OutputBytes> outputs() override {
    EXPECT_EQ(begun_, 0) << "outputs of a run that is not done";
    return {};
  }

 private:
  struct ClockedBackend final : fakes::FakeBackend {
    explicit ClockedBackend(DeviceTrial& of) : trial(of) {}
    void wait() override { trial.wait(); }
    double seconds_of(const std::function<void()>& enqueue) override {
      enqueue();
      const double begun = trial.begun_;
      wait();
      return trial.made_.clock(begun);
    }
    DeviceTrial& trial;
  };

  replay::ScriptedStopwatch& stopwatch_;
  Made made_;
  std::set<size_t> compiled_;
  double begun_ = 0;
  pid_t process_ = getpid();
  ClockedBackend backend_{*this};
  Device device_ = made_up_device();
};

TuneResult tune(Made made, ProgressSink on_progress = {}) {
  const auto stopwatch = std::make_shared<replay::ScriptedStopwatch>();
  std::vector<AnyConfig> configs;
  for (size_t i = 0; i < made.seconds.size(); ++i) configs.push_back(make_config(i));
  DeviceTrial trial(*stopwatch, std::move(made));
  TuneTask task;
  task.op = "made_up";
  task.trial = &trial;
  task.heuristic = configs[0];
  task.candidates = candidate_list(std::move(configs));
  task.on_progress = std::move(on_progress);
  return Tuner(TunerOptions{.stopwatch = stopwatch}).tune(task);
}

// Best at 137.
std::vector<double> many_seconds() {
  std::vector<double> seconds;
  for (int i = 0; i < 200; ++i) seconds.push_back(1e-4 + 1e-5 * std::abs(i - 137));
  return seconds;
}

double honest(double seconds) { return seconds; }

// A host that is busy with other programs: from 0 to 5 ms.
std::function<double()> late_wake_ups() {
  return [engine = std::mt19937(1)]() mutable {
    return 5e-3 * static_cast<double>(engine() % 1000) / 1000;
  };
}

// ---- clocks

TEST(DeviceTrial, TheWallDecidesThoughEveryRunIsBegunAlikeFast) {
  const TuneResult result = tune({{3e-4, 1e-4, 2e-4}});
  EXPECT_EQ(result.winner, 1u);
  EXPECT_EQ(result.evidence.clock, "wall");
  EXPECT_NEAR(result.evidence.seconds, 1e-4, 2e-6);
}

TEST(DeviceTrial, WaitingForTheDeviceIsASmallPartOfASample) {
  const TuneResult result = tune({.seconds = {3e-4, 1e-4}, .wake_up = [] { return 30e-6; }});
  EXPECT_GE(result.evidence.seconds, 1e-4);
  EXPECT_LT(result.evidence.seconds, 1.1e-4);
}

TEST(DeviceTrial, ALargeSetIsSearchedByTheWallToo) {
  const TuneResult result = tune({many_seconds()});
  EXPECT_EQ(result.evidence.clock, "wall");
  EXPECT_EQ(result.winner, 137u);
}

TEST(DeviceTrial, TheDevicesClockDoesNotCountWhenTheHostWakesUp) {
  std::set<std::optional<Clock>> told;
  const TuneResult result =
      tune({.seconds = {1.05e-4, 1e-4, 1.1e-4}, .wake_up = late_wake_ups(), .clock = honest},
           [&](const TuneProgress& p) { told.insert(p.clock); });
  EXPECT_EQ(result.evidence.clock, "device");
  EXPECT_EQ(result.winner, 1u);
  EXPECT_DOUBLE_EQ(result.evidence.seconds, 1e-4);
  EXPECT_THAT(told, ElementsAre(std::nullopt, Clock::device));
}

TEST(DeviceTrial, ALargeSetIsSearchedByTheDevicesClockToo) {
  const TuneResult result =
      tune({.seconds = many_seconds(), .wake_up = late_wake_ups(), .clock = honest});
  EXPECT_EQ(result.evidence.clock, "device");
  EXPECT_EQ(result.winner, 137u);
}

TEST(DeviceTrial, AClockThatLiesIsReplacedByTheWall) {
  const TuneResult result =
      tune({.seconds = {3e-4, 1e-4, 2e-4}, .clock = [](double seconds) { return 1e3 * seconds; }});
  EXPECT_EQ(result.evidence.clock, "wall");
  EXPECT_EQ(result.winner, 1u);
  EXPECT_NEAR(result.evidence.seconds, 1e-4, 2e-6);
}

// Nothing is left of its samples: they were taken in another way.
TEST(DeviceTrial, AClockThatBeginsToLieInTheRaceIsReplacedByTheWall) {
  for (int honest_reads = 0; honest_reads < 12; ++honest_reads) {
    const auto clock = [reads = 0, honest_reads](double seconds) mutable {
      return ++reads > honest_reads ? -1 : seconds / 2;
    };
    const TuneResult result = tune({.seconds = {3e-4, 1e-4, 2e-4}, .clock = clock});
    EXPECT_EQ(result.evidence.clock, "wall") << honest_reads;
    EXPECT_EQ(result.winner, 1u) << honest_reads;
    EXPECT_NEAR(result.evidence.seconds, 1e-4, 2e-6) << honest_reads;
  }
}

// ---- compilers

TEST(DeviceTrial, CompileTimeIsReportedApartFromTheRuns) {
  const TuneResult result = tune({{3e-4, 1e-4}, 0.5});
  EXPECT_NEAR(result.evidence.seconds, 1e-4, 2e-6);
  for (const Measurement& m : result.candidates) EXPECT_NEAR(m.compile_seconds, 0.5, 1e-3);
}

// The budget has 10 seconds, and a batch of candidates would take 8 of them.
TEST(DeviceTrial, ASearchLeavesTimeForTheRaceHoweverLongTheCompilerTakes) {
  std::vector<double> seconds;
  for (int i = 0; i < 200; ++i) seconds.push_back(1e-4 + 1e-6 * i);
  const TuneResult result = tune({seconds, 1});
  EXPECT_GT(result.evidence.samples, 1);
  EXPECT_LT(result.evidence.tuning_seconds, 10);
  for (const Measurement& m : result.candidates)
    EXPECT_NEAR(m.compile_seconds, m.status == "untried" ? 0 : 1, 1e-3) << m.why;
}

TEST(DeviceTrial, FirstRunsAreNotGuardedAndThatIsSaid) {
  const TuneResult result = tune({{1e-4, 2e-4}});
  EXPECT_EQ(result.evidence.guard, "none");
  EXPECT_THAT(result.note,
              HasSubstr("not guarded: opencl|made up|0 is not a device that ejk::devices()"));
}

}  // namespace
}  // namespace ejk
