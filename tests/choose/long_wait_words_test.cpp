// SPDX-License-Identifier: Apache-2.0
// For how long calls go on with stored tunings.
#include "choose/long_wait.h"

#include <memory>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ejk/ejk.h>

#include "clockless_tuner.h"
#include "fakes.h"

namespace {

using ejk::AutotunePolicy;
using ejk::Evidence;
using ejk::Origin;
using ejk::detail::seconds_to_resume;
using testing::ElementsAre;

Evidence resumed(double seconds) {
  Evidence evidence;
  evidence.resumed_seconds = seconds;
  return evidence;
}

Evidence taking(double seconds, double heuristic_seconds = 0) {
  Evidence evidence;
  evidence.seconds = seconds, evidence.heuristic_seconds = heuristic_seconds;
  return evidence;
}

TEST(SecondsToResume, AreAShareOfTheBudget) {
  EXPECT_EQ(seconds_to_resume({}, {}), 1);
  EXPECT_EQ(seconds_to_resume({.budget_seconds = 50}, {}), 5);
  EXPECT_EQ(seconds_to_resume({.resume_share = 0.5}, {}), 5);
  EXPECT_EQ(seconds_to_resume({.resume_share = 0}, {}), 0);
}

TEST(SecondsToResume, AreCountedOverAllCalls) {
  EXPECT_EQ(seconds_to_resume({}, resumed(0.25)), 0.75);
  EXPECT_EQ(seconds_to_resume({}, resumed(1)), 0);
  EXPECT_EQ(seconds_to_resume({}, resumed(7)), 0);
}

TEST(SecondsToResume, AreNeverMoreThanTheBudget) {
  EXPECT_EQ(seconds_to_resume({.resume_share = 1e9}, resumed(100)), 10);
  EXPECT_EQ(seconds_to_resume({.budget_seconds = 0, .resume_share = 1e9}, {}), 0);
}

TEST(SecondsToResume, ThereAreNoSecondsWhereTooFewRunsFit) {
  EXPECT_EQ(seconds_to_resume({}, taking(0.09)), 1);
  EXPECT_EQ(seconds_to_resume({}, taking(0.11)), 0);
  EXPECT_EQ(seconds_to_resume({}, taking(0.01, 0.11)), 0);
}

// ---- one process after the other ---------------------------------------------------------------

class Processes : public testing::Test {
 protected:
  // A call in a new process; where its config came from.
  Origin call(const AutotunePolicy& policy = {}) {
    return ejk::Executor(options(policy)).choose_config(fakes::Show{}, x, y).origin;
  }
  ejk::SelectorOptions options(const AutotunePolicy& policy = {}) {
    ejk::SelectorOptions o = setup.options(dir.path());
    o.policy = policy, o.tuner = tuner;
    return o;
  }
  Evidence stored() {
    Evidence found;
    ejk::PersistentCache(dir.path()).for_each("", [&](const ejk::Entry& e) {
      found = e.evidence;
      return true;
    });
    return found;
  }

  fakes::TempDir dir;
  fakes::Setup setup;
  std::shared_ptr<fakes::Clockless> tuner = std::make_shared<fakes::Clockless>();
  std::vector<float> x = std::vector<float>(8), y = std::vector<float>(8);
};

TEST_F(Processes, GoOnForAShareOfTheBudgetAllTogether) {
  EXPECT_EQ(call(), Origin::autotune);
  EXPECT_EQ(stored().tuning_seconds, 10);
  EXPECT_EQ(stored().resumed_seconds, 0);
  tuner->takes = 0.75;
  EXPECT_EQ(call(), Origin::autotune);
  EXPECT_EQ(stored().tuning_seconds, 10.75);
  EXPECT_EQ(stored().resumed_seconds, 0.75);
  EXPECT_EQ(call(), Origin::autotune);
  for (int later = 0; later < 4; ++later) EXPECT_EQ(call(), Origin::persistent);
  EXPECT_THAT(tuner->budgets, ElementsAre(10, 1, 0.25));
  EXPECT_FALSE(stored().complete);
}

TEST_F(Processes, ThatFailMeanwhileHaveUsedTheShareUp) {
  call();
  tuner->throws = true;
  EXPECT_EQ(call(), Origin::persistent);
  EXPECT_EQ(call(), Origin::persistent);
  EXPECT_THAT(tuner->budgets, ElementsAre(10, 1));
}

TEST_F(Processes, HaveANewShareOnceItWasComplete) {
  call();
  tuner->takes = 0.5, tuner->complete = true;
  call();
  EXPECT_TRUE(stored().complete);
  EXPECT_EQ(stored().tuning_seconds, 10.5);
  EXPECT_EQ(stored().resumed_seconds, 0);
}

TEST_F(Processes, ThatAreMeantToTuneGoOnWithTheWholeBudget) {
  call();
  tuner->takes = 1;
  call();
  call();  // no more in calls
  const ejk::Executor executor(options());
  const fakes::Show kernel;
  const auto inv = executor.describe(kernel, x, y);
  ejk::ConfigSelectorChain chain(options());
  tuner->takes = 5;
  struct Bound : ejk::ConfigChooser {  // the erased kernel of a call
    explicit Bound(ejk::ConfigSelectorChain& to) : chain(to) {}
    ejk::Choice choose(const ejk::Invocation& i, const ejk::AnyKernel& k) override {
      return chain.resume(i, k).first;
    }
    ejk::ConfigSelectorChain& chain;
  };
  ejk::Executor(std::make_shared<Bound>(chain)).choose_config(kernel, x, y);
  EXPECT_THAT(tuner->budgets, ElementsAre(10, 1, 10));
  EXPECT_EQ(tuner->known, 3u);
  EXPECT_EQ(stored().tuning_seconds, 16);
  EXPECT_EQ(stored().resumed_seconds, 1);
}

}  // namespace
