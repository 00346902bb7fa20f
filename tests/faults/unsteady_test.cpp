// SPDX-License-Identifier: Apache-2.0
// Candidates whose results change from run to run.
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ejk/ejk.h>

#include "fakes.h"
#include "faults/tuning_fixture.h"
#include "replay.h"
#include "store_fixture.h"

namespace ejk {
namespace {

using namespace ejk::testing;

using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// A config is right in its first runs, in all processes together, and wrong in later ones.
struct Steady {
  int work = 0;   // how long a run takes
  int right = 0;  // so many of its runs are right; 0: all
  int wrong = 0;  // before these, so many are wrong
};

// Runs of the config with this amount of work.
std::atomic<int>& runs_of(int work) {
  static auto* const all = static_cast<std::atomic<int>*>(
      ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  return all[work];
}

float factor_of(const Steady& c) {
  const int run = runs_of(c.work)++;
  work(c.work);
  const bool right = run >= c.wrong && (c.right == 0 || run < c.wrong + c.right);
  return right ? 2.f : 3.f;
}

struct Doubling {
  static constexpr std::string_view op_id = "doubling", version = "1";
  using Config = Steady;
  static inline std::vector<Config> offered;
  static inline Config guess;
  void run(const Config& c, std::span<const float> x, Out<std::span<float>> y) const {
    const float factor = factor_of(c);
    for (size_t i = 0; i < x.size(); ++i) (*y)[i] = factor * x[i];
  }
  std::vector<Config> candidate_cfgs(const Invocation&) const { return offered; }
  Config heuristic_cfg(const Invocation&) const { return guess; }
};

struct Checked : Doubling {
  static constexpr std::string_view op_id = "checked";
  void reference(std::span<const float> x, Out<std::span<float>> y) const {
    for (size_t i = 0; i < x.size(); ++i) (*y)[i] = 2 * x[i];
  }
};

struct InPlace : Doubling {
  static constexpr std::string_view op_id = "in_place";
  void run(const Config& c, std::span<float> x) const {
    const float factor = factor_of(c);
    for (float& v : x) v *= factor;
  }
};

struct WithoutOutputs : Doubling {
  static constexpr std::string_view op_id = "without_outputs";
  void run(const Config& c, std::span<const float>) const { factor_of(c); }
};

class UnsteadyCandidates : public ::testing::TestWithParam<bool> {
 protected:
  UnsteadyCandidates() {
    for (int i = 0; i < 1000; ++i) runs_of(i) = 0;
  }

  template <class K, class... Arrays>
  Entry tuned(const K& kernel, Arrays&... arrays) {
    Executor(scripted_options_on(scratch / "store", warnings.sink(), {.guard = GetParam()}))(
        kernel, arrays...);
    const auto entries = entries_in(scratch / "store");
    EXPECT_THAT(entries, SizeIs(1));
    return entries.empty() ? Entry{} : entries[0];
  }
  template <class K>
  Entry tuned_into_y(const K& kernel) {
    Entry entry = tuned(kernel, x, y);
    EXPECT_THAT(y, Each(8.f));
    return entry;
  }
  static int64_t winner_of(const Entry& entry) { return entry.config.find("work")->as_int(); }

  Scratch scratch;
  fakes::WarningLog warnings;
  const std::vector<float> x = std::vector<float>(100, 4);
  std::vector<float> y = std::vector<float>(100);
};

TEST_P(UnsteadyCandidates, DoNotWinWithTheResultsOfTheirFirstRuns) {
  Doubling::guess = {100};
  Doubling::offered = {{100}, {2, 3}, {90}};
  const Entry entry = tuned_into_y(Doubling{});
  EXPECT_THAT(winner_of(entry), AnyOf(100, 90));
  EXPECT_EQ(entry.candidates[1].status, "rejected");
  EXPECT_EQ(entry.candidates[1].kind, "unsteady");
  EXPECT_THAT(entry.candidates[1].why, HasSubstr("got 12, expected 8"));
  EXPECT_TRUE(entry.evidence.complete);
  EXPECT_THAT(warnings.take(), ::testing::ElementsAre(HasSubstr("other results")));
}

TEST_P(UnsteadyCandidates, LeaveTheNextBestWhichIsCheckedToo) {
  Doubling::guess = {200};
  Doubling::offered = {{200}, {2, 3}, {4, 3}, {30}, {190}};
  const Entry entry = tuned_into_y(Doubling{});
  EXPECT_EQ(winner_of(entry), 30);
  for (size_t i : {1, 2}) EXPECT_EQ(entry.candidates[i].kind, "unsteady") << i;
  EXPECT_EQ(entry.candidates[0].status, "slower");
  EXPECT_GT(entry.evidence.speedup, 1.5);
}

TEST_P(UnsteadyCandidates, MayBeTheHeuristic) {
  Checked::guess = {2, 3};
  Checked::offered = {{100}, {90}};
  const Entry entry = tuned_into_y(Checked{});
  EXPECT_THAT(winner_of(entry), AnyOf(100, 90));
}

TEST_P(UnsteadyCandidates, AreAllRejectedIfNoOtherIsLeft) {
  Checked::guess = {50};
  Checked::offered = {{2, 3}, {4, 3}};
  const Entry entry = tuned_into_y(Checked{});
  EXPECT_EQ(entry.outcome, Outcome::failed);
  for (const Measurement& m : entry.candidates) EXPECT_EQ(m.kind, "unsteady");
  EXPECT_TRUE(entry.evidence.complete) << "else it would be tuned again in every process";
}

TEST_P(UnsteadyCandidates, AreToldFromWrongOnesInTheirFirstRuns) {
  Checked::guess = {100};
  Checked::offered = {{100}, {2, 1, 1}, {3, 0, 1000000}};
  const Entry entry = tuned_into_y(Checked{});
  EXPECT_EQ(winner_of(entry), 100);
  EXPECT_EQ(entry.candidates[1].kind, "unsteady");
  EXPECT_EQ(entry.candidates[2].kind, "wrong");
  EXPECT_EQ(runs_of(2), 2);
  EXPECT_EQ(runs_of(3), 2);
}

TEST_P(UnsteadyCandidates, MayWriteInPlace) {
  Doubling::guess = {100};
  Doubling::offered = {{100}, {2, 3}};
  std::vector<float> both(100, 4);
  const Entry entry = tuned(InPlace{}, both);
  EXPECT_THAT(both, Each(8.f));
  EXPECT_EQ(winner_of(entry), 100);
  EXPECT_EQ(entry.candidates[1].kind, "unsteady");
}

// As other threads do with their parts of a cache.
struct ChangedMeanwhile : Doubling {
  static constexpr std::string_view op_id = "changed_meanwhile";
  static inline float* of_another = nullptr;
  void run(const Config& c, std::span<float> x) const {
    work(c.work);
    ++*of_another;
    for (float& v : x.first(x.size() / 2)) v *= 2;
  }
};

TEST_P(UnsteadyCandidates, AreNotThoseWhoseArrayIsChangedByAnotherMeanwhile) {
  Doubling::guess = {100};
  Doubling::offered = {{100}, {2}};
  std::vector<float> both(100, 4);
  ChangedMeanwhile::of_another = &both.back();
  const Entry entry = tuned(ChangedMeanwhile{}, both);
  ASSERT_NE(entry.outcome, Outcome::failed);
  EXPECT_EQ(winner_of(entry), 2);
  EXPECT_EQ(both.front(), 8);
  for (const Measurement& m : entry.candidates) EXPECT_NE(m.status, "rejected") << m.why;
}

TEST_P(UnsteadyCandidates, CannotBeToldWhereThereAreNoOutputs) {
  Doubling::guess = {100};
  Doubling::offered = {{100}, {2, 3}};
  const Entry entry = tuned(WithoutOutputs{}, x);
  EXPECT_EQ(winner_of(entry), 2);
  EXPECT_THAT(warnings.take(), IsEmpty());
}

// ---- on a scripted clock -----------------------------------------------------------------------

// Config 0 is wrong from its third run on.
class ScriptedRuns : public Trial {
 public:
  explicit ScriptedRuns(replay::ScriptedStopwatch& stopwatch) : stopwatch_(stopwatch) {}
  void reset() override { left_.assign(8, std::byte{255}); }
  void run(const AnyConfig& c) override {
    const auto i = static_cast<size_t>(c.as<int>());
    ++runs;
    stopwatch_.pass(seconds[i]);
    const bool wrong = i == 0 && ++runs_of_first_ > 2;
    left_.assign(8, std::byte{static_cast<unsigned char>(wrong ? 2 : 1)});
  }
  bool run_reference() override {
    left_.assign(8, std::byte{1});
    return true;
  }
  std::vector<OutputBytes> outputs() override { return {{DType::int64, left_}}; }
  std::vector<double> seconds = {1e-3, 1.02e-3, 1.6e-3};  // of one run of each config
  int runs = 0;

 private:
  replay::ScriptedStopwatch& stopwatch_;
  int runs_of_first_ = 0;
  std::vector<std::byte> left_ = std::vector<std::byte>(8);
};

class ScriptedTunings : public ::testing::Test {
 protected:
  ScriptedTunings() {
    task.op = "scripted", task.trial = &trial, task.guard = false;
    task.candidates = candidate_list({make_config(0), make_config(1), make_config(2)});
  }
  static Measurement known(int config, const char* status, double ratio) {
    Measurement m;
    m.config = make_config(config).to_value();
    m.status = status, m.ratio = ratio, m.seconds = 1e-3 * ratio, m.samples = 20;
    return m;
  }
  TuneResult tuned() { return Tuner(TunerOptions{.stopwatch = stopwatch}).tune(task); }

  const std::shared_ptr<replay::ScriptedStopwatch> stopwatch =
      std::make_shared<replay::ScriptedStopwatch>();
  ScriptedRuns trial{*stopwatch};
  TuneTask task;
};

// Config 1 was nearly as fast as the earlier winner, config 2 is new and slow.
class ResumedWithAnUnsteadyWinner : public ScriptedTunings,
                                    public ::testing::WithParamInterface<double> {};

TEST_P(ResumedWithAnUnsteadyWinner, IsCompleteOnlyIfTheNextBestRacedToo) {
  task.budget.seconds = GetParam();
  task.known = {known(0, "ok", 1), known(1, "tied", 1.02)};
  task.known_winner = task.known[0].config, task.known_complete = true;
  const TuneResult result = tuned();
  EXPECT_EQ(result.candidates[0].kind, "unsteady");
  ASSERT_TRUE(result.winner.has_value());
  EXPECT_TRUE(*result.winner == 1 || !result.evidence.complete) << *result.winner;
}

INSTANTIATE_TEST_SUITE_P(Budgets, ResumedWithAnUnsteadyWinner,
                         ::testing::Values(0.006, 0.008, 0.010, 0.012, 0.02, 0.1, 1.0));

// Beside the unsteady one the others were so slow that they ran less often per sample.
TEST_F(ScriptedTunings, MeasureTheNextBestAsOftenPerSampleAsTheFirst) {
  trial.seconds = {3e-6, 20e-6, 140e-6};
  task.candidates = candidate_list({make_config(2), make_config(0), make_config(1)});
  task.heuristic = make_config(2);
  const TuneResult result = Tuner(TunerOptions{.iters = 12, .stopwatch = stopwatch}).tune(task);
  EXPECT_EQ(result.winner, 2u);
  EXPECT_NEAR(result.evidence.seconds, 20e-6, 1e-9);
  EXPECT_NEAR(result.evidence.speedup, 7, 1e-3);
  EXPECT_TRUE(result.evidence.complete);
}

TEST_F(ScriptedTunings, ThatAreStoppedRunNothingMore) {
  std::atomic<bool> stop = false;
  int runs_at_stop = 0;
  task.stop = &stop;
  task.on_progress = [&](const TuneProgress& p) {
    if (p.kind != TuneProgress::Kind::candidate || p.tried < 3) return;
    stop = true, runs_at_stop = trial.runs;
  };
  const TuneResult result = tuned();
  EXPECT_EQ(trial.runs, runs_at_stop);
  EXPECT_EQ(result.winner, 0u);
  EXPECT_FALSE(result.evidence.complete);
}

INSTANTIATE_TEST_SUITE_P(Guarded, UnsteadyCandidates, ::testing::Bool());

}  // namespace
}  // namespace ejk
