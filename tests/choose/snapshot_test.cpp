// SPDX-License-Identifier: Apache-2.0
// A run that is launched with a snapshot answers from it alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <limits>

#include "choose/launched_run.h"
#include "store/snapshot.h"

namespace {

using ejk::detail::fetch_snapshot;
using ejk::detail::name_of_snapshot;
using ejk::detail::publish_snapshot;
using ejk::detail::read_snapshot_address;
using ejk::detail::snapshot_text;
using fakes::Show;
using fakes::Threaded;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

class Snapshot : public fakes::LaunchedRun {
 protected:
  ~Snapshot() override { ::unsetenv(ejk::detail::snapshot_variable); }

  static void launch_with(const std::string& address) {
    ::setenv(ejk::detail::snapshot_variable, address.c_str(), 1);
  }
  // Into the file "choices"; gives its address.
  std::string published(std::vector<ejk::Entry> entries) {
    const std::string text = snapshot_text(std::move(entries)), path = dir.path() + "/choices";
    std::ofstream(path) << text;
    return path + "#" + name_of_snapshot(text);
  }

  fakes::TempDir dir, store;
};

TEST_F(Snapshot, AnswersInsteadOfTheStore) {
  const std::string address = published({entry(block(3))});
  const ejk::Executor tuned(setup.options(store.path()));
  EXPECT_EQ(run(tuned), 2);
  launch_with(address);
  const ejk::Executor executor(setup.options(store.path()));
  setup.events.take();
  EXPECT_EQ(run(executor), 3);
  EXPECT_EQ(run(executor), 3);
  EXPECT_THAT(setup.events.take(), ElementsAre("cache_hit/persistent", "cache_hit/memory"));
  EXPECT_EQ(run(tuned), 2) << "launched before";
  EXPECT_EQ(setup.tuner->asked, 1);
  EXPECT_THAT(setup.warnings.take(), IsEmpty());
}

TEST_F(Snapshot, AnswersSelectorsThatHaveNoStore) {
  launch_with(published({entry(block(3))}));
  EXPECT_EQ(run(ejk::Executor(setup.options())), 3);
}

TEST_F(Snapshot, AMissIsTheHeuristicAndNothingIsTunedOrKept) {
  launch_with(published({entry<Threaded>(ejk::Value::object({{"threads", 1}}))}));
  const ejk::Executor executor(setup.options(store.path()));
  const auto scope = ejk::policy_override({.allow_autotune = true});
  EXPECT_EQ(run(executor), 7);
  EXPECT_EQ(run(executor), 7);
  EXPECT_EQ(setup.tuner->asked, 0);
  EXPECT_TRUE(std::filesystem::is_empty(store.path()));
}

TEST_F(Snapshot, UnderFrozenAMissIsAnErrorThatNamesTheSnapshot) {
  const std::string address = published({entry<Threaded>(ejk::Value::object({{"threads", 1}}))});
  launch_with(address);
  auto options = setup.options(store.path());
  options.policy->allow_heuristics = false;
  const ejk::Executor executor(options);
  EXPECT_THAT(error_of([&] { run(executor); }),
              AllOf(HasSubstr("[show@v3] no configuration"),
                    HasSubstr("snapshot " + address.substr(address.find('#') + 1)),
                    HasSubstr("ejk snapshot publish")));
}

TEST_F(Snapshot, OverridesAndOverlaysStillWin) {
  launch_with(published({entry(block(3))}));
  const ejk::Executor executor(setup.options());
  executor(Show{}, {.block = 50}, x, y);
  EXPECT_EQ(y[0], 50);
  ejk::ConfigCache overlay;
  const auto id = entry(block(0)).id;
  overlay.put(id.device, id.op, id.key, Show::Config{60});
  const auto scope = ejk::overlay_cache(overlay);
  EXPECT_EQ(run(executor), 60);
}

TEST_F(Snapshot, ThreadCountsAreTakenAsTheyAreOrNotAtAll) {
  ejk::Entry many = entry<Threaded>(ejk::Value::object({{"threads", 4096}}));
  ejk::Measurement fewer;  // which a store would answer with
  fewer.config = ejk::Value::object({{"threads", 2}});
  fewer.status = "slower", fewer.ratio = 1, fewer.seconds = 1;
  many.candidates.push_back(fewer);
  launch_with(published({many}));
  const ejk::Executor executor(setup.options());
  EXPECT_EQ(run<Threaded>(executor), 1) << "the heuristic";
  const auto said = setup.warnings.take();
  ASSERT_THAT(said, SizeIs(1));
  EXPECT_THAT(said[0], AllOf(HasSubstr("asks for more threads than run here"),
                             HasSubstr("the snapshot has nothing else for this call")));
}

TEST_F(Snapshot, AnUntrustedConfigIsAMissAndIsNotTried) {
  ejk::Entry imported = entry(block(40));
  imported.provenance = "imported";
  launch_with(published({imported}));
  EXPECT_EQ(run(ejk::Executor(setup.options())), 7);
  imported.config = block(1);  // the kernel offers it
  launch_with(published({imported}));
  EXPECT_EQ(run(ejk::Executor(setup.options())), 1);
}

TEST_F(Snapshot, ExplainSaysThatItAnswers) {
  const std::string address = published({entry(block(3))});
  launch_with(address);
  const ejk::Executor executor(setup.options(store.path()));
  const auto said = executor.explain(Show{}, x, y);
  EXPECT_EQ(said.origin, "persistent");
  const std::string text = said.text();
  EXPECT_THAT(text, HasSubstr("snapshot " + address.substr(address.find('#') + 1) +
                              " has a config {\"block\":3}  <- chosen"));
  EXPECT_THAT(text, HasSubstr("nothing is tuned beside a snapshot"));
}

TEST_F(Snapshot, TuningByHandIsRefused) {
  launch_with(published({entry(block(3))}));
  const ejk::Executor executor(setup.options(store.path()));
  EXPECT_THAT(error_of([&] { executor.tune(Show{}, x, y); }),
              HasSubstr("[show@v3] got a call to tune in a run that has a snapshot; expected "
                        "EJKERNEL_PERSISTENT_CACHE_SNAPSHOT to be unset"));
  EXPECT_EQ(setup.tuner->asked, 0);
}

TEST_F(Snapshot, IsRefusedBeforeTheFirstKernelIfItIsMissingOrDifferent) {
  const std::string address = published({entry(block(3))});
  const std::string path = address.substr(0, address.find('#')),
                    name = address.substr(address.find('#') + 1);
  const auto start = [&] { const ejk::Executor executor(setup.options(store.path())); };
  const auto said = [&](const std::string& text) {
    launch_with(text);
    return error_of(start);
  };
  EXPECT_THAT(said("3a"), HasSubstr("got the snapshot \"3a\"; expected the 64 hex digits"));
  EXPECT_THAT(said("#" + name), HasSubstr("expected the 64 hex digits"));
  EXPECT_THAT(said(name), AllOf(HasSubstr("EJKERNEL_PERSISTENT_CACHE_SNAPSHOT: there is no "
                                          "snapshot " +
                                          name),
                                HasSubstr("ejk snapshot fetch")));
  EXPECT_THAT(said(dir.path() + "/nowhere#" + name), HasSubstr("there is no snapshot " + name));
  const std::string other = name_of_snapshot("");
  EXPECT_THAT(said(path + "#" + other), AllOf(HasSubstr("got a snapshot with the SHA-256 " + name),
                                              HasSubstr("expected " + other)));
  std::ofstream(path, std::ios::app) << "\n";
  EXPECT_THAT(said(address), HasSubstr("expected " + name));
  for (const char* text : {"", "{}\n", "{\"ejk_snapshot\":2}\n", "{\"ejk_snapshot\":1}\nno\n"}) {
    std::ofstream(path, std::ios::trunc) << text;
    EXPECT_THAT(said(path + "#" + name_of_snapshot(text)), HasSubstr("this is not a snapshot"))
        << text;
  }
  EXPECT_EQ(setup.tuner->asked, 0);
}

TEST_F(Snapshot, IsLoadedOnce) {
  launch_with(published({entry(block(3))}));
  EXPECT_EQ(run(ejk::Executor(setup.options())), 3);
  std::filesystem::remove(dir.path() + "/choices");
  EXPECT_EQ(run(ejk::Executor(setup.options())), 3);
}

TEST_F(Snapshot, IsFoundInAStoreByItsNameAlone) {
  const std::string text = snapshot_text({entry(block(3))});
  const std::string name = publish_snapshot(text, store.path());
  EXPECT_EQ(name, name_of_snapshot(text));
  EXPECT_EQ(publish_snapshot(text, store.path()), name) << "again";
  const auto listed = ejk::detail::published_snapshots(store.path());
  ASSERT_THAT(listed, SizeIs(1));
  EXPECT_EQ(listed[0].name, name);
  EXPECT_EQ(listed[0].bytes, text.size());
  EXPECT_EQ(fetch_snapshot({store.path(), name}), text);
  std::string loud = name;
  for (char& c : loud) c = static_cast<char>(std::toupper(c));
  for (const std::string& way : {name, "sha256:" + name, loud})
    EXPECT_EQ(read_snapshot_address(way).name, name);
  ::setenv("EJKERNEL_PERSISTENT_CACHE_LAYERS", store.path().c_str(), 1);
  launch_with("sha256:" + name);
  EXPECT_EQ(run(ejk::Executor(setup.options())), 3);
  ::unsetenv("EJKERNEL_PERSISTENT_CACHE_LAYERS");
}

TEST_F(Snapshot, EqualChoicesHaveEqualBytesAndComeBackWhole) {
  ejk::Entry a = entry(block(3)), b = entry<Threaded>(ejk::Value::object({{"threads", 1}}));
  a.config["odd"] = std::string("a\x80\0b", 4);
  a.config["not a number"] = std::numeric_limits<double>::quiet_NaN();
  a.extra = ejk::Value::object({{"unknown", "kept"}});
  const std::string text = snapshot_text({a, b});
  EXPECT_EQ(snapshot_text({b, a}), text);
  ejk::Measurement candidate;
  candidate.config = block(1);
  b.candidates.push_back(candidate);
  EXPECT_EQ(snapshot_text({b, a}), text);
  const auto back = ejk::detail::entries_of_snapshot(text);
  ASSERT_THAT(back, SizeIs(2));
  EXPECT_EQ(snapshot_text(back), text);
  EXPECT_EQ(to_json(entry_to_document(back[0])), to_json(entry_to_document(a)));
}

}  // namespace
