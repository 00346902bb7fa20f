// SPDX-License-Identifier: Apache-2.0
// What tunings tell while they run and when they are done, and tunings by hand.
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <map>
#include <numeric>
#include <random>
#include <thread>

#include "base/pages.h"
#include "sanitized.h"
#include "tunings.h"

namespace {

using namespace tunings;
using ejk::Origin;
using ejk::Outcome;
using std::chrono::milliseconds;
using testing::AnyOf;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;
using testing::StartsWith;

// ---- progress ----------------------------------------------------------------------------------

class Progress : public Tunings {};

TEST_F(Progress, ShowsHostileNamesWithoutTheirControlCharacters) {
  testing::internal::CaptureStderr();
  ejk::TuneProgress p;
  p.kind = Kind::finished, p.op = "evil\x1b]0;title\x07";
  ejk::progress_display()(p);
  const std::string shown = testing::internal::GetCapturedStderr();
  EXPECT_THAT(shown, HasSubstr(R"(evil\x1b]0;title\x07)"));
}

TEST_F(Progress, IsToldInOrderWithTheRightNumbers) {
  Work::offered = {60, 300, 400, 30, 90, 13};
  Work::heuristic = 60;
  Work::work = [](int units) {
    if (units == 13) throw std::runtime_error("unlucky");
    spin(units);
  };
  ProgressLog log;
  auto o = options();
  o.on_progress = log.sink();
  const auto result = ejk::Executor(o).tune(Work{}, x, y);
  ASSERT_FALSE(log.all.empty());
  EXPECT_EQ(log.count(Kind::candidate), 6u);
  EXPECT_GE(log.count(Kind::eliminated), 3u);
  EXPECT_GE(log.count(Kind::best), 1u);
  EXPECT_EQ(log.count(Kind::finished), 1u);
  EXPECT_EQ(log.all.back().p.kind, Kind::finished);
  EXPECT_EQ(log.all.back().p.config, result.entry.config);
  EXPECT_EQ(log.all.back().p.rejected, 1u);
  EXPECT_GT(log.all.back().p.best_seconds, 0);
  EXPECT_GT(log.all.back().p.speedup, 1);
  uint64_t tried = 0;
  int round = 0;
  double elapsed = 0;
  size_t racing = SIZE_MAX;
  for (const auto& [p, message] : log.all) {
    EXPECT_EQ(p.candidates, 6u);
    EXPECT_GE(p.elapsed, elapsed);
    EXPECT_GE(p.remaining, 0);
    EXPECT_LE(p.remaining, 60 - p.elapsed + 1e-6);
    elapsed = p.elapsed;
    if (p.kind == Kind::candidate) {
      EXPECT_EQ(round, 0);
      EXPECT_EQ(p.tried, ++tried);
      EXPECT_EQ(message, p.config == ejk::to_value(Work::Config{13}) ? "unlucky" : "");
    } else if (p.kind == Kind::round) {
      EXPECT_EQ(p.round, ++round);
      EXPECT_LE(p.racing, racing);
      racing = p.racing;
    } else {
      EXPECT_GT(round, 0);
      EXPECT_EQ(message.find(" ms, the best ") != message.npos, p.kind == Kind::eliminated);
    }
  }
  EXPECT_THAT(log.configs(Kind::eliminated), Contains(ejk::to_value(Work::Config{400})));
  EXPECT_THAT(log.configs(Kind::eliminated), Not(Contains(result.entry.config)));
}

TEST_F(Progress, HasATimeOfEveryCandidateAfterTheFirstRound) {
  Work::offered = {60, 300, 400, 30, 90};
  Work::heuristic = 60;
  ProgressLog log;
  auto o = options();
  o.on_progress = log.sink();
  ejk::Executor(o).tune(Work{}, x, y);
  std::map<int64_t, double> seconds;  // by units: those that were told first
  for (const auto& [p, message] : log.all) {
    if (p.round > 1) break;
    if (p.kind == Kind::candidate) {
      EXPECT_EQ(p.seconds, 0);
    }
    if (p.seconds > 0) seconds.emplace(p.config.find("units")->as_int(), p.seconds);
  }
  ASSERT_THAT(seconds, SizeIs(5));
  for (const auto& [units, told] : seconds) EXPECT_NEAR(told, 1e-6 * double(units), 1e-9);
}

TEST_F(Progress, NeverTellsOfMoreTriedThanThereAre) {
  Work::heuristic = 77;  // no candidate, but tried
  ProgressLog log;
  auto o = options();
  o.on_progress = log.sink();
  ejk::Executor(o).tune(Work{}, x, y);
  EXPECT_EQ(log.all.back().p.tried, 3u);
  EXPECT_EQ(log.all.back().p.candidates, 3u);
}

TEST_F(Progress, ASinkThatThrowsDoesNotDisturbTheTuning) {
  Work::offered = {60, 300, 30};
  Work::heuristic = 60;
  for (bool guard : {true, false}) {
    auto o = options();
    o.policy->guard = guard;
    o.on_progress = [](const ejk::TuneProgress&) { throw std::runtime_error("no ears"); };
    const ejk::Executor executor(o);
    const auto chosen = executor.choose_config(Work{}, x, y);
    EXPECT_EQ(chosen.origin, Origin::autotune);
    EXPECT_EQ(chosen.config.units, 30);
  }
}

TEST_F(Progress, IsPrintedAsPlainLinesIfTheEnvironmentAsksForIt) {
  const auto printed = [&](const char* value) {
    if (value) setenv("EJKERNEL_AUTOTUNE_PROGRESS", value, 1);
    else unsetenv("EJKERNEL_AUTOTUNE_PROGRESS");
    testing::internal::CaptureStderr();
    ejk::Executor(options()).tune(Work{}, x, y);
    unsetenv("EJKERNEL_AUTOTUNE_PROGRESS");
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(printed(nullptr), "");
  EXPECT_EQ(printed("0"), "");
  const std::string text = printed("1");
  EXPECT_THAT(text, StartsWith("ejk: work@v1 "));
  EXPECT_THAT(text, HasSubstr("2 of 2 tried"));
  EXPECT_THAT(text, HasSubstr("done in "));
  EXPECT_THAT(text, HasSubstr("{\"units\":20}"));
  EXPECT_THAT(text, testing::EndsWith("\n"));
  EXPECT_EQ(text.find_first_of("\r\033"), std::string::npos);
}

// ---- statuses and evidence ---------------------------------------------------------------------

class TuningEvidence : public Tunings {};

TEST_F(TuningEvidence, TellsWinnersFromTiesAndLosers) {
  Work::offered = {60, 61, 300};
  Work::heuristic = 60;
  Work::work = [](int units) { spin(units == 61 ? 60 : units); };
  const ejk::Entry entry = ejk::Executor(options()).tune(Work{}, x, y).entry;
  auto found = statuses(entry);
  EXPECT_EQ(found[300], "slower");
  EXPECT_EQ(found.at(static_cast<int>(entry.config.find("units")->as_int())), "ok");
  // Equals look different now and then.
  EXPECT_THAT(found[60] + found[61], AnyOf("oktied", "tiedok", "okslower", "slowerok"));
}

TEST_F(TuningEvidence, SaysWhereFirstRunsHappened) {
  auto o = options();
  EXPECT_EQ(ejk::Executor(o).tune(Work{}, x, y).entry.evidence.guard, "child");
  o.policy->guard = false;
  EXPECT_EQ(ejk::Executor(o).tune(Work{}, x, y).entry.evidence.guard, "none");
}

TEST_F(TuningEvidence, NamesTheKindOfEveryRejection) {
  Work::offered = {60, 1, 2, 3, 4, 30};
  Work::heuristic = 60;
  Work::valid = [](int units) { return units != 4; };
  Work::work = [](int units) {
    if (units == 1) throw std::runtime_error("one");
    if (units == 2) abort();
    if (units == 3) _exit(3);
    spin(units);
  };
  ejk::Entry entry = ejk::Executor(options()).tune(Work{}, x, y).entry;
  EXPECT_EQ(of(entry, 1).kind, "threw");
  EXPECT_EQ(of(entry, 1).why, "one");
  EXPECT_EQ(of(entry, 2).kind, "crashed");
  EXPECT_EQ(of(entry, 3).kind, "exited");
  EXPECT_EQ(of(entry, 4).kind, "invalid");
  for (int units : {1, 2, 3, 4}) EXPECT_EQ(of(entry, units).status, "rejected") << units;
  EXPECT_EQ(of(entry, 60).kind, "");
  EXPECT_EQ(entry.config, ejk::to_value(Work::Config{30}));
}

// Follows a chain through memory, one step per cache line.
struct Chase {
  static constexpr std::string_view op_id = "chase", version = "1";
  struct Config {
    int unused = 0;
  };
  void run(const Config&, std::span<const int32_t> next, ejk::Out<std::span<int32_t>> end) const {
    int32_t at = 0;
    for (size_t i = 0; i < next.size() / 16; ++i) at = next[static_cast<size_t>(at)];
    (*end)[0] = at + 1;
  }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const { return {{0}, {1}}; }
};

TEST_F(TuningEvidence, ColdCachesCostWhatTheyCost) {
  constexpr size_t lines = 4096;  // 256 KiB
  std::vector<size_t> order(lines - 1);
  std::iota(order.begin(), order.end(), size_t{1});
  std::shuffle(order.begin(), order.end(), std::mt19937(3));
  std::vector<int32_t> next(lines * 16), end(1);
  size_t at = 0;
  for (size_t line : order) next[at * 16] = static_cast<int32_t>(line * 16), at = line;
  std::map<ejk::CacheState, ejk::Evidence> found;
  for (auto cache : {ejk::CacheState::warm, ejk::CacheState::cold}) {
    auto o = options();
    o.tuner = std::make_shared<ejk::Tuner>(ejk::TunerOptions{.cache = cache});
    found[cache] = ejk::Executor(o).tune(Chase{}, next, end).entry.evidence;
  }
  EXPECT_EQ(found[ejk::CacheState::warm].cache, "warm");
  EXPECT_EQ(found[ejk::CacheState::cold].cache, "cold");
}

TEST_F(TuningEvidence, ArgumentsTooLargeForCachesAreMeasuredColdUnlessToldOtherwise) {
  const auto cache_of = [&](size_t size, ejk::TunerOptions how) {
    std::vector<int32_t> next(size), end(1);
    auto o = options();
    o.policy->budget_evaluations = 8;
    o.tuner = std::make_shared<ejk::Tuner>(how);
    return ejk::Executor(o).tune(Chase{}, next, end).entry.evidence.cache;
  };
  constexpr size_t large = size_t{10} << 20;  // of 4 bytes
  EXPECT_EQ(cache_of(large, {}), "cold");
  EXPECT_EQ(cache_of(large, {.cache = ejk::CacheState::warm}), "warm");
  EXPECT_EQ(cache_of(large / 10, {}), "warm");
}

// Notes on which pages its arrays lie: runs[0] counts huge ones, runs[1] others.
struct Pages {
  static constexpr std::string_view op_id = "pages", version = "1";
  struct Config {
    int n = 0;
  };
  void run(const Config&, std::span<const float> x, ejk::Out<std::span<float>> y) const {
    for (const float* array : {x.data(), static_cast<const float*>(y->data())})
      ++runs[ejk::base::on_huge_pages(array + x.size() - 1) ? 0 : 1];
    std::ranges::copy(x, y->begin());
    spin(20);
  }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const { return {{0}, {1}}; }
};

TEST_F(TuningEvidence, CopiesLieOnTheKindOfPagesThatTheCallersArraysLieOn) {
  constexpr size_t size = size_t{3} << 19;  // 6 MiB
  const auto tune = [&](std::span<const float> from, std::span<float> to) {
    runs.clear();
    auto o = options();
    o.policy->budget_evaluations = 12;
    ejk::Executor(o).tune(Pages{}, from, to);
  };
  const ejk::Tensor from = ejk::Tensor::of<float>({size}), to = ejk::Tensor::of<float>({size});
  if (!ejk::base::on_huge_pages(from.data<float>())) GTEST_SKIP() << "no huge pages here";
  tune({from.data<float>(), size}, {to.data<float>(), size});
  EXPECT_GT(runs[0], 0);
  EXPECT_EQ(runs[1], 0);
  std::vector<float> small_from(size), small_to(size);
  std::string given;
  std::getline(std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled"), given);
  if (given.find("[always]") != given.npos) return;  // with and without a question
  tune(small_from, small_to);
  EXPECT_EQ(runs[0], 0);
  EXPECT_GT(runs[1], 0);
}

// Writes to the pages beside its arrays: runs[0] counts those that are there, runs[1] those that
// the system had to bring.
struct Neighbours {
  static constexpr std::string_view op_id = "neighbours", version = "1";
  struct Config {
    int n = 0;
  };
  static inline pid_t host = 0;  // elsewhere they are closed
  void run(const Config&, std::span<const float> x, ejk::Out<std::span<float>> y) const {
    std::ranges::copy(x, y->begin());
    spin(20);
    if (::getpid() != host) return;
    for (std::span<const float> array : {x, std::span<const float>(*y)}) {
      const auto first = reinterpret_cast<uintptr_t>(array.data()) / 4096;
      const auto last = (reinterpret_cast<uintptr_t>(array.data() + array.size()) - 1) / 4096;
      for (const uintptr_t page : {first - 1, last + 1}) {
        const long before = faults();
        auto* const at = reinterpret_cast<volatile char*>(page * 4096);
        *at = *at;
        ++runs[faults() == before ? 0 : 1];
      }
    }
  }
  static long faults() {
    rusage usage{};
    ::getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_minflt;
  }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const { return {{0}, {1}}; }
};

// A masked load or store that reaches over the end of an array takes hundreds of cycles where there
// is no page to be read or written. Behind an array of a program there mostly is one.
TEST_F(TuningEvidence, PagesBesideACopyAreThereWhenItIsMeasured) {
  if (::sysconf(_SC_PAGESIZE) != 4096) GTEST_SKIP() << "pages of another size";
  if (sanitized) GTEST_SKIP() << "sanitizers touch pages of their own";
  Neighbours::host = ::getpid();
  std::vector<float> from(3072), to(3072);
  ejk::Executor(options()).tune(Neighbours{}, std::span<const float>(from), std::span<float>(to));
  EXPECT_GT(runs[0], 0);
  EXPECT_EQ(runs[1], 0);
}

// Takes 2 us and notes in runs[0] how often its argument was not as the caller gave it.
struct Add {
  static constexpr std::string_view op_id = "add", version = "1";
  struct Config {
    int units = 0;
  };
  void run(const Config& c, std::span<float> y) const {
    ++runs[c.units];
    if (y[0] != 10) ++runs[0];
    spin(2);
    for (float& v : y) v += 1;
  }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const { return {{1}, {2}}; }
};

TEST_F(TuningEvidence, ShortKernelsWithInOutArgumentsStartFromTheCallersDataEveryTime) {
  std::vector<float> in_out(8, 10);
  for (bool guard : {true, false}) {
    auto o = options();
    o.policy->guard = guard;
    ejk::Executor(o).tune(Add{}, in_out);
  }
  EXPECT_GT(runs[1], 100);
  EXPECT_EQ(runs[0], 0);
  EXPECT_EQ(in_out[0], 10);
}

// The second candidate is off by 5 %.
struct Rough {
  static constexpr std::string_view op_id = "rough", version = "1";
  struct Config {
    int exact = 1;
  };
  static inline std::optional<ejk::Tolerance> allowed;
  void run(const Config& c, std::span<const float> x, ejk::Out<std::span<float>> y) const {
    spin(c.exact ? 100 : 20);
    for (size_t i = 0; i < x.size(); ++i) (*y)[i] = c.exact ? x[i] : 1.05f * x[i];
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {1}; }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const { return {{1}, {0}}; }
  std::optional<ejk::Tolerance> tolerance(ejk::DType dtype) const {
    return dtype == ejk::DType::float32 ? allowed : std::nullopt;
  }
};

TEST_F(TuningEvidence, AKernelSaysHowFarItsResultsMayBeOff) {
  const auto status = [&](std::optional<ejk::Tolerance> allowed) {
    Rough::allowed = allowed;
    return ejk::Executor(options()).tune(Rough{}, x, y).entry.candidates[1].kind;
  };
  EXPECT_EQ(status(std::nullopt), "wrong");
  EXPECT_EQ(status(ejk::Tolerance{.relative = 0.01}), "wrong");
  EXPECT_EQ(status(ejk::Tolerance{.relative = 0.1}), "");
  EXPECT_EQ(status(ejk::Tolerance{.absolute = 0.1}), "");
}

TEST_F(TuningEvidence, ATimeThatIsWildlyRandomLeavesTheHeuristic) {
  Work::offered = {1, 2, 3};
  Work::heuristic = 2;
  for (int i = 0; i < 6; ++i) {
    Work::work = [random = std::mt19937(static_cast<unsigned>(i))](int) mutable {
      spin(std::uniform_int_distribution(30, 300)(random));
    };
    auto o = options();
    o.tuner = scripted_tuner({.seed = static_cast<uint64_t>(i)});
    const auto result = ejk::Executor(o).tune(Work{}, x, y);
    EXPECT_EQ(result.config.units, 2) << i;
    EXPECT_EQ(result.entry.outcome, Outcome::unresolved) << i;
  }
}

// A guess may be none of the candidates.
TEST_F(TuningEvidence, AGuessStaysWhereAllCandidatesAreSlower) {
  Work::offered = {300, 400};
  Work::heuristic = 60;
  const auto tuned = ejk::Executor(stored_options()).tune(Work{}, x, y);
  EXPECT_EQ(tuned.config.units, 60);
  EXPECT_EQ(tuned.entry.outcome, Outcome::tuned);
  ASSERT_THAT(tuned.entry.candidates, SizeIs(3));
  EXPECT_EQ(statuses(tuned.entry),
            (std::map<int, std::string>{{60, "ok"}, {300, "slower"}, {400, "slower"}}));
  EXPECT_NEAR(tuned.entry.evidence.speedup, 1, 1e-9);
  // It is found again, and candidates that are new race against it.
  const ejk::Executor later(stored_options());
  EXPECT_EQ(later.choose_config(Work{}, x, y).origin, Origin::persistent);
  Work::offered = {300, 400, 500};
  EXPECT_EQ(ejk::Executor(stored_options()).choose_config(Work{}, x, y).config.units, 60);
  Work::offered = {300, 400, 500, 20};
  EXPECT_EQ(ejk::Executor(stored_options()).choose_config(Work{}, x, y).config.units, 20);
}

TEST_F(TuningEvidence, AGuessGivesWayToACandidateThatIsAsGood) {
  Work::offered = {61, 300};
  Work::heuristic = 60;
  Work::work = [](int units) { spin(units == 61 ? 60 : units); };
  EXPECT_EQ(ejk::Executor(options()).tune(Work{}, x, y).config.units, 61);
}

TEST_F(TuningEvidence, AGuessStaysOutOfAListThatWasGiven) {
  Work::offered = {300, 400};
  Work::heuristic = 60;
  EXPECT_EQ(ejk::Executor(options()).tune_among({{300}, {400}}, Work{}, x, y).config.units, 300);
}

TEST_F(TuningEvidence, AGuessStaysWhereTheBudgetEndsBeforeItIsBeaten) {
  Work::offered = {61, 62, 63};
  Work::heuristic = 60;
  auto o = options();
  o.policy->budget_seconds = 0;
  EXPECT_EQ(ejk::Executor(o).tune(Work{}, x, y).config.units, 60);
}

// ---- tuning by hand ----------------------------------------------------------------------------

class ByHand : public Tunings {};

TEST_F(ByHand, AnAutotunerGivesTheFastestAndAllMeasurements) {
  Work::offered = {60, 300, 20};
  Work::heuristic = 60;
  const ejk::Executor executor(options());
  ejk::Autotuner autotuner(executor);
  const auto data = autotuner.autotune(Work{}, x, y);
  EXPECT_EQ(data.fastest_config.units, 20);
  ASSERT_THAT(data.measurements(), SizeIs(3));
  EXPECT_EQ(data.measurements()[0].config, ejk::to_value(Work::Config{60}));
  EXPECT_EQ(data.measurements()[2].status, "ok");
  std::vector<float> more(16, 1), out(16);
  autotuner.autotune(Work{}, more, out);
  EXPECT_THAT(autotuner.result().entries, SizeIs(2));
  EXPECT_EQ(autotuner.result().device, data.entry.id.device);
  EXPECT_NE(autotuner.result().entries[0].id.key, autotuner.result().entries[1].id.key);
}

TEST_F(ByHand, AResultIsAScopeBeforeMemoryAndDisk) {
  Work::offered = {60, 20};
  Work::heuristic = 60;
  const ejk::Executor tuning(options());
  ejk::Autotuner autotuner(tuning);
  autotuner.autotune(Work{}, x, y);
  const auto& id = autotuner.result().entries[0].id;

  Work::offered = {60, 50};  // another winner on disk
  const ejk::Executor on_disk(stored_options());
  EXPECT_EQ(on_disk.tune(Work{}, x, y).config.units, 50);
  const ejk::Executor reader(stored_options()), in_memory(options());
  in_memory.chain().cache().put(id.device, id.op, id.key, Work::Config{77});
  {
    const auto scope = autotuner.result().apply();
    for (const ejk::Executor* e : {&reader, &in_memory, &on_disk}) {
      const auto chosen = e->choose_config(Work{}, x, y);
      EXPECT_EQ(chosen.config.units, 20);
      EXPECT_EQ(chosen.origin, Origin::overlay);
    }
  }
  EXPECT_EQ(tuned(reader), 50);
  EXPECT_EQ(tuned(in_memory), 77);
}

TEST_F(ByHand, AFailedTuningIsAnErrorAndNoPartOfTheResult) {
  Work::work = [](int) { throw std::runtime_error("no"); };
  const ejk::Executor executor(options());
  ejk::Autotuner autotuner(executor);
  EXPECT_THROW(autotuner.autotune(Work{}, x, y), ejk::Error);
  EXPECT_THAT(autotuner.result().entries, IsEmpty());
  const auto scope = autotuner.result().apply();  // of nothing
}

TEST_F(ByHand, ACallTunesOverTheKernelsConfigsOrAGivenList) {
  Work::offered = {60, 300, 20};
  Work::heuristic = 60;
  EXPECT_EQ(ejk::autotune(Work{}, {.stopwatch = stopwatch}, x, y).units, 20);
  EXPECT_EQ(
      ejk::autotune(
          Work{},
          {.configs = {{90}, {30}}, .num_warmup = 2, .num_iters = 5, .stopwatch = stopwatch}, x, y)
          .units,
      30);
  Work::work = [](int) { throw std::runtime_error("no"); };
  EXPECT_THROW(ejk::autotune(Work{}, {}, x, y), ejk::Error);
}

struct Bare {
  static constexpr std::string_view op_id = "bare", version = "1";
  struct Config {
    int units = 0;
  };
  void run(const Config& c, ejk::Out<std::span<float>> y) const {
    spin(c.units);
    for (float& v : *y) v = 1;
  }
};

TEST_F(ByHand, AKernelWithoutCandidatesIsTunedOverThoseGiven) {
  EXPECT_EQ(ejk::autotune(Bare{}, {.configs = {{90}, {20}, {60}}, .stopwatch = stopwatch}, y).units,
            20);
  EXPECT_THROW(ejk::autotune(Bare{}, {}, y), ejk::Error);
}

TEST(Benchmark, GivesMillisecondsOrWhatWasThrown) {
  const double slept = ejk::benchmark([] { std::this_thread::sleep_for(milliseconds(4)); }, 3);
  EXPECT_GE(slept, 3.9);
  int calls = 0;
  EXPECT_GT(ejk::benchmark([&] { ++calls; }, 20, 5), 0);
  EXPECT_GE(calls, 25);
  EXPECT_THROW(ejk::benchmark([] { throw std::out_of_range("far"); }), std::out_of_range);
  EXPECT_THROW(ejk::benchmark([] {}, -1), ejk::Error);
}

// ---- the clock ---------------------------------------------------------------------------------

class Clocks : public Tunings {};

TEST_F(Clocks, SleepersThreadsAndBothAreTimedByTheWall) {
  Work::offered = {1, 2, 3, 4};
  Work::heuristic = 4;
  Work::work = [](int kind) {
    // wall, this thread, all threads, waits
    if (kind == 1) stopwatch->pass({6e-3, 0, 0, 1});
    if (kind == 2) stopwatch->pass({5e-3, 0, 5e-3, 1});
    if (kind == 3) stopwatch->pass({7e-3, 1e-3, 3e-3, 2});
    if (kind == 4) spin(1000);  // the longest by its own thread's time, the shortest by the wall
  };
  const auto result = ejk::Executor(options()).tune(Work{}, x, y);
  EXPECT_EQ(result.entry.evidence.clock, "wall");
  EXPECT_EQ(result.config.units, 4);
  for (int kind : {1, 2, 3})
    EXPECT_EQ(result.entry.candidates[static_cast<size_t>(kind - 1)].status, "slower") << kind;
}

}  // namespace
