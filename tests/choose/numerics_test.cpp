// SPDX-License-Identifier: Apache-2.0
// Numerics::same: every config that is chosen is of the class of the reference.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "fakes.h"

namespace {

using ejk::Numerics;
using ejk::Origin;
using fakes::Show;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// y = block; blocks with the same number of tens are of one class, which is 0 for the heuristic.
struct Tens : Show {
  static constexpr std::string_view op_id = "tens", version = "1";
  Config heuristic_cfg(const ejk::Invocation&) const { return {7}; }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const {
    return {{11}, {12}, {1}, {2}, {25}};
  }
  int numerics(const Config& config) const { return config.block / 10; }
};

// What class the heuristic is of depends on the size, which is not part of the key.
struct Rounded : Tens {
  static constexpr std::string_view op_id = "rounded";
  auto key(std::span<const float>, const ejk::Out<std::span<float>>&) const {
    return std::tuple(1);
  }
  Config heuristic_cfg(const ejk::Invocation& inv) const {
    return {inv.args[0].size() > 4 ? 7 : 13};
  }
};

// The same without a statement.
struct RoundedAndSilent : Show {
  static constexpr std::string_view op_id = "rounded_and_silent";
  auto key(std::span<const float>, const ejk::Out<std::span<float>>&) const {
    return std::tuple(1);
  }
  Config heuristic_cfg(const ejk::Invocation& inv) const {
    return {inv.args[0].size() > 4 ? 7 : 13};
  }
};

// More candidates than are looked at.
struct Many : Show {
  static constexpr std::string_view op_id = "many";
  struct Config {
    int block = 0, other = 0;
  };
  void run(const Config& c, std::span<const float>, ejk::Out<std::span<float>> y) const {
    for (float& v : *y) v = static_cast<float>(c.block);
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {7, 7}; }
  ejk::Space<Config> candidate_cfgs(const ejk::Invocation&) const {
    std::vector<int> numbers(400);
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<int>(i);
    return ejk::space<Config>().param(&Config::block, numbers).param(&Config::other, numbers);
  }
  int numerics(const Config& config) const { return config.block / 10; }
};

struct Unguessed {
  static constexpr std::string_view op_id = "unguessed", version = "1";
  using Config = Show::Config;
  void run(const Config& c, std::span<const float> x, ejk::Out<std::span<float>> y) const {
    Show{}.run(c, x, y);
  }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const { return {{1}, {12}}; }
  int numerics(const Config& config) const { return config.block / 10; }
};

struct Throws : Tens {
  static constexpr std::string_view op_id = "throws";
  int numerics(const Config& config) const {
    if (config.block == 2) throw std::runtime_error("not two");
    return config.block / 10;
  }
};

// Says something of some configs only.
struct SaysLittle : Tens {
  static constexpr std::string_view op_id = "says_little";
  std::optional<int> numerics(const Config& config, const ejk::Invocation&) const {
    return config.block < 10 ? std::optional(0) : std::nullopt;
  }
};

class SameNumerics : public testing::Test {
 protected:
  SameNumerics() {
    setup.tuner->pick = 1;
    setup.tuner->before = [this](const ejk::TuneTask& task) {
      offered.clear();
      for (uint64_t i = 0; i < std::min<uint64_t>(task.candidates->size(), 9); ++i)
        offered.push_back(block_in(task.candidates->config(i).to_value()));
    };
  }
  static int block_in(const ejk::Value& config) {
    return static_cast<int>(config.find("block")->as_int());
  }
  ejk::SelectorOptions same(ejk::SelectorOptions options) {
    options.policy->numerics = Numerics::same;
    return options;
  }
  template <class K = Tens>
  float run(const ejk::Executor& executor, size_t size = 8, const K& kernel = {}) {
    std::vector<float> in(size, 1), out(size, 0);
    executor(kernel, in, out);
    return out[0];
  }
  template <class K = Tens>
  std::string failure(const ejk::Executor& executor, const K& kernel = {}) {
    try {
      run(executor, 8, kernel);
    } catch (const ejk::Error& error) {
      EXPECT_EQ(error.kind(), ejk::ErrorKind::no_configuration);
      return error.what();
    }
    return "it ran";
  }
  template <class K = Tens>
  std::string explained(const ejk::Executor& executor, const K& kernel = {}) {
    return executor.explain(kernel, x, y).text();
  }
  // Of calls under Numerics::same whose reference is of that class.
  ejk::EntryId id(const ejk::Executor& executor, const ejk::Value& reference) {
    ejk::Invocation inv = executor.describe(Tens{}, x, y);
    inv.numerics = reference;
    return {inv.device->fingerprint, inv.op(), inv.call_key(), inv.spec()};
  }

  fakes::TempDir dir;
  fakes::Setup setup;
  std::vector<int> offered;  // to the last tuning, the first of them
  std::vector<float> x = std::vector<float>(8, 1), y = std::vector<float>(8, 0);
};

// ---- what is tuned ------------------------------------------------------------------------------

TEST_F(SameNumerics, OnlyCandidatesOfTheReferencesClassAreTuned) {
  const ejk::Executor executor(same(setup.options()));
  EXPECT_EQ(run(executor), 2);
  EXPECT_THAT(offered, ElementsAre(1, 2));
}

TEST_F(SameNumerics, WithoutItAllCandidatesAreTuned) {
  const ejk::Executor executor(setup.options());
  EXPECT_EQ(run(executor), 12);
  EXPECT_THAT(offered, ElementsAre(11, 12, 1, 2, 25));
}

TEST_F(SameNumerics, AKernelThatStatesNothingRunsWithTheReferenceItself) {
  const ejk::Executor executor(same(setup.options()));
  EXPECT_EQ(run<Show>(executor), 7);
  EXPECT_EQ(setup.tuner->asked, 0);
}

TEST_F(SameNumerics, AConfigOfWhichNothingIsStatedIsAClassOfItsOwn) {
  const ejk::Executor executor(same(setup.options()));
  EXPECT_EQ(run<SaysLittle>(executor), 2);
  EXPECT_THAT(offered, ElementsAre(1, 2));
}

TEST_F(SameNumerics, AConfigWhoseClassThrowsIsLeftOut) {
  setup.tuner->pick = 0;
  const ejk::Executor executor(same(setup.options()));
  EXPECT_EQ(run<Throws>(executor), 1);
  EXPECT_THAT(offered, ElementsAre(1));
}

TEST_F(SameNumerics, ASampleOfTheClassIsTunedInALargeSpace) {
  setup.tuner->before = [&](const ejk::TuneTask& task) {
    EXPECT_GT(task.candidates->size(), 100U);
    for (uint64_t i = 0; i < task.candidates->size(); ++i)
      EXPECT_LT(block_in(task.candidates->config(i).to_value()), 10);
  };
  const ejk::Executor executor(same(setup.options()));
  EXPECT_THAT(explained(executor, Many{}), HasSubstr("candidates that were drawn from 160000"));
  EXPECT_LT(run<Many>(executor), 10);
}

TEST_F(SameNumerics, AListThatIsGivenIsRestrictedToo) {
  const ejk::Executor executor(same(setup.options()));
  EXPECT_EQ(executor.tune_among({{30}, {3}, {4}}, Tens{}, x, y).config.block, 4);
  EXPECT_THAT(offered, ElementsAre(3, 4));
  EXPECT_THROW(executor.tune_among({{30}, {31}}, Tens{}, x, y), ejk::Error);
}

// ---- what is kept -------------------------------------------------------------------------------

TEST_F(SameNumerics, ChoicesAreKeptApartFromThoseOfOtherCalls) {
  const ejk::Executor executor(setup.options());
  const auto run_same = [&] {
    const auto scope = ejk::policy_override({.numerics = Numerics::same});
    return run(executor);
  };
  EXPECT_EQ(run_same(), 2);
  EXPECT_EQ(run(executor), 12);  // is tuned, in spite of the other
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(run_same(), 2);
    EXPECT_EQ(run(executor), 12);
  }
  EXPECT_EQ(setup.tuner->asked, 2);
}

TEST_F(SameNumerics, ForwardAndBackwardAreChosenInOneClass) {
  const ejk::Executor executor(same(setup.options()));
  EXPECT_EQ(run(executor), 2);
  setup.tuner->pick = 0;
  {
    const auto scope = ejk::policy_override({.validate_backward = true});
    EXPECT_EQ(run(executor), 1);
    const auto any = ejk::policy_override({.numerics = Numerics::any});
    EXPECT_EQ(run(executor), 11);
  }
  EXPECT_EQ(run(executor), 2);
  EXPECT_EQ(setup.tuner->asked, 3);
}

TEST_F(SameNumerics, AStoredEntryCarriesItsClassAndAnswersTheNextProgram) {
  {
    const ejk::Executor first(same(setup.options(dir.path())));
    EXPECT_EQ(run(first), 2);
    const auto stored = first.chain().persistent()->get(id(first, 0));
    ASSERT_TRUE(stored);
    EXPECT_EQ(stored->entry.numerics, ejk::Value(0));
  }
  const ejk::Executor second(same(setup.options(dir.path())));
  EXPECT_EQ(second.choose_config(Tens{}, x, y).origin, Origin::persistent);
  EXPECT_EQ(run(second), 2);
  EXPECT_EQ(setup.tuner->asked, 1);  // what is excluded is not a new candidate
  const ejk::Executor third(setup.options(dir.path()));
  EXPECT_EQ(run(third), 12);
  const auto of_any = third.chain().persistent()->get(id(third, {}));
  ASSERT_TRUE(of_any);
  EXPECT_EQ(of_any->entry.numerics, ejk::Value(1));
}

TEST_F(SameNumerics, AStoredConfigOfAnotherClassIsNotUsedButReplaced) {
  const ejk::Executor executor(same(setup.options(dir.path())));
  ejk::Entry entry;
  entry.id = id(executor, 0);
  entry.config = ejk::to_value(Tens::Config{12});
  entry.environment = ejk::cpu_device().environment;
  entry.numerics = 0;  // it lies
  executor.chain().persistent()->put(entry);
  EXPECT_EQ(run(executor), 2);
  EXPECT_THAT(setup.warnings.take(),
              ElementsAre(HasSubstr("its config has the numerics class 1; the reference has 0")));
  EXPECT_EQ(block_in(executor.chain().persistent()->get(entry.id)->entry.config), 2);
}

TEST_F(SameNumerics, ATuningThatWasCutShortGoesOnInItsClass) {
  const ejk::Executor executor(same(setup.options(dir.path())));
  ejk::Entry entry;
  entry.id = id(executor, 0);
  entry.config = ejk::to_value(Tens::Config{1});
  entry.environment = ejk::cpu_device().environment;
  entry.evidence.complete = false;
  executor.chain().persistent()->put(entry);
  EXPECT_EQ(run(executor), 2);
  EXPECT_THAT(offered, ElementsAre(1, 2));
}

TEST_F(SameNumerics, ACachedConfigOfAnotherClassIsPassedOver) {
  const ejk::Executor executor(same(setup.options()));
  const auto key = id(executor, 0);
  executor.chain().cache().put(key.device, key.op, key.key, Tens::Config{12});
  EXPECT_THAT(explained(executor),
              HasSubstr("its config has the numerics class 1; the reference has 0"));
  EXPECT_EQ(run(executor), 2);
  executor.chain().cache().put(key.device, key.op, key.key, Tens::Config{9});
  EXPECT_EQ(run(executor), 9);
}

TEST_F(SameNumerics, AnOverlayOfAnotherClassIsPassedOverAndSaid) {
  const ejk::Executor executor(same(setup.options()));
  const auto key = id(executor, 0);
  ejk::ConfigCache overlay;
  overlay.put(key.device, key.op, key.key, Tens::Config{12});
  const auto scope = ejk::overlay_cache(overlay);
  EXPECT_EQ(run(executor), 2);
  EXPECT_THAT(setup.warnings.take(), ElementsAre(HasSubstr("the numerics class 1")));
}

TEST_F(SameNumerics, AnOverrideIsNotQuestioned) {
  const ejk::Executor executor(same(setup.options()));
  executor(Tens{}, {.block = 50}, x, y);
  EXPECT_EQ(y[0], 50);
}

TEST_F(SameNumerics, ShapesThatShareAKeyHaveEachTheClassOfTheirReference) {
  const ejk::Executor executor(same(setup.options()));
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(run<Rounded>(executor, 8), 2);
    EXPECT_EQ(run<Rounded>(executor, 4), 12);
    EXPECT_EQ(run<RoundedAndSilent>(executor, 8), 7);
    EXPECT_EQ(run<RoundedAndSilent>(executor, 4), 13);
  }
  EXPECT_EQ(setup.tuner->asked, 2);
}

// ---- the reference ------------------------------------------------------------------------------

TEST_F(SameNumerics, AReferenceThatIsNamedTakesThePlaceOfTheHeuristic) {
  auto options = same(setup.options());
  options.reference_cfgs["tens@v1"] = ejk::make_config(Tens::Config{19});
  {
    const ejk::Executor executor(options);
    EXPECT_EQ(run(executor), 12);
    EXPECT_THAT(offered, ElementsAre(11, 12));
  }
  options.policy->allow_autotune = false;
  EXPECT_EQ(run(ejk::Executor(options)), 19);  // the heuristic is of another class
  options.reference_cfgs["tens@v1"] = ejk::make_config(Tens::Config{3});
  EXPECT_EQ(run(ejk::Executor(options)), 7);  // it is of this one
}

TEST_F(SameNumerics, SelectorsWithDifferentReferencesShareAStore) {
  auto named = same(setup.options(dir.path()));
  named.reference_cfgs["tens@v1"] = ejk::make_config(Tens::Config{19});
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(run(ejk::Executor(named)), 12);
    EXPECT_EQ(run(ejk::Executor(same(setup.options(dir.path())))), 2);
  }
  EXPECT_EQ(setup.tuner->asked, 2);
  EXPECT_THAT(setup.warnings.take(), IsEmpty());
}

TEST_F(SameNumerics, WithoutAReferenceNothingIsChosenAndTheErrorSaysWhatToDo) {
  auto options = same(setup.options());
  const ejk::Executor executor(options);
  EXPECT_THAT(
      failure(executor, Unguessed{}),
      HasSubstr("there is no reference config: the kernel has no heuristic_cfg; name one in "
                "the selector's reference_cfgs"));
  const auto any = ejk::policy_override({.numerics = Numerics::any});
  EXPECT_EQ(run<Unguessed>(executor), 12);  // of which that says nothing
  options.reference_cfgs["unguessed@v1"] = ejk::make_config(ejk::Value::object({{"blok", 3}}));
  EXPECT_THAT(failure(ejk::Executor(options), Unguessed{}), HasSubstr("it ran"));
  const auto again = ejk::policy_override({.numerics = Numerics::same});
  EXPECT_THAT(failure(ejk::Executor(options), Unguessed{}),
              HasSubstr("the named one does not fit"));
}

// ---- the rest of the chain ----------------------------------------------------------------------

TEST_F(SameNumerics, ExplainSaysWhatIsExcluded) {
  const ejk::Executor executor(same(setup.options()));
  EXPECT_THAT(
      explained(executor),
      HasSubstr("would measure 2 candidates; numerics = same excludes 3 of 5 candidates, which are "
                "not of class 0: 2 of class 1, 1 of class 2"));
  EXPECT_THAT(explained(executor, Show{}), HasSubstr("excludes 3 of 3 candidates"));
}

TEST_F(SameNumerics, ATakeoverStaysInTheClassOfTheHeuristic) {
  auto options = same(setup.options());
  options.policy->cache_miss_fallback = ejk::Fallback::background;
  options.policy->background_share = 0;  // only idle() tunes
  const ejk::Executor executor(options);
  EXPECT_EQ(run(executor), 7);
  EXPECT_EQ(executor.chain().idle(60), 0U);
  EXPECT_THAT(offered, ElementsAre(1, 2));
  EXPECT_EQ(run(executor), 2);
  const auto scope = ejk::policy_override({.numerics = Numerics::any});
  EXPECT_EQ(run(executor), 7);  // waits for a tuning of its own
  EXPECT_EQ(executor.chain().idle(60), 0U);
  EXPECT_EQ(run(executor), 12);
}

}  // namespace
