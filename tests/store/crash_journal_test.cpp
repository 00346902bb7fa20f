// SPDX-License-Identifier: Apache-2.0
// What a journal remembers of dead processes, and what a quarantine applies to.
#include "store/crash_journal.h"

#include <gtest/gtest.h>

#include <ejk/quarantine.h>

#include "store_fixture.h"

namespace ejk {
namespace {

using namespace ejk::testing;
using detail::Journal;

Value block(int n) { return Value::object({{"block", n}}); }
std::string text(int n) { return stable_json(block(n)); }

class JournalTest : public ::testing::Test {
 protected:
  std::string root() const { return scratch / "store"; }
  Journal open(const EntryId& id = call_id(1)) {
    return Journal(root(), id, environment(), warnings.sink());
  }
  // A process that ends while this config runs.
  void die_with(const Value& config, const EntryId& id = call_id(1)) {
    const pid_t child = start_child([&]() -> bool {
      Journal journal(root(), id, environment());
      journal.intend(block(0));
      journal.done();
      journal.intend(config);
      ::_exit(7);  // no destructor runs, as if it had been killed
    });
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_EQ(WEXITSTATUS(status), 7);
    last_child = child;
  }

  Scratch scratch;
  Warnings warnings;
  pid_t last_child = 0;
};

using Suspects = std::map<std::string, int>;

TEST_F(JournalTest, ATuningThatEndsNormallyLeavesNothing) {
  {
    Journal journal = open();
    for (int n : {1, 200'000, 3}) journal.intend(block(n)), journal.done();
    journal.intend(block(4));
    EXPECT_EQ(files_below(root() + "/journal").size(), 1u);
  }
  EXPECT_TRUE(files_below(root()).empty());
  EXPECT_TRUE(open().suspects().empty());
}

TEST_F(JournalTest, TheConfigOfADeadProcessIsFoundByTheProcessNumber) {
  die_with(block(5));
  die_with(block(6));
  EXPECT_EQ(detail::left_running(root(), last_child), block(6));
  EXPECT_EQ(detail::left_running(root(), 0), std::nullopt);
  EXPECT_EQ(detail::left_running(root() + "/nothing", last_child), std::nullopt);
  Journal journal = open();  // makes suspects of them
  EXPECT_EQ(detail::left_running(root(), last_child), std::nullopt);
  EXPECT_EQ(journal.suspects().size(), 2u);
}

TEST_F(JournalTest, OpeningCreatesNothing) {
  EXPECT_TRUE(open().suspects().empty());
  EXPECT_FALSE(fs::exists(root()));
}

TEST_F(JournalTest, WithoutADirectoryNothingIsKept) {
  Journal journal("", call_id(1), environment(), warnings.sink());
  journal.intend(block(1));
  journal.done();
  journal.acquit(block(1));
  journal.condemn(block(1), "crashed");
  EXPECT_TRUE(journal.suspects().empty());
  EXPECT_EQ(journal.condemned(block(1)), "crashed") << "for this tuning";
  EXPECT_EQ(warnings.count(), 0u);
}

TEST_F(JournalTest, TheConfigOfADeadProcessIsASuspectUntilItIsAcquitted) {
  die_with(block(5));
  EXPECT_EQ(open().suspects(), (Suspects{{text(5), 1}}));
  die_with(block(5));
  die_with(block(6));
  Journal journal = open();
  EXPECT_EQ(journal.suspects(), (Suspects{{text(5), 2}, {text(6), 1}}));
  EXPECT_FALSE(journal.condemned(block(5))) << "a suspect is no convict";
  journal.acquit(block(5));
  EXPECT_EQ(journal.suspects(), (Suspects{{text(6), 1}}));
  EXPECT_EQ(open().suspects(), (Suspects{{text(6), 1}}));
  open().acquit(block(6));
  EXPECT_TRUE(files_below(root() + "/journal").empty());
  EXPECT_EQ(warnings.count(), 0u) << warnings.text();
}

TEST_F(JournalTest, ASuspectIsOneForAllCallsOfTheOpAndForNoOtherOp) {
  die_with(block(5), call_id(1));
  EXPECT_TRUE(open(call_id(1, "add@v2")).suspects().empty());
  EXPECT_TRUE(open(call_id(1, "mul@v1")).suspects().empty());
  EXPECT_EQ(open(call_id(2)).suspects(), (Suspects{{text(5), 1}}));
}

TEST_F(JournalTest, ALivingTuningIsNoSuspect) {
  Journal journal = open();
  journal.intend(block(5));
  EXPECT_TRUE(open().suspects().empty());
  EXPECT_TRUE(child_succeeded(
      start_child([&] { return Journal(root(), call_id(1), environment()).suspects().empty(); })));
  EXPECT_EQ(files_below(root() + "/journal").size(), 1u);
}

TEST_F(JournalTest, AForkedChildDoesNotEndItsParentsIntent) {
  Journal journal = open();
  journal.intend(block(5));
  EXPECT_TRUE(child_succeeded(start_child([&] {
    std::destroy_at(&journal);  // _exit does not do it
    return true;
  })));
  EXPECT_EQ(files_below(root() + "/journal").size(), 1u);
  EXPECT_TRUE(open().suspects().empty());
}

TEST_F(JournalTest, ACondemnedConfigStaysSoInItsEnvironmentOnly) {
  open().condemn(block(5), "crashed: SIGSEGV");
  EXPECT_EQ(open().condemned(block(5)), "crashed: SIGSEGV");
  EXPECT_FALSE(open().condemned(block(6)));
  EXPECT_FALSE(open(call_id(2)).condemned(block(5)));
  EXPECT_FALSE(open(call_id(1, "add@v2")).condemned(block(5)));
  EntryId elsewhere = call_id(1);
  elsewhere.device = "cpu|Other CPU|0";
  EXPECT_FALSE(open(elsewhere).condemned(block(5)));
  const Value newer = Value::object({{"cores", 2}, {"compiler", "gcc 13"}});
  EXPECT_FALSE(Journal(root(), call_id(1), newer).condemned(block(5)));
}

TEST_F(JournalTest, AQuarantineCanBeListedAndCleared) {
  EXPECT_TRUE(quarantine_list(root()).empty());
  EXPECT_EQ(quarantine_clear(root()), 0u);
  open().condemn(block(5), "crashed: SIGSEGV");
  open().condemn(block(5), "crashed: SIGSEGV");  // again
  open(call_id(1, "mul@v1")).condemn(block(6), "crashed: SIGFPE");
  open(call_id(1, "mul@v2")).condemn(block(6), "crashed: SIGFPE");
  const auto all = quarantine_list(root(), warnings.sink());
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0].id.op, "add@v1");
  EXPECT_EQ(all[0].id.key, call_id(1).key);
  EXPECT_EQ(all[0].config, block(5));
  EXPECT_EQ(all[0].environment, environment());
  EXPECT_EQ(all[0].why, "crashed: SIGSEGV");
  EXPECT_EQ(all[0].time.size(), std::string("2000-01-01T00:00:00Z").size());
  EXPECT_EQ(quarantine_clear(root(), "mul@v2"), 1u);
  EXPECT_EQ(quarantine_clear(root(), "mul"), 1u);
  EXPECT_EQ(quarantine_clear(root()), 1u);
  EXPECT_FALSE(open().condemned(block(5)));
  EXPECT_EQ(warnings.count(), 0u) << warnings.text();
}

TEST_F(JournalTest, AStoreDoesNotTakeItForEntries) {
  DirectoryStore store = open_store(root(), warnings);
  store.put(make_entry(call_id(1)));
  open().condemn(block(5), "crashed");
  die_with(block(5));
  EXPECT_FALSE(open().suspects().empty());
  int entries = 0;
  store.for_each("", [&](const Entry&) { return ++entries > 0; });
  EXPECT_EQ(entries, 1);
  EXPECT_EQ(warnings.count(), 0u) << warnings.text();
}

TEST_F(JournalTest, DamagedAndForeignFilesArePassedOverWithOneWarning) {
  die_with(block(5));
  open().condemn(block(6), "crashed");
  for (const char* content :
       {"", "{", "[1]", "{\"schema\":9}\n", "\xff\xfe\n", "{\"schema\":1}\n"}) {
    const std::string name = short_hash(std::string_view(content));
    write_text(root() + "/journal/" + name + ".intent", content);
    write_text(root() + "/quarantine/" + name + ".json", content);
  }
  write_text(root() + "/journal/notes.txt", "mine");
  fs::create_directories(root() + "/journal/folder.intent");
  Journal journal = open();
  EXPECT_EQ(journal.suspects(), (Suspects{{text(5), 1}}));
  EXPECT_EQ(journal.condemned(block(6)), "crashed");
  EXPECT_EQ(warnings.count(), 1u) << warnings.text();
  EXPECT_EQ(read_text(root() + "/journal/notes.txt"), "mine");
}

TEST_F(JournalTest, ATuningCollectsAFewOfThousandsOfIntents) {
  constexpr size_t planted = 2000;
  for (size_t n = 0; n < planted; ++n)
    write_text(root() + "/journal/" + std::to_string(n) + ".intent",
               "{\"device\":\"d\",\"op\":\"o@v1\",\"schema\":1}\n0000000011 {\"block\":1}\n");
  EXPECT_EQ(open({"d", "o@v1", "k", ""}).suspects(), (Suspects{{text(1), 16}}));
  EXPECT_EQ(files_below(root() + "/journal").size(), planted - 16 + 1);
  EXPECT_EQ(open({"d", "o@v1", "k", ""}).suspects(), (Suspects{{text(1), 32}}));
}

TEST_F(JournalTest, ThousandsOfOtherFilesHideNoIntent) {
  die_with(block(5));
  for (int n = 0; n < 5000; ++n) write_text(root() + "/journal/" + std::to_string(n), "");
  EXPECT_EQ(open().suspects(), (Suspects{{text(5), 1}}));
}

TEST_F(JournalTest, ATuningReadsItsOwnOfThousandsOfQuarantineRecords) {
  open().condemn(block(5), "crashed");
  write_text(root() + "/quarantine/0123.json", "is not read");
  Journal journal = open();
  EXPECT_EQ(journal.condemned(block(5)), "crashed");
  EXPECT_FALSE(journal.condemned(block(6)));
  EXPECT_EQ(warnings.count(), 0u) << warnings.text();
}

TEST_F(JournalTest, ARecordThatAPowerCutEmptiedIsIgnored) {
  die_with(block(5));
  EXPECT_EQ(open().suspects().size(), 1u);
  for (const std::string& name : files_below(root() + "/journal"))
    write_text(root() + "/journal/" + name, "");
  EXPECT_TRUE(open().suspects().empty());
  EXPECT_TRUE(suspect_list(root(), warnings.sink()).empty());
  EXPECT_EQ(warnings.count(), 0u) << warnings.text();
  die_with(block(6));
  EXPECT_EQ(open().suspects(), (Suspects{{text(6), 1}}));
}

TEST_F(JournalTest, ACutOffIntentIsPassedOver) {
  write_text(root() + "/journal/0.intent", R"({"device":"d","op":"o@v1","schema":1})"
                                           "\n0000000099 {\"block\":1}\n");
  write_text(root() + "/journal/1.intent", R"({"device":"d","op":"o@v1","schema":1})"
                                           "\n00");
  EXPECT_TRUE(open({"d", "o@v1", "k", ""}).suspects().empty());
  EXPECT_EQ(warnings.count(), 1u) << warnings.text();
}

}  // namespace
}  // namespace ejk
