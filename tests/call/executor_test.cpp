// SPDX-License-Identifier: Apache-2.0
// The executor: running, compiling, gradients, labels, the call hook.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>

#include "fakes.h"

namespace {

using ejk::Origin;
using fakes::Show;
using testing::ElementsAre;
using testing::HasSubstr;

class ExecutorTest : public testing::Test {
 protected:
  fakes::Setup setup;
  ejk::Executor executor{setup.options()};
  std::vector<float> x{1, 2, 3}, y{4, 5, 6};
};

// ---- running
// --------------------------------------------------------------------------------------

struct InPlace {  // y += x, to see what tuning does to the caller's data
  static constexpr std::string_view op_id = "in_place";
  struct Config {
    int block = 1;
  };
  void run(const Config&, std::span<const float> a, std::span<float> b) const {
    for (size_t i = 0; i < a.size(); ++i) b[i] += a[i];
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {1}; }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const { return {{1}, {2}, {4}}; }
};

TEST_F(ExecutorTest, TuningNeverTouchesTheCallersData) {
  const ejk::Executor real{ejk::SelectorOptions{.policy = ejk::AutotunePolicy{}}};
  real(InPlace{}, x, y);
  EXPECT_THAT(y, ElementsAre(5, 7, 9));
}

struct WrongSometimes {
  static constexpr std::string_view op_id = "wrong_sometimes";
  struct Config {
    bool right = true;
  };
  float run(const Config& c, std::span<const float> a) const {
    float sum = 0;
    if (!c.right) return a[0];  // faster and wrong
    for (int i = 0; i < 2000; ++i)
      for (float v : a) sum += v;
    return sum;
  }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const { return {{false}, {true}}; }
  float reference(std::span<const float> a) const { return run({true}, a); }
};

TEST_F(ExecutorTest, AWrongCandidateNeverWins) {
  const ejk::Executor real{ejk::SelectorOptions{.policy = ejk::AutotunePolicy{}}};
  const auto tuned = real.tune(WrongSometimes{}, x);
  EXPECT_TRUE(tuned.config.right);
  EXPECT_EQ(tuned.entry.candidates.at(0).status, "rejected");
}

TEST_F(ExecutorTest, ACallReturnsWhatRunReturns) {
  EXPECT_FLOAT_EQ(executor(WrongSometimes{}, {.right = false}, x), 1);
}

// ---- compile
// --------------------------------------------------------------------------------------

struct Prepared {
  static constexpr std::string_view op_id = "prepared";
  struct Config {
    int scale = 1;
  };
  auto prepare(const std::vector<float>& v, const std::string& mode) const {
    std::vector<float> doubled = v;
    for (float& f : doubled) f *= 2;
    return std::tuple(std::move(doubled), mode == "negate");
  }
  float run(const Config&, std::span<const float>, bool) const { return -1; }
  float run_cpu(const Config& c, std::span<const float> v, bool negate) const {
    return (negate ? -v[0] : v[0]) * static_cast<float>(c.scale);
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {10}; }
};

TEST_F(ExecutorTest, CompileGoesThroughPrepareAndThePlatformMethod) {
  EXPECT_EQ(executor(Prepared{}, x, "negate"), -20);
  const auto compiled = executor.compile(Prepared{}, x, "negate");
  EXPECT_EQ(compiled(x, "negate"), -20);
  EXPECT_EQ(compiled(std::vector<float>{5}, "plain"), 100);
  EXPECT_EQ(compiled.config().scale, 10);
  const auto fixed = executor.compile(Prepared{}, {.scale = 3}, x, "negate");
  EXPECT_EQ(fixed(x, "plain"), 6);
  EXPECT_EQ(fixed.origin(), Origin::override_);
}

// ---- gradients
// ------------------------------------------------------------------------------------

struct Product {  // x * y, elementwise
  static constexpr std::string_view op_id = "product";
  struct Config {
    int block = 1;
  };
  using In = std::span<const float>;
  using Vec = std::vector<float>;
  Vec run(const Config&, In a, In b) const {
    Vec out(a.size());
    for (size_t i = 0; i < a.size(); ++i) out[i] = a[i] * b[i];
    return out;
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }
};
struct WithArguments : Product {  // vjp(residuals, dy, args...)
  auto fwd_with_residuals(const Config& c, In a, In b) const {
    return std::pair(run(c, a, b), 2.f);
  }
  auto vjp(const Config& c, float factor, const Vec& dy, In a, In b) const {
    Vec ga = run(c, dy, b), gb = run(c, dy, a);
    for (float& g : ga) g *= factor;
    return std::tuple(ga, gb);
  }
};
struct WithOutput : Product {  // vjp(residuals, y, dy, args...)
  auto fwd_with_residuals(const Config& c, In a, In b) const {
    return std::pair(run(c, a, b), std::string("r"));
  }
  auto vjp(const Config&, const std::string&, const Vec& out, const Vec& dy, In a, In) const {
    return std::tuple(out[0], dy[0], a[0]);
  }
};
struct Short : Product {  // vjp(residuals, dy)
  auto fwd_with_residuals(const Config& c, In a, In b) const {
    return std::pair(run(c, a, b), std::pair(Vec(a.begin(), a.end()), Vec(b.begin(), b.end())));
  }
  auto vjp(const Config& c, const std::pair<Vec, Vec>& r, const Vec& dy) const {
    return std::tuple(run(c, dy, r.second), run(c, dy, r.first));
  }
};
struct OneFunction : Product {
  auto custom_vjp(const Config& c, const std::tuple<In, In>& primals, const Vec& dy) const {
    return std::tuple(run(c, dy, std::get<1>(primals)), run(c, dy, std::get<0>(primals)));
  }
};

TEST_F(ExecutorTest, ThePullBackGivesTheGradientsInEveryForm) {
  const std::vector<float> dy{1, 10, 100};
  {
    auto [out, pull] = executor.vjp(WithArguments{}, x, y);
    EXPECT_THAT(out, ElementsAre(4, 10, 18));
    auto [ga, gb] = pull(dy);
    EXPECT_THAT(ga, ElementsAre(8, 100, 1200));
    EXPECT_THAT(gb, ElementsAre(1, 20, 300));
  }
  {
    auto [out, pull] = executor.vjp(WithOutput{}, x, y);
    EXPECT_EQ(pull(dy), std::tuple(4.f, 1.f, 1.f));
  }
  {
    auto [out, pull] = executor.vjp(Short{}, x, y);
    EXPECT_THAT(std::get<0>(pull(dy)), ElementsAre(4, 50, 600));
  }
  {
    auto [out, pull] = executor.vjp(OneFunction{}, x, y);
    EXPECT_THAT(out, ElementsAre(4, 10, 18));
    EXPECT_THAT(std::get<0>(pull(dy)), ElementsAre(4, 50, 600));
    EXPECT_THAT(std::get<1>(pull(dy)), ElementsAre(1, 20, 300));
  }
}

struct ScaledSquare {  // with a scalar argument
  static constexpr std::string_view op_id = "scaled_square";
  struct Config {};
  double run(const Config&, double v, double scale) const { return scale * v * v; }
  auto fwd_with_residuals(const Config& c, double v, double scale) const {
    return std::pair(run(c, v, scale), v);
  }
  auto vjp(const Config&, double residual, double dy, double, double scale) const {
    return std::tuple(2 * scale * residual * dy, residual * residual * dy);
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }
};

TEST_F(ExecutorTest, GradientsWorkWithScalarArgumentsAndMatchFiniteDifferences) {
  auto [out, pull] = executor.vjp(ScaledSquare{}, 3.0, 0.5);
  auto [dv, dscale] = pull(1.0);
  const double h = 1e-6;
  const auto f = [&](double v, double s) { return executor(ScaledSquare{}, v, s); };
  EXPECT_NEAR(dv, (f(3 + h, 0.5) - f(3 - h, 0.5)) / (2 * h), 1e-6);
  EXPECT_NEAR(dscale, (f(3, 0.5 + h) - f(3, 0.5 - h)) / (2 * h), 1e-6);
}

struct CountsBackward : WithArguments {
  static constexpr std::string_view op_id = "counts_backward";
  static inline int backward_runs = 0;
  auto vjp(const Config& c, float factor, const Vec& dy, In a, In b) const {
    ++backward_runs;
    return WithArguments::vjp(c, factor, dy, a, b);
  }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const { return {{1}, {2}}; }
};

TEST_F(ExecutorTest, ValidateBackwardMeasuresTheKernelsOwnGradient) {
  const ejk::Executor real{ejk::SelectorOptions{.policy = ejk::AutotunePolicy{}}};
  real(CountsBackward{}, x, y);
  EXPECT_EQ(CountsBackward::backward_runs, 0);
  const auto scope = ejk::policy_override({.validate_backward = true});
  real(CountsBackward{}, x, y);
  EXPECT_GT(CountsBackward::backward_runs, 2);
}

// ---- labels and the hook
// ----------------------------------------------------------------------------

TEST_F(ExecutorTest, ALabelNamesPrefixOpAndKey) {
  const auto inv = executor.describe(Show{}, x, y);
  EXPECT_EQ(executor.label(Show{}, x, y), "ejkernel_ops#show@v3:" + inv.call_key());
  const ejk::Executor own(std::make_shared<ejk::ConfigSelectorChain>(setup.options()),
                          {.stamp_prefix = "mine"});
  EXPECT_EQ(own.label(Show{}, x, y), "mine#show@v3:" + inv.call_key());
}

TEST_F(ExecutorTest, TheHookSeesEveryCall) {
  struct Hook : ejk::CallHook {
    std::vector<std::string> seen;
    void on_call(const ejk::Invocation& inv, const ejk::Choice& choice,
                 const std::string& label) override {
      EXPECT_EQ(inv.op(), "show@v3");
      seen.push_back(std::string(ejk::origin_name(choice.origin)) + " " + label.substr(0, 20));
    }
  };
  auto hook = std::make_shared<Hook>();
  const ejk::Executor own(std::make_shared<ejk::ConfigSelectorChain>(setup.options()),
                          {.hook = hook});
  own(Show{}, x, y);
  own(Show{}, x, y);
  own(Show{}, {.block = 5}, x, y);
  EXPECT_THAT(hook->seen,
              ElementsAre("autotune ejkernel_ops#show@v3", "memory ejkernel_ops#show@v3",
                          "override ejkernel_ops#show@v3"));
}

TEST_F(ExecutorTest, AnExecutorWithoutChooserIsRefused) {
  EXPECT_THROW(ejk::Executor(std::shared_ptr<ejk::ConfigChooser>()), ejk::Error);
}

TEST_F(ExecutorTest, ATunerMeasuresPlainFunctionsToo) {
  ejk::Tuner tuner(1, 5);
  auto spin = [](int n) {
    volatile double sum = 0;
    for (int i = 0; i < n; ++i) sum = sum + std::sqrt(static_cast<double>(i));
  };
  const int best =
      tuner.autotune([&](int factor) { return [&spin, factor](int n) { spin(factor * n); }; },
                     std::vector<int>{8, 1, 4}, 2000);
  EXPECT_EQ(best, 1);
  EXPECT_GT(tuner.measure(spin, 1000), 0);
}

// ---- what prepare makes, and what run writes through references
// -------------------------------------

struct Doubling {
  static constexpr std::string_view op_id = "doubling";
  struct Config {
    int block = 1;
  };
  using Parameters = std::tuple<std::span<const float>>;
  float run(const Config&, std::span<const float> v) const { return v[0]; }
  std::tuple<std::vector<float>> prepare(std::vector<float> v) const {
    for (float& f : v) f *= 2;
    return {std::move(v)};
  }
  std::tuple<std::vector<float>> custom_vjp(const Config&, const Parameters& p, float dy) const {
    std::vector<float> gradient;
    for (float f : std::get<0>(p)) gradient.push_back(f * dy);
    return {gradient};
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }
};

TEST_F(ExecutorTest, APullBackKeepsWhatPrepareMade) {
  auto [out, pull] = executor.vjp(Doubling{}, x);
  EXPECT_EQ(out, 2);
  const std::vector<float> in_its_place(3, 77.f);
  EXPECT_THAT(std::get<0>(pull(10.f)), ElementsAre(20, 40, 60));
}

// Looks at the trial only: what run may write must be there, and be put back.
class LookingTuner : public ejk::Tuner {
 public:
  ejk::TuneResult tune(const ejk::TuneTask& task) override {
    for (auto* seen : {&first, &second}) {
      task.trial->reset();
      before = task.trial->outputs();
      task.trial->run(task.candidates->config(0));
      *seen = task.trial->outputs();
    }
    ejk::TuneResult result;
    result.outcome = ejk::Outcome::tuned;
    result.winner = 0;
    return result;
  }
  std::vector<ejk::OutputBytes> before, first, second;
};

template <class T>
struct Adding {
  static constexpr std::string_view op_id = "adding";
  struct Config {
    int block = 1;
  };
  void run(const Config&, T& v) const {
    if constexpr (std::is_arithmetic_v<T>) v += 1;
    else if constexpr (requires { v->size(); }) v->push_back(1);
    else v.push_back({1});
  }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const { return {{1}, {2}}; }
};

template <class T>
void expect_compared_and_restored(T value, size_t arrays) {
  fakes::Setup setup;
  auto options = setup.options();
  const auto tuner = std::make_shared<LookingTuner>();
  options.tuner = tuner;
  const ejk::Executor executor(options);
  executor(Adding<T>{}, value);
  ASSERT_EQ(tuner->first.size(), arrays);
  ASSERT_EQ(tuner->second.size(), arrays);
  for (size_t i = 0; i < arrays; ++i) EXPECT_EQ(tuner->first[i].bytes, tuner->second[i].bytes);
}

TEST_F(ExecutorTest, TrialsCompareAndRestoreValuesThatRunWrites) {
  expect_compared_and_restored(2.5, 1);
  expect_compared_and_restored(std::vector<std::vector<float>>{{1}, {2}}, 3);
  expect_compared_and_restored(std::optional<std::vector<float>>({1, 2}), 1);
}

struct Fills {
  static constexpr std::string_view op_id = "fills";
  struct Config {
    int block = 1;
  };
  void run(const Config&, ejk::Out<ejk::Tensor>) const {}
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const { return {{1}, {2}}; }
};

TEST_F(ExecutorTest, AnOutputTensorIsPoisonedInTrials) {
  auto options = setup.options();
  const auto tuner = std::make_shared<LookingTuner>();
  options.tuner = tuner;
  const ejk::Executor looking(options);
  looking(Fills{}, ejk::Tensor::of<float>({1}));
  float left = 0;
  std::memcpy(&left, tuner->before.at(0).bytes.data(), sizeof left);
  EXPECT_TRUE(std::isnan(left));
}

struct SameWords {
  const std::vector<uint64_t>& words;
  bool equal(const ejk::detail::WarmEntry& entry) const {
    return std::equal(words.begin(), words.end(), entry.words, entry.words + entry.count);
  }
};

TEST_F(ExecutorTest, CallsThatAlwaysAskTheSelectorDoNotFillTheWarmTable) {
  const auto warm = [&] {
    const auto words = executor.describe(Doubling{}, x).words;
    const uint64_t hash = ejk::detail::hash_words(words.data(), words.size());
    executor.chain().warm().enlist();
    const auto found =
        executor.chain().warm().find(hash, SameWords{words}, executor.chain().generation());
    if (found.entry != nullptr) const ejk::detail::WarmUse let_go(found);
    return found.entry;
  };
  executor.vjp(Doubling{}, x);
  const auto* once = warm();
  ASSERT_NE(once, nullptr);
  executor.vjp(Doubling{}, x);
  EXPECT_EQ(warm(), once);
  EXPECT_EQ(executor.chain().warm().entries(), 1u);
}

struct Twice {  // returns nothing, so its cotangent is of no known type
  static constexpr std::string_view op_id = "twice";
  struct Config {
    int block = 1;
  };
  void run(const Config&, std::span<const float> v, ejk::Out<std::span<float>> w) const {
    for (size_t i = 0; i < v.size(); ++i) (*w)[i] = 2 * v[i];
  }
  int fwd_with_residuals(const Config& c, std::span<const float> v,
                         ejk::Out<std::span<float>> w) const {
    run(c, v, w);
    return 2;
  }
  std::tuple<std::vector<float>> vjp(const Config&, int factor, std::span<const float> dy) const {
    std::vector<float> gradient;
    for (float d : dy) gradient.push_back(static_cast<float>(factor) * d);
    return {gradient};
  }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const { return {{1}, {2}}; }
};

TEST_F(ExecutorTest, AKernelThatReturnsNothingMayHaveAGradient) {
  const auto scope = ejk::policy_override({.validate_backward = true});
  executor(Twice{}, x, y);
  EXPECT_THAT(y, ElementsAre(2, 4, 6));
  auto [none, pull] = executor.vjp(Twice{}, x, y);
  EXPECT_THAT(std::get<0>(pull(x)), ElementsAre(2, 4, 6));
}

struct SeesStrides {
  static constexpr std::string_view op_id = "sees_strides";
  struct Config {
    int block = 1;
  };
  static inline std::set<std::vector<int64_t>> seen;
  float run(const Config&, const ejk::Tensor& t) const {
    seen.insert(t.strides());
    return t.strided<float, 2>()(1, 2);
  }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const { return {{1}, {2}}; }
};

TEST_F(ExecutorTest, AStridedTensorIsTriedWithItsStrides) {
  auto options = setup.options();
  options.tuner = nullptr;
  const ejk::Executor real(options);
  ejk::Tensor t = ejk::Tensor::of<float>({8, 4}).sliced(0, 0, 8, 2).transposed({1, 0});
  t.strided<float, 2>()(1, 2) = 5;
  EXPECT_EQ(real(SeesStrides{}, t), 5);
  EXPECT_THAT(SeesStrides::seen, ElementsAre(t.strides()));
}

}  // namespace
