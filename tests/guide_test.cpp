// SPDX-License-Identifier: Apache-2.0
// The code that the pages of docs/ show; tests/docs_test.py checks that the two are the same.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <ejk/ejk.h>

namespace first_kernel {
#include "../examples/01_first_kernel.cpp"
}  // namespace first_kernel

namespace {

// ---- the first example --------------------------------------------------------------------------

TEST(Guide, TheFirstKernelRefusesBlocksThatWouldRunForEver) {
  const ejk::Executor executor{ejk::SelectorOptions{}};
  std::vector<float> x(8), y(8);
  const first_kernel::Saxpy saxpy;
  const auto inv = executor.describe(saxpy, 2.f, x, y);
  EXPECT_TRUE(saxpy.is_valid(saxpy.heuristic_cfg(inv), inv));
  for (const int block : {0, -1, -1024}) {
    executor.chain().cache().put(inv.device->fingerprint, inv.op(), inv.call_key(),
                                 first_kernel::Saxpy::Config{block});
    EXPECT_GT(executor.choose_config(saxpy, 2.f, x, y).config.block, 0);
  }
}

// ---- arguments ----------------------------------------------------------------------------------

struct Scale {
  static constexpr std::string_view op_id = "guide_scale", version = "1";
  struct Config {
    int block = 256;
  };
  void run(const Config&, std::span<float> x,     // element type and shape count
           int repeat,                            // the value counts
           float factor,                          // only that it is a float
           ejk::Keyed<float> limit,               // the value counts
           ejk::Unkeyed<int> seed,                // does not count at all
           ejk::Named<"clip", bool, false> clip)  // ejk::kw("clip", true); false if left out
      const {
    for (int i = 0; i < repeat; ++i)
      for (float& v : x)
        v = clip && v * factor > limit ? limit.value : v * factor + 0.f * float(seed);
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }
};

ejk::Executor without_disk() { return ejk::Executor(ejk::SelectorOptions{}); }

TEST(Guide, ArgumentsCountAsTheirTypesSay) {
  const ejk::Executor executor = without_disk();
  std::vector<float> x(4, 1.f);
  auto key = [&](auto&&... arguments) {
    return executor.describe(Scale{}, x, arguments...).call_key();
  };
  EXPECT_EQ(key(1, 2.f, 3.f, 4), key(1, 2.5f, 3.f, 5));
  EXPECT_NE(key(1, 2.f, 3.f, 4), key(2, 2.f, 3.f, 4));
  EXPECT_NE(key(1, 2.f, 3.f, 4), key(1, 2.f, 3.5f, 4));
  EXPECT_NE(key(1, 2.f, 3.f, 4), key(1, 2.f, 3.f, 4, ejk::kw("clip", true)));

  executor(Scale{}, x, 2, 10.f, 50.f, 1, ejk::kw("clip", true));
  EXPECT_EQ(x, std::vector<float>(4, 50.f));
}

struct Options {
  int rows = 0;
  std::string comment;
};
void ejk_key(ejk::KeySink& key, const Options& options) { key("rows", options.rows); }

struct MyImage {
  mutable std::vector<float> pixels = std::vector<float>(12);
  std::array<int64_t, 2> shape{3, 4};
};
ejk::AnyView ejk_view(const MyImage& image) {
  return {.data = image.pixels.data(),
          .dtype = ejk::DType::float32,
          .shape = image.shape,
          .strides = {}};
}

struct Fill {
  static constexpr std::string_view op_id = "guide_fill", version = "1";
  struct Config {};
  void run(const Config&, const Options& options, ejk::Out<ejk::View<float, 2>> out) const {
    for (float& v : out->span()) v = static_cast<float>(options.rows);
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }
};

TEST(Guide, TypesOfOnesOwnBecomeArguments) {
  const ejk::Executor executor = without_disk();
  const MyImage image;
  executor(Fill{}, Options{3, "a"}, image);
  EXPECT_EQ(image.pixels, std::vector<float>(12, 3.f));
  EXPECT_EQ(executor.describe(Fill{}, Options{3, "a"}, image).call_key(),
            executor.describe(Fill{}, Options{3, "b"}, image).call_key());
}

// ---- hooks --------------------------------------------------------------------------------------

struct Sum {
  static constexpr std::string_view op_id = "guide_sum", version = "1";
  struct Config {
    int unroll = 4;
  };

  double run(const Config&, std::span<const double> x) const {
    double sum = 0;
    for (double v : x) sum += v;
    return sum;
  }

  // Callers may pass a pair of pointers; run gets a span.
  std::tuple<std::span<const double>> prepare(const double* begin, const double* end) const {
    return {std::span<const double>(begin, end)};
  }
  // Lengths are rounded up to a power of two: nearby lengths share one choice.
  std::tuple<size_t> key(std::span<const double> x) const { return {std::bit_ceil(x.size())}; }
  // Asked again for every exact length, as a shared choice may not fit each of them.
  bool is_valid(const Config& config, const ejk::Invocation& inv) const {
    return config.unroll > 0 && inv.args[0].shape[0] % config.unroll == 0;
  }
  Config heuristic_cfg(const ejk::Invocation& inv) const {
    return {.unroll = inv.args[0].shape[0] % 4 == 0 ? 4 : 1};
  }
  // In a batch the other cores have work of their own.
  Config heuristic_cfg_batch(const ejk::Invocation&) const { return {.unroll = 1}; }
};

TEST(Guide, PrepareTurnsArgumentsIntoThoseOfRun) {
  const std::vector<double> x(12, 1.);
  EXPECT_EQ(without_disk()(Sum{}, x.data(), x.data() + x.size()), 12.);
}

TEST(Guide, KeysMayBeRounded) {
  const ejk::Executor executor = without_disk();
  const std::vector<double> x(16, 1.);
  auto key = [&](size_t size) {
    return executor.describe(Sum{}, x.data(), x.data() + size).call_key();
  };
  EXPECT_EQ(key(12), key(16));
  EXPECT_NE(key(8), key(16));
  EXPECT_EQ(executor.choose_config(Sum{}, x.data(), x.data() + 16).config.unroll, 4);
  EXPECT_EQ(executor.choose_config(Sum{}, x.data(), x.data() + 15).config.unroll, 1);
}

TEST(Guide, ContextsHaveHooksOfTheirOwn) {
  std::string config;
  ejk::SelectorOptions options;
  options.on_event = [&](const ejk::Event& event) { config = ejk::stable_json(event.config); };
  const ejk::Executor executor(options);
  const auto x = ejk::Tensor::of<double>({3, 8});
  EXPECT_EQ(ejk::vmap_with_config(executor, Sum{}, 0)(x), std::vector<double>(3));
  EXPECT_EQ(config, R"({"unroll":1})");
}

// ---- configs ------------------------------------------------------------------------------------

struct Tile {
  int rows = 8, columns = 8;
};
struct RichConfig {
  enum class Algorithm { direct, blocked };
  Algorithm algorithm = Algorithm::direct;
  Tile tile;
  std::optional<int> threads;
  std::vector<int> splits = {1, 2};
};
enum class Code { ok = 200, gone = 410 };
constexpr auto ejk_enumerators(Code) { return std::array{Code::ok, Code::gone}; }
struct WithBase : Tile {
  int depth = 2;
  EJK_CONFIG(WithBase, rows, columns, depth);
};

TEST(Guide, ConfigsBecomeJson) {
  EXPECT_EQ(
      ejk::to_json(RichConfig{}),
      R"({"algorithm":"direct","splits":[1,2],"threads":null,"tile":{"columns":8,"rows":8}})");
  EXPECT_EQ(ejk::to_json(WithBase{}), R"({"columns":8,"depth":2,"rows":8})");
  const auto config = ejk::from_json<RichConfig>(R"({"algorithm":"blocked"})");
  EXPECT_EQ(config.algorithm, RichConfig::Algorithm::blocked);
  EXPECT_EQ(config.tile.rows, 8);  // not named in the text: the default
  EXPECT_EQ(ejk::from_json<Code>("410"), Code::gone);
  EXPECT_THROW(ejk::from_json<Code>("411"), ejk::Error);
}

TEST(Guide, SpacesAreTreesOfValidPoints) {
  using Algorithm = RichConfig::Algorithm;
  const auto tiles =
      ejk::space<RichConfig>()
          .param(&RichConfig::algorithm, {Algorithm::direct, Algorithm::blocked})
          .param(&RichConfig::tile, &Tile::rows, {4, 8, 16})
          .param(&RichConfig::tile, &Tile::columns,
                 [](const RichConfig& so_far) {
                   return std::vector<int>{so_far.tile.rows, 4 * so_far.tile.rows};
                 })
          .where([](const RichConfig& c) { return c.tile.rows * c.tile.columns <= 256; })
          .param(&RichConfig::threads, {std::nullopt, 2});

  EXPECT_EQ(tiles.size(), 20u);
  const RichConfig first = tiles[0];      // the last parameter varies fastest
  const auto some = tiles.sample(5, 42);  // numbers of points, without repetition
  const auto near = tiles.neighbours(0);  // the points that differ from this one in one parameter
  EXPECT_EQ(tiles.index_of(tiles[some[0]]), some[0]);

  EXPECT_EQ(first.tile.columns, 4);
  EXPECT_EQ(some.size(), 5u);
  EXPECT_EQ(near, (std::vector<uint64_t>{1, 2, 10}));
}

// ---- choosing -----------------------------------------------------------------------------------

// Always the largest candidate.
class Greedy final : public ejk::ConfigChooser {
 public:
  ejk::Choice choose(const ejk::Invocation& inv, const ejk::AnyKernel& kernel) override {
    const auto candidates = kernel.candidate_cfgs(inv);
    if (!candidates || candidates->size() == 0)
      throw ejk::Error(ejk::ErrorKind::no_configuration, "[" + inv.op() + "] has no candidates");
    return {candidates->config(candidates->size() - 1), ejk::Origin::override_};
  }
};

struct Copy {
  static constexpr std::string_view op_id = "guide_copy", version = "1";
  struct Config {
    int block = 16;
  };
  void run(const Config&, std::span<const int> from, ejk::Out<std::span<int>> to) const {
    std::copy(from.begin(), from.end(), to->begin());
  }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const { return {{16}, {64}}; }
};

TEST(Guide, AChooserOfOnesOwnDecides) {
  const ejk::Executor executor(std::make_shared<Greedy>());
  const std::vector<int> from(8, 1);
  std::vector<int> to(8);
  EXPECT_EQ(executor.choose_config(Copy{}, from, to).config.block, 64);
}

TEST(Guide, ScopesCanBeTakenToAnotherThread) {
  const ejk::Executor executor = without_disk();
  const auto scope = ejk::policy_override({.allow_autotune = false});
  const ejk::ScopeSnapshot scopes = ejk::current_scopes();
  std::jthread([&] {
    EXPECT_TRUE(executor.chain().policy().allow_autotune);
    scopes.run([&] { EXPECT_FALSE(executor.chain().policy().allow_autotune); });
  });
}

TEST(Guide, ACallMayBeTunedLater) {
  const ejk::Executor executor{ejk::SelectorOptions{.policy = ejk::AutotunePolicy{}}};
  std::vector<float> x(8), y(8);
  {
    const auto later = ejk::policy_override({.cache_miss_fallback = ejk::Fallback::background});
    const auto chosen = executor.choose_config(first_kernel::Saxpy{}, 2.f, x, y);
    EXPECT_EQ(chosen.origin, ejk::Origin::heuristics);
  }
  const size_t waiting = executor.chain().idle(60);  // tunes here, for a minute at most
  EXPECT_EQ(waiting, 0U);
}

TEST(Guide, ChoicesCanBeWatched) {
  ejk::SelectorOptions options;
  options.policy = ejk::AutotunePolicy{.drift_watch = true};
  EXPECT_TRUE(ejk::ConfigSelectorChain(options).policy().drift_watch);
}

struct LaneSum {
  static constexpr std::string_view op_id = "guide_lane_sum", version = "1";
  struct Config {
    int lanes = 4;   // sums that are made side by side: their number changes the result
    int unroll = 1;  // how often the loop is written down: does not
  };
  int numerics(const Config& config) const { return config.lanes; }
  float run(const Config& config, std::span<const float> x) const {
    std::vector<float> sums(static_cast<size_t>(config.lanes));
    for (size_t i = 0; i < x.size(); ++i) sums[i % sums.size()] += x[i];
    return std::accumulate(sums.begin(), sums.end(), 0.f);
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {.lanes = 8}; }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const {
    return {{4, 1}, {4, 2}, {8, 1}, {8, 2}};
  }
};

TEST(Guide, ResultsMayStayTheSame) {
  const std::vector<float> x(100, 0.1f);
  ejk::SelectorOptions options;
  options.policy = ejk::AutotunePolicy{.numerics = ejk::Numerics::same};
  EXPECT_EQ(ejk::Executor(options).choose_config(LaneSum{}, x).config.lanes, 8);
  options.reference_cfgs["guide_lane_sum@v1"] = ejk::make_config(LaneSum::Config{.lanes = 4});
  EXPECT_EQ(ejk::Executor(options).choose_config(LaneSum{}, x).config.lanes, 4);
  {
    const auto exact = ejk::policy_override({.numerics = ejk::Numerics::same});  // this thread only
    EXPECT_EQ(without_disk().choose_config(LaneSum{}, x).config.lanes, 8);
  }
}

TEST(Guide, NoConfigurationNamesEveryTier) {
  const ejk::Executor executor = without_disk();
  const auto frozen = ejk::policy_override({.allow_autotune = false, .allow_heuristics = false});
  std::vector<float> x(4);
  try {
    executor(Scale{}, x, 1, 1.f, 1.f, 1);
    FAIL();
  } catch (const ejk::Error& error) {
    EXPECT_EQ(error.kind(), ejk::ErrorKind::no_configuration);
    for (std::string_view tier : {"overlay", "memory", "persistent", "autotune", "heuristics"})
      EXPECT_NE(std::string_view(error.what()).find(tier), std::string_view::npos) << tier;
  }
}

TEST(Guide, StoresCanBeLayered) {
  std::string mine = ::testing::TempDir() + "guide_XXXXXX";
  ASSERT_NE(mkdtemp(mine.data()), nullptr);
  const std::string shared = mine + "/shared";
  auto user = std::make_shared<ejk::DirectoryStore>(mine);
  ejk::DirectoryStore::Options read_only;
  read_only.read_only = true;
  auto site = std::make_shared<ejk::DirectoryStore>(shared, read_only);
  ejk::SelectorOptions options;
  options.persistent =
      std::make_shared<ejk::PersistentCache>(std::vector<std::shared_ptr<ejk::Store>>{user, site});
  const ejk::Executor executor(options);
  const std::vector<int> from(8, 1);
  std::vector<int> to(8);
  executor(Copy{}, from, to);
  int entries = 0;
  user->for_each("", [&](const ejk::Entry&) { return ++entries, true; });
  EXPECT_EQ(entries, 1);
  std::filesystem::remove_all(mine);
}

// ---- recording and tuning offline ---------------------------------------------------------------

struct Triple {
  static constexpr std::string_view op_id = "guide_triple", version = "1";
  struct Config {
    int block = 64;
  };
  void run(const Config& c, std::span<const float> x, ejk::Out<std::span<float>> y) const {
    const auto block = static_cast<size_t>(c.block);
    for (size_t i = 0; i < x.size(); i += block)
      for (size_t j = i; j < std::min(i + block, x.size()); ++j) (*y)[j] = 3 * x[j];
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const { return {{16}, {64}}; }
};
EJK_REGISTER(Triple);

TEST(Guide, CallsAreRecordedAndTunedLater) {
  std::string place = ::testing::TempDir() + "guide_XXXXXX";
  ASSERT_NE(mkdtemp(place.data()), nullptr);
  const std::string folder = place + "/recorded";
  const std::vector<float> x(1000, 1.f);
  std::vector<float> y(1000);
  std::string text = "HloModule step\n";
  {
    ejk::SelectorOptions options;
    options.policy = ejk::AutotunePolicy{.allow_autotune = false};
    options.recording = std::make_shared<ejk::Recording>(folder);
    const ejk::Executor program(options);
    for (int i = 0; i < 100; ++i) program(Triple{}, x, y);
    text += "frontend_attributes={ejkernel_label=\"" + program.label(Triple{}, x, y) + "\"}";
  }

  for (const auto& [device, ops] : ejk::read_recorded(folder))
    for (const auto& [op, calls] : ops)
      for (const auto& [key, call] : calls)
        std::cout << op << ' ' << key << ": " << call.calls << " x, " << call.seconds() << " s\n";

  ejk::SelectorOptions options;
  options.persistent = std::make_shared<ejk::PersistentCache>(place + "/store");
  ejk::ConfigSelectorChain selector(options);
  const auto result = ejk::autotune_recorded(selector, {.folder = folder, .budget_seconds = 60});
  std::cout << result.text();
  ASSERT_EQ(result.entries.size(), 1u);
  EXPECT_EQ(result.entries[0].evidence.data, "recorded sketch");

  for (const ejk::Label& label : ejk::find_labels(text).labels)
    std::cout << label.op << ' ' << label.key << " on " << label.count << " instructions\n";
  const auto of_module = ejk::autotune_lowered(selector, text, {.folder = folder});
  const auto scope = of_module.apply();
  EXPECT_EQ(of_module.already, 1u);
  std::filesystem::remove_all(place);
}

// ---- gradients ----------------------------------------------------------------------------------

struct Square {
  static constexpr std::string_view op_id = "guide_square", version = "1";
  struct Config {};
  float run(const Config&, float x) const { return x * x; }
  std::tuple<float> custom_vjp(const Config&, const std::tuple<float>& arguments, float dy) const {
    return {2 * std::get<0>(arguments) * dy};
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }
};

TEST(Guide, CustomVjpIsTheShortForm) {
  const ejk::Executor executor = without_disk();
  const auto [y, pull] = executor.vjp(Square{}, 3.f);
  EXPECT_EQ(y, 9.f);
  EXPECT_EQ(std::get<0>(pull(1.f)), 6.f);
}

TEST(Guide, TuningByHand) {
  const ejk::Executor executor(ejk::SelectorOptions{});
  const std::vector<int> from(1000, 1);
  std::vector<int> to(1000);

  const auto best = ejk::autotune(Copy{}, {.num_warmup = 3, .num_iters = 10}, from, to);
  const double milliseconds = ejk::benchmark([&] { executor(Copy{}, best, from, to); });
  EXPECT_GT(milliseconds, 0);

  ejk::Autotuner tuner(executor);
  const auto data = tuner.autotune(Copy{}, from, to);  // kept as executor.tune keeps it
  const auto scope = tuner.result().apply();  // comes before memory and disk, as an overlay
  EXPECT_EQ(executor.choose_config(Copy{}, from, to).origin, ejk::Origin::overlay);
  EXPECT_EQ(data.measurements().size(), data.entry.candidates.size());
}

}  // namespace
