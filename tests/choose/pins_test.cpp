// SPDX-License-Identifier: Apache-2.0
// In a run with pins all ranks take what the first of them took.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <fstream>

#include "choose/launched_run.h"
#include "store/keep.h"
#include "store/pins.h"
#include "store/snapshot.h"

namespace {

using ejk::detail::GatheredPins;
using ejk::detail::PinBoard;
using ejk::detail::Pins;
using fakes::Show;
using fakes::Threaded;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

struct WithoutHeuristic {
  static constexpr std::string_view op_id = "without_heuristic", version = "3";
  using Config = Show::Config;
  void run(const Config& c, std::span<const float> x, ejk::Out<std::span<float>> y) const {
    Show().run(c, x, y);
  }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const { return {{1}, {2}, {3}}; }
};

// In memory, and counts what it is asked.
class Board final : public PinBoard {
 public:
  Pinned read() override { return ++reads, answer(); }
  Pinned pin(const std::vector<Offer>& offers) override {
    ++questions;
    for (const auto& [call, config] : offers)
      if (config) pinned.emplace(call, *config);
    return answer();
  }
  std::string where() const override { return name; }
  bool trusted() const override { return is_trusted; }

  std::string name = "the board";
  Pinned pinned;
  int reads = 0, questions = 0;
  bool is_trusted = true, is_away = false;

 private:
  Pinned answer() const {
    if (is_away) throw ejk::Error(ejk::ErrorKind::io, "the board is away");
    return pinned;
  }
};

class PinnedRun : public fakes::LaunchedRun {
 protected:
  PinnedRun() {
    ::setenv(ejk::detail::pin_variable, "1", 1);
    use_board();
  }
  ~PinnedRun() override {
    for (const char* name : {ejk::detail::pin_variable, "EJKERNEL_RUN", "SLURM_JOB_ID",
                             "SLURM_CLUSTER_NAME", "SLURM_RESTART_COUNT"})
      ::unsetenv(name);
    ejk::detail::set_own_pin_board(nullptr);
  }
  void use_board() {
    ejk::detail::set_own_pin_board([this] { return board; });
  }
  // As if no other rank had been asked in this process: each knows what it has read itself.
  void next_rank() {
    auto same = std::make_shared<Board>();
    same->pinned = board->pinned, same->is_trusted = board->is_trusted;
    same->name = board->name + " again";
    board = same;
    use_board();
  }
  template <class Kernel = Show>
  ejk::Entry entry(ejk::Value config) {
    ::unsetenv(ejk::detail::pin_variable);
    ejk::Entry out = LaunchedRun::entry<Kernel>(std::move(config));
    ::setenv(ejk::detail::pin_variable, "1", 1);
    return out;
  }
  // In a store of its own.
  ejk::SelectorOptions options_with(const ejk::Entry& stored) {
    auto options = setup.options(stores.emplace_back().path());
    options.persistent->put(stored);
    return options;
  }
  void pin(const ejk::Entry& of) {
    board->pinned[ejk::detail::call_id(of.id)] = ejk::stable_json(of.config);
  }

  std::shared_ptr<Board> board = std::make_shared<Board>();
  std::deque<fakes::TempDir> stores;
};

TEST_F(PinnedRun, TheFirstRankDecidesAndTheOthersTakeItsChoice) {
  const ejk::Executor first(options_with(entry(block(3))));
  EXPECT_EQ(run(first), 3);
  next_rank();
  const ejk::Executor other(options_with(entry(block(2))));
  setup.events.take();
  EXPECT_EQ(run(other), 3);
  EXPECT_EQ(run(other), 3);
  EXPECT_THAT(setup.events.take(), ElementsAre("cache_hit/persistent", "cache_hit/memory"));
  EXPECT_EQ(board->questions, 0) << "what is pinned already came with the first question";
  EXPECT_EQ(board->reads, 1);
  EXPECT_THAT(setup.warnings.take(), IsEmpty());
}

TEST_F(PinnedRun, HeuristicsArePinnedTooAndNothingIsTunedOrStored) {
  const fakes::TempDir store;
  const ejk::Executor first(setup.options(store.path()));
  const auto scope = ejk::policy_override({.allow_autotune = true});
  EXPECT_EQ(run(first), 7);
  next_rank();
  EXPECT_EQ(run(ejk::Executor(options_with(entry(block(2))))), 7) << "better, but too late";
  EXPECT_EQ(setup.tuner->asked, 0);
  EXPECT_TRUE(std::filesystem::is_empty(store.path()));
}

TEST_F(PinnedRun, BetterEvidenceChangesNothingUntilTheNextRun) {
  const auto options = options_with(entry(block(2)));
  EXPECT_EQ(run(ejk::Executor(options)), 2);
  ejk::Entry better = entry(block(3));
  better.evidence.samples = 1000;
  options.persistent->put(better);
  next_rank();
  EXPECT_EQ(run(ejk::Executor(options)), 2);
  board = std::make_shared<Board>();
  use_board();
  EXPECT_EQ(run(ejk::Executor(options)), 3) << "another run";
}

TEST_F(PinnedRun, APinnedConfigMustBeOfTheClassThatNumericsAsks) {
  auto options = setup.options();
  options.policy->numerics = ejk::Numerics::same;
  EXPECT_EQ(run(ejk::Executor(options)), 7);
  ASSERT_EQ(board->pinned.size(), 1U);
  board->pinned.begin()->second = ejk::stable_json(block(3));
  next_rank();
  EXPECT_THAT(error_of([&] { run(ejk::Executor(options)); }),
              AllOf(HasSubstr("pinned for all ranks"), HasSubstr("has the numerics class")));
}

TEST_F(PinnedRun, OverridesAndOverlaysWinAndAreNotPinned) {
  const ejk::Executor executor(options_with(entry(block(3))));
  executor(Show{}, {.block = 50}, x, y);
  EXPECT_EQ(y[0], 50);
  {
    ejk::ConfigCache overlay;
    const auto id = entry(block(0)).id;
    overlay.put(id.device, id.op, id.key, Show::Config{60});
    const auto scope = ejk::overlay_cache(overlay);
    EXPECT_EQ(run(executor), 60);
  }
  EXPECT_THAT(board->pinned, IsEmpty());
  EXPECT_EQ(run(executor), 3);
}

TEST_F(PinnedRun, ARankThatHasNothingToOfferTakesWhatOthersPinned) {
  const ejk::Executor executor(setup.options());
  EXPECT_THAT(error_of([&] { run<WithoutHeuristic>(executor); }),
              HasSubstr("[without_heuristic@v3] no configuration"));
  EXPECT_THAT(board->pinned, IsEmpty());
  pin(entry<WithoutHeuristic>(block(2)));
  EXPECT_EQ(run<WithoutHeuristic>(executor), 2);
}

TEST_F(PinnedRun, AConfigThatDoesNotFitThisRankIsAnError) {
  pin(entry<Threaded>(ejk::Value::object({{"threads", 4096}})));
  EXPECT_THAT(error_of([&] { run<Threaded>(ejk::Executor(setup.options())); }),
              AllOf(HasSubstr("[threaded@v3] got the config {\"threads\":4096}"),
                    HasSubstr("in the board, which asks for more threads than run here"),
                    HasSubstr("launch with a new run")));
  board->pinned.clear();
  pin(entry(ejk::Value::object({{"tile", 2}})));
  next_rank();
  EXPECT_THAT(error_of([&] { run(ejk::Executor(setup.options())); }),
              HasSubstr("which does not fit"));
}

TEST_F(PinnedRun, WhereOthersMayWriteOnlyWhatTheKernelOrTheOwnStoreVouchesForRuns) {
  pin(entry(block(40)));
  EXPECT_EQ(run(ejk::Executor(setup.options())), 40) << "ranks of this run alone could write it";
  board->is_trusted = false;
  next_rank();
  EXPECT_THAT(
      error_of([&] { run(ejk::Executor(setup.options())); }),
      HasSubstr("is not among the kernel's candidates, and others than this run may write"));
  ejk::Entry own = entry(block(40));
  own.provenance = "put";
  auto options = options_with(own);
  options.policy->guard = false;  // then what this user put is believed
  EXPECT_EQ(run(ejk::Executor(options)), 40);
  board->pinned.clear();
  pin(entry(block(1)));
  next_rank();
  EXPECT_EQ(run(ejk::Executor(setup.options())), 1);
}

TEST_F(PinnedRun, APlaceThatCannotBeAskedIsAnErrorAndNoHeuristic) {
  board->is_away = true;
  const ejk::Executor executor(options_with(entry(block(3))));
  EXPECT_THAT(error_of([&] { run(executor); }),
              AllOf(HasSubstr("[show@v3] key "), HasSubstr("the board is away")));
  EXPECT_EQ(y[0], 0) << "nothing ran";
  board->is_away = false;
  EXPECT_EQ(run(executor), 3);
}

TEST_F(PinnedRun, ChoicesThatAreGatheredArePinnedInOneQuestion) {
  const ejk::Executor executor(options_with(entry(block(3))));
  std::vector<float> longer(16), out(16);
  {
    GatheredPins gathered;
    EXPECT_EQ(run(executor), 3);
    EXPECT_EQ(run(executor), 3) << "is gathered once";
    executor(Show{}, longer, out);
    executor(Threaded{}, x, y);
    EXPECT_EQ(board->questions, 0);
    pin(entry(block(1)));  // by another rank, meanwhile
    EXPECT_EQ(gathered.pin(), 3u);
    EXPECT_EQ(board->questions, 1);
  }
  EXPECT_EQ(board->pinned.size(), 3u);
  EXPECT_EQ(run(executor), 1);
  executor(Show{}, longer, out);
  EXPECT_EQ(out[0], 7);
  EXPECT_EQ(board->questions, 1) << "all is known";
}

TEST_F(PinnedRun, TuningByHandIsRefused) {
  const ejk::Executor executor(setup.options());
  EXPECT_THAT(error_of([&] { executor.tune(Show{}, x, y); }),
              HasSubstr("got a call to tune in a run that has pins; expected "
                        "EJKERNEL_PERSISTENT_CACHE_PIN to be unset"));
  EXPECT_EQ(setup.tuner->asked, 0);
}

TEST_F(PinnedRun, ExplainSaysWhatIsPinnedAndPinsNothing) {
  const ejk::Executor executor(options_with(entry(block(3))));
  const auto before = executor.explain(Show{}, x, y);
  EXPECT_EQ(before.config, block(3));
  EXPECT_THAT(before.text(), AllOf(HasSubstr("the run has none in the board yet"),
                                   HasSubstr("nothing is tuned in a run with pins")));
  EXPECT_THAT(board->pinned, IsEmpty());
  pin(entry(block(1)));
  next_rank();
  const auto after = ejk::Executor(setup.options()).explain(Show{}, x, y);
  EXPECT_EQ(after.origin, "persistent");
  EXPECT_THAT(after.text(), HasSubstr("the board again has a config for all ranks of this run "
                                      "{\"block\":1}  <- chosen"));
  board->is_away = true;
  EXPECT_THAT(ejk::Executor(setup.options()).explain(Show{}, x, y).text(),
              HasSubstr("the board is away"));
}

TEST_F(PinnedRun, BesideASnapshotWhatItHasNotIsPinned) {
  const fakes::TempDir dir;
  const std::string text = ejk::detail::snapshot_text({entry(block(3))});
  std::ofstream(dir.path() + "/choices") << text;
  ::setenv(ejk::detail::snapshot_variable,
           (dir.path() + "/choices#" + ejk::detail::name_of_snapshot(text)).c_str(), 1);
  const ejk::Executor executor(setup.options());
  EXPECT_EQ(run(executor), 3);
  EXPECT_EQ(run<Threaded>(executor), 1);
  EXPECT_EQ(board->pinned.size(), 2u);
  ::unsetenv(ejk::detail::snapshot_variable);
}

// ---- the launch

TEST_F(PinnedRun, OffUnlessItIsAskedFor) {
  for (const char* word : {"", "0"}) {
    ::setenv(ejk::detail::pin_variable, word, 1);
    EXPECT_EQ(run(ejk::Executor(setup.options())), 2) << "tuned";
  }
  EXPECT_EQ(board->reads, 0);
  ::setenv(ejk::detail::pin_variable, "yes", 1);
  EXPECT_THAT(error_of([&] { const ejk::Executor executor(setup.options()); }),
              AllOf(HasSubstr("EJKERNEL_PERSISTENT_CACHE_PIN: got \"yes\"; expected 1"),
                    HasSubstr("EJKERNEL_RUN names the run")));
}

TEST_F(PinnedRun, ARunIsNamedByTheLaunch) {
  using ejk::detail::run_of_launch;
  EXPECT_THAT(error_of([] { run_of_launch(); }),
              AllOf(HasSubstr("got no name of this run"), HasSubstr("set EJKERNEL_RUN")));
  ::setenv("SLURM_JOB_ID", "81", 1);
  EXPECT_EQ(run_of_launch(), "slurm--81-0");
  ::setenv("SLURM_CLUSTER_NAME", "north", 1);
  ::setenv("SLURM_RESTART_COUNT", "2", 1);
  EXPECT_EQ(run_of_launch(), "slurm-north-81-2") << "a job that starts anew may choose anew";
  ::setenv("EJKERNEL_RUN", "mine", 1);
  EXPECT_EQ(run_of_launch(), "mine");
  ::setenv("EJKERNEL_RUN", std::string(201, 'a').c_str(), 1);
  EXPECT_THAT(error_of([] { run_of_launch(); }), HasSubstr("expected at most 200 bytes"));
  ::setenv("EJKERNEL_RUN", "a\nb", 1);
  EXPECT_THAT(error_of([] { run_of_launch(); }), HasSubstr("got \"a\\nb\""));
}

TEST_F(PinnedRun, WithoutAPlaceForPinsTheErrorNamesThePlaces) {
  ejk::detail::set_own_pin_board(nullptr);
  ::setenv("EJKERNEL_RUN", "mine", 1);
  const ejk::Executor executor(options_with(entry(block(3))));
  EXPECT_THAT(error_of([&] { run(executor); }),
              AllOf(HasSubstr("got no place for pins"), HasSubstr("EJKERNEL_PERSISTENT_CACHE_URL"),
                    HasSubstr("EJKERNEL_PERSISTENT_CACHE_PIN=directory")));
}

TEST_F(PinnedRun, ADirectoryThatRanksShareHoldsPins) {
  ejk::detail::set_own_pin_board(nullptr);
  ::setenv("EJKERNEL_RUN", "mine", 1);
  const auto options = options_with(entry(block(2)));
  const auto with_pins = [&] {
    ::setenv(ejk::detail::pin_variable, "directory", 1);
    return run(ejk::Executor(options));
  };
  EXPECT_EQ(with_pins(), 2);
  ejk::Entry better = entry(block(3));
  better.evidence.samples = 1000;
  options.persistent->put(better);
  EXPECT_EQ(with_pins(), 2);
  ::setenv("EJKERNEL_RUN", "another", 1);
  EXPECT_EQ(with_pins(), 3);
}

}  // namespace
