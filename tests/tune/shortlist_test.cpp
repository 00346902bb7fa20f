// SPDX-License-Identifier: Apache-2.0
// Sets too large to race are searched.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>
#include <set>
#include <thread>

#include "tunings.h"

namespace {

using namespace tunings;
using ejk::Outcome;
using std::chrono::milliseconds;
using testing::IsEmpty;

// ---- large sets --------------------------------------------------------------------------------

// Its time is a bowl over the parameters.
struct Bowl {
  static constexpr std::string_view op_id = "bowl", version = "1";
  struct Config {
    int a = 0, b = 0, c = 0, d = 0;
  };
  static inline ejk::Space<Config> space;
  static inline int width = 0, dimensions = 0;
  static inline bool (*valid)(const Config&) = nullptr;

  static void make(int new_width, int new_dimensions) {
    width = new_width, dimensions = new_dimensions, valid = nullptr;
    std::vector<int> values(static_cast<size_t>(width));
    std::iota(values.begin(), values.end(), 0);
    space = ejk::space<Config>();
    space.param(&Config::a, values).param(&Config::b, values).param(&Config::c, values);
    if (dimensions == 4) space.param(&Config::d, values);
  }
  // In units of the best possible.
  static double cost(const Config& c) {
    const auto part = [](int value, double best) {
      const double off = value / static_cast<double>(width) - best;
      return 3 * off * off;
    };
    return 1 + part(c.a, 0.6) + part(c.b, 0.3) + part(c.c, 0.8) +
           (dimensions == 4 ? part(c.d, 0.5) : 0);
  }
  void run(const Config& c, std::span<const float> x, ejk::Out<std::span<float>> y) const {
    stopwatch->pass(10e-6 * cost(c));
    std::ranges::copy(x, (*y).begin());
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {1, width - 2, 1, 0}; }
  ejk::Space<Config> candidate_cfgs(const ejk::Invocation&) const { return space; }
  bool is_valid(const Config& c, const ejk::Invocation&) const { return !valid || valid(c); }
};

class LargeSets : public Tunings {
 protected:
  static double share_of_better(const Bowl::Config& found) {
    uint64_t better = 0, all = 0;
    for (uint64_t point : Bowl::space.sample(20'000, 7))
      better += Bowl::cost(Bowl::space[point]) < Bowl::cost(found), ++all;
    return static_cast<double>(better) / static_cast<double>(all);
  }
  // Of 200 evaluations; a busy machine and sanitizers blur them.
  static void expect_good(const Bowl::Config& found) {
    EXPECT_TRUE(share_of_better(found) <= (sanitized ? 0.35 : 0.1) || Bowl::cost(found) <= 1.1)
        << Bowl::cost(found) << " times the best, " << share_of_better(found) << " are better";
  }
  static Bowl::Config config_of(const ejk::Value& v) {
    const auto field = [&](const char* name) { return static_cast<int>(v.find(name)->as_int()); };
    return {field("a"), field("b"), field("c"), field("d")};
  }
  // ratio / cost is the same for all, up to noise.
  static void expect_one_unit(const ejk::Entry& entry) {
    std::vector<double> units;
    for (const auto& m : entry.candidates)
      if (m.ratio > 0) units.push_back(m.ratio / Bowl::cost(config_of(m.config)));
    std::ranges::sort(units);
    ASSERT_GE(units.size(), 20u);
    EXPECT_LT(units[units.size() * 3 / 4], 2.5 * units[units.size() / 4]);
  }
};

TEST_F(LargeSets, AreSearchedWithFewEvaluations) {
  Bowl::make(28, 3);
  ASSERT_EQ(Bowl::space.size(), 21'952u);
  ProgressLog log;
  auto o = options();
  o.on_progress = log.sink();
  const auto result = ejk::Executor(o).tune(Bowl{}, x, y);
  expect_good(result.config);
  EXPECT_LE(log.count(Kind::candidate), 250u);
  EXPECT_EQ(result.entry.evidence.strategy, "auto");
  EXPECT_TRUE(result.entry.evidence.complete);
  EXPECT_EQ(result.entry.outcome, Outcome::tuned);
  EXPECT_LE(result.entry.candidates.size(), 250u);
  EXPECT_GE(result.entry.candidates.size(), 20u);
  std::set<std::string> tried;
  for (const auto& config : log.configs(Kind::candidate)) tried.insert(ejk::stable_json(config));
  for (const auto& m : result.entry.candidates) {
    EXPECT_TRUE(tried.contains(ejk::stable_json(m.config)));
    EXPECT_NE(m.status, "untried");
  }
}

TEST_F(LargeSets, SetsOfMoreThanAMillionPointsAreSearchedToo) {
  Bowl::make(34, 4);
  Bowl::space.where([](const Bowl::Config& c) { return c.a + c.b + c.c + c.d < 100; });
  ASSERT_GT(Bowl::space.size(), 1'000'000u);
  ProgressLog log;
  auto o = options();
  o.on_progress = log.sink();
  const auto result = ejk::Executor(o).tune(Bowl{}, x, y);
  expect_good(result.config);
  EXPECT_LE(log.count(Kind::candidate), 250u);
  EXPECT_EQ(result.entry.evidence.strategy, "auto");
}

TEST(Tuner, AnUnknownStrategyIsRefusedWhenTheTunerIsMade) {
  try {
    ejk::Tuner(ejk::TunerOptions{.strategy = "best"});
    FAIL();
  } catch (const ejk::Error& e) {
    EXPECT_THAT(e.what(), testing::HasSubstr("there are auto, random and exhaustive"));
  }
}

TEST_F(LargeSets, CanBeSearchedByAnotherStrategy) {
  Bowl::make(28, 3);
  auto o = options();
  o.tuner = scripted_tuner({.strategy = "random"});
  o.policy->budget_evaluations = 60;
  const auto result = ejk::Executor(o).tune(Bowl{}, x, y);
  EXPECT_EQ(result.entry.evidence.strategy, "random");
  EXPECT_LE(result.entry.candidates.size(), 61u);
  EXPECT_LT(Bowl::cost(result.config), Bowl::cost(Bowl{}.heuristic_cfg({})));
}

TEST_F(LargeSets, InvalidPointsAreNeverRun) {
  Bowl::make(28, 3);
  Bowl::valid = [](const Bowl::Config& c) { return c.a % 2 == 1; };
  ProgressLog log;
  auto o = options();
  o.policy->budget_evaluations = 60;
  o.on_progress = log.sink();
  const auto result = ejk::Executor(o).tune(Bowl{}, x, y);
  EXPECT_EQ(result.config.a % 2, 1);
  for (const auto& config : log.configs(Kind::candidate)) EXPECT_EQ(config_of(config).a % 2, 1);
  for (const auto& m : result.entry.candidates)
    EXPECT_TRUE(config_of(m.config).a % 2 == 1 || m.kind == "invalid");
}

TEST_F(LargeSets, ASearchThatWasStoppedGoesOnWithoutKnownPoints) {
  Bowl::make(28, 3);
  std::atomic<bool> stop = false;
  ProgressLog first, second;
  auto o = stored_options();
  o.stop = &stop;
  o.on_progress = [&, sink = first.sink()](const ejk::TuneProgress& p) {
    sink(p);
    stop = p.tried >= 50;
  };
  ejk::Executor(o).choose_config(Bowl{}, x, y);
  EXPECT_FALSE(stored(Bowl{}).evidence.complete);
  EXPECT_LE(first.count(Kind::candidate), 51u);
  o = stored_options();
  o.on_progress = second.sink();
  expect_good(ejk::Executor(o).choose_config(Bowl{}, x, y).config);
  EXPECT_TRUE(stored(Bowl{}).evidence.complete);
  std::set<std::string> known;
  for (const auto& config : first.configs(Kind::candidate)) known.insert(ejk::stable_json(config));
  size_t again = 0;
  for (const auto& config : second.configs(Kind::candidate))
    again += known.contains(ejk::stable_json(config));
  EXPECT_LE(again, 9u);  // the heuristic and eight finalists
  EXPECT_LE(first.count(Kind::candidate) + second.count(Kind::candidate), 250u);
  second.all.clear();
  ejk::Executor(o).choose_config(Bowl{}, x, y);
  EXPECT_THAT(second.all, IsEmpty());
}

// The same without a guess: known points are compared with what is measured now.
struct UnguessedBowl {
  static constexpr std::string_view op_id = "unguessed_bowl", version = "1";
  using Config = Bowl::Config;
  void run(const Config& c, std::span<const float> x, ejk::Out<std::span<float>> y) const {
    Bowl{}.run(c, x, y);
  }
  ejk::Space<Config> candidate_cfgs(const ejk::Invocation&) const { return Bowl::space; }
};

TEST_F(LargeSets, ASearchWithoutHeuristicGoesOnInTheSameUnit) {
  Bowl::make(28, 3);
  std::atomic<bool> stop = false;
  auto o = stored_options();
  o.stop = &stop;
  o.on_progress = [&](const ejk::TuneProgress& p) { stop = p.tried >= 60; };
  const auto first = ejk::Executor(o).choose_config(UnguessedBowl{}, x, y).config;
  ASSERT_FALSE(stored(UnguessedBowl{}).evidence.complete);
  const auto second = ejk::Executor(stored_options()).choose_config(UnguessedBowl{}, x, y).config;
  expect_good(second);
  EXPECT_LE(Bowl::cost(second), 1.05 * Bowl::cost(first));
  EXPECT_TRUE(stored(UnguessedBowl{}).evidence.complete);
  expect_one_unit(stored(UnguessedBowl{}));
}

// Throws as soon as the config that was run first was run often.
struct TiringBowl : UnguessedBowl {
  static constexpr std::string_view op_id = "tiring_bowl";
  static inline std::optional<double> first;
  static inline int runs = 0;
  void run(const Config& c, std::span<const float> x, ejk::Out<std::span<float>> y) const {
    if (!first) first = Bowl::cost(c);
    if (*first == Bowl::cost(c) && ++runs > 200) throw std::runtime_error("tired");
    Bowl{}.run(c, x, y);
  }
};

TEST_F(LargeSets, AControlThatFailsIsReplacedInTheSameUnit) {
  Bowl::make(28, 3);
  auto o = stored_options();
  o.policy->budget_evaluations = 120;
  expect_good(ejk::Executor(o).choose_config(TiringBowl{}, x, y).config);
  const ejk::Entry entry = stored(TiringBowl{});
  const auto tired = std::ranges::find(entry.candidates, "threw", &ejk::Measurement::kind);
  ASSERT_NE(tired, entry.candidates.end());
  EXPECT_THAT(tired->why, testing::HasSubstr("tired"));
  expect_one_unit(entry);
}

void offer_up_to(int units) {
  Work::offered.resize(static_cast<size_t>(units));
  std::iota(Work::offered.begin(), Work::offered.end(), 1);
}

TEST_F(LargeSets, NewCandidatesOfASearchedSetAreMeasured) {
  offer_up_to(60);
  Work::heuristic = 1;
  Work::work = [](int units) { spin(units > 60 ? 10 : 100); };
  EXPECT_LE(tuned(ejk::Executor(stored_options())), 60);
  ASSERT_TRUE(stored().evidence.complete);
  ASSERT_NE(stored().evidence.strategy, "race");
  offer_up_to(64);
  EXPECT_GT(tuned(ejk::Executor(stored_options())), 60);
  EXPECT_TRUE(stored().evidence.complete);
  runs.clear();
  EXPECT_GT(tuned(ejk::Executor(stored_options())), 60);
  EXPECT_EQ(std::accumulate(&runs[0], &runs[0] + SharedCounts::size, 0), 0);
}

// It is not known whether it would have come back.
TEST_F(LargeSets, AHeuristicWhoseFirstRunWasStoppedIsNoAnswer) {
  for (int candidates : {4, 60}) {  // few ones too
    runs.clear();
    offer_up_to(candidates);
    Work::heuristic = 1;
    Work::work = [host = ::getpid()](int units) {
      while (units == 1 && ::getpid() != host) ::pause();
    };
    std::atomic<bool> stop = false;
    auto o = stored_options();
    o.stop = &stop;
    std::jthread other([&] {
      ejk::testing::wait_until([] { return runs[1] != 0; }, "the first run");
      stop = true;
    });
    EXPECT_THROW(ejk::Executor(o).tune(Work{}, x, y), ejk::Error) << candidates;
    EXPECT_EQ(runs[1], 1) << candidates;
    EXPECT_THROW(stored(), std::runtime_error) << candidates;
  }
}

TEST_F(LargeSets, ASearchBeginsWhereAnotherCallOfTheOpWasFastest) {
  Bowl::make(28, 3);
  auto o = stored_options();
  const auto best = ejk::Executor(o).choose_config(Bowl{}, x, y).config;
  ProgressLog log;
  o = stored_options();
  o.on_progress = log.sink();
  o.policy->budget_evaluations = 12;
  std::vector<float> more(16, 1), out(16);
  const auto result = ejk::Executor(o).tune(Bowl{}, more, out);
  EXPECT_LE(log.count(Kind::candidate), 13u);
  // The heuristic first, then a batch before anything was measured. Of all points it is about 2.
  const std::vector<ejk::Value> tried = log.configs(Kind::candidate);
  ASSERT_GE(tried.size(), 4u);
  double sum = 0;
  for (size_t i : {1, 2, 3}) sum += Bowl::cost(config_of(tried[i]));
  EXPECT_LT(sum / 3, 1.75);
  EXPECT_LT(Bowl::cost(result.config), 1.5 * Bowl::cost(best));
}

// Nothing but tunings of other calls, more than anybody wants to read.
class ManyTunings : public fakes::EmptyStore {
 public:
  static constexpr int most = 1000;
  int read = 0;

  void for_each(std::string_view op, const std::function<bool(const ejk::Entry&)>& visit,
                ejk::Detail) override {
    ejk::Entry entry;
    entry.id.op = op;
    entry.candidates.resize(2);
    do entry.id.key = std::to_string(++read);
    while (visit(entry) && read < most);
  }
  bool writable() const override { return false; }
};

TEST_F(LargeSets, OtherCallsAreReadWithinTheBudget) {
  Bowl::make(28, 3);
  const auto many = std::make_shared<ManyTunings>();
  auto o = options();
  o.persistent = fakes::cache_of(many);
  o.policy->budget_seconds = 0;
  ejk::Executor(o).tune(Bowl{}, x, y);
  EXPECT_EQ(many->read, 1);
}

}  // namespace
