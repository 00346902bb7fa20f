// SPDX-License-Identifier: Apache-2.0
// Whole calls whose candidates crash, hang, run wild or are wrong: what the caller and the disk
// see.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ejk/ejk.h>

#include "fakes.h"
#include "faults/tuning_fixture.h"
#include "store_fixture.h"

namespace ejk {
namespace {

using namespace ejk::testing;

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// ---- what candidates do ------------------------------------------------------------------------

void segfault() {
  void* page = ::mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  *static_cast<volatile char*>(page) = 1;
}

void spin_for_ever() {
  volatile unsigned x = 0;
  for (;;) x = x + 1;
}

const std::map<std::string, void (*)()> acts{
    {"segfault", segfault},
    {"abort", [] { std::abort(); }},
    {"exit", [] { std::exit(3); }},
    {"_exit", [] { ::_exit(0); }},
    {"throw", [] { throw std::runtime_error("no such block"); }},
    {"throw a number", [] { throw 7; }},
    {"loop", spin_for_ever},
    {"allocate", allocate_without_end},
};

// What each is rejected as. "past", "before", "wrong" and "idle" are the kernel's own.
std::map<std::string, std::string> bad_ones() {
  std::map<std::string, std::string> kinds{
      {"segfault", "crashed"}, {"abort", "crashed"},      {"exit", "exited"},
      {"_exit", "exited"},     {"throw", "threw"},        {"throw a number", "threw"},
      {"loop", "timed_out"},   {"past", "out_of_bounds"}, {"before", "out_of_bounds"},
      {"wrong", "wrong"},      {"idle", "wrong"},
  };
  if (!sanitized) kinds["allocate"] = "out_of_memory";
  return kinds;
}

// y = 2 x; what a config does beside that is its name.
struct Doubles {
  static constexpr std::string_view op_id = "doubles", version = "1";
  using Config = Does;
  static inline std::vector<Config> offered;
  static inline Config guess;

  void run(const Config& c, std::span<const float> x, Out<std::span<float>> y) const {
    if (const auto act = acts.find(c.does); act != acts.end()) act->second();
    if (c.does == "idle") return;
    const ptrdiff_t shift = c.does == "past" ? 1 : c.does == "before" ? -1 : 0;
    volatile float* to = y->data() + shift;
    for (size_t i = 0; i < x.size(); ++i) to[i] = (c.does == "wrong" ? 3.f : 2.f) * x[i];
  }
  std::vector<Config> candidate_cfgs(const Invocation&) const { return offered; }
};
struct WithHeuristic : Doubles {
  static constexpr std::string_view op_id = "guessing";
  Config heuristic_cfg(const Invocation&) const { return guess; }
};
struct WithReference : Doubles {
  static constexpr std::string_view op_id = "referring";
  void reference(std::span<const float> x, Out<std::span<float>> y) const { run({}, x, y); }
};

// ---- a store, executors on it, and a caller's arrays -------------------------------------------

// No candidate may write the neighbours of an array in the caller's memory.
class Arrays {
 public:
  explicit Arrays(size_t size) : before_(size + 2 * margin, 7), after_(size + 2 * margin, 7) {
    std::iota(x().begin(), x().end(), 1.f);
  }
  std::span<float> x() { return std::span(before_).subspan(margin, before_.size() - 2 * margin); }
  std::span<float> y() { return std::span(after_).subspan(margin, after_.size() - 2 * margin); }
  void expect_doubled() {
    for (size_t i = 0; i < x().size(); ++i) {
      ASSERT_EQ(x()[i], static_cast<float>(i + 1)) << i;
      ASSERT_EQ(y()[i], 2 * x()[i]) << i;
    }
    for (const auto* all : {&before_, &after_})
      for (size_t i = 0; i < margin; ++i)
        ASSERT_TRUE((*all)[i] == 7 && (*all)[all->size() - 1 - i] == 7) << i;
  }

 private:
  static constexpr size_t margin = 64;
  std::vector<float> before_, after_;
};

class TuningFaults : public ::testing::Test {
 protected:
  TuningFaults() { Doubles::guess = {"good guess"}; }

  Executor executor(AutotunePolicy policy = {}) {
    return Executor(options_on(scratch / "store", warnings.sink(), policy));
  }
  Executor scripted(const AutotunePolicy& policy = {}) {
    return Executor(scripted_options_on(scratch / "store", warnings.sink(), policy));
  }

  // The entry that one call leaves; the call itself must be right.
  template <class K>
  Entry tuned(const K& kernel, size_t size = 1000) {
    Arrays a(size);
    executor()(kernel, std::span<const float>(a.x()), a.y());
    a.expect_doubled();
    const auto entries = entries_in(scratch / "store");
    EXPECT_THAT(entries, SizeIs(1));
    return entries.empty() ? Entry{} : entries[0];
  }

  static void expect_rejected(const Entry& entry, const std::string& name,
                              const std::string& kind) {
    const Measurement* m = measured(entry, name);
    ASSERT_NE(m, nullptr) << name;
    EXPECT_EQ(m->status, "rejected") << name;
    EXPECT_EQ(m->kind, kind) << name << ": " << m->why;
    EXPECT_NE(m->why, "") << name;
  }
  static void expect_good_one_won(const Entry& entry) {
    EXPECT_NE(entry.outcome, Outcome::failed);
    EXPECT_THAT(name_of(entry.config), HasSubstr("good"));
    for (const char* name : {"good", "good too"}) {
      const Measurement* m = measured(entry, name);
      ASSERT_NE(m, nullptr);
      EXPECT_THAT(m->status, ::testing::AnyOf("ok", "tied", "slower")) << m->kind << ": " << m->why;
    }
  }

  Scratch scratch;
  fakes::WarningLog warnings;
};

// ---- one bad candidate of each kind ------------------------------------------------------------

TEST_F(TuningFaults, EveryBadCandidateIsRejectedForItsOwnReasonAndAGoodOneWins) {
  Doubles::offered = {{"good"}};
  for (const auto& [name, kind] : bad_ones()) Doubles::offered.push_back({name});
  Doubles::offered.push_back({"good too"});
  const Entry entry = tuned(WithHeuristic{});
  expect_good_one_won(entry);
  for (const auto& [name, kind] : bad_ones()) expect_rejected(entry, name, kind);
  EXPECT_EQ(entry.evidence.guard, "child");
  EXPECT_THAT(measured(entry, "throw")->why, HasSubstr("no such block"));
  EXPECT_THAT(quarantine_list(scratch / "store"), IsEmpty());  // no process died of them
}

class OneBadCandidate : public TuningFaults, public ::testing::WithParamInterface<std::string> {
 protected:
  OneBadCandidate() { Doubles::offered = {{bad}, {"good"}, {"good too"}}; }
  const std::string bad = GetParam(), kind = bad_ones().at(bad);
};

TEST_P(OneBadCandidate, BeforeAllOthers) {
  const Entry entry = tuned(WithHeuristic{});
  expect_good_one_won(entry);
  expect_rejected(entry, bad, kind);
}

TEST_P(OneBadCandidate, BeforeAllOthersWithoutAHeuristic) {
  const Entry entry = kind == "wrong" ? tuned(WithReference{}) : tuned(Doubles{});
  expect_good_one_won(entry);
  expect_rejected(entry, bad, kind);
}

TEST_P(OneBadCandidate, InATuningByHand) {
  Arrays a(1000);
  const std::span<const float> x = a.x();
  EXPECT_THAT(autotune(WithHeuristic{}, {}, x, a.y()).does, HasSubstr("good"));
  const std::vector<Doubles::Config> among{{bad}, {"good"}};
  EXPECT_EQ(autotune(WithHeuristic{}, {.configs = among}, x, a.y()).does, "good");
  EXPECT_THAT(a.y(), Each(7.f));  // measured on copies
}

std::string test_name(const ::testing::TestParamInfo<std::string>& bad) {
  std::string name = bad.param;
  std::ranges::replace(name, ' ', '_');
  return name;
}

std::vector<std::string> names_of_bad_ones(bool functions_only) {
  std::vector<std::string> names;
  for (const auto& [name, kind] : bad_ones())
    if (!functions_only || acts.contains(name)) names.push_back(name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(Each, OneBadCandidate, ::testing::ValuesIn(names_of_bad_ones(false)),
                         test_name);

// These have no outputs that could be compared.
class OneBadFunction : public ::testing::TestWithParam<std::string> {};

TEST_P(OneBadFunction, LosesWhereverItStands) {
  const auto make = [](const std::string& name) {
    return [name](int amount) {
      if (const auto act = acts.find(name); act != acts.end()) act->second();
      work(amount);
    };
  };
  Tuner tuner(TunerOptions{.stopwatch = stopwatch});
  EXPECT_EQ(tuner.autotune(make, std::vector<std::string>{GetParam(), "good"}, 1), "good");
  EXPECT_EQ(tuner.autotune(make, std::vector<std::string>{"good", GetParam()}, 1), "good");
}

INSTANTIATE_TEST_SUITE_P(Each, OneBadFunction, ::testing::ValuesIn(names_of_bad_ones(true)),
                         test_name);

TEST_F(TuningFaults, AMakerThatThrowsLosesToo) {
  const auto make = [](int n) {
    if (n == 1) throw std::runtime_error("cannot be made");
    return [] { work(1); };
  };
  EXPECT_EQ(Tuner(TunerOptions{.stopwatch = stopwatch}).autotune(make, std::vector<int>{1, 2}), 2);
  try {
    Tuner().autotune(make, std::vector<int>{1});
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::no_configuration);
    EXPECT_THAT(e.what(), HasSubstr("cannot be made"));
  }
}

TEST_F(TuningFaults, AWriteOfASingleElementIsFoundWhereArraysEndWithAPage) {
  Doubles::offered = {{"past"}, {"before"}, {"good"}, {"good too"}};
  const Entry entry = tuned(Doubles{}, 1024);
  expect_good_one_won(entry);
  for (const char* bad : {"past", "before"}) expect_rejected(entry, bad, "out_of_bounds");
}

// ---- nothing but bad candidates ----------------------------------------------------------------

class Hopeless : public TuningFaults {
 protected:
  template <class K>
  std::string error_of(const Executor& executor, const K& kernel) {
    Arrays a(100);
    try {
      executor(kernel, std::span<const float>(a.x()), a.y());
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::no_configuration);
      return e.what();
    }
    return "no error";
  }
  // How many tunings a second call, and a second executor, begin.
  template <class K>
  void expect_heuristic_without_tuning(const K& kernel, int tunings) {
    int begun = 0;
    auto options = options_on(scratch / "store", warnings.sink());
    options.on_event = [&](const Event& e) { begun += e.kind == "autotune_start" ? 1 : 0; };
    const Executor one(options);
    for (int i = 0; i < 3; ++i) {
      Arrays a(100);
      one(kernel, std::span<const float>(a.x()), a.y());
      a.expect_doubled();
    }
    EXPECT_EQ(begun, tunings);
    Arrays a(100);
    EXPECT_EQ(one.choose_config(kernel, std::span<const float>(a.x()), a.y()).config.does,
              "good guess");
  }
};

TEST_F(Hopeless, TheHeuristicAnswersAndItIsSaidOnce) {
  Doubles::offered = {{"segfault"}, {"wrong"}, {"idle"}, {"throw"}, {"past"}, {"exit"}};
  expect_heuristic_without_tuning(WithHeuristic{}, 1);
  const auto said = warnings.take();
  ASSERT_THAT(said, SizeIs(1));
  EXPECT_THAT(said[0], AllOf(HasSubstr("guessing@v1"), HasSubstr("SIGSEGV"),
                             HasSubstr("no such block"), HasSubstr("past the end")));
  expect_heuristic_without_tuning(WithHeuristic{}, 0);  // it is known from the store
  const auto entries = entries_in(scratch / "store");
  ASSERT_THAT(entries, SizeIs(1));
  EXPECT_EQ(entries[0].outcome, Outcome::failed);
  expect_rejected(entries[0], "segfault", "crashed");
  expect_rejected(entries[0], "idle", "wrong");
}

TEST_F(Hopeless, WithoutAHeuristicTheErrorNamesTheReasons) {
  Doubles::offered = {{"segfault"}, {"throw"}, {"exit"}, {"past"}};
  const Executor one = executor();
  for (int i = 0; i < 2; ++i)
    EXPECT_THAT(error_of(one, Doubles{}),
                AllOf(HasSubstr("doubles@v1"), HasSubstr("SIGSEGV"), HasSubstr("no such block"),
                      HasSubstr("exit(3)"), HasSubstr("past the end"), HasSubstr("heuristic")));
  EXPECT_THAT(error_of(executor(), Doubles{}), HasSubstr("rejected every candidate"));
}

// They may not be tried in this process, where they could not be stopped.
TEST_F(Hopeless, EndlessOnesWithoutAHeuristicComeToAnEnd) {
  Doubles::offered = {{"loop"}};
  if (!sanitized) Doubles::offered.push_back({"allocate"});
  const std::string error = error_of(executor(), Doubles{});
  EXPECT_THAT(error, HasSubstr("ran longer than"));
  EXPECT_TRUE(sanitized || error.find("out of memory") != error.npos) << error;
}

TEST_F(Hopeless, NoCandidates) {
  Doubles::offered = {};
  expect_heuristic_without_tuning(WithHeuristic{}, 1);
  EXPECT_THAT(error_of(executor(), Doubles{}), HasSubstr("returned no candidate"));
  std::vector<float> x(3), y(3);
  EXPECT_THROW(autotune(Doubles{}, {}, x, y), Error);
  EXPECT_THROW(Tuner().autotune([](int) { return [] {}; }, std::vector<int>{}), Error);
}

struct CandidatesThrow : WithHeuristic {
  static constexpr std::string_view op_id = "candidates_throw";
  std::vector<Config> candidate_cfgs(const Invocation&) const {
    throw std::runtime_error("no list today");
  }
};

TEST_F(Hopeless, CandidatesThatCannotBeListedAreSaidOnce) {
  expect_heuristic_without_tuning(CandidatesThrow{}, 1);
  EXPECT_THAT(warnings.take(), ElementsAre(HasSubstr("no list today")));
}

// ---- hosts whose kernels cannot run in a child -------------------------------------------------

// One thread that answers as long as it lives, which in a forked child it does not.
class Helper {
 public:
  void ask() {
    std::unique_lock lock(mutex_);
    ++question_;
    asked_.notify_all();
    answered_.wait(lock, [&] { return answer_ == question_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable asked_, answered_;
  int question_ = 0, answer_ = 0;
  std::jthread thread_{[this](const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (!stop.stop_requested()) {
      asked_.wait_for(lock, std::chrono::milliseconds(20), [&] { return question_ != answer_; });
      answer_ = question_;
      answered_.notify_all();
    }
  }};
};

struct NeedsHelp : WithHeuristic {
  static constexpr std::string_view op_id = "needs_help";
  static inline Helper* helper = nullptr;
  void run(const Config& c, std::span<const float> x, Out<std::span<float>> y) const {
    helper->ask();
    Doubles::run(c, x, y);
  }
};

TEST_F(TuningFaults, AHeuristicThatNeedsTheHostsThreadsIsTunedWithoutAGuardWhichIsSaid) {
  auto helper = std::make_unique<Helper>();
  NeedsHelp::helper = helper.get();
  Doubles::offered = {{"throw"}, {"wrong"}, {"idle"}, {"good"}, {"good too"}};
  const Entry entry = tuned(NeedsHelp{});
  expect_good_one_won(entry);
  EXPECT_EQ(entry.evidence.guard, "none");
  for (const auto& [name, kind] : bad_ones())
    if (measured(entry, name)) expect_rejected(entry, name, kind);
  EXPECT_THAT(warnings.take(), ElementsAre(AllOf(HasSubstr("needs_help@v1"),
                                                 HasSubstr("first runs are not guarded"))));
}

// ---- arguments, results and times --------------------------------------------------------------

struct Increment {
  static constexpr std::string_view op_id = "increment", version = "1";
  using Config = Does;
  void run(const Config& c, std::span<float> v) const {
    for (float& f : v) f += c.does == "twice" ? 2.f : 1.f;
    if (c.does == "throws late") throw std::runtime_error("half done");
  }
  std::vector<Config> candidate_cfgs(const Invocation&) const {
    return {{"throws late"}, {"twice"}, {"good"}, {"good too"}};
  }
  Config heuristic_cfg(const Invocation&) const { return {"good"}; }
};

TEST_F(TuningFaults, AnInPlaceArgumentIsChangedOnceByACall) {
  for (const bool guard : {true, false}) {
    std::vector<float> v(1000, 5);
    Executor(options_on(scratch / (guard ? "one" : "two"), warnings.sink(), {.guard = guard}))(
        Increment{}, v);
    EXPECT_THAT(v, Each(6.f));
    const auto entries = entries_in(scratch / (guard ? "one" : "two"));
    ASSERT_THAT(entries, SizeIs(1));
    expect_rejected(entries[0], "twice", "wrong");
    expect_rejected(entries[0], "throws late", "threw");
    expect_good_one_won(entries[0]);
  }
}

// Sum and products, as a tuple. Slow ones are many times slower.
struct Several {
  static constexpr std::string_view op_id = "several", version = "1";
  using Config = Does;
  std::tuple<std::vector<float>, double> run(const Config& c, std::span<const float> x) const {
    work(c.does == "fast" || c.does == "wrong" ? 2 : 100);
    std::vector<float> squares;
    for (float v : x) squares.push_back(v * v);
    return {squares, std::accumulate(x.begin(), x.end(), c.does == "wrong" ? 1. : 0.)};
  }
  std::vector<Config> candidate_cfgs(const Invocation&) const {
    return {{"slow"}, {"wrong"}, {"slow too"}, {"fast"}};
  }
  Config heuristic_cfg(const Invocation&) const { return {"slow"}; }
};

TEST_F(TuningFaults, ATupleOfResultsIsComparedAndMeasuredInAllItsParts) {
  const std::vector<float> x{1, 2, 3};
  const auto [squares, sum] = scripted()(Several{}, x);
  EXPECT_THAT(squares, ElementsAre(1, 4, 9));
  EXPECT_EQ(sum, 6);
  const auto entries = entries_in(scratch / "store");
  ASSERT_THAT(entries, SizeIs(1));
  EXPECT_EQ(name_of(entries[0].config), "fast");
  expect_rejected(entries[0], "wrong", "wrong");
  for (const char* name : {"slow", "slow too", "fast"}) {
    const Measurement* m = measured(entries[0], name);
    EXPECT_NEAR(m->seconds, name == std::string("fast") ? 2e-6 : 100e-6, 1e-9) << name;
    EXPECT_GT(m->samples, 0) << name;
  }
}

// The first run of each config in a process takes long, above all that of the very first.
struct WarmsUp {
  static constexpr std::string_view op_id = "warms_up", version = "1";
  using Config = Does;
  static inline std::map<std::string, bool> warm;
  double run(const Config& c, double x) const {
    if (warm.empty()) work(100'000);
    if (!std::exchange(warm[c.does], true) && c.does == "fast") work(100'000);
    work(c.does == "fast" ? 2 : 60);
    return 2 * x;
  }
  std::vector<Config> candidate_cfgs(const Invocation&) const {
    return {{"fast"}, {"slow"}, {"slow too"}};
  }
};

TEST_F(TuningFaults, FirstCandidatesDoNotPayForTheWarmUp) {
  for (const bool guard : {true, false}) {
    WarmsUp::warm.clear();
    const std::string store = scratch / (guard ? "one" : "two");
    const Executor executor(scripted_options_on(store, warnings.sink(), {.guard = guard}));
    EXPECT_EQ(executor(WarmsUp{}, 4.), 8);
    const auto entries = entries_in(store);
    ASSERT_THAT(entries, SizeIs(1));
    EXPECT_EQ(name_of(entries[0].config), "fast");
    EXPECT_NEAR(entries[0].evidence.seconds, 2e-6, 1e-9);
  }
}

// One is fast forward and slow backward, the other the other way round.
struct TwoWays {
  static constexpr std::string_view op_id = "two_ways", version = "1";
  using Config = Does;
  double run(const Config& c, double x) const {
    work(c.does == "forward" ? 2 : 60);
    return x * x;
  }
  std::pair<double, double> fwd_with_residuals(const Config& c, double x) const {
    return {run(c, x), x};
  }
  std::tuple<double> vjp(const Config& c, double residual, double dy) const {
    work(c.does == "forward" ? 2000 : 2);
    return {2 * residual * dy};
  }
  std::vector<Config> candidate_cfgs(const Invocation&) const {
    return {{"backward"}, {"forward"}};
  }
};

TEST_F(TuningFaults, ValidateBackwardTimesTheKernelsOwnGradient) {
  EXPECT_EQ(scripted().choose_config(TwoWays{}, 3.).config.does, "forward");
  const Executor both = scripted({.validate_backward = true});
  EXPECT_EQ(both.choose_config(TwoWays{}, 3.).config.does, "backward");
  const auto [y, pull] = both.vjp(TwoWays{}, 3.);
  EXPECT_EQ(y, 9);
  EXPECT_EQ(pull(1.), std::tuple(6.));
  EXPECT_THAT(entries_in(scratch / "store"), SizeIs(2));  // kept apart
}

// The same without a returned value: what it wrote is the cotangent.
struct TwoWaysIntoMemory : TwoWays {
  static constexpr std::string_view op_id = "two_ways_into_memory";
  using In = std::span<const double>;
  void run(const Config& c, In x, Out<std::span<double>> y) const {
    for (size_t i = 0; i < x.size(); ++i) (*y)[i] = TwoWays::run(c, x[i]);
  }
  double fwd_with_residuals(const Config& c, In x, Out<std::span<double>> y) const {
    run(c, x, y);
    return 2;
  }
  std::tuple<std::vector<double>> vjp(const Config& c, double factor, In dy, In x,
                                      Out<std::span<double>>) const {
    std::vector<double> dx;
    for (size_t i = 0; i < x.size(); ++i)
      dx.push_back(std::get<0>(TwoWays::vjp(c, factor / 2 * x[i], dy[i])));
    return {dx};
  }
};

TEST_F(TuningFaults, ValidateBackwardTimesTheGradientOfAKernelThatReturnsNothing) {
  const std::vector<double> x = {3};
  std::vector<double> y(1);
  EXPECT_EQ(scripted().choose_config(TwoWaysIntoMemory{}, x, y).config.does, "forward");
  const Executor both = scripted({.validate_backward = true});
  EXPECT_EQ(both.choose_config(TwoWaysIntoMemory{}, x, y).config.does, "backward");
  EXPECT_THAT(warnings.take(), IsEmpty());
}

struct TakesAnotherCotangent : TwoWaysIntoMemory {
  static constexpr std::string_view op_id = "takes_another_cotangent";
  std::tuple<double> vjp(const Config&, double, const std::string& dy) const {
    return {static_cast<double>(dy.size())};
  }
};

TEST_F(TuningFaults, AGradientThatCannotBeTimedIsSaid) {
  const std::vector<double> x = {3};
  std::vector<double> y(1);
  const Executor both = scripted({.validate_backward = true});
  EXPECT_EQ(both.choose_config(TakesAnotherCotangent{}, x, y).config.does, "forward");
  EXPECT_THAT(warnings.take(), ElementsAre(AllOf(HasSubstr("[takes_another_cotangent@v1]"),
                                                 HasSubstr("measures forward only"))));
}

}  // namespace
}  // namespace ejk
