// SPDX-License-Identifier: Apache-2.0
// What is said of calls that wait for long. Once in a process, so that this test is alone in its
// own.
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ejk/ejk.h>

#include "clockless_tuner.h"

namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(LongWaits, AreAnnouncedOnceInAProcess) {
  std::vector<std::string> said;
  const auto tuner = std::make_shared<fakes::Clockless>();
  const auto executor = [&] {
    ejk::SelectorOptions o;
    o.policy = ejk::AutotunePolicy{};
    o.tuner = tuner;
    o.on_warning = [&](const std::string& text) { said.push_back(text); };
    return ejk::Executor(o);
  };
  const std::vector<float> x(8);
  std::vector<float> y(8);
  executor().tune(fakes::Show{}, x, y);  // asked for
  tuner->takes = 0.5;
  executor()(fakes::Show{}, x, y);
  EXPECT_THAT(said, IsEmpty());
  tuner->before = [&](const ejk::TuneTask& task) {
    ejk::TuneProgress progress;
    progress.elapsed = 0.5;
    task.on_progress(progress);
    EXPECT_THAT(said, IsEmpty());
    progress.elapsed = 1.5;
    task.on_progress(progress);
    EXPECT_THAT(said, ElementsAre(AllOf(HasSubstr("[show@v3] a call waits for its tuning, 1.5 s"),
                                        HasSubstr("ejk tune"), HasSubstr("budget_seconds"),
                                        HasSubstr("EJKERNEL_AUTOTUNE_POLICY=heuristics"))));
  };
  executor()(fakes::Show{}, x, y);
  tuner->before = nullptr;
  tuner->takes = 20;
  executor()(fakes::Show{}, x, y);
  EXPECT_EQ(said.size(), 1u);
}

}  // namespace
