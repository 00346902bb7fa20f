// SPDX-License-Identifier: Apache-2.0
// A call that does not wait: the heuristic at once, the tuning later, then the better config.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "choose/machine_load.h"
#include "choose/tuning_process.h"
#include "fakes.h"
#include "sanitized.h"
#include "tune/rest.h"
#include "wait.h"

namespace {

using ejk::Fallback;
using ejk::Origin;
using ejk::testing::wait_for_file;
using ejk::testing::wait_until;
using fakes::Show;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

struct NoGuess {
  static constexpr std::string_view op_id = "no_guess", version = "1";
  using Config = Show::Config;
  void run(const Config& c, ejk::Out<std::span<float>> out) const {
    for (float& v : *out) v = static_cast<float>(c.block);
  }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const { return {{1}, {2}, {3}}; }
};

// Calls of up to 8 elements share a key.
struct Rounded : Show {
  auto key(std::span<const float> in, const ejk::Out<std::span<float>>&) const {
    return std::tuple(static_cast<int>((in.size() + 7) / 8));
  }
};

// Counts something that threads do, and waits for it.
class Counter {
 public:
  void add() {
    const std::lock_guard lock(mutex_);
    ++count_;
    changed_.notify_all();
  }
  void wait_for(int count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return count_ >= count; });
  }
  int count() {
    const std::lock_guard lock(mutex_);
    return count_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int count_ = 0;
};

class Background : public testing::Test {
 protected:
  // With a store in `dir`, and a machine that is as busy as `busy` says.
  ejk::SelectorOptions options() {
    auto options = setup.options(dir.path());
    options.policy->cache_miss_fallback = Fallback::background;
    options.is_busy = [this] {
      worker = ::gettid();
      looks.add();
      return busy.load();
    };
    options.on_event = [this](const ejk::Event& event) {
      {
        const std::lock_guard lock(mutex);
        events.emplace_back(event.kind);
        messages.emplace_back(event.message);
      }
      if (event.kind == "autotune_start") starts.add();
      if (event.kind == "autotune_finish") finishes.add();
      if (event.kind == "takeover") takeovers.add();
    };
    return options;
  }
  // The same, but only idle() tunes.
  ejk::SelectorOptions only_idle() {
    auto own = options();
    own.policy->background_share = 0;
    return own;
  }
  float run(const ejk::Executor& executor) {
    executor(Show{}, x, y);
    return y[0];
  }
  std::vector<std::string> take_events() {
    const std::lock_guard lock(mutex);
    return std::exchange(events, {});
  }
  size_t recorded() const {
    size_t calls = 0;
    for (const auto& [device, ops] : ejk::read_recorded(dir.path() + "/recorded"))
      for (const auto& [op, keys] : ops) calls += keys.size();
    return calls;
  }
  static void wait_until_nothing_waits(const ejk::Executor& executor) {
    wait_until([&] { return executor.chain().idle(0) == 0; }, "the end of all tunings");
  }
  // The thread that works the queue sleeps between its looks.
  void wait_for_looks(int count) {
    const auto begin = sleeps_of(worker);
    wait_until([&] { return sleeps_of(worker) >= begin + count; }, "looks at the queue");
  }
  static long sleeps_of(pid_t thread) {
    std::ifstream status("/proc/self/task/" + std::to_string(thread) + "/status");
    for (std::string word; status >> word;)
      if (long sleeps = 0; word == "voluntary_ctxt_switches:" && status >> sleeps) return sleeps;
    throw std::runtime_error("thread " + std::to_string(thread) + " is gone");
  }
  static bool has_children() {
    siginfo_t info{};
    return ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0;
  }

  fakes::TempDir dir;
  fakes::Setup setup;
  std::atomic<bool> busy{false};
  std::atomic<pid_t> worker{0};  // the thread that asked last whether the machine is busy
  Counter looks, starts, finishes, takeovers;
  std::mutex mutex;
  std::vector<std::string> events, messages;
  std::vector<float> x = std::vector<float>(8, 1), y = std::vector<float>(8, 0);
  const pid_t own_pid = ::getpid();
};

TEST_F(Background, AMissRunsWithTheHeuristicUntilAProcessHasTunedIt) {
  const ejk::Executor executor(options());
  busy = true;  // until the call has told what it took
  EXPECT_EQ(run(executor), 7);
  busy = false;
  takeovers.wait_for(1);
  EXPECT_EQ(run(executor), 2);
  EXPECT_EQ(setup.tuner->asked, 0) << "it was asked here, not in a process of its own";
  EXPECT_THAT(take_events(), ElementsAre("heuristics", "autotune_start", "autotune_finish",
                                         "takeover", "cache_hit"));
  EXPECT_THAT(messages[3], HasSubstr(R"({"block":7})"));
  EXPECT_FALSE(has_children());
}

TEST_F(Background, AnotherProcessFindsWhatWasTuned) {
  {
    const ejk::Executor executor(options());
    run(executor);
    takeovers.wait_for(1);
  }
  const ejk::Executor later(options());
  EXPECT_EQ(run(later), 2);
  EXPECT_EQ(later.choose_config(Show{}, x, y).origin, Origin::memory);
  EXPECT_EQ(recorded(), 0U) << "nothing was left";
}

TEST_F(Background, WarmCallsSeeTheNewConfigUnderEveryKeyThatSharesIt) {
  auto quiet = options();
  quiet.on_event = nullptr;
  busy = true;
  const ejk::Executor executor(quiet);
  std::vector<float> longer(7, 1), out(7, 0);
  const auto run_both = [&] {
    executor(Rounded{}, x, y), executor(Rounded{}, longer, out);
    return std::pair(y[0], out[0]);
  };
  EXPECT_EQ(run_both(), std::pair(7.f, 7.f));
  busy = false;
  wait_until_nothing_waits(executor);
  EXPECT_EQ(run_both(), std::pair(2.f, 2.f));
}

TEST_F(Background, NothingIsTunedWhileTheMachineIsBusy) {
  busy = true;
  const ejk::Executor executor(options());
  EXPECT_EQ(run(executor), 7);
  looks.wait_for(3);
  EXPECT_THAT(take_events(), ElementsAre("heuristics"));
  busy = false;
  takeovers.wait_for(1);
  EXPECT_EQ(run(executor), 2);
}

TEST_F(Background, AKernelWithoutAHeuristicIsTunedInTheCall) {
  const ejk::Executor executor(options());
  executor(NoGuess{}, y);
  EXPECT_EQ(y[0], 2);
}

TEST_F(Background, APolicyThatDoesNotAllowTuningTunesNothingLater) {
  auto own = options();
  own.policy->allow_autotune = false;
  const ejk::Executor executor(own);
  EXPECT_EQ(run(executor), 7);
  EXPECT_EQ(executor.chain().idle(0), 0U);
}

// Forty times as slow with the heuristic.
struct Spin {
  static constexpr std::string_view op_id = "spin", version = "1";
  struct Config {
    int turns = 1;
  };
  void run(const Config& c, ejk::Out<std::span<float>> out) const {
    volatile float sum = 0;
    for (int i = 0; i < 500 * c.turns; ++i) sum = sum + 1;
    for (float& v : *out) v = 1;
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {40}; }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const { return {{40}, {1}, {20}}; }
};

TEST_F(Background, TheTunerItselfFindsTheFastConfigInAProcess) {
  auto own = options();
  own.tuner = std::make_shared<ejk::Tuner>();
  own.policy->background_share = 1;
  const ejk::Executor executor(own);
  executor(Spin{}, y);
  takeovers.wait_for(1);
  EXPECT_EQ(executor.choose_config(Spin{}, y).config.turns, 1);
  const auto inv = executor.describe(Spin{}, y);
  const auto stored = executor.chain().persistent()->get(
      {inv.device->fingerprint, inv.op(), inv.call_key(), inv.spec()});
  ASSERT_TRUE(stored);
  EXPECT_EQ(stored->entry.evidence.guard, "child") << "first runs happen in children of it";
  EXPECT_GT(stored->entry.evidence.speedup, 2);
}

// ---- idle --------------------------------------------------------------------------------------

TEST_F(Background, IdleTunesWhatWaitsAndSaysHowMuchIsLeft) {
  const ejk::Executor executor(only_idle());
  EXPECT_EQ(run(executor), 7);
  EXPECT_EQ(executor.chain().idle(0), 1U);
  EXPECT_EQ(setup.tuner->asked, 0);
  EXPECT_EQ(executor.chain().idle(60), 0U);
  EXPECT_EQ(setup.tuner->asked, 1);
  EXPECT_EQ(run(executor), 2);
  EXPECT_EQ(executor.chain().idle(60), 0U);
  EXPECT_EQ(setup.tuner->asked, 1) << "it was tuned twice";
}

TEST_F(Background, IdleBreaksOffTheProcessAndTunesInItsPlace) {
  setup.tuner->before = [this](const ejk::TuneTask&) {
    while (::getpid() != own_pid) ::pause();  // in the process: until it is ended
  };
  const ejk::Executor executor(options());
  EXPECT_EQ(run(executor), 7);
  starts.wait_for(1);
  EXPECT_EQ(executor.chain().idle(60), 0U);
  EXPECT_EQ(setup.tuner->asked, 1);
  EXPECT_EQ(run(executor), 2);
  EXPECT_FALSE(has_children());
}

TEST_F(Background, ATuningThatIdleCutsShortGoesOnWithTheNextIdle) {
  struct Slow : fakes::FakeTuner {
    ejk::TuneResult tune(const ejk::TuneTask& task) override {
      known.push_back(task.known.size());
      auto result = FakeTuner::tune(task);
      result.evidence.complete = known.size() > 1;
      result.evidence.tuning_seconds = task.budget.seconds;
      budgets.push_back(task.budget.seconds);
      return result;
    }
    std::vector<size_t> known;
    std::vector<double> budgets;
  };
  const auto slow = std::make_shared<Slow>();
  auto own = only_idle();
  own.tuner = slow, own.persistent = nullptr;
  own.policy->budget_seconds = 1e6;
  const ejk::Executor executor(own);
  run(executor);
  constexpr double enough = 600;  // for both turns, on any machine
  slow->before = [&](const ejk::TuneTask&) { EXPECT_EQ(executor.chain().idle(enough), 1U); };
  EXPECT_EQ(executor.chain().idle(enough), 0U);
  EXPECT_EQ(run(executor), 2);
  EXPECT_THAT(slow->known, ElementsAre(0, 3));
  EXPECT_LE(slow->budgets[0], enough);
  EXPECT_LE(slow->budgets[1], slow->budgets[0]) << "there is less time left";
}

TEST_F(Background, AnUnfinishedStoredTuningAnswersAtOnceAndGoesOnLater) {
  {
    auto first = setup.options(dir.path());
    first.tuner = std::make_shared<fakes::FakeTuner>();
    const ejk::Executor executor(first);
    auto [config, entry] = executor.tune(Show{}, x, y);
    entry.evidence.complete = false;
    executor.chain().persistent()->put(entry, ejk::IfPresent::replace);
  }
  size_t known = 0;
  setup.tuner->before = [&](const ejk::TuneTask& task) { known = task.known.size(); };
  setup.tuner->pick = 2;
  const ejk::Executor executor(only_idle());
  EXPECT_EQ(run(executor), 2);
  EXPECT_EQ(setup.tuner->asked, 0);
  EXPECT_EQ(executor.chain().idle(60), 0U);
  EXPECT_EQ(known, 3U);
  EXPECT_EQ(run(executor), 3);
}

// ---- turns
// ---------------------------------------------------------------------------------------

// Needs more than a second, and says in its evidence what it was given.
struct SlowTuner : fakes::FakeTuner {
  ejk::TuneResult tune(const ejk::TuneTask& task) override {
    auto result = FakeTuner::tune(task);
    result.evidence.complete = task.budget.seconds > 1;
    result.evidence.tuning_seconds = task.budget.seconds;
    return result;
  }
};

class Turns : public Background {
 protected:
  ejk::SelectorOptions slow() {
    auto own = options();
    own.tuner = std::make_shared<SlowTuner>();
    own.on_event = [this](const ejk::Event& event) {
      const std::lock_guard lock(mutex);
      if (event.kind == "autotune_start") order.emplace_back(event.key);
    };
    return own;
  }
  std::string call(const ejk::Executor& executor, size_t size) {
    const std::vector<float> in(size);
    std::vector<float> out(size);
    executor(Show{}, in, out);
    return executor.describe(Show{}, in, out).call_key();
  }
  std::vector<std::string> order;  // keys, as their tunings begin
};

TEST_F(Turns, EachCallHasAShortOneBeforeAnyHasAWholeOne) {
  busy = true;
  const ejk::Executor executor(slow());
  const std::string a = call(executor, 1), b = call(executor, 2), c = call(executor, 3);
  busy = false;
  wait_until_nothing_waits(executor);
  EXPECT_THAT(order, ElementsAre(a, b, c, a, b, c));
  executor.chain().persistent()->for_each("", [](const ejk::Entry& entry) {
    EXPECT_TRUE(entry.evidence.complete);
    return true;
  });
}

TEST_F(Turns, ACallThatWaitsAloneIsTunedAtOnce) {
  busy = true;
  const ejk::Executor executor(slow());
  const std::string a = call(executor, 1);
  busy = false;
  wait_until_nothing_waits(executor);
  EXPECT_THAT(order, ElementsAre(a));
}

TEST_F(Turns, ATuningThatAnotherProcessBeganHasAWholeOne) {
  busy = true;
  const ejk::Executor executor(slow());
  const std::string a = call(executor, 1), b = call(executor, 2);
  {
    auto elsewhere = setup.options(dir.path());
    elsewhere.tuner = std::make_shared<fakes::FakeTuner>();
    const ejk::Executor other(elsewhere);
    const std::vector<float> in(1);
    std::vector<float> out(1);
    auto [config, entry] = other.tune(Show{}, in, out);
    entry.evidence.complete = false;
    other.chain().persistent()->put(entry, ejk::IfPresent::replace);
  }
  busy = false;
  wait_until_nothing_waits(executor);
  EXPECT_THAT(order, ElementsAre(b, a, b));
}

// ---- copies ------------------------------------------------------------------------------------

struct Add {  // adds x to y, which is therefore saved and restored
  static constexpr std::string_view op_id = "add", version = "1";
  using Config = Show::Config;
  void run(const Config&, std::span<const float> x, std::span<float> y) const {
    for (size_t i = 0; i < y.size(); ++i) y[i] += x[i];
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {1}; }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const { return {{1}, {2}}; }
};

// More than what is kept of an argument that is restored while its call waits.
TEST_F(Background, CandidatesRunOnWhatTheArgumentsWereHoweverLargeTheyAre) {
  for (const size_t size : {size_t{4}, (size_t{16} << 20) / sizeof(float) + 1}) {
    std::vector<std::vector<ejk::OutputBytes>> outputs;
    setup.tuner->before = [&](const ejk::TuneTask& task) {
      for (int repeat = 0; repeat < 2; ++repeat) {
        task.trial->reset();
        task.trial->run(task.candidates->config(0));
        outputs.push_back(task.trial->outputs());
      }
    };
    const ejk::Executor executor(only_idle());
    {
      std::vector<float> in(size, 1), out(size, 2);
      executor(Add{}, in, out);
      EXPECT_EQ(out[0], 3);
      std::ranges::fill(in, -1.f), std::ranges::fill(out, -1.f);
    }
    EXPECT_EQ(executor.chain().idle(60), 0U);
    ASSERT_THAT(outputs, SizeIs(2));
    for (const auto& found : outputs) {
      ASSERT_THAT(found, SizeIs(1));
      const auto* const values = reinterpret_cast<const float*>(found[0].bytes.data());
      EXPECT_TRUE(std::all_of(values, values + size, [](float v) { return v == 3; })) << size;
    }
  }
}

TEST_F(Background, ACallThatDoesNotFitIsRecordedInstead) {
  {
    auto own = options();
    own.policy->background_bytes = 2 * 8 * sizeof(float);
    busy = true;
    const ejk::Executor executor(own);
    EXPECT_EQ(run(executor), 7);
    EXPECT_EQ(executor.chain().idle(0), 1U);
    std::vector<float> other(4, 1), out(4, 0);
    executor(Show{}, other, out);
    EXPECT_EQ(out[0], 7);
    EXPECT_EQ(executor.chain().idle(0), 1U) << "there is no room for its copies";
    busy = false;
    takeovers.wait_for(1);
  }
  EXPECT_EQ(recorded(), 1U);
}

struct WithoutCandidates : Show {
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const {
    throw std::runtime_error("no candidates today");
  }
};

TEST_F(Background, ACallWhoseCandidatesThrowRunsWithItsHeuristic) {
  auto own = options();
  own.policy->background_bytes = 1;
  const ejk::Executor executor(own);
  executor(WithoutCandidates{}, x, y);
  EXPECT_EQ(y[0], 7);
  EXPECT_EQ(executor.chain().idle(0), 0U);
}

// Of `count` elements.
void run_with_size(const ejk::Executor& executor, size_t count) {
  std::vector<float> in(count, 1), out(count, 0);
  executor(Show{}, in, out);
}

TEST_F(Background, AtMostAThousandCallsWait) {
  auto own = only_idle();
  own.persistent = nullptr;
  const ejk::Executor executor(own);
  for (size_t size = 1; size <= 1001; ++size) run_with_size(executor, size);
  EXPECT_EQ(executor.chain().idle(0), 1000U);
}

TEST_F(Background, ACallThatWaitsIsNotQueuedAgainHoweverManyOthersCame) {
  auto own = only_idle();
  own.most_shapes = 2;
  const ejk::Executor executor(own);
  for (int repeat = 0; repeat < 2; ++repeat) {
    for (size_t size = 1; size <= 4; ++size) run_with_size(executor, size);
    executor.chain().cache().clear();
  }
  EXPECT_EQ(executor.chain().idle(0), 4U);
}

TEST_F(Background, CallsThatWaitAtTheEndAreRecorded) {
  busy = true;
  {
    const ejk::Executor executor(options());
    run(executor);
  }
  EXPECT_EQ(recorded(), 1U);
}

TEST_F(Background, WithoutAStoreNothingIsWritten) {
  const std::string store = dir.path() + "/store", records = dir.path() + "/records";
  ::setenv("EJKERNEL_PERSISTENT_CACHE_DIR", store.c_str(), 1);
  ::setenv("EJKERNEL_OPS_RECORD_DIR", records.c_str(), 1);
  busy = true;
  for (const bool with_store : {false, true}) {
    auto own = options();
    own.persistent = with_store ? std::make_shared<ejk::PersistentCache>() : nullptr;
    run(ejk::Executor(own));
    EXPECT_EQ(std::filesystem::exists(records), with_store);
    EXPECT_FALSE(std::filesystem::exists(store)) << "only tunings are written there";
  }
  ::unsetenv("EJKERNEL_PERSISTENT_CACHE_DIR");
  ::unsetenv("EJKERNEL_OPS_RECORD_DIR");
}

// ---- scopes, overrides and other threads -------------------------------------------------------

TEST_F(Background, TheTuningSeesNoScopeOfTheCallNorOfTheIdleThread) {
  size_t seen = 0;
  setup.tuner->before = [&](const ejk::TuneTask&) {
    seen += ejk::detail::innermost_scope != nullptr;
  };
  const ejk::Executor executor(only_idle());
  ejk::ConfigCache overlay;
  {
    const auto scope = ejk::overlay_cache(overlay);
    run(executor);
  }
  const auto frozen = ejk::policy_override({.allow_autotune = false, .allow_heuristics = false});
  EXPECT_EQ(executor.chain().idle(60), 0U);
  EXPECT_EQ(setup.tuner->asked, 1);
  EXPECT_EQ(seen, 0U);
  EXPECT_EQ(run(executor), 2);
}

TEST_F(Background, ACallForAnotherObjectiveIsTunedForItAlone) {
  const ejk::Executor executor(only_idle());
  const auto run_with_backward = [&] {
    const auto scope = ejk::policy_override({.validate_backward = true});
    return run(executor);
  };
  EXPECT_EQ(run_with_backward(), 7);
  EXPECT_EQ(executor.chain().idle(60), 0U);
  EXPECT_EQ(run_with_backward(), 2);
  EXPECT_EQ(run(executor), 7);
}

TEST_F(Background, AScopeQueuesACallThatIsWarmWithAHeuristic) {
  auto own = only_idle();
  own.policy->cache_miss_fallback = Fallback::heuristics;
  own.on_event = nullptr;
  const ejk::Executor executor(own);
  EXPECT_EQ(run(executor), 7);
  EXPECT_EQ(executor.chain().idle(0), 0U);
  {
    const auto scope = ejk::policy_override({.cache_miss_fallback = Fallback::background});
    EXPECT_EQ(run(executor), 7);
    EXPECT_EQ(executor.chain().idle(0), 1U);
    EXPECT_EQ(run(executor), 7);
  }
  EXPECT_EQ(executor.chain().idle(60), 0U);
  EXPECT_EQ(setup.tuner->asked, 1);
  EXPECT_EQ(run(executor), 2);
}

TEST_F(Background, ACallThatIsWarmFromAScopeWithHeuristicsIsQueuedOutsideOfIt) {
  auto own = only_idle();
  own.on_event = nullptr;
  const ejk::Executor executor(own);
  {
    const auto scope = ejk::policy_override({.cache_miss_fallback = Fallback::heuristics});
    EXPECT_EQ(run(executor), 7);
  }
  EXPECT_EQ(executor.chain().idle(0), 0U);
  EXPECT_EQ(run(executor), 7);
  EXPECT_EQ(executor.chain().idle(0), 1U);
}

TEST_F(Background, AnOverrideIsNeitherKeptNorTuned) {
  const ejk::Executor executor(only_idle());
  executor(Show{}, Show::Config{9}, x, y);
  EXPECT_EQ(y[0], 9);
  EXPECT_EQ(executor.chain().idle(0), 0U);
}

TEST_F(Background, AConfigThatWasPutMeanwhileStays) {
  const ejk::Executor executor(only_idle());
  run(executor);
  const auto inv = executor.describe(Show{}, x, y);
  const auto put = [&](int block) {
    executor.chain().cache().put(inv.device->fingerprint, inv.op(), inv.call_key(),
                                 Show::Config{block});
  };
  setup.tuner->before = [&](const ejk::TuneTask&) { put(50); };
  EXPECT_EQ(executor.chain().idle(60), 0U);
  EXPECT_EQ(run(executor), 50);
}

TEST_F(Background, WarmCallsSeeWhatWasTunedElsewhereMeanwhile) {
  auto own = only_idle();
  own.on_event = nullptr;
  own.cache = std::make_shared<ejk::ConfigCache>();
  const ejk::Executor executor(own), other(own);
  EXPECT_EQ(run(executor), 7);
  other.tune(Show{}, x, y);
  EXPECT_EQ(executor.chain().idle(60), 0U);
  EXPECT_EQ(setup.tuner->asked, 1);
  EXPECT_EQ(run(executor), 2);
}

TEST_F(Background, ACallThatMayWaitDoesNotWaitForTheTuningInTheBackground) {
  setup.tuner->before = [this](const ejk::TuneTask&) {
    while (::getpid() != own_pid) ::pause();
  };
  const ejk::Executor executor(options());
  EXPECT_EQ(run(executor), 7);
  starts.wait_for(1);
  const auto scope = ejk::policy_override({.cache_miss_fallback = Fallback::autotune});
  EXPECT_EQ(run(executor), 2);
}

TEST_F(Background, ThreadsThatMissAtOnceQueueTheCallOnce) {
  const ejk::Executor executor(only_idle());
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&] {
      std::vector<float> in(8, 1), out(8, 0);
      executor(Show{}, in, out);
      right += out[0] == 7;
    });
  for (auto& t : threads) t.join();
  EXPECT_EQ(right, 8);
  EXPECT_EQ(executor.chain().idle(0), 1U);
}

TEST_F(Background, ExplainSaysThatTheCallIsTunedLaterAndChangesNothing) {
  const ejk::Executor executor(only_idle());
  const auto explained = executor.explain(Show{}, x, y);
  EXPECT_EQ(explained.origin, "heuristics");
  EXPECT_THAT(explained.text(), HasSubstr("is tuned in the background"));
  EXPECT_EQ(executor.chain().idle(0), 0U);
}

// ---- stopped -----------------------------------------------------------------------------------

TEST_F(Background, AStopBreaksOffTheProcessAndLeavesWhatWaits) {
  std::atomic<bool> stop{false};
  const std::string go = dir.path() + "/go";
  setup.tuner->before = [&](const ejk::TuneTask&) { wait_for_file(go); };
  auto own = options();
  own.stop = &stop;
  const ejk::Executor executor(own);
  EXPECT_EQ(run(executor), 7);
  run_with_size(executor, 4);
  starts.wait_for(1);
  stop = true;
  finishes.wait_for(1);
  EXPECT_EQ(executor.chain().idle(60), 2U);
  EXPECT_FALSE(has_children());
  wait_for_looks(2);
  EXPECT_EQ(executor.chain().idle(0), 2U);
  EXPECT_EQ(starts.count(), 1);
  std::ofstream(go) << "x";
  stop = false;
  takeovers.wait_for(2);
  EXPECT_EQ(run(executor), 2);
  EXPECT_EQ(recorded(), 0U);
}

TEST_F(Background, AStopWhileIdleTunesLeavesTheCallInTheQueue) {
  std::atomic<bool> stop{false};
  auto own = only_idle();
  own.stop = &stop;
  const ejk::Executor executor(own);
  EXPECT_EQ(run(executor), 7);
  run_with_size(executor, 4);
  setup.tuner->before = [&](const ejk::TuneTask&) { stop = true; };
  setup.tuner->outcome = ejk::Outcome::failed;
  EXPECT_EQ(executor.chain().idle(60), 2U);
  EXPECT_EQ(setup.tuner->asked, 1);
  stop = false;
  setup.tuner->before = nullptr;
  setup.tuner->outcome = ejk::Outcome::tuned;
  EXPECT_EQ(executor.chain().idle(60), 0U);
  EXPECT_EQ(run(executor), 2);
}

// ---- processes that end ------------------------------------------------------------------------

TEST_F(Background, TheEndOfTheProgramEndsTheTuningAndRecordsTheCall) {
  setup.tuner->before = [](const ejk::TuneTask&) {
    for (;;) ::pause();
  };
  {
    const ejk::Executor executor(options());
    run(executor);
    starts.wait_for(1);
  }
  EXPECT_FALSE(has_children());
  EXPECT_EQ(recorded(), 1U);
}

TEST_F(Background, AProcessThatDiesLeavesTheHeuristicAndARecord) {
  setup.tuner->before = [](const ejk::TuneTask&) { ::raise(SIGSEGV); };
  {
    const ejk::Executor executor(options());
    EXPECT_EQ(run(executor), 7);
    finishes.wait_for(1);
    wait_until_nothing_waits(executor);
    EXPECT_EQ(run(executor), 7);
    EXPECT_EQ(executor.chain().idle(0), 0U) << "it is not tried again";
  }
  EXPECT_THAT(messages, testing::Contains(HasSubstr("died of SIGSEGV")));
  EXPECT_EQ(recorded(), 1U);
}

TEST_F(Background, ATunerThatThrowsThereLeavesTheHeuristic) {
  setup.tuner->before = [](const ejk::TuneTask&) { throw 1; };
  const ejk::Executor executor(options());
  run(executor);
  finishes.wait_for(1);
  EXPECT_EQ(run(executor), 7);
  EXPECT_THAT(messages, testing::Contains(HasSubstr("ended with 1")));
}

TEST_F(Background, ASilentProcessIsEnded) {
  setup.tuner->before = [](const ejk::TuneTask&) {
    for (;;) ::pause();
  };
  ejk::TuneTask task;
  task.candidates = ejk::candidate_list({ejk::make_config(Show::Config{1})});
  const ejk::detail::Background::Turn turn{ejk::detail::Background::Place::process, 10, 1, -1, {}};
  const auto result = ejk::detail::tune_in_process(*setup.tuner, task, turn, 0.01);
  EXPECT_FALSE(result);
  EXPECT_THAT(result.why(), HasSubstr("no sign of life for 0.01 s"));
  EXPECT_FALSE(has_children());
}

// Of a named pipe: a process that tunes opens it, and has it open until it has ended.
class Sign {
 public:
  explicit Sign(std::string path) : path_(std::move(path)) { ::mkfifo(path_.c_str(), 0600); }
  ~Sign() { ::close(file_); }
  Sign(const Sign&) = delete;
  Sign& operator=(const Sign&) = delete;
  [[noreturn]] void give_and_stay() const {
    ::open(path_.c_str(), O_WRONLY);
    for (;;) ::pause();
  }
  void wait() { file_ = ::open(path_.c_str(), O_RDONLY); }
  // Waits until the process has ended.
  bool is_gone() const {
    char byte = 0;
    return ::read(file_, &byte, 1) == 0;
  }

 private:
  const std::string path_;
  int file_ = -1;
};

TEST_F(Background, AProgramThatIsKilledLeavesNoProcessBehind) {
  Sign sign(dir.path() + "/sign");
  const pid_t program = ::fork();
  if (program == 0) {
    setup.tuner->before = [&](const ejk::TuneTask&) { sign.give_and_stay(); };
    const ejk::Executor executor(options());
    run(executor);
    for (;;) ::pause();
  }
  sign.wait();
  ::kill(program, SIGKILL);
  ASSERT_EQ(::waitpid(program, nullptr, 0), program);
  EXPECT_TRUE(sign.is_gone());
}

TEST_F(Background, ATuningProcessDoesNotKeepFilesOpenThatTheProgramCloses) {
  Sign sign(dir.path() + "/sign");
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  setup.tuner->before = [&](const ejk::TuneTask&) { sign.give_and_stay(); };
  const ejk::Executor executor(options());
  run(executor);
  sign.wait();
  ::close(ends[1]);
  char byte = 0;
  EXPECT_EQ(::read(ends[0], &byte, 1), 0);
  ::close(ends[0]);
}

TEST_F(Background, AProgramThatACandidateStartsDoesNotDelayTheResult) {
  setup.tuner->before = [this](const ejk::TuneTask&) {
    if (::getpid() == own_pid || ::fork() != 0) return;
    ::execl("/bin/sleep", "sleep", "1000", nullptr);
    ::_exit(1);
  };
  const ejk::Executor executor(options());
  run(executor);
  wait_until_nothing_waits(executor);
  EXPECT_EQ(run(executor), 2);
  EXPECT_THAT(messages, testing::Contains("tuned"));
}

TEST_F(Background, ACandidateThatEndsTheProcessDoesNotEndTheProgramsAffairs) {
  static std::string told;
  static pid_t owner;
  told = dir.path() + "/ended", owner = own_pid;
  std::atexit([] {
    if (::getpid() != owner) std::ofstream(told) << "the program's own";
  });
  setup.tuner->before = [](const ejk::TuneTask&) { std::exit(0); };
  const ejk::Executor executor(options());
  run(executor);
  finishes.wait_for(1);
  EXPECT_THAT(messages, testing::Contains(HasSubstr("ended with 1")));
  EXPECT_FALSE(std::filesystem::exists(told));
}

// While the thread behind it looks into the store, starts processes and publishes what they found.
TEST_F(Background, AProgramMayForkAtAnyMoment) {
  if (!may_fork_beside_threads) GTEST_SKIP() << "the sanitizer's allocator may stay locked";
  auto own = options();
  own.on_event = nullptr;
  const ejk::Executor executor(own);
  const auto runs_with_one_of_both = [&](size_t size) {
    std::vector<float> in(size, 1), out(size, 0);
    executor(Show{}, in, out);
    return out[0] == 7 || out[0] == 2;
  };
  for (size_t size = 1; size <= 30; ++size) {
    EXPECT_TRUE(runs_with_one_of_both(size));
    const pid_t child = ::fork();
    if (child == 0) {
      bool right = true;
      for (size_t other = 1; other <= 2 * size; ++other)
        right = right && runs_with_one_of_both(other);
      ::_exit(right && executor.chain().idle(1) == 0 ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  wait_until_nothing_waits(executor);
}

// Its heuristic comes back in a child process only when it is told to.
struct Held : Show {
  static constexpr std::string_view op_id = "held";
  static inline std::string began, go;
  void run(const Config& c, std::span<const float> in, ejk::Out<std::span<float>> out) const {
    static const pid_t program = ::getpid();
    if (c.block == 7 && ::getpid() != program) {
      std::ofstream(began) << "x";
      while (!std::filesystem::exists(go)) {  // not asleep: that would count as waiting
      }
    }
    Show::run(c, in, out);
  }
};

TEST_F(Background, DoesNotWaitForACallThatTriesAStoredConfigInAChild) {
  Held::began = dir.path() + "/began", Held::go = dir.path() + "/go";
  busy = true;
  const ejk::Executor executor(options());
  executor(Held{}, x, y);
  const auto inv = executor.describe(Held{}, x, y);
  ejk::Entry entry;
  entry.id = {inv.device->fingerprint, inv.op(), inv.call_key(), inv.spec()};
  entry.config = ejk::Value::object({{"block", 9}});
  entry.environment = inv.device->environment;
  entry.provenance = "imported";
  ASSERT_TRUE(executor.chain().persistent()->put(entry));
  executor.chain().cache().clear();
  std::jthread caller([&] {
    std::vector<float> in(8, 1), out(8, 0);
    executor(Held{}, in, out);
    EXPECT_TRUE(out[0] == 7 || out[0] == 2) << out[0];
  });
  wait_for_file(Held::began);
  busy = false;
  starts.wait_for(1);
  std::ofstream(Held::go) << "x";
}

// ---- the parts ---------------------------------------------------------------------------------

TEST(DutyCycle, RestsSoThatWorkTakesItsShare) {
  ejk::detail::DutyCycle cycle(0.05);
  EXPECT_DOUBLE_EQ(cycle.rest_after(1), 19);
  EXPECT_DOUBLE_EQ(cycle.rest_after(0.2), 3.8);
}

TEST(DutyCycle, SavesUpRestsThatWouldBeShort) {
  ejk::detail::DutyCycle cycle(0.5);
  EXPECT_EQ(cycle.rest_after(6e-3), 0);
  EXPECT_DOUBLE_EQ(cycle.rest_after(6e-3), 12e-3);
  EXPECT_EQ(cycle.rest_after(6e-3), 0);
}

TEST(DutyCycle, DoesNotRestIfAllIsItsShare) {
  EXPECT_EQ(ejk::detail::DutyCycle(1).rest_after(5), 0);
}

// A clock that runs only while something is timed or rests.
class ScriptedClock final : public ejk::Stopwatch {
 public:
  double now() override { return now_; }
  ejk::Elapsed time(const std::function<void()>& work, ejk::Clock) override {
    constexpr double each = 1e-3;
    work();
    now_ += each;
    return {each, each, each, 0, 0};
  }
  bool beside_other_threads() override { return false; }
  void add(double seconds) { now_ += seconds; }

 private:
  double now_ = 0;
};

class NothingToDo final : public ejk::Trial {
 public:
  void reset() override {}
  void run(const ejk::AnyConfig&) override {}
  bool run_reference() override { return false; }
  std::vector<ejk::OutputBytes> outputs() override { return {}; }
};

TEST(RestBetweenRuns, IsNoPartOfTheBudget) {
  const auto clock = std::make_shared<ScriptedClock>();
  int rests = 0;
  ejk::detail::rest_between_runs = [&] { clock->add(1000), ++rests; };
  NothingToDo trial;
  ejk::TuneTask task;
  task.trial = &trial;
  task.candidates =
      ejk::candidate_list({ejk::make_config(Show::Config{1}), ejk::make_config(Show::Config{2})});
  task.budget.seconds = 10;
  task.guard = false;
  const auto result = ejk::Tuner({.stopwatch = clock}).tune(task);
  ejk::detail::rest_between_runs = nullptr;
  EXPECT_GT(rests, 2);
  EXPECT_TRUE(result.evidence.complete);
  EXPECT_LT(result.evidence.tuning_seconds, 10);
}

TEST(MachineLoad, AddsUpTheIdleTimeOfTheProcessorsThatCount) {
  const std::string stat =
      "cpu  900 0 0 900 900 0 0 0 0 0\n"
      "cpu0 10 20 30 400 5 6 7 8 0 0\n"
      "cpu1 10 20 30 1000 0 6 7 8 0 0\n"
      "cpu12 1 2 3 200 0 0 0 0 0 0\n"
      "intr 1 2 3\n";
  cpu_set_t some;
  CPU_ZERO(&some);
  EXPECT_EQ(ejk::detail::idle_seconds(stat, some, 100), std::nullopt);
  CPU_SET(0, &some);
  CPU_SET(12, &some);
  EXPECT_EQ(ejk::detail::idle_seconds(stat, some, 100), 6.05);
}

TEST(MachineLoad, SaysNothingOfWhatIsNoSuchText) {
  cpu_set_t some;
  CPU_ZERO(&some);
  CPU_SET(0, &some);
  for (const char* text : {"", "cpu", "cpu0", "cpu0 1 2 3", "cpu0 a b c d e", "cpux 1 2 3 4 5"})
    EXPECT_EQ(ejk::detail::idle_seconds(text, some, 100), std::nullopt) << text;
}

// On a machine of four cores, by its own clock.
class MachineLoadOverTime : public testing::Test {
 protected:
  void pass(double seconds, double free_cores) { now += seconds, idle += seconds * free_cores; }

  double now = 1000, idle = 5000;
  int looks = 0;
  ejk::detail::MachineLoad load{[this] { return now; },
                                [this]() -> std::optional<double> { return ++looks, idle; }};
};

TEST_F(MachineLoadOverTime, IsBusyWhileLessThanHalfACoreIsFree) {
  EXPECT_TRUE(load.is_busy()) << "nothing is known at first";
  pass(0.25, 0.6);
  EXPECT_FALSE(load.is_busy());
  pass(0.25, 0.4);
  EXPECT_TRUE(load.is_busy());
  pass(0.25, 4);
  EXPECT_FALSE(load.is_busy());
}

TEST_F(MachineLoadOverTime, ALookThatComesTooSoonGivesTheSameAnswer) {
  load.is_busy();
  pass(0.25, 4);
  EXPECT_FALSE(load.is_busy());
  pass(0.1, 0);
  EXPECT_FALSE(load.is_busy());
  EXPECT_EQ(looks, 2);
  pass(0.15, 0);
  EXPECT_TRUE(load.is_busy());
}

TEST_F(MachineLoadOverTime, AnIdleHourSaysNothingOfNow) {
  load.is_busy();
  pass(0.25, 4);
  EXPECT_FALSE(load.is_busy());
  pass(3600, 4);
  EXPECT_TRUE(load.is_busy());
  pass(0.1, 0.1);
  EXPECT_TRUE(load.is_busy()) << "it was not known";
  pass(0.25, 0.1);
  EXPECT_TRUE(load.is_busy());
  pass(0.25, 4);
  EXPECT_FALSE(load.is_busy());
}

TEST_F(MachineLoadOverTime, AQuestionAboutALongerTimeIsAnsweredForThatTime) {
  load.is_busy(100);
  pass(90, 1);
  EXPECT_FALSE(load.is_busy(100));
  pass(90, 0.1);
  EXPECT_TRUE(load.is_busy(100));
  pass(110, 4);
  EXPECT_TRUE(load.is_busy(100)) << "of a part of it nothing is known";
}

TEST_F(MachineLoadOverTime, AMachineThatDoesNotTellIsIdle) {
  ejk::detail::MachineLoad silent([this] { return now; },
                                  []() -> std::optional<double> { return std::nullopt; });
  EXPECT_FALSE(silent.is_busy());
}

TEST(BackgroundPolicy, TheEnvironmentNamesIt) {
  ::setenv("EJKERNEL_AUTOTUNE_POLICY", "background", 1);
  const auto policy = ejk::policy_from_environment();
  ::unsetenv("EJKERNEL_AUTOTUNE_POLICY");
  EXPECT_EQ(policy.cache_miss_fallback, Fallback::background);
  EXPECT_TRUE(policy.allow_autotune && policy.allow_heuristics);
}

}  // namespace
