// SPDX-License-Identifier: Apache-2.0
// The chain: which tier answers, what is kept, what is said.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <thread>
#include <utility>

#include "clockless_tuner.h"
#include "fakes.h"
#include "store/crash_journal.h"
#include "wait.h"

namespace {

using ejk::Origin;
using fakes::Show;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

class Chain : public testing::Test {
 protected:
  // Runs Show and tells the block it ran with.
  template <class E>
  float run(const E& executor) {
    executor(Show{}, x, y);
    return y[0];
  }
  ejk::EntryId id(const ejk::Executor& executor) {
    const auto inv = executor.describe(Show{}, x, y);
    return {inv.device->fingerprint, inv.op(), inv.call_key(), inv.spec()};
  }

  fakes::TempDir dir;
  fakes::Setup setup;
  std::vector<float> x = std::vector<float>(8, 1), y = std::vector<float>(8, 0);
};

// ---- override
// -------------------------------------------------------------------------------------

TEST_F(Chain, AnOverrideWinsAndIsKeptNowhere) {
  const ejk::Executor executor(setup.options(dir.path()));
  executor(Show{}, {.block = 50}, x, y);
  EXPECT_EQ(y[0], 50);
  EXPECT_THAT(setup.events.take(), ElementsAre("override"));
  EXPECT_EQ(executor.chain().cache().size(), 0u);
  EXPECT_EQ(run(executor), 2);  // tuned, not 50
  const ejk::Executor later(setup.options(dir.path()));
  EXPECT_EQ(run(later), 2);
}

TEST_F(Chain, AnOverrideWinsUnderEveryPolicy) {
  for (const char* policy : {"autotune", "heuristics", "frozen"}) {
    auto options = setup.options();
    options.policy->allow_autotune = std::string_view(policy) == "autotune";
    options.policy->allow_heuristics = std::string_view(policy) != "frozen";
    const ejk::Executor executor(options);
    executor(Show{}, {.block = 50}, x, y);
    EXPECT_EQ(y[0], 50) << policy;
  }
}

// ---- overlay
// --------------------------------------------------------------------------------------

TEST_F(Chain, TheNearestOverlayWinsAndEndsWithItsScope) {
  const ejk::Executor executor(setup.options());
  EXPECT_EQ(run(executor), 2);
  ejk::ConfigCache outer, inner;
  const auto key = id(executor);
  outer.put(key.device, key.op, key.key, Show::Config{100});
  {
    const auto one = ejk::overlay_cache(outer);
    EXPECT_EQ(run(executor), 100);
    {
      const auto two = ejk::overlay_cache(inner);
      EXPECT_EQ(run(executor), 100);  // the inner one has nothing for this key
      inner.put(key.device, key.op, key.key, Show::Config{200});
      EXPECT_EQ(run(executor), 200);
      EXPECT_EQ(executor.choose_config(Show{}, x, y).origin, Origin::overlay);
    }
    EXPECT_EQ(run(executor), 100);
  }
  setup.events.take();
  EXPECT_EQ(run(executor), 2);
  EXPECT_THAT(setup.events.take(), ElementsAre("cache_hit/memory"));
}

TEST_F(Chain, OverlaysBelongToTheirThread) {
  const ejk::Executor executor(setup.options());
  const auto key = id(executor);
  auto cache = std::make_shared<ejk::ConfigCache>();
  cache->put(key.device, key.op, key.key, Show::Config{100});
  const auto scope = ejk::overlay_cache(std::shared_ptr<const ejk::ConfigCache>(cache));
  float other = 0, taken_along = 0;
  const auto scopes = ejk::current_scopes();
  std::thread([&] {
    std::vector<float> out(8);
    executor(Show{}, x, out);
    other = out[0];
    scopes.run([&] { executor(Show{}, x, out); });
    taken_along = out[0];
    executor(Show{}, x, out);
    EXPECT_EQ(out[0], other);
  }).join();
  EXPECT_EQ(other, 2);
  EXPECT_EQ(taken_along, 100);
}

TEST_F(Chain, AnOverlayWithAConfigOfAnotherTypeIsPassedOverAndSaid) {
  struct Foreign {
    std::string name = "x";
  };
  const ejk::Executor executor(setup.options());
  const auto key = id(executor);
  ejk::ConfigCache cache;
  cache.put(key.device, key.op, key.key, Foreign{});
  const auto scope = ejk::overlay_cache(cache);
  EXPECT_EQ(run(executor), 2);
  EXPECT_THAT(setup.warnings.take(), ElementsAre(HasSubstr("[show@v3] the overlay's config")));
}

// ---- memory
// ---------------------------------------------------------------------------------------

TEST_F(Chain, ASecondCallComesFromMemory) {
  const ejk::Executor executor(setup.options());
  EXPECT_EQ(executor.choose_config(Show{}, x, y).origin, Origin::autotune);
  EXPECT_EQ(executor.choose_config(Show{}, x, y).origin, Origin::memory);
  EXPECT_EQ(setup.tuner->asked, 1);
}

TEST_F(Chain, APutByTextIsSeenByWarmCalls) {
  const ejk::Executor executor(setup.options());
  EXPECT_EQ(run(executor), 2);
  EXPECT_EQ(run(executor), 2);
  const auto key = id(executor);
  executor.chain().cache().put(key.device, key.op, key.key, Show::Config{77});
  EXPECT_EQ(run(executor), 77);
  EXPECT_EQ(run(executor), 77);
  executor.chain().cache().erase(key);
  EXPECT_EQ(run(executor), 2);
}

TEST_F(Chain, ARecordWithAnotherSpecIsNotUsedForThisKey) {
  const ejk::Executor executor(setup.options());
  auto key = id(executor);
  key.spec = "{\"another\":1}";
  executor.chain().cache().put_any(key, ejk::make_config(Show::Config{77}));
  EXPECT_EQ(run(executor), 2);
}

struct Other {
  static constexpr std::string_view op_id = "show", version = "3";
  struct Config {
    std::string name = "none";
  };
  std::string run(const Config& c, std::span<const float>, ejk::Out<std::span<float>>) const {
    return c.name;
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {"heuristic"}; }
};

TEST_F(Chain, TwoConfigTypesOfAnOpIdAreToldApart) {
  const ejk::Executor executor(setup.options());
  EXPECT_EQ(run(executor), 2);
  EXPECT_EQ(executor(Other{}, x, y), "heuristic");
  EXPECT_EQ(run(executor), 2);
  EXPECT_EQ(executor(Other{}, x, y), "heuristic");
}

// ---- persistent
// -----------------------------------------------------------------------------------

TEST_F(Chain, ATunedConfigIsFoundOnDiskByTheNextSelector) {
  {
    const ejk::Executor first(setup.options(dir.path()));
    EXPECT_EQ(run(first), 2);
    EXPECT_THAT(setup.events.take(), ElementsAre("autotune_start", "autotune_finish"));
  }
  const ejk::Executor second(setup.options(dir.path()));
  EXPECT_EQ(second.choose_config(Show{}, x, y).origin, Origin::persistent);
  EXPECT_EQ(run(second), 2);
  EXPECT_THAT(setup.events.take(), ElementsAre("cache_hit/persistent", "cache_hit/memory"));
  EXPECT_EQ(setup.tuner->asked, 1);
}

TEST_F(Chain, WithoutPersistPutsNothingOnDisk) {
  auto options = setup.options(dir.path());
  options.persist_autotune = false;
  const ejk::Executor executor(options);
  EXPECT_EQ(run(executor), 2);
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST_F(Chain, AStoredConfigThatNoLongerFitsIsAMissSaidOnceAndReplaced) {
  const ejk::Executor executor(setup.options(dir.path()));
  ejk::Entry entry;
  entry.id = id(executor);
  entry.config = ejk::Value::object({{"renamed", 3}});
  entry.evidence.samples = 1;
  ASSERT_TRUE(executor.chain().persistent()->put(entry));
  EXPECT_EQ(run(executor), 2);
  const auto warnings = setup.warnings.take();
  ASSERT_THAT(warnings, SizeIs(1));
  EXPECT_THAT(warnings[0], HasSubstr("[show@v3]"));
  EXPECT_THAT(warnings[0], HasSubstr(entry.id.key));
  EXPECT_THAT(warnings[0], HasSubstr("does not fit"));
  const ejk::Executor later(setup.options(dir.path()));
  EXPECT_EQ(later.choose_config(Show{}, x, y).origin, Origin::persistent);
}

struct Threaded {
  static constexpr std::string_view op_id = "threaded";
  struct Config {
    int threads = 1;
  };
  int run(const Config& c, int) const { return c.threads; }
  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }
};

TEST_F(Chain, AStoredConfigThatAsksForTooManyThreadsIsAMiss) {
  const ejk::Executor executor(setup.options(dir.path()));
  const auto inv = executor.describe(Threaded{}, 1);
  ejk::Entry entry;
  entry.id = {inv.device->fingerprint, inv.op(), inv.call_key(), inv.spec()};
  entry.config = ejk::Value::object({{"threads", 100000}});
  ASSERT_TRUE(executor.chain().persistent()->put(entry));
  EXPECT_EQ(executor(Threaded{}, 1), 1);
  EXPECT_THAT(setup.warnings.take(), ElementsAre(HasSubstr("more threads than run here")));
}

// Threads in a part of the config, as the built-in products have them.
struct ThreadedInParts {
  static constexpr std::string_view op_id = "threaded_in_parts";
  struct Part {
    int threads = 1;
    int block = 0;
  };
  struct Config {
    Part forward, backward;
  };
  int run(const Config& c, int) const { return 1000 * c.forward.threads + c.forward.block; }
  bool is_valid(const Config&, const ejk::Invocation&) const { return true; }
  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const {
    return {{{1, 1}, {}}, {{ejk::visible_cores(), 2}, {}}};
  }
};

// Gradients were not measured, and all configs have the same guess for them.
ejk::Value part(int threads, int block) {
  return ejk::Value::object(
      {{"forward", ejk::Value::object({{"threads", threads}, {"block", block}})},
       {"backward", ejk::Value::object({{"threads", 100000}, {"block", 0}})}});
}

ejk::Entry threaded_entry(const ejk::Executor& executor, int threads, int cores) {
  const auto inv = executor.describe(ThreadedInParts{}, 1);
  ejk::Entry entry;
  entry.id = {inv.device->fingerprint, inv.op(), inv.call_key(), inv.spec()};
  entry.config = part(threads, 9);
  entry.environment = ejk::Value::object({{"cores", cores}});
  return entry;
}

TEST_F(Chain, WithFewerCoresTheFastestMeasuredConfigThatFitsIsTaken) {
  const ejk::Executor executor(setup.options(dir.path()));
  ejk::Entry entry = threaded_entry(executor, 100000, 100000);
  const auto add = [&](ejk::Value config, const char* status, double ratio) {
    ejk::Measurement m;
    m.config = std::move(config), m.status = status, m.ratio = ratio, m.samples = 3;
    entry.candidates.push_back(m);
  };
  add(entry.config, "ok", 0.1);
  add(part(1, 3), "slower", 0.9);
  add(part(1, 4), "slower", 0.7);
  add(part(1, 5), "rejected", 0.2);
  add(part(1, 6), "untried", 0);
  add(part(50000, 7), "slower", 0.3);
  ASSERT_TRUE(executor.chain().persistent()->put(entry));
  EXPECT_EQ(executor(ThreadedInParts{}, 1), 1004);
  EXPECT_THAT(setup.events.take(), ElementsAre("cache_hit/persistent"));
  EXPECT_THAT(setup.warnings.take(), IsEmpty());
  EXPECT_EQ(executor.choose_config(ThreadedInParts{}, 1).config.backward.threads,
            ejk::visible_cores());
  // What was found with all cores stays for those who have them.
  EXPECT_EQ(executor.chain().persistent()->get(entry.id)->entry.config, entry.config);
}

TEST_F(Chain, WithMoreCoresThanItWasTunedWithACallIsTunedAgain) {
  const ejk::Executor executor(setup.options(dir.path()));
  ejk::Entry entry = threaded_entry(executor, 1, 0);
  entry.config["backward"]["threads"] = 1;
  ASSERT_TRUE(executor.chain().persistent()->put(entry));
  {
    auto options = setup.options(dir.path());
    options.policy->allow_autotune = false;
    EXPECT_EQ(ejk::Executor(options)(ThreadedInParts{}, 1), 1009);  // better than nothing
  }
  setup.events.take();
  executor(ThreadedInParts{}, 1);
  EXPECT_THAT(setup.events.take(), testing::Contains("autotune_start"));
  const ejk::Executor later(setup.options(dir.path()));
  EXPECT_EQ(later.choose_config(ThreadedInParts{}, 1).origin, Origin::persistent);
}

TEST_F(Chain, AnEntryOfAnotherEnvironmentServesLooseSelectorsOnly) {
  auto options = setup.options(dir.path());
  const ejk::Executor loose(options);
  ejk::Entry entry;
  entry.id = id(loose);
  entry.config = ejk::Value::object({{"block", 3}});
  entry.environment = ejk::Value::object({{"cores", 4096}});
  ASSERT_TRUE(loose.chain().persistent()->put(entry));
  EXPECT_EQ(run(loose), 3);
  options.strict_environment = true;
  options.cache = nullptr;
  const ejk::Executor strict(options);
  EXPECT_EQ(run(strict), 2);
}

// ---- autotune
// -------------------------------------------------------------------------------------

TEST_F(Chain, ReautotuningIsForbiddenByReturningTheEarlierResult) {
  const ejk::Executor executor(setup.options());
  EXPECT_EQ(run(executor), 2);
  executor.chain().cache().clear();
  setup.tuner->pick = 2;
  EXPECT_EQ(run(executor), 2);
  EXPECT_EQ(setup.tuner->asked, 1);
}

TEST_F(Chain, ReautotuningHappensAfterAClearWhereItIsAllowed) {
  auto options = setup.options();
  options.forbid_reautotune = false;
  const ejk::Executor executor(options);
  EXPECT_EQ(run(executor), 2);
  executor.chain().cache().clear();
  setup.tuner->pick = 2;
  EXPECT_EQ(run(executor), 3);
}

TEST_F(Chain, AnExplicitTuneReplacesWhatIsStored) {
  const ejk::Executor executor(setup.options(dir.path()));
  EXPECT_EQ(run(executor), 2);
  setup.tuner->pick = 0;
  EXPECT_EQ(executor.tune(Show{}, x, y).config.block, 1);
  EXPECT_EQ(run(executor), 1);
  const ejk::Executor later(setup.options(dir.path()));
  EXPECT_EQ(run(later), 1);
}

// Something else happens while it makes its first guess.
struct SlowGuess : Show {
  static constexpr std::string_view op_id = "slow_guess";
  static inline std::function<void()> meanwhile;
  Config heuristic_cfg(const ejk::Invocation&) const {
    if (const auto once = std::exchange(meanwhile, nullptr)) once();
    return {7};
  }
};

TEST_F(Chain, AGuessThatComesLateDoesNotHideWhatWasTunedMeanwhile) {
  auto options = setup.options();
  options.on_event = nullptr;
  options.policy->allow_autotune = false;
  const ejk::Executor executor(options);
  SlowGuess::meanwhile = [&] { executor.tune(SlowGuess{}, x, y); };
  executor(SlowGuess{}, x, y);
  EXPECT_EQ(y[0], 7);
  executor(SlowGuess{}, x, y);
  EXPECT_EQ(y[0], 2);
}

TEST_F(Chain, ATuningInWhichAllFailedFallsBackIsSaidAndIsNotRepeated) {
  setup.tuner->outcome = ejk::Outcome::failed;
  {
    const ejk::Executor executor(setup.options(dir.path()));
    EXPECT_EQ(run(executor), 7);
    EXPECT_EQ(run(executor), 7);
    EXPECT_EQ(setup.tuner->asked, 1);
    EXPECT_THAT(setup.warnings.take(), ElementsAre(HasSubstr("because the test says so")));
  }
  const ejk::Executor later(setup.options(dir.path()));  // another process would do the same
  EXPECT_EQ(run(later), 7);
  EXPECT_EQ(setup.tuner->asked, 1);
}

struct Picky {
  static constexpr std::string_view op_id = "picky";
  struct Config {
    int block = 1;
  };
  int run(const Config& c, std::span<const float> v, std::span<const float> w) const {
    if (v.size() != w.size())
      throw ejk::Error(ejk::ErrorKind::invalid_argument,
                       "[picky] sizes differ: pass two of one size");
    return c.block;
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const { return {{1}, {2}}; }
};

TEST_F(Chain, ACallThatIsWrongByItselfRejectsNoCandidate) {
  auto options = setup.options(dir.path());
  options.tuner = nullptr;  // the real one
  const ejk::Executor executor(options);
  const std::vector<float> shorter(3);
  try {
    executor(Picky{}, x, shorter);
    FAIL() << "the kernel's own error should have come out";
  } catch (const ejk::Error& e) {
    EXPECT_STREQ(e.what(), "[picky] sizes differ: pass two of one size");
  }
  EXPECT_THAT(setup.warnings.take(), IsEmpty());
  int entries = 0;
  executor.chain().persistent()->for_each("", [&](const ejk::Entry&) { return ++entries, true; });
  EXPECT_EQ(entries, 0);
}

struct Hopeless {
  static constexpr std::string_view op_id = "hopeless";
  struct Config {
    int block = 1;
  };
  enum class Mode { empty, invalid, throws };
  Mode mode = Mode::empty;
  int run(const Config& c, int) const { return c.block; }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const {
    if (mode == Mode::throws) throw std::runtime_error("no idea");
    return mode == Mode::empty ? std::vector<Config>{} : std::vector<Config>{{1}, {2}};
  }
  bool is_valid(const Config&, const ejk::Invocation&) const { return mode != Mode::invalid; }
};

TEST_F(Chain, WithoutAnyConfigurationTheErrorNamesEveryTierAndWhy) {
  auto complain = [&](Hopeless kernel) -> std::string {
    const ejk::Executor executor(setup.options());
    try {
      executor(kernel, 5);
    } catch (const ejk::Error& e) {
      EXPECT_EQ(e.kind(), ejk::ErrorKind::no_configuration);
      return e.what();
    }
    return "no error";
  };
  const std::string empty = complain({Hopeless::Mode::empty});
  for (const char* part :
       {"[hopeless@v0] no configuration for key", "override:", "overlay:", "memory:", "persistent:",
        "autotune: candidate_cfgs returned no candidate",
        "heuristics: the kernel has no heuristic_cfg", "Pass a config"})
    EXPECT_THAT(empty, HasSubstr(part));
  EXPECT_THAT(complain({Hopeless::Mode::invalid}), HasSubstr("is_valid rejected all 2 candidates"));
  EXPECT_THAT(complain({Hopeless::Mode::throws}), HasSubstr("candidate_cfgs threw: no idea"));
  EXPECT_THAT(setup.events.take(), testing::Contains("error"));
}

TEST_F(Chain, AnErrorNamesEachTierOnce) {
  const ejk::Executor executor(setup.options(dir.path()));
  try {
    executor(Hopeless{Hopeless::Mode::empty}, 5);
    FAIL();
  } catch (const ejk::Error& e) {
    const std::string text = e.what();
    for (const char* tier :
         {"override", "overlay", "memory", "persistent", "autotune", "heuristics"}) {
      const std::string line = "\n  " + std::string(tier) + ": ";
      EXPECT_NE(text.find(line), text.npos) << text;
      EXPECT_EQ(text.find(line), text.rfind(line)) << text;
    }
  }
}

TEST_F(Chain, ATuningThatGaveNothingIsNotTriedAgainAndSaysSo) {
  const ejk::Executor executor(setup.options());
  const auto complaint = [&]() -> std::string {
    try {
      executor(Hopeless{Hopeless::Mode::empty}, 5);
      return "no error";
    } catch (const ejk::Error& e) {
      return e.what();
    }
  };
  EXPECT_THAT(complaint(), HasSubstr("\n  autotune: candidate_cfgs returned no candidate\n"));
  EXPECT_THAT(complaint(),
              HasSubstr("\n  autotune: not tried again: candidate_cfgs returned no candidate\n"));
}

TEST_F(Chain, AnErrorAdvisesWhatThePolicyAllows) {
  const auto advice = [&](const ejk::AutotunePolicy& policy) -> std::string {
    auto options = setup.options();
    options.policy = policy;
    try {
      ejk::Executor{options}(Hopeless{Hopeless::Mode::empty}, 5);
      return "no error";
    } catch (const ejk::Error& e) {
      const std::string text = e.what();
      return text.substr(text.find("\nPass a config") + 1);
    }
  };
  const std::string put = "put one into the cache, an overlay or the store";
  EXPECT_EQ(advice({}), "Pass a config with the call, " + put +
                            ", or let candidate_cfgs or heuristic_cfg give one that can run it.");
  EXPECT_EQ(
      advice({.allow_heuristics = false}),
      "Pass a config with the call, " + put + ", or let candidate_cfgs give one that can run it.");
  EXPECT_EQ(advice({.allow_autotune = false}),
            "Pass a config with the call, " + put +
                " (ejk tune does), or let heuristic_cfg give one that can run it.");
  EXPECT_EQ(advice({.allow_autotune = false, .allow_heuristics = false}),
            "Pass a config with the call, or " + put + " (ejk tune does).");
}

struct Nested {
  static constexpr std::string_view op_id = "nested";
  struct Config {
    int block = 1;
  };
  const ejk::Executor* executor = nullptr;
  auto key(int depth) const { return depth >= 0; }
  int run(const Config& c, int depth) const {
    return depth == 0 ? c.block : (*executor)(*this, depth - 1);
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const { return {{1}, {2}}; }
};

TEST_F(Chain, AKernelThatCallsItselfWhileItIsTunedDoesNotHang) {
  auto options = setup.options();
  options.tuner = nullptr;
  const ejk::Executor executor(options);
  EXPECT_GE(executor(Nested{&executor}, 2), 1);
}

// ---- heuristics
// -----------------------------------------------------------------------------------

TEST_F(Chain, AHeuristicStaysInMemoryOnlyUntilTuningIsPossible) {
  const ejk::Executor executor(setup.options(dir.path()));
  {
    const auto scope = ejk::policy_override({.allow_autotune = false});
    EXPECT_EQ(run(executor), 7);
    EXPECT_EQ(run(executor), 7);
    EXPECT_THAT(setup.events.take(), ElementsAre("heuristics", "cache_hit/memory"));
    EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
  }
  EXPECT_EQ(run(executor), 2);
  EXPECT_EQ(setup.tuner->asked, 1);
}

TEST_F(Chain, TheFallbackSaysWhatIsAskedFirst) {
  const ejk::Executor executor(setup.options());
  const auto scope =
      ejk::policy_override(executor.chain(), {.cache_miss_fallback = ejk::Fallback::heuristics});
  EXPECT_EQ(run(executor), 7);
  EXPECT_EQ(setup.tuner->asked, 0);
}

struct Sulky : Show {
  Config heuristic_cfg(const ejk::Invocation&) const { throw std::runtime_error("not today"); }
};

struct Sulkier {
  static constexpr std::string_view op_id = "sulkier";
  struct Config {};
  int run(const Config&, int) const { return 1; }
  Config heuristic_cfg(const ejk::Invocation&) const { throw std::runtime_error("not today"); }
};

TEST_F(Chain, AHeuristicThatThrowsDoesNotStopTuning) {
  const ejk::Executor executor(setup.options());
  executor(Sulky{}, x, y);
  EXPECT_EQ(y[0], 2);
  EXPECT_THAT(setup.warnings.take(), ElementsAre(HasSubstr("not today")));
  try {
    executor(Sulkier{}, 1);
    FAIL();
  } catch (const ejk::Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("[sulkier@v0]"));
    EXPECT_THAT(e.what(), HasSubstr("heuristic_cfg threw: not today"));
  }
}

// ---- policy
// ---------------------------------------------------------------------------------------

TEST_F(Chain, AFrozenPolicyTakesOnlyWhatIsStored) {
  auto options = setup.options(dir.path());
  {
    const ejk::Executor tuner(options);
    EXPECT_EQ(run(tuner), 2);
  }
  options.policy = ejk::AutotunePolicy{.allow_autotune = false, .allow_heuristics = false};
  options.cache = nullptr;
  const ejk::Executor frozen(options);
  EXPECT_EQ(run(frozen), 2);
  std::vector<float> longer(9);
  EXPECT_THROW(frozen(Show{}, longer, longer), ejk::Error);
}

TEST_F(Chain, AHeuristicInMemoryDoesNotServeAFrozenCall) {
  const ejk::Executor executor(setup.options());
  {
    const auto scope = ejk::policy_override({.allow_autotune = false});
    EXPECT_EQ(run(executor), 7);
  }
  const auto scope = ejk::policy_override({.allow_autotune = false, .allow_heuristics = false});
  EXPECT_THROW(run(executor), ejk::Error);
}

TEST_F(Chain, PolicyScopesNestAndTouchOnlyWhatTheyName) {
  const ejk::ConfigSelectorChain one(setup.options()), two(setup.options());
  {
    const auto outer = ejk::policy_override({.allow_autotune = false, .budget_seconds = 1});
    const auto inner =
        ejk::policy_override(one, {.allow_autotune = true, .validate_backward = true});
    EXPECT_TRUE(one.policy().allow_autotune);
    EXPECT_TRUE(one.policy().validate_backward);
    EXPECT_EQ(one.policy().budget_seconds, 1);
    EXPECT_FALSE(two.policy().allow_autotune);
    {
      const auto forward = ejk::forward_autotune_only();
      EXPECT_FALSE(one.policy().validate_backward);
    }
    EXPECT_TRUE(one.policy().validate_backward);
    std::thread([&] { EXPECT_FALSE(one.policy().validate_backward); }).join();
  }
  EXPECT_TRUE(two.policy().allow_autotune);
  EXPECT_EQ(one.policy().budget_seconds, 10);
}

TEST_F(Chain, ScopesMayEndInAnyOrderAndOnAnyThread) {
  const ejk::ConfigSelectorChain chain(setup.options());
  auto first =
      std::unique_ptr<ejk::Scope>(new ejk::Scope(ejk::policy_override({.allow_autotune = false})));
  auto second = std::unique_ptr<ejk::Scope>(
      new ejk::Scope(ejk::policy_override({.allow_heuristics = false})));
  first.reset();
  EXPECT_TRUE(chain.policy().allow_autotune);
  EXPECT_FALSE(chain.policy().allow_heuristics);
  std::thread([&] { second.reset(); }).join();
  EXPECT_TRUE(chain.policy().allow_heuristics);
}

TEST_F(Chain, ForwardAndBackwardResultsAreKeptApart) {
  const ejk::Executor executor(setup.options());
  EXPECT_EQ(run(executor), 2);
  setup.tuner->pick = 2;
  {
    const auto scope = ejk::policy_override({.validate_backward = true});
    EXPECT_EQ(run(executor), 3);
    EXPECT_EQ(run(executor), 3);
    EXPECT_EQ(setup.tuner->asked, 2);
    const auto forward = ejk::forward_autotune_only();
    EXPECT_EQ(run(executor), 2);
  }
  EXPECT_EQ(run(executor), 2);
}

TEST(Policy, TheEnvironmentNamesTheDefault) {
  setenv("EJKERNEL_AUTOTUNE_POLICY", "frozen", 1);
  EXPECT_FALSE(ejk::policy_from_environment().allow_heuristics);
  setenv("EJKERNEL_AUTOTUNE_POLICY", "heuristics", 1);
  EXPECT_FALSE(ejk::policy_from_environment().allow_autotune);
  EXPECT_TRUE(ejk::policy_from_environment().allow_heuristics);
  setenv("EJKERNEL_AUTOTUNE_POLICY", "frozn", 1);
  EXPECT_THROW(ejk::policy_from_environment(), ejk::Error);
  unsetenv("EJKERNEL_AUTOTUNE_POLICY");
  EXPECT_TRUE(ejk::policy_from_environment().allow_autotune);
}

// ---- telling
// --------------------------------------------------------------------------------------

TEST_F(Chain, EventsCarryDeviceOpKeyConfigAndTime) {
  auto options = setup.options();
  std::vector<std::string> seen;
  options.on_event = [&](const ejk::Event& e) {
    EXPECT_EQ(e.device, ejk::device_fingerprint());
    EXPECT_EQ(e.op, "show@v3");
    EXPECT_THAT(e.key, SizeIs(16));
    EXPECT_GE(e.seconds, 0);
    seen.push_back(std::string(e.kind) + " " + ejk::stable_json(e.config));
  };
  const ejk::Executor executor(options);
  run(executor);
  run(executor);
  EXPECT_THAT(seen, ElementsAre("autotune_start null", "autotune_finish {\"block\":2}",
                                "cache_hit {\"block\":2}"));
}

TEST_F(Chain, ASinkThatThrowsDoesNotDisturbTheCall) {
  auto options = setup.options();
  options.on_event = [](const ejk::Event&) { throw std::runtime_error("sink is full"); };
  const ejk::Executor executor(options);
  EXPECT_EQ(run(executor), 2);
  EXPECT_EQ(run(executor), 2);
  EXPECT_THAT(setup.warnings.take(), ElementsAre(HasSubstr("sink is full")));
}

struct Step {
  static constexpr std::string_view op_id = "step";
  struct Config {};
  void run(const Config&, std::span<const float>, int) const {}
  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }
};

TEST_F(Chain, AScalarThatMakesManyKeysIsPointedOutOnce) {
  const ejk::Executor executor(setup.options());
  for (int i = 0; i < 40; ++i) executor(Step{}, x, i);
  EXPECT_THAT(setup.warnings.take(),
              ElementsAre(testing::AllOf(HasSubstr("[step@v0] argument 1"), HasSubstr("Unkeyed"))));
}

// Whose output is `Less` shorter than its input.
template <int64_t Less>
struct Shorten {
  static constexpr std::string_view op_id = "shorten";
  struct Config {};
  void run(const Config&, ejk::View<const float, 2>, ejk::Out<ejk::View<float, 2>>) const {}
  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }
};
template <int64_t Less>
void call_with_rows(const ejk::Executor& executor, int64_t rows, int64_t columns = 3) {
  executor(Shorten<Less>{}, ejk::Tensor::of<float>({rows, columns}),
           ejk::Tensor::of<float>({rows - Less, columns}));
}

TEST_F(Chain, ASizeThatMakesManyKeysIsPointedOutOnce) {
  const ejk::Executor executor(setup.options());
  for (int64_t rows = 10; rows < 25; ++rows) call_with_rows<0>(executor, rows);
  EXPECT_THAT(setup.warnings.take(), IsEmpty()) << "15 are not many";
  for (int64_t rows = 25; rows < 100; ++rows) call_with_rows<0>(executor, rows);
  EXPECT_THAT(setup.warnings.take(),
              ElementsAre(testing::AllOf(HasSubstr("[shorten@v0] dimension 0 of argument 0"),
                                         HasSubstr("ejk::bucketed"))));
}

TEST_F(Chain, ShapesThatMakeManyKeysArePointedOutOnce) {
  const ejk::Executor executor(setup.options());
  for (int64_t rows = 10; rows < 73; ++rows) call_with_rows<1>(executor, rows);
  EXPECT_THAT(setup.warnings.take(), IsEmpty()) << "63 are not many";
  for (int64_t rows = 73; rows < 200; ++rows) call_with_rows<1>(executor, rows);
  EXPECT_THAT(setup.warnings.take(), ElementsAre(testing::AllOf(HasSubstr("[shorten@v0] shapes"),
                                                                HasSubstr("ejk::bucketed"))));
}

TEST_F(Chain, AFewShapesOfSeveralSizesCauseNoWarning) {
  const ejk::Executor executor(setup.options());
  for (int64_t rows = 10; rows < 17; ++rows)
    for (int64_t columns = 20; columns < 28; ++columns) call_with_rows<0>(executor, rows, columns);
  EXPECT_THAT(setup.warnings.take(), IsEmpty());
}

// ---- parts of one's own
// ----------------------------------------------------------------------------

TEST_F(Chain, AChooserOfOnesOwnIsAskedAtEveryCall) {
  struct Mine : ejk::ConfigChooser {
    int asked = 0;
    bool foreign = false;
    ejk::Choice choose(const ejk::Invocation&, const ejk::AnyKernel&) override {
      ++asked;
      struct Foreign {};
      if (foreign) return {ejk::make_config(Foreign{}), Origin::memory};
      return {ejk::make_config(Show::Config{90}), Origin::memory};
    }
  };
  auto mine = std::make_shared<Mine>();
  const ejk::Executor executor(mine);
  EXPECT_EQ(run(executor), 90);
  EXPECT_EQ(run(executor), 90);
  EXPECT_EQ(mine->asked, 2);
  mine->foreign = true;
  EXPECT_THROW(run(executor), ejk::Error);
  EXPECT_THROW(static_cast<void>(executor.explain(Show{}, x, y)), ejk::Error);
}

TEST_F(Chain, ACacheOfOnesOwnIsUsed) {
  struct Mine : ejk::ConfigCache {
    std::optional<Record> find(const ejk::EntryId&) const override {
      return Record{ejk::make_config(Show::Config{42}), Origin::memory, ""};
    }
    void insert(const ejk::EntryId&, Record) override {}
  };
  auto options = setup.options();
  options.cache = std::make_shared<Mine>();
  const ejk::Executor executor(options);
  EXPECT_EQ(run(executor), 42);
}

// ---- explaining
// -----------------------------------------------------------------------------------

TEST_F(Chain, ExplainShowsEveryTierAndChangesNothing) {
  const ejk::Executor executor(setup.options(dir.path()));
  const auto before = executor.explain(Show{}, x, y);
  EXPECT_EQ(before.origin, "autotune");
  EXPECT_TRUE(before.config.is_null());
  std::vector<std::string> names;
  for (const auto& tier : before.tiers) names.push_back(tier.name);
  EXPECT_THAT(names,
              ElementsAre("override", "overlay", "memory", "persistent", "autotune", "heuristics"));
  EXPECT_THAT(before.text(), HasSubstr("would measure 3 candidates"));
  EXPECT_EQ(setup.tuner->asked, 0);
  EXPECT_EQ(executor.chain().cache().size(), 0u);
  EXPECT_THAT(setup.events.take(), IsEmpty());
  run(executor);
  const auto after = executor.explain(Show{}, x, y);
  EXPECT_EQ(after.origin, "memory");
  EXPECT_EQ(ejk::parse_json(ejk::stable_json(after.to_value())).find("origin")->as_string(),
            "memory");
}

TEST_F(Chain, ExplainShowsHowTheNearestStoredKeyDiffers) {
  const ejk::Executor executor(setup.options(dir.path()));
  run(executor);
  std::vector<float> longer(9);
  const auto miss = executor.explain(Show{}, longer, y);
  EXPECT_EQ(miss.nearest_key, id(executor).key);
  ASSERT_THAT(miss.nearest, SizeIs(1));
  EXPECT_EQ(miss.nearest[0].field, "args_spec[0].shape[0]");
  EXPECT_EQ(miss.nearest[0].stored, ejk::Value(8));
  EXPECT_EQ(miss.nearest[0].call, ejk::Value(9));
  EXPECT_THAT(miss.text(), HasSubstr("args_spec[0].shape[0]: stored 8, this call 9"));
}

// ---- what is asked of a store

// Hands on to a directory and remembers how much was asked for.
class Watched final : public fakes::StoreBefore {
 public:
  explicit Watched(const std::string& path, std::string local = "")
      : StoreBefore(path), local_(std::move(local)) {}
  std::vector<ejk::Detail> asked;

  std::optional<ejk::Entry> get(const ejk::EntryId& id, ejk::Detail detail,
                                const ejk::Value* environment) override {
    asked.push_back(detail);
    EXPECT_TRUE(environment != nullptr && *environment == ejk::cpu_device().environment);
    return StoreBefore::get(id, detail, environment);
  }
  std::string where() const override { return "watched"; }
  std::string local_directory() const override { return local_; }

 private:
  std::string local_;
};

struct OneMore : Show {
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const { return {{1}, {2}, {3}, {4}}; }
};

TEST_F(Chain, AHitReadsTheChoiceAloneUnlessThereAreNewCandidates) {
  const auto store = std::make_shared<Watched>(dir.path());
  const auto options = [&] {
    auto out = setup.options();
    out.persistent = fakes::cache_of(store);
    return out;
  };
  run(ejk::Executor(options()));
  store->asked.clear();
  EXPECT_EQ(run(ejk::Executor(options())), 2);
  EXPECT_THAT(store->asked, ElementsAre(ejk::Detail::choice));
  EXPECT_EQ(setup.tuner->asked, 1);

  store->asked.clear();
  ejk::Executor{options()}(OneMore{}, x, y);
  EXPECT_THAT(store->asked, testing::Contains(ejk::Detail::all));
  EXPECT_EQ(setup.tuner->asked, 2) << "the tuning goes on";
  store->asked.clear();
  ejk::Executor{options()}(OneMore{}, x, y);
  EXPECT_THAT(store->asked, ElementsAre(ejk::Detail::choice));
  EXPECT_EQ(setup.tuner->asked, 2);
}

TEST_F(Chain, AHitOfATuningThatWasCutShortReadsTheChoiceAloneOnceNoTimeIsLeftForIt) {
  const auto store = std::make_shared<Watched>(dir.path());
  const auto tuner = std::make_shared<fakes::Clockless>();
  const auto call = [&] {
    auto options = setup.options();
    options.tuner = tuner;
    options.persistent = fakes::cache_of(store);
    store->asked.clear();
    return ejk::Executor(options).choose_config(Show{}, x, y).origin;
  };
  call();
  EXPECT_EQ(call(), Origin::autotune) << "it goes on";
  EXPECT_THAT(store->asked, testing::Contains(ejk::Detail::all));
  EXPECT_EQ(call(), Origin::persistent);
  EXPECT_THAT(store->asked, ElementsAre(ejk::Detail::choice));
}

TEST_F(Chain, EnvironmentsThatShareAStrictStoreDoNotTuneAtEveryStart) {
  auto options = setup.options(dir.path());
  options.strict_environment = true;
  run(ejk::Executor(options));
  ejk::PersistentCache store(dir.path());
  const ejk::Executor any(setup.options(dir.path()));
  ejk::Entry elsewhere = store.get(id(any))->entry;
  elsewhere.environment = ejk::Value("elsewhere");
  elsewhere.evidence.samples = 1000;
  ASSERT_TRUE(store.put(elsewhere));
  for (int start = 0; start < 3; ++start) EXPECT_EQ(run(ejk::Executor(options)), 2);
  EXPECT_EQ(setup.tuner->asked, 1);
  EXPECT_EQ(store.get(id(any), ejk::Detail::choice, &elsewhere.environment)->entry.evidence.samples,
            1000);
}

TEST_F(Chain, TheJournalIsKeptWhereAStoreOfAnyKindSays) {
  fakes::TempDir local;
  const auto store = std::make_shared<Watched>(dir.path(), local.path());
  auto options = setup.options();
  options.persistent = fakes::cache_of(store);
  bool journal = false;
  setup.tuner->before = [&](const ejk::TuneTask& task) {
    journal = task.journal != nullptr;
    task.journal->intend(ejk::Value(1));
    EXPECT_FALSE(std::filesystem::is_empty(local.path() + "/journal"));
  };
  run(ejk::Executor(options));
  EXPECT_TRUE(journal);
  EXPECT_FALSE(std::filesystem::exists(dir.path() + "/journal"));
}

// ---- what is stored never stands in the way for ever
// ------------------------------------------------

TEST_F(Chain, AStoredConfigThatNoLongerFitsIsReplacedHoweverManySamplesItHas) {
  {
    const ejk::Executor executor(setup.options(dir.path()));
    run(executor);
    ejk::Entry entry = executor.chain().persistent()->get(id(executor))->entry;
    entry.config = ejk::Value::object({{"of_an_older_struct", 1}});
    entry.evidence.samples = 1000;
    ASSERT_TRUE(executor.chain().persistent()->put(entry, ejk::IfPresent::replace));
  }
  EXPECT_EQ(run(ejk::Executor(setup.options(dir.path()))), 2);
  EXPECT_EQ(setup.tuner->asked, 2);
  EXPECT_EQ(run(ejk::Executor(setup.options(dir.path()))), 2);
  EXPECT_EQ(setup.tuner->asked, 2);
}

TEST_F(Chain, AFailedTuningIsTriedAgainWithNewCandidatesElsewhereOrIfItWasImported) {
  setup.tuner->outcome = ejk::Outcome::failed;
  const auto changed = [&](auto change) {
    fakes::TempDir other;
    const ejk::Executor executor(setup.options(other.path()));
    run(executor);
    ejk::Entry entry = executor.chain().persistent()->get(id(executor))->entry;
    EXPECT_EQ(entry.outcome, ejk::Outcome::failed);
    change(entry);
    EXPECT_TRUE(executor.chain().persistent()->erase(entry.id));
    EXPECT_TRUE(executor.chain().persistent()->put(entry));
    const int before = setup.tuner->asked;
    run(ejk::Executor(setup.options(other.path())));
    return setup.tuner->asked - before;
  };
  EXPECT_EQ(changed([](ejk::Entry&) {}), 0);
  EXPECT_EQ(changed([](ejk::Entry& e) { e.candidates.pop_back(); }), 1);
  EXPECT_EQ(changed([](ejk::Entry& e) { e.provenance = "imported"; }), 1);
  EXPECT_EQ(changed([](ejk::Entry& e) {
              e.environment = ejk::Value::object({{"compiler", "older"}});
            }),
            1);
}

TEST_F(Chain, AListThatWasGivenAndFailedSaysNothingOfTheKernelsOwn) {
  const auto fail = [&](const ejk::Executor& executor) {
    setup.tuner->outcome = ejk::Outcome::failed;
    EXPECT_THROW(executor.tune_among({{4}}, Show{}, x, y), ejk::Error);
    setup.tuner->outcome = ejk::Outcome::tuned;
  };
  {
    const ejk::Executor executor(setup.options());
    fail(executor);
    EXPECT_EQ(run(executor), 2);
  }
  fail(ejk::Executor(setup.options(dir.path())));
  EXPECT_EQ(run(ejk::Executor(setup.options(dir.path()))), 2);  // as in another process
}

struct Forgetful {  // its candidates
  static constexpr std::string_view op_id = "forgetful";
  struct Config {
    int block = 1;
  };
  int run(const Config& c, std::span<const float>) const { return c.block; }
  bool is_valid(const Config&, const ejk::Invocation&) const { return true; }
  Config heuristic_cfg(const ejk::Invocation&) const { return {7}; }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const {
    if (forgot) throw std::runtime_error("forgot them");
    return {{1}, {2}};
  }
  static inline bool forgot = false;
};

TEST_F(Chain, ExplainsThatATuningWhichCannotGoOnServesTheCall) {
  Forgetful::forgot = false;
  {
    const ejk::Executor executor(setup.options(dir.path()));
    ejk::Entry entry = executor.tune(Forgetful{}, x).entry;
    entry.evidence.complete = false;
    EXPECT_TRUE(executor.chain().persistent()->put(entry, ejk::IfPresent::replace));
  }
  Forgetful::forgot = true;
  const ejk::Executor later(setup.options(dir.path()));
  const auto explained = later.explain(Forgetful{}, x);
  EXPECT_EQ(explained.origin, "persistent") << explained;
  EXPECT_EQ(stable_json(explained.config), "{\"block\":2}");
  EXPECT_EQ(std::ranges::count(explained.tiers, "persistent", &ejk::Explanation::Tier::name), 1);
  EXPECT_EQ(later(Forgetful{}, x), 2);
}

struct NoGuess {  // its output is not part of the key
  static constexpr std::string_view op_id = "no_guess";
  struct Config {
    int block = 1;
  };
  void run(const Config& c, std::span<const float> v, ejk::Out<std::span<float>> w) const {
    if (v.size() != w->size()) throw std::runtime_error("sizes differ");
    for (float& f : *w) f = static_cast<float>(c.block * 0 + 5);
  }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const { return {{1}, {2}}; }
};

TEST_F(Chain, AWrongCallDoesNotCondemnTheKeyOfAKernelWithoutHeuristic) {
  auto options = setup.options(dir.path());
  options.tuner = nullptr;
  const ejk::Executor executor(options);
  std::vector<float> shorter(3);
  EXPECT_THROW(executor(NoGuess{}, x, shorter), ejk::Error);
  EXPECT_THAT(setup.events.take(), ElementsAre("autotune_start", "autotune_finish", "error"));
  executor(NoGuess{}, x, y);
  EXPECT_EQ(y[0], 5);
}

TEST_F(Chain, AFailedTuningInFrontDoesNotHideTheAnswerOfALayerBehind) {
  fakes::TempDir site;
  run(ejk::Executor(setup.options(site.path())));
  setup.tuner->outcome = ejk::Outcome::failed;
  run(ejk::Executor(setup.options(dir.path())));
  auto options = setup.options();
  std::vector<std::shared_ptr<ejk::Store>> layers{
      std::make_shared<ejk::DirectoryStore>(dir.path()),
      std::make_shared<ejk::DirectoryStore>(site.path())};
  options.persistent = std::make_shared<ejk::PersistentCache>(std::move(layers));
  EXPECT_EQ(run(ejk::Executor(options)), 2);
}

struct Bucketed {
  static constexpr std::string_view op_id = "bucketed";
  struct Config {
    int block = 1;
  };
  int run(const Config& c, std::span<const float>) const { return c.block; }
  int key(std::span<const float>) const { return 0; }
  bool is_valid(const Config& c, const ejk::Invocation& inv) const {
    if (c.block == 3) throw std::runtime_error("three");
    return c.block <= inv.args[0].shape[0];
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {1}; }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const { return {{8}, {1}}; }
};

TEST_F(Chain, AHeuristicForOneShapeOfABucketLeavesTheTunedConfigOfTheOthers) {
  setup.tuner->pick = 0;
  const ejk::Executor executor(setup.options());
  EXPECT_EQ(executor(Bucketed{}, x), 8);
  const auto scope = ejk::policy_override({.allow_autotune = false});
  EXPECT_EQ(executor(Bucketed{}, std::vector<float>(4)), 1);
  executor.chain().cache().put("some", "other", "key", Show::Config{1});  // what is warm is void
  EXPECT_EQ(executor(Bucketed{}, x), 8);
}

struct Seed {
  int value = 0;
};
[[maybe_unused]] void ejk_key(ejk::KeySink& key, const Seed& seed) { key("seed", seed.value); }
struct Seeded {
  static constexpr std::string_view op_id = "seeded";
  struct Config {
    int block = 1;
  };
  int run(const Config&, ejk::Unkeyed<Seed> seed) const { return seed->value; }
  static inline int asked = 0;
  bool is_valid(const Config&, const ejk::Invocation&) const { return ++asked > 0; }
  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }
};

TEST_F(Chain, UnkeyedValuesOfTheUsersTypesStayWarmWhateverTheyAre) {
  auto options = setup.options();
  options.on_event = {};
  const ejk::Executor executor(options);
  EXPECT_EQ(executor(Seeded{}, Seed{1}), 1);
  EXPECT_GT(std::exchange(Seeded::asked, 0), 0);
  EXPECT_EQ(executor(Seeded{}, Seed{2}), 2);
  EXPECT_EQ(Seeded::asked, 0);
}

// Writes a whole tile, so a tile must not be larger than the output.
struct Fill {
  static constexpr std::string_view op_id = "fill";
  struct Config {
    int64_t tile = 1;
  };
  int64_t run(const Config& c, std::span<const float> x, ejk::Out<std::span<float>> y) const {
    if (c.tile > std::ssize(*y)) return -1;  // would write past the output
    for (int64_t i = 0; i < c.tile; ++i) (*y)[static_cast<size_t>(i)] = x[0];
    return c.tile;
  }
  Config heuristic_cfg(const ejk::Invocation& inv) const { return {inv.args[1].shape[0]}; }
  std::vector<Config> candidate_cfgs(const ejk::Invocation& inv) const {
    return {{1}, {inv.args[1].shape[0]}};
  }
};
struct CheckedFill : Fill {
  static constexpr std::string_view op_id = "checked_fill";
  bool is_valid(const Config& c, const ejk::Invocation& inv) const {
    return c.tile <= inv.args[1].shape[0];
  }
};
struct SharedFill : CheckedFill {
  static constexpr std::string_view op_id = "shared_fill";
  size_t key(std::span<const float> x, const ejk::Out<std::span<float>>&) const { return x.size(); }
};

TEST_F(Chain, AConfigForALargeOutputDoesNotRunOnASmallOne) {
  std::vector<float> large(4096), small(10);
  for (const bool tunes : {false, true}) {
    auto options = setup.options();
    options.policy->allow_autotune = tunes;
    options.on_event = {};
    const ejk::Executor executor(options);
    const auto check = [&](const auto& kernel) {
      for (int i = 0; i < 2; ++i) {
        EXPECT_EQ(executor(kernel, x, large), 4096) << kernel.op_id << tunes;
        EXPECT_EQ(executor(kernel, x, small), 10) << kernel.op_id << tunes;
      }
    };
    check(Fill{});
    check(CheckedFill{});
    check(SharedFill{});
  }
}

TEST_F(Chain, AnOverlaysConfigIsAskedAboutToo) {
  std::vector<float> large(4096), small(10);
  const ejk::Executor executor(setup.options());
  const auto inv = executor.describe(SharedFill{}, x, large);
  ejk::ConfigCache overlay;
  overlay.put(inv.device->fingerprint, inv.op(), inv.call_key(), Fill::Config{4096});
  const auto scope = ejk::overlay_cache(overlay);
  EXPECT_EQ(executor(SharedFill{}, x, large), 4096);
  EXPECT_EQ(executor(SharedFill{}, x, small), 10);
  EXPECT_THAT(setup.warnings.take(),
              ElementsAre(testing::AllOf(HasSubstr("[shared_fill@v0] the overlay's config"),
                                         HasSubstr("is_valid"))));
}

// What an entry was stored under before outputs counted.
class OldEntry : public Chain {
 protected:
  template <class K>
  ejk::Entry entry(const K& kernel, const std::vector<float>& output, int64_t tile) {
    const ejk::Executor executor(setup.options());
    auto to = output;
    const auto inv = executor.describe(kernel, x, to);
    ejk::Entry entry;
    entry.id = {inv.device->fingerprint, inv.op(), {}, ejk::spec_without_outputs(inv.spec())};
    entry.id.key = ejk::short_hash(std::string_view(entry.id.spec));
    entry.config = ejk::to_value(Fill::Config{tile});
    entry.environment = inv.device->environment;
    entry.evidence.complete = true;
    return entry;
  }
  template <class K>
  int64_t run(const K& kernel, std::vector<float>& to, bool tunes = false) {
    auto options = setup.options(dir.path());
    options.policy->allow_autotune = tunes;
    return ejk::Executor(options)(kernel, x, to);
  }
  std::vector<float> large = std::vector<float>(4096), small = std::vector<float>(10);
};

TEST_F(OldEntry, AnswersWhereNothingIsStoredForTheOutputs) {
  ejk::DirectoryStore(dir.path()).put(entry(CheckedFill{}, large, 7));
  EXPECT_EQ(run(CheckedFill{}, large), 7);
  EXPECT_THAT(setup.events.take(), ElementsAre("cache_hit/persistent"));
}

TEST_F(OldEntry, WithoutSpecAnswersByItsKey) {
  auto imported = entry(CheckedFill{}, large, 7);
  imported.id.spec = {};
  ejk::DirectoryStore(dir.path()).put(imported);
  EXPECT_EQ(run(CheckedFill{}, large), 7);
}

TEST_F(OldEntry, ComesAfterOneForTheOutputsInAnyLayer) {
  fakes::TempDir site;
  auto exact = entry(CheckedFill{}, large, 5);
  const auto inv = ejk::Executor(setup.options()).describe(CheckedFill{}, x, large);
  exact.id.spec = inv.spec(), exact.id.key = inv.call_key();
  ejk::DirectoryStore(dir.path()).put(entry(CheckedFill{}, large, 7));
  ejk::DirectoryStore(site.path()).put(exact);
  auto options = setup.options();
  options.persistent = std::make_shared<ejk::PersistentCache>(
      std::vector<std::shared_ptr<ejk::Store>>{std::make_shared<ejk::DirectoryStore>(dir.path()),
                                               std::make_shared<ejk::DirectoryStore>(site.path())});
  EXPECT_EQ(ejk::Executor(options)(CheckedFill{}, x, large), 5);
}

TEST_F(OldEntry, ThatCannotRunTheCallIsAQuietMissAndStays) {
  const auto old = entry(CheckedFill{}, large, 4096);
  ejk::DirectoryStore(dir.path()).put(old);
  EXPECT_EQ(run(CheckedFill{}, small), 10);
  EXPECT_EQ(run(CheckedFill{}, small, true), 10);
  EXPECT_THAT(setup.warnings.take(), IsEmpty());
  EXPECT_EQ(run(CheckedFill{}, large), 4096);
  EXPECT_EQ(ejk::DirectoryStore(dir.path()).get(old.id)->config, old.config);
}

TEST_F(OldEntry, AnEntryOfAFailedTuningDoesNotStopAnother) {
  auto failed = entry(Fill{}, small, 0);
  failed.outcome = ejk::Outcome::failed, failed.config = {};
  ejk::DirectoryStore(dir.path()).put(failed);
  EXPECT_EQ(run(Fill{}, small, true), 10);
  EXPECT_EQ(setup.tuner->asked, 1);
}

TEST_F(OldEntry, ThatWasCutShortIsTunedAnewForTheOutputs) {
  auto cut = entry(Fill{}, large, 7);
  cut.evidence.complete = false;
  cut.candidates.emplace_back().config = cut.config;
  ejk::DirectoryStore(dir.path()).put(cut);
  setup.tuner->before = [](const ejk::TuneTask& task) { EXPECT_THAT(task.known, IsEmpty()); };
  EXPECT_EQ(run(Fill{}, large, true), 4096);
  EXPECT_EQ(setup.tuner->asked, 1);
  EXPECT_EQ(run(Fill{}, large), 4096);
}

// The erased kernel of a call.
struct Resumed : ejk::ConfigChooser {
  explicit Resumed(ejk::SelectorOptions options) : chain(std::move(options)) {}
  ejk::Choice choose(const ejk::Invocation& i, const ejk::AnyKernel& k) override {
    return chain.resume(i, k).first;
  }
  ejk::ConfigSelectorChain chain;
};

TEST_F(OldEntry, IsNotGoneOnWithByHand) {
  auto cut = entry(Fill{}, large, 7);
  cut.evidence.complete = false;
  cut.candidates.emplace_back().config = cut.config;
  ejk::DirectoryStore(dir.path()).put(cut);
  setup.tuner->before = [](const ejk::TuneTask& task) { EXPECT_THAT(task.known, IsEmpty()); };
  const ejk::Executor executor(std::make_shared<Resumed>(setup.options(dir.path())));
  EXPECT_EQ(executor(Fill{}, x, large), 4096);
  EXPECT_EQ(setup.tuner->asked, 1);
}

// Another process stores a better entry while the tuning goes on.
TEST_F(Chain, AResumedTuningLeavesABetterEntryThatWasStoredMeanwhile) {
  std::vector<float> in(8, 1), out(8, 0);
  auto options = setup.options(dir.path());
  ejk::Entry better = ejk::Executor(options).tune(fakes::Show{}, in, out).entry;
  ejk::Entry cut = better;
  cut.evidence.complete = false;
  better.config = ejk::Value::object({{"block", 3}});
  better.evidence.samples = 1000;
  ejk::DirectoryStore others(dir.path());
  setup.tuner->before = [&](const ejk::TuneTask&) { others.put(better); };
  setup.tuner->pick = 0;
  const auto resume = [&] {
    ejk::Executor(std::make_shared<Resumed>(setup.options(dir.path())))(fakes::Show{}, in, out);
    EXPECT_EQ(out[0], 1) << "the call itself runs with what it found";
    return others.get(cut.id)->config;
  };
  for (const bool begun_before : {true, false}) {
    others.erase(cut.id);
    if (begun_before) others.put(cut);
    EXPECT_EQ(resume(), better.config) << begun_before;
  }
  setup.tuner->before = nullptr;
  others.put(cut, ejk::IfPresent::replace);
  EXPECT_EQ(resume(), ejk::Value::object({{"block", 1}})) << "of what it went on with, its own";
}

TEST_F(OldEntry, AnEntryThatCannotRunTheCallIsNotResumedByHand) {
  const auto inv = ejk::Executor(setup.options()).describe(SharedFill{}, x, large);
  auto cut = entry(Fill{}, large, 4096);
  cut.id = {inv.device->fingerprint, inv.op(), inv.call_key(), inv.spec()};
  cut.evidence.complete = false;
  ejk::DirectoryStore(dir.path()).put(cut);
  setup.tuner->before = [](const ejk::TuneTask&) { throw std::runtime_error("no tuning"); };
  const ejk::Executor executor(std::make_shared<Resumed>(setup.options(dir.path())));
  EXPECT_EQ(executor(SharedFill{}, x, large), 4096) << "what is stored stays";
  EXPECT_THROW(executor(SharedFill{}, x, small), ejk::Error) << "and does not run another call";
}

TEST_F(Chain, AnIsValidThatThrowsIsANo) {
  const ejk::Executor executor(setup.options());
  const auto inv = executor.describe(Bucketed{}, x);
  executor.chain().cache().put(inv.device->fingerprint, inv.op(), inv.call_key(),
                               Bucketed::Config{3});
  EXPECT_EQ(executor(Bucketed{}, x), 1);
}

struct ManyThreads {
  static constexpr std::string_view op_id = "many_threads";
  struct Config {
    size_t threads = 1;
  };
  size_t run(const Config& c, int) const { return c.threads; }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const { return {{1}, {1}}; }
};

TEST_F(Chain, AStoredNumberOfThreadsBeyondAllIntegersIsAMiss) {
  {
    const ejk::Executor executor(setup.options(dir.path()));
    executor(ManyThreads{}, 1);
    const auto inv = executor.describe(ManyThreads{}, 1);
    ejk::Entry entry = executor.chain()
                           .persistent()
                           ->get({inv.device->fingerprint, inv.op(), inv.call_key(), inv.spec()})
                           ->entry;
    entry.config["threads"] = ~uint64_t{0};
    ASSERT_TRUE(executor.chain().persistent()->put(entry, ejk::IfPresent::replace));
  }
  EXPECT_EQ(ejk::Executor(setup.options(dir.path()))(ManyThreads{}, 1), 1u);
}

TEST_F(Chain, ABudgetWithoutLimitStillTakesTheLease) {
  auto options = setup.options(dir.path());
  options.policy->budget_seconds = std::numeric_limits<double>::infinity();
  const ejk::Executor executor(options);
  bool free = true;
  setup.tuner->before = [&](const ejk::TuneTask&) {
    free = executor.chain().persistent()->lease(id(executor), 0.001) != nullptr;
  };
  EXPECT_EQ(run(executor), 2);
  EXPECT_FALSE(free);
}

TEST_F(Chain, AnExplicitTuneIsKeptEvenIfSomethingElseIsPutMeanwhile) {
  const ejk::Executor executor(setup.options());
  EXPECT_EQ(run(executor), 2);
  setup.tuner->pick = 2;
  setup.tuner->before = [&](const ejk::TuneTask&) {
    executor.chain().cache().put("some", "other", "key", Show::Config{1});
  };
  EXPECT_EQ(executor.tune(Show{}, x, y).config.block, 3);
  EXPECT_EQ(run(executor), 3);
}

// Two kernels that call each other. Each begins only when both are being tuned.
const ejk::Executor* both_run_on = nullptr;
std::atomic<int> both_begun{0};

template <int N>
struct OneOfTwo {
  static constexpr std::string_view op_id = N == 0 ? "one" : "two";
  struct Config {
    int block = 1;
  };
  int run(const Config& c, bool inner) const {
    return inner ? c.block : (*both_run_on)(OneOfTwo<1 - N>{}, false) + 1;
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {7}; }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const { return {{1}, {2}}; }
};

TEST_F(Chain, KernelsThatCallEachOtherAreTunedAtOnceWithoutWaitingForEver) {
  auto options = setup.options();
  options.on_event = {};
  const ejk::Executor executor(options);
  both_run_on = &executor;
  setup.tuner->before = [&](const ejk::TuneTask& task) {
    ++both_begun;
    ejk::testing::wait_until([] { return both_begun >= 2; }, "the other tuning");
    if (task.op == "one@v0") executor.choose_config(OneOfTwo<1>{}, false);
    else executor.choose_config(OneOfTwo<0>{}, false);
  };
  std::thread other([&] { executor.choose_config(OneOfTwo<1>{}, false); });
  EXPECT_EQ(executor.choose_config(OneOfTwo<0>{}, false).config.block, 2);
  other.join();
  EXPECT_EQ(setup.tuner->asked, 2);
}

}  // namespace
