// SPDX-License-Identifier: Apache-2.0
// Tunings of what runs on a device: begun here, done there, and never in a child process.
#include <unistd.h>

#include <cstdlib>
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
  DeviceTrial(replay::ScriptedStopwatch& stopwatch, std::vector<double> seconds)
      : stopwatch_(stopwatch), seconds_(std::move(seconds)) {}
  const Device* device() const override { return &device_; }
  void reset() override {}
  void run(const AnyConfig& config) override {
    EXPECT_EQ(getpid(), process_) << "in a child process";
    stopwatch_.pass(1e-6);
    begun_ += seconds_[config.as<size_t>()];
  }
  void wait() override { stopwatch_.pass({.wall = std::exchange(begun_, 0)}); }
  bool run_reference() override { return false; }
  std::vector<OutputBytes> outputs() override {
    EXPECT_EQ(begun_, 0) << "outputs of a run that is not done";
    return {};
  }

 private:
  replay::ScriptedStopwatch& stopwatch_;
  std::vector<double> seconds_;
  double begun_ = 0;
  pid_t process_ = getpid();
  Device device_ = made_up_device();
};

TuneResult tune(std::vector<double> seconds) {
  const auto stopwatch = std::make_shared<replay::ScriptedStopwatch>();
  std::vector<AnyConfig> configs;
  for (size_t i = 0; i < seconds.size(); ++i) configs.push_back(make_config(i));
  DeviceTrial trial(*stopwatch, std::move(seconds));
  TuneTask task;
  task.op = "made_up";
  task.trial = &trial;
  task.candidates = candidate_list(std::move(configs));
  return Tuner(TunerOptions{.stopwatch = stopwatch}).tune(task);
}

TEST(DeviceTrial, TheWallDecidesThoughEveryRunIsBegunAlikeFast) {
  const TuneResult result = tune({3e-4, 1e-4, 2e-4});
  EXPECT_EQ(result.winner, 1u);
  EXPECT_EQ(result.evidence.clock, "wall");
  EXPECT_NEAR(result.evidence.seconds, 1e-4, 2e-6);
}

TEST(DeviceTrial, ALargeSetIsSearchedByTheWallToo) {
  std::vector<double> seconds;
  for (int i = 0; i < 200; ++i) seconds.push_back(1e-4 + 1e-5 * std::abs(i - 137));
  const TuneResult result = tune(seconds);
  EXPECT_EQ(result.evidence.clock, "wall");
  EXPECT_EQ(result.winner, 137u);
}

TEST(DeviceTrial, FirstRunsAreNotGuardedAndThatIsSaid) {
  const TuneResult result = tune({1e-4, 2e-4});
  EXPECT_EQ(result.evidence.guard, "none");
  EXPECT_THAT(result.note, HasSubstr("not guarded: a child process cannot use opencl|made up|0"));
}

}  // namespace
}  // namespace ejk
