// SPDX-License-Identifier: Apache-2.0
// This program is its own worker: `worker_test worker`.
#include <ejk/worker.h>

#include <sys/wait.h>

#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ejk/ejk.h>

#include "fakes.h"
#include "offline/worker_messages.h"
#include "paths.h"

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using testing::StartsWith;

namespace {

const std::string bad_kernels = test::plugin("bad");
const std::string slow_kernels = test::plugin("slow");

// Even and odd blocks are of different classes.
struct Parity {
  static constexpr std::string_view op_id = "worker.parity", version = "1";
  struct Config {
    int block = 1;
  };
  void run(const Config&, std::span<const float> x, ejk::Out<std::span<float>> y) const {
    for (size_t i = 0; i < x.size(); ++i) (*y)[i] = 2 * x[i];
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const { return {{2}, {3}, {4}}; }
  int numerics(const Config& config) const { return config.block % 2; }
};
EJK_REGISTER(Parity);

class WorkerTest : public testing::Test {
 protected:
  WorkerTest() {
    ejk::load_kernels(bad_kernels), ejk::load_kernels(slow_kernels);
    // Workers shall die of their signals at once: a sanitizer that looks for names may take long.
    setenv("ASAN_OPTIONS", "handle_segv=0:handle_abort=0", true);
  }

  ejk::WorkerOptions options(std::vector<std::string> command = {"/proc/self/exe", "worker"}) {
    ejk::WorkerOptions out;
    out.command = std::move(command);
    out.plugins = {bad_kernels, slow_kernels};
    out.store = store;
    return out;
  }
  // Of a worker that is a script.
  ejk::WorkerOptions script(const std::string& text) { return options({"/bin/sh", "-c", text}); }

  static ejk::RecordedCall call_of(const std::string& op) {
    const auto array = ejk::Value::object({{"dtype", "float32"},
                                           {"shape", ejk::Value(ejk::Value::Array{64})},
                                           {"data", ejk::Value::object({{"seed", 1}})}});
    ejk::RecordedCall call;
    call.id = {ejk::cpu_device().fingerprint, op, "", ""};
    call.arguments = ejk::Value(ejk::Value::Array{array, array});
    const auto made = ejk::rebuild_call(call);
    call.id.spec = made->invocation().spec(), call.id.key = made->invocation().call_key();
    return call;
  }

  static std::string loss_of(ejk::Worker& worker, const std::string& op, double budget = 1) {
    try {
      worker.tune(call_of(op), budget);
      return "it was tuned";
    } catch (const ejk::WorkerLost& lost) {
      return lost.what();
    }
  }
  static std::string error_of(ejk::Worker& worker, const std::string& op) {
    return error_of(worker, call_of(op));
  }
  static std::string error_of(ejk::Worker& worker, const ejk::RecordedCall& call) {
    try {
      worker.tune(call, 1);
      return "it was tuned";
    } catch (const ejk::Error& error) {
      return error.what();
    }
  }

  // The measurement of {"block": n} in the store.
  ejk::Measurement stored(const std::string& op, int block) {
    const auto found = ejk::PersistentCache(store).get(call_of(op).id);
    if (found)
      for (const ejk::Measurement& m : found->entry.candidates)
        if (m.config == ejk::Value::object({{"block", block}})) return m;
    return {};
  }

  fakes::TempDir folder;
  const std::string store = folder.path() + "/store";
};

const std::string ready = R"(echo '{"event":"ready","protocol":1,"process":1}'; read request; )";

TEST_F(WorkerTest, TunesACallAndKeepsTheResult) {
  ejk::Worker worker(options());
  EXPECT_EQ(worker.device(), ejk::cpu_device().fingerprint);
  const ejk::RecordedCall call = call_of("bad.print@v1");
  const ejk::Entry entry = worker.tune(call, 1);
  EXPECT_EQ(entry.id.key, call.id.key);
  EXPECT_TRUE(entry.candidates.empty());
  const auto found = ejk::PersistentCache(store).get(call.id);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->entry.config, entry.config);
  EXPECT_EQ(found->entry.evidence.data, "recorded sketch");
  EXPECT_EQ(found->entry.candidates.size(), 3u);
}

TEST_F(WorkerTest, TunesARecordFromBeforeOutputsCountedUnderTheKeyOfToday) {
  const ejk::RecordedCall today = call_of("bad.print@v1");
  ejk::RecordedCall old = today;
  old.id.spec = ejk::spec_without_outputs(today.id.spec);
  old.id.key = ejk::short_hash(std::string_view(old.id.spec));
  ejk::Worker worker(options());
  EXPECT_EQ(worker.tune(old, 1).id.key, today.id.key);
}

TEST_F(WorkerTest, MeasuresAnewIfToldTo) {
  const ejk::RecordedCall call = call_of("bad.print@v1");
  ejk::Worker(options()).tune(call, 1);
  ejk::PersistentCache cache(store);
  ejk::Entry cut = cache.get(call.id)->entry;
  cut.evidence.complete = false;
  for (ejk::Measurement& m : cut.candidates)
    if (m.config == ejk::Value::object({{"block", 3}})) m.status = "rejected", m.kind = "wrong";
  cache.put(cut, ejk::IfPresent::replace);
  ejk::WorkerOptions how = options();
  ejk::Worker(how).tune(call, 1);
  EXPECT_EQ(stored(call.id.op, 3).status, "rejected") << "it went on";
  cache.put(cut, ejk::IfPresent::replace);
  how.retune = true;
  ejk::Worker(how).tune(call, 1);
  EXPECT_THAT(stored(call.id.op, 3).status, AnyOf("ok", "tied", "slower"));
}

// ---- numerics = same ----------------------------------------------------------------------------

class WorkerForSameNumerics : public WorkerTest {
 protected:
  ejk::WorkerOptions same(ejk::WorkerOptions how) {
    how.numerics = ejk::Numerics::same;
    return how;
  }
  const ejk::RecordedCall call = call_of("worker.parity@v1");
};

TEST_F(WorkerForSameNumerics, TunesTheClassOfTheHeuristicForProgramsWithThatPolicy) {
  const ejk::Entry entry = ejk::Worker(same(options())).tune(call, 1);
  EXPECT_EQ(entry.numerics, ejk::Value(1));
  EXPECT_EQ(entry.config.find("block")->as_int() % 2, 1) << to_json(entry.config);
  ejk::PersistentCache cache(store);
  EXPECT_FALSE(cache.get(call.id)) << "it is kept apart";
  const auto found = cache.get(entry.id);
  ASSERT_TRUE(found);
  for (const ejk::Measurement& m : found->entry.candidates)
    EXPECT_EQ(m.config.find("block")->as_int() % 2, 1);
  for (const auto numerics : {ejk::Numerics::same, ejk::Numerics::any}) {
    ejk::SelectorOptions program;
    program.policy = ejk::AutotunePolicy{.allow_autotune = false, .numerics = numerics};
    program.persistent = std::make_shared<ejk::PersistentCache>(store);
    const std::vector<float> x(64);
    std::vector<float> y(64);
    const auto chosen = ejk::Executor(std::move(program)).choose_config(Parity{}, x, y);
    EXPECT_EQ(chosen.origin,
              numerics == ejk::Numerics::same ? ejk::Origin::persistent : ejk::Origin::heuristics);
  }
}

TEST_F(WorkerForSameNumerics, LeavesWhatIsTunedUnlessItIsToldOtherwise) {
  ejk::WorkerOptions how = same(options());
  ejk::Entry entry = ejk::Worker(how).tune(call, 60);
  ASSERT_TRUE(entry.evidence.complete);
  ejk::PersistentCache cache(store);
  entry = cache.get(entry.id)->entry;
  entry.evidence.library = "the first";
  cache.put(entry, ejk::IfPresent::replace);
  EXPECT_EQ(ejk::Worker(how).tune(call, 60).evidence.library, "the first");
  how.retune = true;
  EXPECT_NE(ejk::Worker(how).tune(call, 60).evidence.library, "the first");
}

TEST_F(WorkerForSameNumerics, AWorkerThatWouldIgnoreItIsRefused) {
  ejk::Worker old(same(script(ready)));
  EXPECT_THAT(error_of(old, "worker.parity@v1"), HasSubstr("cannot tune with numerics = same"));
  ejk::Worker knows(same(script(
      R"(echo '{"event":"ready","protocol":1,"process":1,"understands":["numerics"]}'; read request
         echo '{"event":"failed","message":"'$(echo "$request" | grep -o 'numerics.*same' | tr -d '"')'"}')")));
  EXPECT_THAT(error_of(knows, "worker.parity@v1"), HasSubstr("same"));
}

TEST_F(WorkerForSameNumerics, AnEntryForAnyNumericsIsNoAnswer) {
  using ejk::Numerics;
  const auto is_answer = [&](const ejk::Entry& entry, Numerics numerics) {
    try {
      const auto answer = ejk::Value::object({{"entry", entry_to_document(entry)}});
      return ejk::detail::entry_in(answer, call, false, numerics).id.op == call.id.op;
    } catch (const ejk::detail::Rubbish&) {
      return false;
    }
  };
  const ejk::Entry any = ejk::Worker(options()).tune(call, 1);
  EXPECT_TRUE(is_answer(any, Numerics::any));
  EXPECT_FALSE(is_answer(any, Numerics::same));
  const ejk::Entry of_class = ejk::Worker(same(options())).tune(call, 1);
  EXPECT_TRUE(is_answer(of_class, Numerics::same));
  EXPECT_FALSE(is_answer(of_class, Numerics::any));
}

TEST_F(WorkerForSameNumerics, AWordThatIsNoneIsRefused) {
  ejk::Value request = ejk::detail::request_to_document({.call = call, .store = store});
  EXPECT_EQ(ejk::detail::request_from_document(request).numerics, ejk::Numerics::any);
  request["numerics"] = "equal";
  try {
    static_cast<void>(ejk::detail::request_from_document(request));
    FAIL();
  } catch (const ejk::Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("expected \"any\" or \"same\""));
  }
}

TEST_F(WorkerTest, AConfigThatEndsItsProcessIsLeftOutAndTheOthersAreMeasured) {
  for (const std::string op : {"bad.crash@v1", "bad.exit@v1"}) {
    std::vector<std::string> warnings;
    ejk::WorkerOptions how = options();
    how.on_warning = [&](const std::string& message) { warnings.push_back(message); };
    ejk::Worker worker(how);
    const ejk::Entry entry = worker.tune(call_of(op), 2);
    EXPECT_EQ(warnings.size(), 4u) << "as often as the journal lets one die that passes in a child";
    EXPECT_THAT(warnings, testing::Each(HasSubstr(R"(while it ran {"block":2})")));
    EXPECT_NE(entry.config, ejk::Value::object({{"block", 2}})) << op;
    EXPECT_EQ(stored(op, 2).status, "untried") << op;
    EXPECT_THAT(stored(op, 2).why, HasSubstr("processes died while they ran it")) << op;
    EXPECT_THAT(stored(op, 3).status, AnyOf("ok", "tied", "slower")) << op;
  }
}

TEST_F(WorkerTest, AWorkerThatDiesWithoutASuspectCostsItsCallAlone) {
  ejk::Worker worker(options());
  EXPECT_THAT(loss_of(worker, "bad.hook.crash@v1"), HasSubstr("was ended by SIGSEGV"));
  EXPECT_THAT(loss_of(worker, "bad.hook.exit@v1"),
              StartsWith("[bad.hook.exit@v1] its worker process ended itself with exit code 7"));
  EXPECT_EQ(worker.tune(call_of("bad.print@v1"), 1).id.op, "bad.print@v1");
}

TEST_F(WorkerTest, AWorkerThatHangsIsEnded) {
  ejk::WorkerOptions how = options();
  how.patience_seconds = 3;
  ejk::Worker worker(how);
  EXPECT_THAT(loss_of(worker, "bad.hook.hang@v1", 0.5),
              HasSubstr("did not answer within 3.5 s and was killed"));
  how.patience_seconds = 60;
  ejk::Worker patient(how);
  EXPECT_EQ(patient.tune(call_of("bad.print@v1"), 1).id.op, "bad.print@v1");
}

TEST_F(WorkerTest, ARequestThatTheWorkerCannotServeIsAnError) {
  ejk::WorkerOptions how = options();
  how.plugins = {};
  ejk::Worker without(how);
  EXPECT_THAT(error_of(without, "bad.print@v1"), HasSubstr("no kernel of that op"));
  how.plugins = {test::plugin("missing")};
  ejk::Worker missing(how);
  EXPECT_THAT(error_of(missing, "bad.print@v1"), HasSubstr("cannot load kernels"));
}

TEST_F(WorkerTest, AWorkerThatDoesNotGetReadyIsRefusedForGood) {
  const std::vector<std::pair<ejk::WorkerOptions, std::string>> cases = {
      {options({}), "has no command"},
      {options({"/nowhere/worker"}), "cannot start /nowhere/worker: No such file"},
      {script("exit 4"), "ended itself with exit code 4 before it was ready"},
      {script("kill -TERM $$"), "was ended by SIGTERM before it was ready"},
      {script("echo hello; sleep 60"), R"(not an answer: "hello")"},
      {script("echo '[1]'; sleep 60"), R"(not an answer: "[1]")"},
      {script(R"(echo '{"event":"refused","message":"no such module"}')"),
       "refused: no such module"},
      {script(R"(echo '{"event":"ready","protocol":2}')"), "does not speak protocol 1"},
  };
  for (const auto& [how, says] : cases) {
    ejk::Worker worker(how);
    EXPECT_THAT(error_of(worker, "bad.print@v1"), HasSubstr(says));
    EXPECT_THAT(error_of(worker, "bad.print@v1"), HasSubstr(says)) << "it is not tried again";
    EXPECT_THROW(worker.device(), ejk::Error);
  }
}

TEST_F(WorkerTest, AWorkerThatBreaksTheProtocolIsLost) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"echo nonsense; sleep 60", R"(not an answer: "nonsense")"},
      {R"(echo '{"even":"tuned"}'; sleep 60)", "not an answer"},
      {R"(echo '{"event":"tuned"}'; sleep 60)", "not an answer"},
      {R"(echo '{"event":"tuned","entry":{"op":"other@v1"}}'; sleep 60)", "not an answer"},
      {"printf '{\"event\":'", "ended itself with exit code 0"},
      {"yes | tr -d '\\n'", "not an answer"},
      {"kill -KILL $$", "was ended by SIGKILL"},
  };
  for (const auto& [text, says] : cases) {
    ejk::Worker worker(script(ready + text));
    EXPECT_THAT(loss_of(worker, "bad.print@v1"), HasSubstr(says)) << text;
  }
}

TEST_F(WorkerTest, ProgressWithoutEndIsNoAnswer) {
  ejk::WorkerOptions how = script(ready + R"(
    echo '{"event":"later version"}'
    while :; do echo '{"event":"progress","tried":3,"round":NaN}'; sleep 0.02; done)");
  how.patience_seconds = 1;
  int told = 0;
  how.on_progress = [&](const ejk::TuneProgress& p) {
    told += p.op == "bad.print@v1" && p.tried == 3 && p.round == 0;
  };
  ejk::Worker worker(how);
  EXPECT_THAT(loss_of(worker, "bad.print@v1", 0.1), HasSubstr("did not answer within 1.1 s"));
  EXPECT_GT(told, 3);
}

TEST_F(WorkerTest, TheHostHearsOfEachCandidate) {
  using Kind = ejk::TuneProgress::Kind;
  std::map<std::string, std::string> tried;
  std::map<std::string, double> seconds;
  ejk::Value winner;
  ejk::WorkerOptions how = options();
  how.on_progress = [&](const ejk::TuneProgress& p) {
    if (p.kind == Kind::candidate) tried[ejk::stable_json(p.config)] = p.message;
    if (p.kind == Kind::measured) seconds[ejk::stable_json(p.config)] = p.seconds;
    if (p.kind == Kind::finished) winner = p.config;
  };
  const ejk::Entry entry = ejk::Worker(how).tune(call_of("bad.always@v1"), 60);
  EXPECT_EQ(winner, entry.config);
  EXPECT_GT(seconds.at(ejk::stable_json(entry.config)), 0);
  EXPECT_FALSE(seconds.contains(R"({"block":2})")) << "it was never measured";
  EXPECT_EQ(tried.at(ejk::stable_json(entry.config)), "");
  EXPECT_NE(tried.at(R"({"block":2})"), "") << "it crashes";
}

TEST_F(WorkerTest, AnErrorOfTheWorkerHasItsKind) {
  ejk::Worker worker(script(
      ready + R"(echo '{"event":"failed","kind":"no_configuration","message":"none left"}')"));
  try {
    worker.tune(call_of("bad.print@v1"), 1);
    FAIL();
  } catch (const ejk::Error& error) {
    EXPECT_EQ(error.kind(), ejk::ErrorKind::no_configuration);
    EXPECT_STREQ(error.what(), "none left");
  }
}

TEST_F(WorkerTest, StoppingKeepsWhatIsMeasured) {
  std::atomic<bool> stop{false};
  ejk::WorkerOptions how = options();
  how.stop = &stop;
  how.on_progress = [&](const ejk::TuneProgress& p) { stop = stop || p.tried > 4; };
  ejk::Worker worker(how);
  const ejk::RecordedCall call = call_of("plugin.slow@v1");
  const ejk::Entry entry = worker.tune(call, 1000);
  EXPECT_FALSE(entry.evidence.complete);
  const auto found = ejk::PersistentCache(store).get(call.id);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->entry.config, entry.config);
  for (const auto& file : std::filesystem::recursive_directory_iterator(store))
    EXPECT_NE(file.path().extension(), ".intent");
  stop = false;
  EXPECT_EQ(worker.tune(call_of("bad.print@v1"), 1).id.op, "bad.print@v1")
      << "the next call has a fresh worker";
}

TEST_F(WorkerTest, AnAnswerWithoutACallerIsNotTakenForTheNext) {
  ejk::WorkerOptions how = options();
  how.on_progress = [](const ejk::TuneProgress& p) {
    if (p.op == "plugin.slow@v1") throw std::logic_error("of the program");
  };
  ejk::Worker worker(how);
  EXPECT_THROW(worker.tune(call_of("plugin.slow@v1"), 1000), std::logic_error);
  EXPECT_EQ(worker.tune(call_of("bad.print@v1"), 1).id.op, "bad.print@v1");
}

TEST_F(WorkerTest, ALateSecondAnswerIsNotTakenForTheNext) {
  ejk::Worker worker(script(ready + R"(
    echo '{"event":"failed","request":1,"message":"first"}'
    read request
    echo '{"event":"failed","request":1,"message":"first again"}'
    echo '{"event":"progress","request":1}'
    echo '{"event":"failed","request":2,"message":"second"}'
    read request)"));
  EXPECT_EQ(error_of(worker, "bad.print@v1"), "first");
  EXPECT_EQ(error_of(worker, "bad.print@v1"), "second");
}

TEST_F(WorkerTest, AWorkerThatDiesWhileItWaitsIsReplaced) {
  // Each says its own number as the device, and ends.
  ejk::Worker worker(script(R"(echo '{"event":"ready","protocol":1,"device":"'$$'"}')"));
  const std::string first = worker.device();
  siginfo_t end{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(std::stoi(first)), &end, WEXITED | WNOWAIT), 0);
  EXPECT_NE(worker.device(), first);
}

TEST_F(WorkerTest, SurvivesAKernelThatThrowsWhatIsNoException) {
  ejk::Worker worker(options());
  ejk::RecordedCall unmade = call_of("bad.print@v1");
  unmade.id.op = "bad.unmade@v1";
  EXPECT_THAT(error_of(worker, unmade),
              AllOf(HasSubstr("[bad.unmade@v1]"), HasSubstr("a text and no more")));
  EXPECT_THAT(error_of(worker, "bad.hook.throw@v1"), HasSubstr("a text and no more"));
  EXPECT_EQ(worker.tune(call_of("bad.print@v1"), 1).id.op, "bad.print@v1");
}

TEST_F(WorkerTest, TunesRecordedCalls) {
  const std::string records = folder.path() + "/recorded";
  {
    ejk::Recording recording(records);
    for (const std::string op : {"bad.print@v1", "bad.hook.exit@v1"}) {
      const auto made = ejk::rebuild_call(call_of(op));
      recording.record(made->invocation(), made->kernel());
    }
  }
  ejk::Worker worker(options());
  ejk::SelectorOptions selection;
  selection.persistent = std::make_shared<ejk::PersistentCache>(store);
  ejk::ConfigSelectorChain selector(selection);
  ejk::OfflineOptions offline;
  offline.folder = records;
  offline.tune_call = [&](const ejk::RecordedCall& call, double budget) {
    return worker.tune(call, budget);
  };
  const auto result = autotune_recorded(selector, offline);
  ASSERT_EQ(result.entries.size(), 1u) << result.text();
  EXPECT_EQ(result.entries[0].id.op, "bad.print@v1");
  ASSERT_EQ(result.skipped.size(), 1u);
  EXPECT_THAT(result.skipped[0].why, HasSubstr("exit code 7"));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && argv[1] == std::string_view("worker")) return ejk::run_worker();
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
