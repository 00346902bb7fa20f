// SPDX-License-Identifier: Apache-2.0
// Tunings of what runs on a device: begun here, done there, and never in a fork of this process.
#include <unistd.h>

#include <cstdlib>
#include <set>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ejk/tuner.h>

#include "replay.h"

namespace ejk {
namespace {

using testing::HasSubstr;

Device made_up_device() {
  Device device;
  device.platform = Platform::opencl;
  device.fingerprint = "opencl|made up|0";
  return device;
}

// To begin a run costs all candidates the same; what it takes passes in `wait`.
class DeviceTrial final : public Trial {
 public:
  DeviceTrial(replay::ScriptedStopwatch& stopwatch, std::vector<double> seconds,
              double compile_seconds, double wait_seconds)
      : stopwatch_(stopwatch),
        seconds_(std::move(seconds)),
        compile_seconds_(compile_seconds),
        wait_seconds_(wait_seconds) {}
  const Device* device() const override { return &device_; }
  void reset() override {}
  void run(const AnyConfig& config) override {
    EXPECT_EQ(getpid(), process_) << "in a child process";
    stopwatch_.pass(compiled_.insert(config.as<size_t>()).second ? compile_seconds_ : 1e-6);
    begun_ += seconds_[config.as<size_t>()];
  }
  void wait() override {
    const double begun = std::exchange(begun_, 0);
    stopwatch_.pass({.wall = begun > 0 ? begun + wait_seconds_ : 0});
  }
  bool run_reference() override { return false; }
  std::vector<OutputBytes> outputs() override {
    EXPECT_EQ(begun_, 0) << "outputs of a run that is not done";
    return {};
  }

 private:
  replay::ScriptedStopwatch& stopwatch_;
  std::vector<double> seconds_;
  double compile_seconds_, wait_seconds_;
  std::set<size_t> compiled_;
  double begun_ = 0;
  pid_t process_ = getpid();
  Device device_ = made_up_device();
};

TuneResult tune(std::vector<double> seconds, double compile_seconds = 1e-6,
                double wait_seconds = 0) {
  const auto stopwatch = std::make_shared<replay::ScriptedStopwatch>();
  std::vector<AnyConfig> configs;
  for (size_t i = 0; i < seconds.size(); ++i) configs.push_back(make_config(i));
  DeviceTrial trial(*stopwatch, std::move(seconds), compile_seconds, wait_seconds);
  TuneTask task;
  task.op = "made_up";
  task.trial = &trial;
  task.heuristic = configs[0];
  task.candidates = candidate_list(std::move(configs));
  return Tuner(TunerOptions{.stopwatch = stopwatch}).tune(task);
}

TEST(DeviceTrial, TheWallDecidesThoughEveryRunIsBegunAlikeFast) {
  const TuneResult result = tune({3e-4, 1e-4, 2e-4});
  EXPECT_EQ(result.winner, 1u);
  EXPECT_EQ(result.evidence.clock, "wall");
  EXPECT_NEAR(result.evidence.seconds, 1e-4, 2e-6);
}

TEST(DeviceTrial, WaitingForTheDeviceIsASmallPartOfASample) {
  const TuneResult result = tune({3e-4, 1e-4}, 1e-6, 30e-6);
  EXPECT_GE(result.evidence.seconds, 1e-4);
  EXPECT_LT(result.evidence.seconds, 1.1e-4);
}

TEST(DeviceTrial, ALargeSetIsSearchedByTheWallToo) {
  std::vector<double> seconds;
  for (int i = 0; i < 200; ++i) seconds.push_back(1e-4 + 1e-5 * std::abs(i - 137));
  const TuneResult result = tune(seconds);
  EXPECT_EQ(result.evidence.clock, "wall");
  EXPECT_EQ(result.winner, 137u);
}

TEST(DeviceTrial, WhatTheCompilerTakesIsToldApartFromTheRuns) {
  const TuneResult result = tune({3e-4, 1e-4}, 0.5);
  EXPECT_NEAR(result.evidence.seconds, 1e-4, 2e-6);
  for (const Measurement& m : result.candidates) EXPECT_NEAR(m.compile_seconds, 0.5, 1e-3);
}

// The budget has 10 seconds, and a batch of candidates would take 8 of them.
TEST(DeviceTrial, ASearchLeavesTimeForTheRaceHoweverLongTheCompilerTakes) {
  std::vector<double> seconds;
  for (int i = 0; i < 200; ++i) seconds.push_back(1e-4 + 1e-6 * i);
  const TuneResult result = tune(seconds, 1.);
  EXPECT_GT(result.evidence.samples, 1);
  EXPECT_LT(result.evidence.tuning_seconds, 10);
  for (const Measurement& m : result.candidates)
    EXPECT_NEAR(m.compile_seconds, m.status == "untried" ? 0 : 1, 1e-3) << m.why;
}

TEST(DeviceTrial, FirstRunsAreNotGuardedAndThatIsSaid) {
  const TuneResult result = tune({1e-4, 2e-4});
  EXPECT_EQ(result.evidence.guard, "none");
  EXPECT_THAT(result.note,
              HasSubstr("not guarded: opencl|made up|0 is not a device that ejk::devices()"));
}

}  // namespace
}  // namespace ejk
