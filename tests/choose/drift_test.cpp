// SPDX-License-Identifier: Apache-2.0
// Calls that have become slower than the evidence of their config: seen, told, tuned again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>

#include "fakes.h"
#include "store/drift_notes.h"

namespace {

using ejk::Fallback;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// Each thread has its own time, which passes only while kernels run.
thread_local double thread_seconds = 0;
std::atomic<int> clock_reads{0};

class FakeStopwatch final : public ejk::Stopwatch {
 public:
  double now() override { return ++clock_reads, thread_seconds; }
  ejk::Elapsed time(const std::function<void()>& work, ejk::Clock) override {
    return work(), ejk::Elapsed{};
  }
  bool beside_other_threads() override { return false; }
};

// How long a run takes: as its config says, times what the device has become.
std::atomic<double> slowness{1};
constexpr double seconds_of(int block) { return 1e-3 * block; }

struct Work {
  static constexpr std::string_view op_id = "work", version = "1";
  using Config = fakes::Show::Config;
  void run(const Config& c, std::span<const float> x, ejk::Out<std::span<float>> y) const {
    thread_seconds += seconds_of(c.block) * slowness;
    if (x[0] < 0) throw std::runtime_error("negative");
    for (float& v : *y) v = static_cast<float>(c.block);
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {7}; }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const { return {{1}, {2}, {3}}; }
};
// Calls of up to 8 elements share a key.
struct Rounded : Work {
  auto key(std::span<const float> in, const ejk::Out<std::span<float>>&) const {
    return std::tuple(static_cast<int>((in.size() + 7) / 8));
  }
};

// Takes what `pick` says, with what that takes on the device now as its evidence.
struct EvidenceTuner : fakes::FakeTuner {
  ejk::TuneResult tune(const ejk::TuneTask& task) override {
    auto result = FakeTuner::tune(task);
    ejk::Evidence& e = result.evidence;
    e.seconds = seconds * slowness;
    e.seconds_low = 0.99 * e.seconds, e.seconds_high = 1.01 * e.seconds;
    e.noise = noise, e.cache = cache, e.clock = "wall";
    e.time = "tuning " + std::to_string(asked);
    return result;
  }
  double seconds = seconds_of(1), noise = 0.01;
  std::string cache = "warm";
};

class Drift : public testing::Test {
 protected:
  Drift() {
    slowness = 1, thread_seconds = 0;
    tuner->pick = 0;
  }

  // With a store in `dir`, on a machine that is as busy as `busy` says.
  ejk::SelectorOptions options() {
    auto options = setup.options(dir.path());
    options.tuner = std::make_shared<Timed>(tuner);
    options.policy->drift_watch = true;
    options.is_busy = [this] { return ++looks, busy.load(); };
    options.on_event = [this](const ejk::Event& e) {
      const std::lock_guard lock(mutex);
      if (e.kind == "drift")
        drifts.push_back(
            {std::string(e.op), e.seconds, e.evidence_seconds, std::string(e.message)});
      if (e.kind == "takeover") ++takeovers;
    };
    return options;
  }
  ejk::SelectorOptions in_background() {
    auto own = options();
    own.policy->cache_miss_fallback = Fallback::background;
    own.policy->background_share = 0;  // only idle() tunes
    return own;
  }
  ejk::Entry tune() { return ejk::Executor(options()).tune(Work{}, x, y).entry; }

  // A window is nine timed calls.
  static constexpr int window = 9 * static_cast<int>(ejk::detail::WarmReader::watch_interval);
  template <class K = Work>
  void run_windows(const ejk::Executor& executor, int windows) {
    for (int i = 0; i < windows * window; ++i) executor(K{}, x, y);
  }
  // The first call of a process is not warm.
  void start(const ejk::Executor& executor) { executor(Work{}, x, y); }
  bool is_watched(const ejk::Executor& executor) {
    start(executor);
    clock_reads = 0;
    run_windows(executor, 1);
    return clock_reads > 0;
  }

  std::vector<ejk::detail::DriftNote> notes() const {
    return ejk::detail::drift_notes(dir.path(), ejk::stderr_warnings());
  }
  // What ejk doctor lists: notes about entries as they are now.
  size_t listed() const {
    ejk::DirectoryStore store(dir.path());
    size_t count = 0;
    for (const auto& note : notes()) {
      const auto entry = store.get(note.id, ejk::Detail::choice, &note.environment);
      count += entry && is_about(note, *entry);
    }
    return count;
  }

  // The selector's clock is the tuner's.
  struct Timed : ejk::Tuner {
    explicit Timed(std::shared_ptr<EvidenceTuner> by)
        : ejk::Tuner(ejk::TunerOptions{.stopwatch = std::make_shared<FakeStopwatch>()}),
          asked(std::move(by)) {}
    ejk::TuneResult tune(const ejk::TuneTask& task) override { return asked->tune(task); }
    std::shared_ptr<EvidenceTuner> asked;
  };
  struct Told {
    std::string op;
    double seconds, evidence_seconds;
    std::string message;
  };

  fakes::TempDir dir;
  fakes::Setup setup;
  std::shared_ptr<EvidenceTuner> tuner = std::make_shared<EvidenceTuner>();
  std::atomic<bool> busy{false};
  std::atomic<int> looks{0};
  std::mutex mutex;
  std::vector<Told> drifts;
  int takeovers = 0;
  std::vector<float> x = std::vector<float>(8, 1), y = std::vector<float>(8, 0);
};

// ---- what is seen ------------------------------------------------------------------------------

TEST_F(Drift, ADeviceThatHasBecomeSlowIsOneEventWithBothFigures) {
  tune();
  const ejk::Executor executor(options());
  start(executor);
  run_windows(executor, 2);
  EXPECT_THAT(drifts, IsEmpty());
  slowness = 2;
  run_windows(executor, 1);
  EXPECT_THAT(drifts, IsEmpty()) << "one window may be chance";
  run_windows(executor, 4);
  ASSERT_THAT(drifts, SizeIs(1));
  EXPECT_EQ(drifts[0].op, "work@v1");
  EXPECT_NEAR(drifts[0].seconds, 2e-3, 1e-9);
  EXPECT_NEAR(drifts[0].evidence_seconds, 1e-3, 1e-9);
  EXPECT_THAT(drifts[0].message, HasSubstr("takes 0.002 s; it took 0.001 s"));
  EXPECT_EQ(executor.chain().idle(0), 0U) << "the policy does not tune in the background";
}

TEST_F(Drift, IsNotedInTheStoreForTheDoctor) {
  tune();
  auto quiet = options();
  quiet.on_event = nullptr;
  const ejk::Executor executor(quiet);
  start(executor);
  run_windows(executor, 1);
  slowness = 2;
  run_windows(executor, 4);
  ASSERT_THAT(notes(), SizeIs(1));
  const auto note = notes()[0];
  EXPECT_EQ(note.id.op, "work@v1");
  EXPECT_EQ(stable_json(note.config), R"({"block":1})");
  EXPECT_EQ(note.tuned, "tuning 1");
  EXPECT_NEAR(note.now_seconds, 2e-3, 1e-9);
  EXPECT_EQ(listed(), 1U);
  tune();
  EXPECT_EQ(listed(), 0U) << "it was tuned again";
}

TEST_F(Drift, ABusyMachineIsNoDrift) {
  tune();
  const ejk::Executor executor(options());
  start(executor);
  run_windows(executor, 1);
  slowness = 2, busy = true;
  run_windows(executor, 5);
  EXPECT_EQ(looks, 5);
  slowness = 1, busy = false;
  run_windows(executor, 5);
  EXPECT_EQ(looks, 5) << "is_busy is not asked while calls are as fast as they were";
  EXPECT_THAT(drifts, IsEmpty());
  EXPECT_THAT(notes(), IsEmpty());
}

TEST_F(Drift, AMachineThatCannotTellIsTakenForBusy) {
  tune();
  auto own = options();
  own.is_busy = []() -> bool { throw std::runtime_error("no idea"); };
  const ejk::Executor executor(own);
  start(executor);
  run_windows(executor, 1);
  slowness = 2;
  run_windows(executor, 5);
  EXPECT_THAT(drifts, IsEmpty());
}

TEST_F(Drift, NoiseIsNoDrift) {
  tune();
  const ejk::Executor executor(options());
  start(executor);
  run_windows(executor, 1);
  slowness = 1.2;
  run_windows(executor, 5);
  EXPECT_THAT(drifts, IsEmpty());
}

TEST_F(Drift, ANoisyTuningAllowsMore) {
  tuner->noise = 0.5;
  tune();
  const ejk::Executor executor(options());
  start(executor);
  run_windows(executor, 1);
  slowness = 2.4;
  run_windows(executor, 5);
  EXPECT_THAT(drifts, IsEmpty());
  slowness = 2.6;
  run_windows(executor, 2);
  EXPECT_THAT(drifts, SizeIs(1));
}

TEST_F(Drift, SingleSlowRunsAreNoDrift) {
  tune();
  const ejk::Executor executor(options());
  start(executor);
  for (int i = 0; i < 6 * window; ++i) {
    slowness = (i / 1031) % 9 < 7 ? 10 : 1;  // seven runs of each window
    executor(Work{}, x, y);
  }
  EXPECT_THAT(drifts, IsEmpty());
}

TEST_F(Drift, AProgramMayFindItsArraysInColderCachesThanTheTuning) {
  tune();
  slowness = 3;
  const ejk::Executor executor(options());
  start(executor);
  run_windows(executor, 5);
  EXPECT_THAT(drifts, IsEmpty());
  slowness = 4;
  run_windows(executor, 2);
  EXPECT_THAT(drifts, SizeIs(1)) << "but then it is as cold as it was";
}

TEST_F(Drift, ASlownessBeyondCacheEffectsIsSeenFromTheStart) {
  tune();
  slowness = 4;
  const ejk::Executor executor(options());
  start(executor);
  run_windows(executor, 2);
  EXPECT_THAT(drifts, SizeIs(1));
}

TEST_F(Drift, EvidenceWithColdCachesAllowsNothingForThem) {
  tuner->cache = "cold";
  tune();
  slowness = 1.5;
  const ejk::Executor executor(options());
  start(executor);
  run_windows(executor, 2);
  EXPECT_THAT(drifts, SizeIs(1));
}

// ---- what is watched ---------------------------------------------------------------------------

TEST_F(Drift, AChangedEnvironmentIsNotTheEntrysFault) {
  ejk::Entry entry = tune();
  ejk::PersistentCache store(dir.path());
  store.erase(entry.id);
  entry.environment["compiler"] = "another one";
  store.put(entry);
  const ejk::Executor executor(options());
  start(executor);
  EXPECT_EQ(y[0], 1) << "it answers";
  run_windows(executor, 1);
  slowness = 10;
  run_windows(executor, 5);
  EXPECT_THAT(drifts, IsEmpty());
  EXPECT_THAT(notes(), IsEmpty());
}

TEST_F(Drift, WithoutThePolicyNoCallIsTimed) {
  tune();
  auto own = options();
  own.policy->drift_watch = false;
  own.on_event = nullptr;
  const ejk::Executor executor(own);
  EXPECT_FALSE(is_watched(executor));
}

TEST_F(Drift, AtMostOneCallIn1024IsTimed) {
  tune();
  for (const bool quiet : {true, false}) {
    auto own = options();
    if (quiet) own.on_event = nullptr;
    const ejk::Executor executor(own);
    start(executor);
    clock_reads = 0;
    for (int i = 0; i < 20 * 1024; ++i) executor(Work{}, x, y);
    EXPECT_LE(clock_reads, 2 * 20);
    EXPECT_GE(clock_reads, 2 * 18);
  }
}

TEST_F(Drift, AScopeTurnsItOffForAThread) {
  tune();
  const ejk::Executor executor(options());
  start(executor);
  const auto scope = ejk::policy_override({.drift_watch = false});
  clock_reads = 0;
  run_windows(executor, 1);
  EXPECT_EQ(clock_reads, 0);
}

TEST_F(Drift, OnlyWhatIsLongEnoughToBeTimedIsWatched) {
  tuner->seconds = 4e-6;
  tune();
  const ejk::Executor executor(options());
  EXPECT_FALSE(is_watched(executor));
}

TEST_F(Drift, AHeuristicHasNoEvidence) {
  auto own = options();
  own.policy->allow_autotune = false;
  const ejk::Executor executor(own);
  EXPECT_FALSE(is_watched(executor));
}

TEST_F(Drift, EvidenceWithTheBackwardPassIsOfAnotherThing) {
  auto own = options();
  own.policy->validate_backward = true;
  const ejk::Executor executor(own);
  EXPECT_FALSE(is_watched(executor));
}

TEST_F(Drift, ARunThatThrowsDoesNotCount) {
  const ejk::Executor executor(options());
  start(executor);
  run_windows(executor, 1);
  slowness = 10, x[0] = -1;
  for (int i = 0; i < 2 * window; ++i) EXPECT_THROW(executor(Work{}, x, y), std::runtime_error);
  EXPECT_THAT(drifts, IsEmpty());
}

TEST_F(Drift, ThreadsTogetherTellOnce) {
  tune();
  for (const bool quiet : {true, false}) {
    auto own = options();
    if (quiet) own.on_event = nullptr;
    const ejk::Executor executor(own);
    slowness = 1;
    start(executor);
    run_windows(executor, 1);
    slowness = 2;
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i)
      threads.emplace_back([&executor] {
        std::vector<float> in(8, 1), out(8, 0);
        for (int call = 0; call < 3 * window; ++call) executor(Work{}, in, out);
      });
  }
  EXPECT_THAT(drifts, SizeIs(1));
  EXPECT_THAT(notes(), SizeIs(1));
}

// ---- what follows ------------------------------------------------------------------------------

TEST_F(Drift, IsTunedAgainInTheBackgroundAndTheBetterConfigTakesOver) {
  tune();
  const ejk::Executor executor(in_background());
  start(executor);
  run_windows(executor, 1);
  slowness = 2, tuner->pick = 1;
  run_windows(executor, 2);
  EXPECT_EQ(y[0], 1);
  EXPECT_EQ(listed(), 1U);
  EXPECT_EQ(executor.chain().idle(0), 1U);
  EXPECT_EQ(executor.chain().idle(60), 0U);
  EXPECT_EQ(takeovers, 1);
  executor(Work{}, x, y);
  EXPECT_EQ(y[0], 2);
  EXPECT_EQ(listed(), 0U);
  run_windows(executor, 4);
  EXPECT_THAT(drifts, SizeIs(1)) << "the new evidence is of the slow device";
}

TEST_F(Drift, IsRecordedForTheToolWhereThePolicyDoesNotTuneInTheBackground) {
  tune();
  {
    const ejk::Executor executor(options());
    start(executor);
    run_windows(executor, 1);
    slowness = 2;
    run_windows(executor, 2);
  }
  EXPECT_EQ(tuner->asked, 1);
  size_t calls = 0;
  for (const auto& [device, ops] : ejk::read_recorded(dir.path() + "/recorded"))
    for (const auto& [op, keys] : ops) calls += keys.size();
  EXPECT_EQ(calls, 1U);
}

TEST_F(Drift, AllWarmCallsOfItsKeyGetWhatWasTunedAgain) {
  auto own = in_background();
  own.on_event = nullptr;
  ejk::Executor(own).tune(Rounded{}, x, y);
  const ejk::Executor executor(own);
  std::vector<float> shorter(7, 1), out(7, 0);
  executor(Rounded{}, x, y), executor(Rounded{}, shorter, out);
  run_windows<Rounded>(executor, 1);
  slowness = 2, tuner->pick = 1;
  run_windows<Rounded>(executor, 2);
  EXPECT_EQ(executor.chain().idle(60), 0U);
  executor(Rounded{}, x, y), executor(Rounded{}, shorter, out);
  EXPECT_EQ(y[0], 2);
  EXPECT_EQ(out[0], 2);
}

TEST_F(Drift, ATuningThatIsCutShortReplacesNothing) {
  struct Cut : EvidenceTuner {
    ejk::TuneResult tune(const ejk::TuneTask& task) override {
      auto result = EvidenceTuner::tune(task);
      result.evidence.complete = false;
      return result;
    }
  };
  tune();
  tuner = std::make_shared<Cut>();
  const ejk::Executor executor(in_background());
  start(executor);
  run_windows(executor, 1);
  slowness = 2;
  run_windows(executor, 2);
  EXPECT_EQ(executor.chain().idle(60), 0U);
  executor(Work{}, x, y);
  EXPECT_EQ(y[0], 1);
  EXPECT_EQ(listed(), 1U);
}

// The tuning comes to what it was, and yet programs find the call slow: their caches are that cold.
TEST_F(Drift, AProgramIsNotToldAgainWhatATuningHasRefuted) {
  tune();
  const auto run_cold = [&] {
    const ejk::Executor executor(in_background());
    slowness = 4;
    start(executor);
    run_windows(executor, 3);
    slowness = 1;
    EXPECT_EQ(executor.chain().idle(60), 0U);
    slowness = 4;
    run_windows(executor, 3);
  };
  run_cold();
  EXPECT_THAT(drifts, SizeIs(1));
  EXPECT_EQ(tuner->asked, 2);
  run_cold();
  EXPECT_THAT(drifts, SizeIs(1));
  EXPECT_EQ(tuner->asked, 2);
  slowness = 8;
  const ejk::Executor slower(in_background());
  start(slower);
  run_windows(slower, 2);
  EXPECT_THAT(drifts, SizeIs(2)) << "but it is if it has become slower still";
}

// What was noted about it is not refuted by a tuning that comes to something better.
class DriftAfterABetterTuning : public Drift {
 protected:
  // What took 3 ms takes 6, and that is noted.
  void become_slow(const ejk::Executor& executor, int block_then, double slowness_then) {
    tuner->pick = static_cast<size_t>(block_then) - 1, tuner->seconds = seconds_of(block_then);
    slowness = slowness_then;
    tune();
    start(executor);
    run_windows(executor, 1);
    slowness = 2 * slowness_then;
    run_windows(executor, 2);
    ASSERT_THAT(drifts, SizeIs(1));
    EXPECT_NEAR(drifts[0].seconds, 6e-3, 1e-9);
  }
  void tune_to_block_1(const ejk::Executor& executor, double slowness_now) {
    tuner->pick = 0, tuner->seconds = seconds_of(1);
    slowness = slowness_now;
    EXPECT_EQ(executor.chain().idle(60), 0U);
    start(executor);
    EXPECT_EQ(y[0], 1);
    run_windows(executor, 1);
  }
};

TEST_F(DriftAfterABetterTuning, AnotherConfigMayBecomeSlowToo) {
  const ejk::Executor executor(in_background());
  become_slow(executor, 3, 1);
  tune_to_block_1(executor, 2);
  slowness = 5;
  run_windows(executor, 2);
  ASSERT_THAT(drifts, SizeIs(2));
  EXPECT_NEAR(drifts[1].evidence_seconds, 2e-3, 1e-9);
  EXPECT_NEAR(drifts[1].seconds, 5e-3, 1e-9);
}

TEST_F(DriftAfterABetterTuning, TheSameConfigOnAFasterDeviceMayBecomeSlowAgain) {
  const ejk::Executor executor(in_background());
  become_slow(executor, 1, 3);
  tune_to_block_1(executor, 1);
  slowness = 5;
  run_windows(executor, 2);
  ASSERT_THAT(drifts, SizeIs(2));
  EXPECT_NEAR(drifts[1].evidence_seconds, 1e-3, 1e-9);
}

}  // namespace
