// SPDX-License-Identifier: Apache-2.0
// Plain structs as kernels: which hook is used, and how arguments become run's parameters.
#include <ejk/batch.h>
#include <ejk/executor.h>

#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ejk {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

// The message of the Error(invalid_argument) that `f` must throw.
template <class F>
std::string refusal(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::invalid_argument);
    return e.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

// Picks the first candidate without measuring, after one trial of each.
class FirstWins : public Tuner {
 public:
  TuneResult tune(const TuneTask& task) override {
    for (uint64_t i = 0; i < task.candidates->size(); ++i) {
      const AnyConfig c = task.candidates->config(i);
      task.trial->reset();
      task.trial->run(c);
      outputs.push_back(task.trial->outputs());
    }
    TuneResult result;
    result.outcome = Outcome::tuned;
    result.winner = 0;
    result.candidates.resize(task.candidates->size());
    return result;
  }
  std::vector<std::vector<OutputBytes>> outputs;  // of every trial
};

Executor fresh_executor(std::shared_ptr<Tuner> tuner = std::make_shared<FirstWins>()) {
  SelectorOptions options;
  options.policy = AutotunePolicy{};
  options.tuner = std::move(tuner);
  return Executor(std::move(options));
}

Executor heuristics_only() {
  SelectorOptions options;
  options.policy = AutotunePolicy{.allow_autotune = false};
  return Executor(std::move(options));
}

// ---- which hook is used
// ---------------------------------------------------------------------------

// An array of another platform, as far as types can say.
struct ClArray {
  static constexpr Platform ejk_platform = Platform::opencl;
  int size = 3;
};
[[maybe_unused]] void ejk_key(KeySink& key, const ClArray& a) { key("size", a.size); }

struct Told {
  std::string by;
};

// One base class per hook, which tells its name.
#define EJK_VARIANTS(DO, method) \
  DO(method)                     \
  DO(method##_cpu)               \
  DO(method##_opencl)            \
  DO(method##_gpu)               \
  DO(method##_shard_map)         \
  DO(method##_shard_map_cpu)     \
  DO(method##_shard_map_opencl) DO(method##_batch) DO(method##_batch_cpu) DO(method##_batch_opencl)
#define EJK_RUN_PART(name)                                   \
  template <class X>                                         \
  struct part_##name {                                       \
    std::string name(const Told&, X) const { return #name; } \
    static constexpr std::string_view told = #name;          \
  };
EJK_VARIANTS(EJK_RUN_PART, run)
#define EJK_CHOICE_PART(name)                              \
  template <class X>                                       \
  struct part_##name {                                     \
    Told name(const Invocation&) const { return {#name}; } \
    static constexpr std::string_view told = #name;        \
  };
EJK_VARIANTS(EJK_CHOICE_PART, heuristic_cfg)
#define EJK_LIST_PART(name)                                                      \
  template <class X>                                                             \
  struct part_##name {                                                           \
    std::vector<Told> name(const Invocation&) const { return {{#name}, {"x"}}; } \
    static constexpr std::string_view told = #name;                              \
  };
EJK_VARIANTS(EJK_LIST_PART, candidate_cfgs)

// Tells its config.
template <class X>
struct part_tell {
  std::string run(const Told& c, X) const { return c.by; }
};

template <class X, template <class> class... Part>
struct Assembled : Part<X>... {
  static constexpr std::string_view op_id = "assembled";
  using Config = Told;
};

template <Context C, class X, class K>
std::string told(const K& kernel) {
  const Executor e = fresh_executor();
  if constexpr (C == Context::batch)
    return vmap_with_config(e, kernel, 0)(std::vector<X>{X{}}).at(0);
  else return e.call<C>(kernel, X{});
}

// The hooks given from the most specific one to the least, with others that must not be used.
template <Context C, class X, template <class> class A, template <class> class B,
          template <class> class Z, template <class> class G, template <class> class... Others>
void expect_precedence() {
  EXPECT_EQ((told<C, X>(Assembled<X, A, B, Z, G, Others...>{})), A<X>::told);
  EXPECT_EQ((told<C, X>(Assembled<X, B, Z, G, Others...>{})), B<X>::told);
  EXPECT_EQ((told<C, X>(Assembled<X, Z, G, Others...>{})), Z<X>::told);
  EXPECT_EQ((told<C, X>(Assembled<X, G, Others...>{})), G<X>::told);
}

// {method}_gpu stands between {method}_opencl and {method}, and is nothing to the CPU.
template <template <class> class OpenCl, template <class> class Gpu, template <class> class All,
          template <class> class... Others>
void expect_place_of_gpu() {
  using Context::plain;
  EXPECT_EQ((told<plain, ClArray>(Assembled<ClArray, Gpu, All, Others...>{})), Gpu<ClArray>::told);
  EXPECT_EQ((told<plain, ClArray>(Assembled<ClArray, OpenCl, Gpu, All, Others...>{})),
            OpenCl<ClArray>::told);
  EXPECT_EQ((told<plain, int>(Assembled<int, Gpu, All, Others...>{})), All<int>::told);
}

TEST(Hooks, HooksForGpusAreUsedOnOpenClWhereItHasNone) {
  expect_place_of_gpu<part_run_opencl, part_run_gpu, part_run, part_heuristic_cfg>();
  expect_place_of_gpu<part_heuristic_cfg_opencl, part_heuristic_cfg_gpu, part_heuristic_cfg,
                      part_tell>();
  expect_place_of_gpu<part_candidate_cfgs_opencl, part_candidate_cfgs_gpu, part_candidate_cfgs,
                      part_tell>();
  EXPECT_EQ((told<Context::shard_map, ClArray>(
                Assembled<ClArray, part_run_shard_map, part_run_gpu, part_heuristic_cfg>{})),
            "run_shard_map")
      << "the context is more specific";
  EXPECT_EQ(
      (told<Context::plain, ClArray>(Assembled<ClArray, part_run_gpu, part_heuristic_cfg_gpu>{})),
      "run_gpu")
      << "there may be none for all platforms";
}

TEST(Hooks, TheMostSpecificRunIsUsed) {
  expect_precedence<Context::shard_map, int, part_run_shard_map_cpu, part_run_shard_map,
                    part_run_cpu, part_run, part_run_batch_cpu, part_run_batch, part_run_opencl,
                    part_run_shard_map_opencl, part_heuristic_cfg>();
  expect_precedence<Context::shard_map, ClArray, part_run_shard_map_opencl, part_run_shard_map,
                    part_run_opencl, part_run, part_run_batch_opencl, part_run_batch, part_run_cpu,
                    part_run_shard_map_cpu, part_heuristic_cfg>();
  expect_precedence<Context::batch, int, part_run_batch_cpu, part_run_batch, part_run_cpu, part_run,
                    part_run_shard_map_cpu, part_run_shard_map, part_run_opencl,
                    part_run_batch_opencl, part_heuristic_cfg>();
  expect_precedence<Context::batch, ClArray, part_run_batch_opencl, part_run_batch, part_run_opencl,
                    part_run, part_run_shard_map_opencl, part_run_shard_map, part_run_cpu,
                    part_run_batch_cpu, part_heuristic_cfg>();
}

TEST(Hooks, PlainCallsDoNotUseHooksOfContexts) {
  EXPECT_EQ((told<Context::plain, int>(
                Assembled<int, part_run_cpu, part_run, part_run_opencl, part_run_shard_map,
                          part_run_shard_map_cpu, part_run_batch_cpu, part_heuristic_cfg>{})),
            "run_cpu");
  EXPECT_EQ(
      (told<Context::plain, int>(
          Assembled<int, part_run, part_run_opencl, part_run_shard_map_cpu, part_heuristic_cfg>{})),
      "run");
  EXPECT_EQ(
      (told<Context::plain, ClArray>(Assembled<ClArray, part_run_opencl, part_run, part_run_cpu,
                                               part_run_shard_map_opencl, part_heuristic_cfg>{})),
      "run_opencl");
  EXPECT_EQ((told<Context::plain, ClArray>(
                Assembled<ClArray, part_run, part_run_cpu, part_heuristic_cfg>{})),
            "run");
}

TEST(Hooks, TheMostSpecificHeuristicIsUsed) {
  expect_precedence<Context::shard_map, int, part_heuristic_cfg_shard_map_cpu,
                    part_heuristic_cfg_shard_map, part_heuristic_cfg_cpu, part_heuristic_cfg,
                    part_tell, part_heuristic_cfg_batch, part_heuristic_cfg_opencl>();
  expect_precedence<Context::batch, ClArray, part_heuristic_cfg_batch_opencl,
                    part_heuristic_cfg_batch, part_heuristic_cfg_opencl, part_heuristic_cfg,
                    part_tell, part_heuristic_cfg_batch_cpu>();
  EXPECT_EQ((told<Context::plain, int>(Assembled<int, part_tell, part_heuristic_cfg_cpu,
                                                 part_heuristic_cfg, part_heuristic_cfg_batch>{})),
            "heuristic_cfg_cpu");
}

TEST(Hooks, TheMostSpecificCandidatesAreUsed) {
  expect_precedence<Context::shard_map, ClArray, part_candidate_cfgs_shard_map_opencl,
                    part_candidate_cfgs_shard_map, part_candidate_cfgs_opencl, part_candidate_cfgs,
                    part_tell, part_candidate_cfgs_cpu>();
  expect_precedence<Context::batch, int, part_candidate_cfgs_batch_cpu, part_candidate_cfgs_batch,
                    part_candidate_cfgs_cpu, part_candidate_cfgs, part_tell,
                    part_candidate_cfgs_shard_map>();
  EXPECT_EQ(
      (told<Context::plain, int>(Assembled<int, part_tell, part_candidate_cfgs_cpu,
                                           part_candidate_cfgs, part_candidate_cfgs_batch>{})),
      "candidate_cfgs_cpu");
}

template <class X>
struct part_gradient {
  std::string run(const Told&, X) const { return "run"; }
  std::pair<std::string, int> fwd_with_residuals(const Told&, X) const { return {"fwd", 1}; }
  std::string vjp(const Told&, int residual, const std::string&) const {
    return "vjp " + std::to_string(residual);
  }
  Told heuristic_cfg(const Invocation&) const { return {}; }
};
template <class X>
struct part_platform_gradient {
  std::pair<std::string, int> fwd_with_residuals_opencl(const Told&, X) const {
    return {"fwd_opencl", 2};
  }
  std::pair<std::string, int> fwd_with_residuals_cpu(const Told&, X) const {
    return {"fwd_cpu", 3};
  }
  std::pair<std::string, int> fwd_with_residuals_batch(const Told&, X) const {
    return {"fwd_batch", 4};
  }
  std::string vjp_opencl(const Told&, int residual, const std::string&) const {
    return "vjp_opencl " + std::to_string(residual);
  }
  std::string vjp_cpu(const Told&, int residual, const std::string&) const {
    return "vjp_cpu " + std::to_string(residual);
  }
  std::string vjp_shard_map(const Told&, int, const std::string&) const { return "vjp_shard_map"; }
};

template <class X, class K>
std::string gradient_told(const K& kernel) {
  const Executor e = fresh_executor();
  X x{};
  auto [out, pull] = e.vjp(kernel, x);
  return out + " " + pull(out);
}

TEST(Hooks, TheMostSpecificGradientIsUsed) {
  EXPECT_EQ(gradient_told<int>(Assembled<int, part_gradient>{}), "fwd vjp 1");
  EXPECT_EQ(gradient_told<ClArray>(Assembled<ClArray, part_gradient>{}), "fwd vjp 1");
  EXPECT_EQ(gradient_told<int>(Assembled<int, part_gradient, part_platform_gradient>{}),
            "fwd_cpu vjp_cpu 3");
  EXPECT_EQ(gradient_told<ClArray>(Assembled<ClArray, part_gradient, part_platform_gradient>{}),
            "fwd_opencl vjp_opencl 2");
}

// ---- configs of platforms ----------------------------------------------------------------------

struct Tile {
  int rows = 8;
  std::string text() const { return "tile of " + std::to_string(rows); }
};

struct Tiled {
  static constexpr std::string_view op_id = "tiled";
  struct Config {
    int block = 1;
    std::string text() const { return "block of " + std::to_string(block); }
  };
  static inline bool valid = true;
  std::string run(const Config& c, int) const { return "run with a " + c.text(); }
  std::string run_opencl(const Tile& c, ClArray) const { return "run_opencl with a " + c.text(); }
  Config heuristic_cfg(const Invocation&) const { return {2}; }
  std::vector<Config> candidate_cfgs(const Invocation&) const { return {{3}, {4}}; }
  bool is_valid(const Config&, const Invocation&) const { return valid; }
};
// The same with all that Tile has of its own.
struct TiledAndTuned : Tiled {
  static constexpr std::string_view op_id = "tiled_and_tuned";
  using Tiled::is_valid;
  Tile heuristic_cfg_gpu(const Invocation&) const { return {5}; }
  std::vector<Tile> candidate_cfgs_opencl(const Invocation&) const { return {{7}, {6}}; }
  bool is_valid(const Tile& c, const Invocation&) const { return c.rows != 6; }
};

TEST(Configs, AreWhatTheHookThatRunsTakesFirst) {
  const Executor e = fresh_executor();
  EXPECT_EQ(e(Tiled{}, 1), "run with a block of 3");
  EXPECT_EQ(e(Tiled{}, {.block = 9}, 1), "run with a block of 9");
  EXPECT_EQ(e(Tiled{}, Tile{9}, ClArray{}), "run_opencl with a tile of 9");
  EXPECT_EQ(e(Tiled{}, {.rows = 10}, ClArray{}), "run_opencl with a tile of 10");
  EXPECT_EQ(e.call_with<Context::plain>(Tiled{}, Tile{11}, ClArray{}),
            "run_opencl with a tile of 11");
  EXPECT_EQ(e.compile(Tiled{}, Tile{12}, ClArray{})(ClArray{}), "run_opencl with a tile of 12");
}

TEST(Configs, APlatformIsNotOfferedConfigsOfAnotherType) {
  const Executor e = fresh_executor();
  try {
    e(Tiled{}, ClArray{});
    FAIL() << "heuristic_cfg and candidate_cfgs are of Config";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::no_configuration);
  }
  Tiled::valid = false;
  EXPECT_EQ(e(Tiled{}, Tile{9}, ClArray{}), "run_opencl with a tile of 9")
      << "is_valid is of Config";
  Tiled::valid = true;
}

TEST(Configs, HaveHooksThatSpeakOfThem) {
  const auto tuner = std::make_shared<FirstWins>();
  const Executor e = fresh_executor(tuner);
  EXPECT_EQ(e(TiledAndTuned{}, 1), "run with a block of 3");
  EXPECT_EQ(tuner->outputs.size(), 2u);
  const auto tuned = e.tune(TiledAndTuned{}, ClArray{});
  static_assert(std::is_same_v<decltype(tuned.config), Tile>);
  EXPECT_EQ(tuned.config.rows, 7);
  EXPECT_EQ(e.tune_among({{20}, {21}}, TiledAndTuned{}, ClArray{}).config.rows, 20);
  EXPECT_THROW(e.tune_among({{6}}, TiledAndTuned{}, ClArray{}), Error) << "is_valid is asked";
  EXPECT_EQ(e.choose_config(TiledAndTuned{}, ClArray{4}).config.rows, 7);
  const Executor guess = heuristics_only();
  EXPECT_EQ(guess(TiledAndTuned{}, ClArray{}), "run_opencl with a tile of 5");
  EXPECT_EQ(guess(TiledAndTuned{}, 1), "run with a block of 2");
}

// No run for the CPU, so no Config either.
struct OnlyOnGpus {
  static constexpr std::string_view op_id = "only_on_gpus";
  std::string run_gpu(const Tile& c, ClArray a) const {
    return c.text() + " for " + std::to_string(a.size);
  }
  Tile heuristic(const Invocation&) const { return {}; }  // a name that would be a mistake alone
  Tile heuristic_cfg_gpu(const Invocation& inv) const { return heuristic(inv); }
};

TEST(Configs, NeedNoConfigWhereThereIsNoRun) {
  const Executor e = fresh_executor();
  EXPECT_EQ(e(OnlyOnGpus{}, ClArray{4}), "tile of 8 for 4");
  EXPECT_EQ(e(OnlyOnGpus{}, Tile{2}, ClArray{4}), "tile of 2 for 4");
}

struct InBatches {
  static constexpr std::string_view op_id = "in_batches";
  using Config = Told;
  std::string run(const Config& c, int) const { return c.by; }
  std::string run_batch(const Tile& c, int) const { return c.text(); }
  Config heuristic_cfg(const Invocation&) const { return {"plain"}; }
  Tile heuristic_cfg_batch(const Invocation&) const { return {3}; }
};

TEST(Configs, MayDifferInAContext) {
  const Executor e = fresh_executor();
  EXPECT_EQ(e(InBatches{}, 1), "plain");
  EXPECT_THAT(vmap_with_config(e, InBatches{}, 0)(std::vector<int>{1, 2}),
              ElementsAre("tile of 3", "tile of 3"));
}

struct TiledGradient : Tiled {
  static constexpr std::string_view op_id = "tiled_gradient";
  std::pair<std::string, int> fwd_with_residuals(const Config&, int) const { return {"fwd", 1}; }
  std::pair<std::string, int> fwd_with_residuals_gpu(const Tile&, ClArray) const {
    return {"fwd_gpu", 2};
  }
  std::string vjp(const Config& c, int residual, const std::string&) const {
    return c.text() + " vjp " + std::to_string(residual);
  }
  std::string vjp_gpu(const Tile& c, int residual, const std::string&) const {
    return c.text() + " vjp_gpu " + std::to_string(residual);
  }
  Tile heuristic_cfg_gpu(const Invocation&) const { return {5}; }
};

TEST(Configs, AreThoseOfTheGradientToo) {
  EXPECT_EQ(gradient_told<int>(TiledGradient{}), "fwd block of 3 vjp 1");
  EXPECT_EQ(gradient_told<ClArray>(TiledGradient{}), "fwd_gpu tile of 5 vjp_gpu 2");
}

// ---- forms of hooks ----------------------------------------------------------------------------

struct Static {
  static constexpr const char* op_id = "static";  // anything that converts to string_view
  struct Config {
    int n = 0;
  };
  static int run(const Config& c, int x) noexcept { return c.n + x; }
  static Config heuristic_cfg(const Invocation&, int extra = 40) noexcept { return {extra}; }
  static bool is_valid(const Config& c, const Invocation&) { return c.n > 0; }
};

TEST(Hooks, MayBeStaticNoexceptAndHaveDefaultArguments) {
  const Executor e = fresh_executor();
  EXPECT_EQ(e(Static{}, 2), 42);
  EXPECT_EQ(e.describe(Static{}, 2).op(), "static@v0");
  EXPECT_EQ(e.compile(Static{}, 2)(3), 43);
}

struct Overloaded {
  static constexpr std::string_view op_id = "overloaded", version = "7";
  using Config = Told;
  using Arguments = list<std::span<const float>, int>;
  std::string run(const Config&, std::span<const float> x, int) const {
    return "floats " + std::to_string(x.size());
  }
  std::string run(const Config&, std::span<const double>, int) const { return "doubles"; }
  std::string run_opencl(const Config&, ClArray a) const { return "cl " + std::to_string(a.size); }
  Config heuristic_cfg(const Invocation&) const { return {}; }
};
struct Generic {
  static constexpr std::string_view op_id = "generic";
  using Config = Told;
  using Arguments = list<std::span<const float>, int>;
  template <class T>
  std::string run(const Config&, T x, auto) const {
    return std::to_string(x.size());
  }
  Config heuristic_cfg(const Invocation&) const { return {}; }
};

TEST(Hooks, OverloadedRunsAndTemplatesNameTheirArguments) {
  const Executor e = fresh_executor();
  const std::vector<float> x(5);
  EXPECT_EQ(e(Overloaded{}, x, 1), "floats 5");
  EXPECT_EQ(e(Overloaded{}, ClArray{9}), "cl 9");
  EXPECT_EQ(e(Generic{}, x, 1), "5");
  EXPECT_EQ(e.describe(Overloaded{}, x, 1).op(), "overloaded@v7");
}

template <class T>
struct Templated {
  static constexpr std::string_view op_id = "templated";
  struct Config {
    T bias = 1;
  };
  T run(const Config& c, std::span<const T> x) const {
    return std::accumulate(x.begin(), x.end(), c.bias);
  }
  auto candidate_cfgs(const Invocation&) const {
    return space<Config>().param(&Config::bias, {2, 3});
  }
};

TEST(Hooks, TheStructMayBeATemplateAndCandidatesASpace) {
  const Executor e = fresh_executor();
  EXPECT_EQ(e(Templated<int>{}, std::vector{1, 2}), 5);
  EXPECT_EQ(e(Templated<double>{}, std::vector{1.0, 2.0}), 5.0);
}

struct Parent {
  static constexpr std::string_view op_id = "parent";
  using Config = Told;
  std::string run(const Config& c, int) const { return c.by; }
  Config heuristic_cfg(const Invocation&) const { return {"parent"}; }
};
struct Child : Parent {
  Config heuristic_cfg(const Invocation&) const { return {"child"}; }
};

TEST(Hooks, AreInheritedAndOverridden) {
  const Executor e = fresh_executor();
  EXPECT_EQ(e(Child{}, 1), "child");
}

// Names like those of hooks, for something else or beside the hook itself.
struct WithHelpers {
  static constexpr std::string_view op_id = "with_helpers";
  struct Config {
    int block = 1;
  };
  static inline int heuristic = 4;
  static inline std::vector<int> candidates = {1};
  int run(const Config& c, int) const { return valid(c) ? c.block : -1; }
  bool valid(const Config& c) const { return c.block > 0; }
  bool validate(const Config& c, const Invocation&) const { return valid(c); }
  bool is_valid(const Config& c, const Invocation& inv) const { return validate(c, inv); }
  Config heuristic_cfg(const Invocation&) const { return {heuristic}; }
  int make_key(int, int) const { return 0; }
};
struct WithHelpersForAnything {
  static constexpr std::string_view op_id = "with_helpers_for_anything";
  struct Config {
    int block = 1;
  };
  template <class... T>
  void validate(const T&...) const {}
  auto space(const auto& values) const { return std::get<0>(values); }
  int run(const Config& c, int n) const { return validate(c, n), space(std::tuple(c.block)); }
  Config heuristic_cfg(const Invocation&) const { return {}; }
};
struct WithoutParameters {
  static constexpr std::string_view op_id = "without_parameters";
  struct Config {};
  int run(const Config&) const { return ref() + keys(); }
  int ref() const { return 1; }
  int keys() const { return 2; }
  Config heuristic_cfg(const Invocation&) const { return {}; }
};

TEST(Hooks, FunctionsOfTheKernelsOwnMayHaveNamesLikeThem) {
  const Executor e = fresh_executor();
  EXPECT_EQ(e(WithHelpers{}, 1), 4);
  EXPECT_EQ(e(WithHelpersForAnything{}, 1), 1);
  EXPECT_EQ(e(WithoutParameters{}), 3);
}

// ---- from arguments to parameters --------------------------------------------------------------

// Runs f on its parameters.
template <auto F, class... P>
struct Call {
  static constexpr std::string_view op_id = "call";
  struct Config {};
  auto run(const Config&, P... p) const { return F(static_cast<P>(p)...); }
  Config heuristic_cfg(const Invocation&) const { return {}; }
};

constexpr auto sum = [](const auto& x) {
  double total = 0;
  if constexpr (requires { x.span(); })
    for (auto v : x.span()) total += static_cast<float>(v);
  else
    for (auto v : x) total += static_cast<float>(v);
  return total;
};
constexpr auto itself = [](auto x) { return x; };

TEST(Arguments, ContiguousStorageBecomesSpansAndViews) {
  const Executor e = fresh_executor();
  std::vector<float> v{1, 2, 3};
  const std::vector<float> constant{4, 5};
  std::array<float, 2> a{1, 1};
  using In = std::span<const float>;
  EXPECT_EQ(e(Call<sum, In>{}, v), 6);
  EXPECT_EQ(e(Call<sum, In>{}, constant), 9);
  EXPECT_EQ(e(Call<sum, In>{}, a), 2);
  EXPECT_EQ(e(Call<sum, In>{}, std::vector<float>{7, 8}), 15)
      << "temporaries live through the call";
  EXPECT_EQ(e(Call<sum, std::span<float>>{}, v), 6);
  EXPECT_EQ((e(Call<sum, View<const float, 1>>{}, v)), 6);
  EXPECT_EQ((e(Call<sum, View<const float, 1>>{}, constant)), 9);
  EXPECT_EQ((e(Call<sum, View<float, 1>>{}, v)), 6);
  EXPECT_EQ((e(Call<sum, In>{}, View<float, 1>{v.data(), {2}})), 3);
}

constexpr auto corner = [](const auto& x) { return static_cast<double>(x(1, 2)); };
constexpr auto rank_of = [](const AnyView& x) {
  return static_cast<int>(x.shape.size()) + (x.strides.empty() ? 0 : 100);
};

TEST(Arguments, ViewsConvertWhereNothingIsLost) {
  const Executor e = fresh_executor();
  std::vector<float> data{0, 1, 2, 3, 4, 5};
  const View<float, 2> view{data.data(), {2, 3}};
  EXPECT_EQ((e(Call<corner, View<const float, 2>>{}, view)), 5);
  EXPECT_EQ((e(Call<corner, StridedView<float, 2>>{}, view)), 5);
  EXPECT_EQ((e(Call<corner, StridedView<const float, 2>>{}, StridedView<float, 2>(view))), 5);
  EXPECT_EQ((e(Call<corner, StridedView<const float, 2>>{}, view)), 5);
  EXPECT_EQ((e(Call<rank_of, AnyView>{}, view)), 2);
  EXPECT_EQ((e(Call<rank_of, AnyView>{}, StridedView<const float, 2>(view))), 102);
}

TEST(Arguments, TensorsBecomeViewsOfTheirTypeAndRank) {
  const Executor e = fresh_executor();
  Tensor t = Tensor::of<float>({2, 3}, std::vector<float>{0, 1, 2, 3, 4, 5});
  const Tensor turned =
      Tensor::of<float>({3, 2}, std::vector<float>{0, 3, 1, 4, 2, 5}).transposed({1, 0});
  EXPECT_EQ((e(Call<corner, View<const float, 2>>{}, t)), 5);
  EXPECT_EQ((e(Call<corner, View<const float, 2>>{}, t.clone())), 5);
  EXPECT_EQ((e(Call<corner, StridedView<const float, 2>>{}, turned)), 5);
  EXPECT_EQ((e(Call<corner, View<const float, 2>>{}, t.any())), 5);
  EXPECT_EQ((e(Call<rank_of, AnyView>{}, turned)), 102);
  EXPECT_EQ((e(Call<sum, std::span<const float>>{}, t.reshaped({6}))), 15);
}

TEST(Arguments, ArraysThatDoNotFitAreRefusedWithBothSides) {
  const Executor e = fresh_executor();
  const Tensor t(DType::float32, {2, 3}),
      turned = Tensor(DType::float32, {3, 2}).transposed({1, 0});
  const Call<corner, View<const float, 2>> kernel;
  EXPECT_THAT(refusal([&] {
                e(kernel, Tensor(DType::float64, {2, 3}));
              }),
              AllOf(StartsWith("[call] argument 0: given float64[2, 3]"),
                    HasSubstr("needed float32 of rank 2")));
  EXPECT_THAT(refusal([&] { e(kernel, Tensor(DType::float32, {6})); }),
              AllOf(StartsWith("[call] argument 0: given float32[6]"), HasSubstr("rank")));
  EXPECT_THAT(refusal([&] { e(kernel, turned); }),
              AllOf(StartsWith("[call] argument 0: given "), HasSubstr("not packed")));
  AnyView constant = t.any(), away = t.any();
  constant.writable = false;
  away.platform = Platform::cuda;
  EXPECT_THAT(refusal([&] { e(Call<corner, View<float, 2>>{}, constant); }),
              HasSubstr("read-only"));
  EXPECT_EQ(e(kernel, constant), 0);
  EXPECT_THAT(refusal([&] { e(kernel, away); }),
              AllOf(HasSubstr("given float32[2, 3] on cuda"), HasSubstr("on cpu")));
  EXPECT_THAT(refusal([&] { e(Call<rank_of, AnyView>{}, away); }), HasSubstr("cuda"));

  constexpr auto second = [](int, View<const float, 1>) { return 0; };
  EXPECT_THAT(refusal([&] { e(Call<second, int, View<const float, 1>>{}, 1, t); }),
              StartsWith("[call] argument 1: "));
}

constexpr auto size_of_text = [](std::string_view text) { return text.size(); };

TEST(Arguments, ScalarsAndTextConvert) {
  const Executor e = fresh_executor();
  EXPECT_EQ(e(Call<itself, float>{}, 3), 3.f);
  EXPECT_EQ(e(Call<itself, double>{}, 2.5f), 2.5);
  EXPECT_EQ(e(Call<itself, Keyed<double>>{}, 3).value, 3.0);
  EXPECT_EQ(e(Call<itself, Unkeyed<float>>{}, 3).value, 3.f);
  EXPECT_EQ(e(Call<itself, int64_t>{}, 7), 7);
  EXPECT_EQ(e(Call<itself, size_t>{}, 7), 7u);
  EXPECT_EQ(e(Call<itself, std::string>{}, "text"), "text");
  EXPECT_EQ(e(Call<size_of_text, std::string_view>{}, std::string("text")), 4u);
  EXPECT_EQ(e(Call<size_of_text, const std::string&>{}, "text"), 4u);
}

constexpr auto or_minus_one = [](const auto& x) { return x ? sum(*x) : -1; };

TEST(Arguments, OptionalParametersTakeValuesNothingAndOtherOptionals) {
  const Executor e = fresh_executor();
  using In = std::optional<View<const float, 1>>;
  const std::vector<float> v{1, 2};
  const Tensor t = Tensor::of<float>({2}, std::vector<float>{3, 4});
  EXPECT_EQ(e(Call<or_minus_one, In>{}, v), 3);
  EXPECT_EQ(e(Call<or_minus_one, In>{}, t), 7);
  EXPECT_EQ(e(Call<or_minus_one, In>{}, std::nullopt), -1);
  EXPECT_EQ(e(Call<or_minus_one, In>{}, std::optional<Tensor>(t)), 7);
  EXPECT_EQ(e(Call<or_minus_one, In>{}, std::optional<Tensor>()), -1);
  EXPECT_EQ(e(Call<itself, std::optional<float>>{}, 3), 3.f);
  EXPECT_EQ(e(Call<itself, std::optional<std::string>>{}, "a"), "a");
  EXPECT_THAT(refusal([&] { e(Call<or_minus_one, In>{}, Tensor(DType::int32, {2})); }),
              StartsWith("[call] argument 0: given int32[2]"));
  EXPECT_EQ(e(Call<itself, std::optional<ClArray>>{}, std::nullopt).has_value(), false);
  EXPECT_EQ(e(Call<itself, std::optional<ClArray>>{}, ClArray{4})->size, 4);
}

TEST(Arguments, HalfPrecisionElementsWork) {
  const Executor e = fresh_executor();
  const std::vector<Half> half{Half(1.5f), Half(2.f)};
  const std::vector<BFloat16> brain{BFloat16(1.f), BFloat16(3.f)};
  EXPECT_EQ(e(Call<sum, std::span<const Half>>{}, half), 3.5);
  EXPECT_EQ((e(Call<sum, View<const BFloat16, 1>>{}, brain)), 4);
  EXPECT_EQ((e(Call<sum, View<const Half, 1>>{}, Tensor::of<Half>({2}, half))), 3.5);
  EXPECT_EQ(e(Call<itself, Half>{}, Half(2.f)), Half(2.f));
}

TEST(Arguments, ArgumentsOfOtherPlatformsMayBeWrappedAndNamed) {
  constexpr auto size = [](const auto& a) { return a->size; };
  const Executor e = fresh_executor();
  EXPECT_EQ(e(Call<size, Out<ClArray>>{}, ClArray{5}), 5);
  EXPECT_EQ((e(Call<size, Named<"a", ClArray>>{}, kw("a", ClArray{6}))), 6);
  EXPECT_EQ(e.describe(Call<size, Out<ClArray>>{}, ClArray{5}).platform, Platform::opencl);
  EXPECT_EQ((e.describe(Call<size, Named<"a", ClArray>>{}, kw("a", ClArray{6})).platform),
            Platform::opencl);
}

// ---- named arguments
// -------------------------------------------------------------------------------

struct Attention {
  static constexpr std::string_view op_id = "attention";
  struct Config {};
  using Mask = View<const float, 2>;
  std::string run(const Config&, std::span<const float> x, Named<"causal", bool, false> causal,
                  Named<"scale", Keyed<double>> scale, Named<"mask", std::optional<Mask>> mask,
                  Named<"mode", std::string> mode, Named<"window", int, 7> window) const {
    return std::to_string(x.size()) + (causal ? " causal " : " full ") +
           std::to_string(scale.value) + (mask.value ? " masked " : " open ") + mode.value + " " +
           std::to_string(window);
  }
  Config heuristic_cfg(const Invocation&) const { return {}; }
};

TEST(NamedArguments, ComeInAnyOrderAndHaveDefaults) {
  const Executor e = fresh_executor();
  const std::vector<float> x(3);
  const Tensor mask(DType::float32, {2, 2});
  EXPECT_EQ(e(Attention{}, x, kw("scale", 0.5), kw("mode", "fast")), "3 full 0.500000 open fast 7");
  EXPECT_EQ(e(Attention{}, x, kw("mode", std::string("slow")), kw("window", 9), kw("mask", mask),
              kw("causal", true), kw("scale", 2)),
            "3 causal 2.000000 masked slow 9");
  EXPECT_EQ(e(Attention{}, x, true, kw("mode", "m"), kw("scale", 1.f)),
            "3 causal 1.000000 open m 7")
      << "the first ones may be given by place";
  EXPECT_EQ(e(Attention{}, x, kw("scale", 1), kw("mode", "m"), kw("mask", std::nullopt)),
            "3 full 1.000000 open m 7");
}

TEST(NamedArguments, MistakesWithNamesAreSaid) {
  const Executor e = fresh_executor();
  const std::vector<float> x(3);
  EXPECT_THAT(refusal([&] { e(Attention{}, x, kw("mode", "m")); }),
              AllOf(StartsWith("[attention] "), HasSubstr("\"scale\" is missing")));
  EXPECT_THAT(refusal([&] { e(Attention{}, x); }), HasSubstr("is missing"));
  EXPECT_THAT(
      refusal([&] { e(Attention{}, x, kw("scale", 1), kw("mode", "m"), kw("casual", true)); }),
      AllOf(StartsWith("[attention] "), HasSubstr("\"casual\""),
            HasSubstr("causal, scale, mask, mode, window")));
  EXPECT_THAT(refusal([&] { e(Attention{}, x, kw("scale", 1), kw("mode", "m"), kw("scale", 2)); }),
              AllOf(StartsWith("[attention] argument \"scale\""), HasSubstr("twice")));
  EXPECT_THAT(refusal([&] {
                e(Attention{}, x, true, kw("scale", 1), kw("mode", "m"), kw("causal", false));
              }),
              AllOf(StartsWith("[attention] argument \"causal\""), HasSubstr("twice")));
  EXPECT_THAT(refusal([&] { e(Call<itself, int>{}, 1, kw("x", 2)); }),
              HasSubstr("known names: none"));
}

TEST(NamedArguments, ANamedArgumentOfTheWrongTypeIsNeverPassedOver) {
  const Executor e = fresh_executor();
  const std::vector<float> x(3);
  EXPECT_THAT(
      refusal([&] { e(Attention{}, x, kw("scale", 1), kw("mode", 3)); }),
      AllOf(StartsWith("[attention] argument \"mode\": given int, needed "), HasSubstr("string")));
  EXPECT_THAT(
      refusal([&] { e(Attention{}, x, kw("scale", 1), kw("mode", "m"), kw("window", 2.5)); }),
      StartsWith("[attention] argument \"window\": given double, needed int"));
  EXPECT_THAT(refusal([&] { e(Attention{}, x, kw("scale", 1), kw("mode", "m"), kw("mask", 1)); }),
              StartsWith("[attention] argument \"mask\": given int, needed "));
  EXPECT_THAT(
      refusal([&] {
        e(Attention{}, x, kw("scale", 1), kw("mode", "m"), kw("mask", Tensor(DType::int8, {2, 2})));
      }),
      StartsWith("[attention] argument \"mask\": given int8[2, 2]"));
}

// ---- prepare
// ----------------------------------------------------------------------------------------

// Takes doubles and a text, runs on floats and a number.
struct Prepared {
  static constexpr std::string_view op_id = "prepared";
  struct Config {
    float bias = 100;
  };
  static inline int prepared = 0;
  std::tuple<std::vector<float>, int> prepare(const std::vector<double>& x,
                                              const std::string& repeat) const {
    ++prepared;
    return {std::vector<float>(x.begin(), x.end()), std::stoi(repeat)};
  }
  float run(const Config& c, std::span<const float> x, int repeat) const {
    return c.bias + static_cast<float>(repeat * sum(x));
  }
  Config heuristic_cfg(const Invocation& inv) const {
    return {inv.args.at(0).dtype == DType::float32 ? 1.f : 0.f};
  }
};

TEST(Prepare, TurnsTheCallersArgumentsIntoRuns) {
  const Executor e = fresh_executor();
  const std::vector<double> x{1, 2, 3};
  Prepared::prepared = 0;
  EXPECT_EQ(e(Prepared{}, x, "2"), 13);
  EXPECT_EQ(Prepared::prepared, 1) << "once per call";
  EXPECT_EQ(e(Prepared{}, {.bias = 5}, x, "2"), 17);
  EXPECT_EQ(e.compile(Prepared{}, x, "2")(std::vector<double>{4}, "3"), 13);
  EXPECT_EQ(e.choose_config(Prepared{}, x, "2").config.bias, 1);
  EXPECT_THAT(e.describe(Prepared{}, x, "2").spec(),
              HasSubstr(R"([{"dtype":"float32","shape":[3]},2])"));
}

// ---- references and trials
// -------------------------------------------------------------------------

struct Appends {
  static constexpr std::string_view op_id = "appends";
  struct Config {
    int times = 1;
  };
  void run(const Config& c, const std::string& text, std::vector<int>& log) const {
    for (int i = 0; i < c.times; ++i) log.push_back(static_cast<int>(text.size()));
  }
  std::vector<Config> candidate_cfgs(const Invocation&) const { return {{1}, {2}}; }
};

TEST(References, AreWrittenByTheRealRunOnly) {
  const auto tuner = std::make_shared<FirstWins>();
  const Executor e = fresh_executor(tuner);
  std::vector<int> log{9};
  e(Appends{}, "abc", log);
  EXPECT_THAT(log, ElementsAre(9, 3));
  ASSERT_EQ(tuner->outputs.size(), 2u);
  ASSERT_EQ(tuner->outputs[1].size(), 1u) << "what is written is compared";
  EXPECT_EQ(tuner->outputs[1][0].bytes.size(), 3 * sizeof(int))
      << "each trial starts from the original";
  EXPECT_EQ(e.describe(Appends{}, "abc", log).args.at(1).role, Role::in_out);
}

struct Scales {
  static constexpr std::string_view op_id = "scales";
  struct Config {
    float by = 2;
  };
  using Pair = std::pair<std::span<const float>, Out<View<float, 1>>>;
  void run(const Config& c, StridedView<float, 2> x, Pair pair,
           Named<"y", std::optional<std::span<float>>> y) const {
    for (int64_t i = 0; i < x.shape[0]; ++i)
      for (int64_t j = 0; j < x.shape[1]; ++j) x(i, j) *= c.by;
    for (size_t i = 0; i < pair.first.size(); ++i) pair.second->data[i] = pair.first[i] * c.by;
    if (y.value)
      for (float& v : *y.value) v += c.by;
  }
  std::vector<Config> candidate_cfgs(const Invocation&) const { return {{2}, {3}, {2}}; }
};

TEST(References, TrialsWorkOnPrivateCopiesOfEveryArray) {
  const auto tuner = std::make_shared<FirstWins>();
  const Executor e = fresh_executor(tuner);
  const Tensor x = Tensor::of<float>({2, 2}, std::vector<float>{1, 2, 3, 4});
  const std::vector<float> in{1, 2};
  std::vector<float> out(2), y{5};
  e(Scales{}, x.transposed({1, 0}), Scales::Pair(in, View<float, 1>{out.data(), {2}}), kw("y", y));
  EXPECT_THAT((std::vector<float>(x.data<float>(), x.data<float>() + 4)), ElementsAre(2, 4, 6, 8));
  EXPECT_THAT(out, ElementsAre(2, 4));
  EXPECT_THAT(y, ElementsAre(7));
  ASSERT_EQ(tuner->outputs.size(), 3u);
  ASSERT_EQ(tuner->outputs[0].size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(tuner->outputs[0][i].bytes, tuner->outputs[2][i].bytes)
        << "restored before each trial";
    EXPECT_NE(tuner->outputs[0][i].bytes, tuner->outputs[1][i].bytes);
  }
}

}  // namespace
}  // namespace ejk
