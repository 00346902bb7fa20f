// SPDX-License-Identifier: Apache-2.0
// Recorded calls of many folders in one database.
#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ejk/ejk.h>

#include "fakes.h"
#include "postgres_server.h"
#include "record/sending.h"
#include "store_fixture.h"

namespace {

using ejk::Recording;
using ejk::detail::CallSender;
using ejk::detail::Push;
using ejk::testing::PostgresServer;
using ejk::testing::Scratch;
using ejk::testing::Warnings;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

class SentCalls : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (PostgresServer::why_not().empty()) server = new PostgresServer;
  }
  static void TearDownTestSuite() { delete std::exchange(server, nullptr); }
  void SetUp() override {
    if (server == nullptr) GTEST_SKIP() << PostgresServer::why_not();
    database = server->new_database();
    url = server->url(database);
    ::setenv("EJKERNEL_OPS_RECORD_DIR", (scratch / "none").c_str(), 1);
  }
  void TearDown() override { ::unsetenv("EJKERNEL_OPS_RECORD_DIR"); }

  // A process that makes calls and ends.
  void run(const std::string& folder, int calls, int longer_calls = 0, bool send = true) {
    Recording::Options options;
    options.on_warning = said.sink();
    if (send) options.database = url;
    ejk::SelectorOptions chain = setup.options();
    chain.on_event = {};
    chain.recording = std::make_shared<Recording>(scratch / folder, options);
    const ejk::Executor executor(std::move(chain));
    for (int i = 0; i < calls; ++i) executor(fakes::Show{}, x, y);
    for (int i = 0; i < longer_calls; ++i) executor(fakes::Show{}, longer, y);
  }
  CallSender sender(const std::string& folder, const std::string& user = "postgres") {
    return CallSender(scratch / folder, server->url(database, user),
                      ejk::testing::patient_options(said.sink()));
  }
  CallSender::Sent push(const std::string& folder, Push what) {
    CallSender one = sender(folder);
    return one.push(what, {});
  }
  // How often each of the two calls was made, the shorter one first.
  std::vector<uint64_t> counts() {
    std::vector<uint64_t> out;
    for (const auto& [key, call] : read()) out.push_back(call.calls);
    std::ranges::sort(out, std::greater());
    return out;
  }
  std::map<std::string, ejk::RecordedCall> read() {
    return ejk::read_recorded(url, said.sink())[ejk::cpu_device().fingerprint]["show@v3"];
  }
  size_t notes(const std::string& folder) {
    namespace fs = ejk::testing::fs;
    std::error_code error;
    return size_t(std::distance(fs::directory_iterator(scratch / (folder + "/outbox"), error), {}));
  }

  static inline PostgresServer* server = nullptr;
  Scratch scratch;
  std::string database, url;
  Warnings said;
  fakes::Setup setup;
  std::vector<float> x = std::vector<float>(8, 0.5f), longer = std::vector<float>(9), y{0, 0};
};

TEST_F(SentCalls, AreAddedUpOverFolders) {
  run("a", 5, 1);
  run("b", 7);
  // If the machine was too busy to send them in time.
  push("a", Push::noted), push("b", Push::noted);
  EXPECT_THAT(counts(), testing::ElementsAre(12, 1));
  run("a", 5);  // another process of that machine
  push("a", Push::noted);
  EXPECT_THAT(counts(), testing::ElementsAre(17, 1));
  const auto here = ejk::read_recorded(scratch / "a")[ejk::cpu_device().fingerprint]["show@v3"];
  for (const auto& [key, call] : read()) {
    EXPECT_EQ(call.arguments, here.at(key).arguments);
    EXPECT_EQ(call.id.spec, here.at(key).id.spec);
    EXPECT_GE(call.timed_seconds, here.at(key).timed_seconds);
    EXPECT_LE(call.first, here.at(key).first);
  }
  EXPECT_EQ(notes("a") + notes("b"), 0u);
}

TEST_F(SentCalls, CountOnceHoweverOftenTheyAreSent) {
  run("a", 5, 2);
  ejk::testing::fs::copy(scratch / "a", scratch / "old", ejk::testing::fs::copy_options::recursive);
  run("a", 4);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(push("a", Push::everything).sent, 2u);
  EXPECT_THAT(counts(), testing::ElementsAre(9, 2));
  EXPECT_EQ(push("old", Push::everything).sent, 2u);  // late news of the same folder
  EXPECT_THAT(counts(), testing::ElementsAre(9, 2));
}

TEST_F(SentCalls, WaitForADatabaseThatIsAway) {
  server->kill(SIGQUIT);
  run("a", 5, 2);
  EXPECT_EQ(notes("a"), 1u);
  EXPECT_EQ(said.count(), 1u) << said.text();
  EXPECT_THAT(said.text(), HasSubstr("are sent later"));
  server->begin();
  EXPECT_THAT(counts(), IsEmpty());
  EXPECT_EQ(push("a", Push::noted).sent, 2u);
  EXPECT_THAT(counts(), testing::ElementsAre(5, 2));
  EXPECT_EQ(notes("a"), 0u);
  EXPECT_EQ(push("a", Push::noted).sent, 0u);
}

TEST_F(SentCalls, TheNextProcessSendsCallsOfOneThatDied) {
  run("a", 5, 0, false);
  sender("a").leave_note();
  Recording::Options options;
  options.on_warning = said.sink();
  options.database = url;
  options.first_write_seconds = options.send_seconds = 0;
  ejk::SelectorOptions chain = setup.options();
  chain.on_event = {};
  chain.recording = std::make_shared<Recording>(scratch / "a", options);
  const ejk::Executor executor(std::move(chain));
  executor(fakes::Show{}, longer, y);
  const std::vector<uint64_t> all = {5, 1};
  ejk::testing::wait_until([&] { return counts() == all; }, "what was recorded");
}

TEST_F(SentCalls, CallsOfThisMachineThatWereNotSentArePlannedToo) {
  run("a", 5);
  push("a", Push::noted);
  run("here", 3, 2, false);
  ::setenv("EJKERNEL_OPS_RECORD_DIR", (scratch / "here").c_str(), 1);
  EXPECT_THAT(counts(), testing::ElementsAre(5, 2));
  server->kill(SIGQUIT);
  EXPECT_THAT(counts(), testing::ElementsAre(3, 2));
  EXPECT_THAT(said.text(), HasSubstr("from " + (scratch / "here") + " alone"));
  server->begin();
}

TEST_F(SentCalls, NeedTheRoleOfAWriter) {
  server->must(database,
               "DROP ROLE IF EXISTS looks; CREATE ROLE looks LOGIN; GRANT ejk_reader TO looks");
  run("a", 5, 0, false);
  CallSender one = sender("a", "looks");
  EXPECT_EQ(one.push(Push::everything, {}).refused, 1u);
  EXPECT_THAT(said.text(), HasSubstr("grant this role ejk_writer"));
  EXPECT_THAT(counts(), IsEmpty());
  server->must(database, "GRANT ejk_writer TO looks");
  CallSender two = sender("a", "looks");
  EXPECT_EQ(two.push(Push::everything, {}).sent, 1u);
  const auto refused = [&](const std::string& sql) {
    return !server->query(database, "SET ROLE looks; " + sql);
  };
  EXPECT_TRUE(refused("DELETE FROM ejk.calls"));
  EXPECT_TRUE(refused("UPDATE ejk.call_counts SET calls = 7"));
  EXPECT_TRUE(refused("SELECT token FROM ejk.leases"));
  EXPECT_FALSE(refused("SELECT holder, expires FROM ejk.leases"));
}

TEST_F(SentCalls, AnOlderSchemaIsSaidAndUpgraded) {
  const std::string all = ejk::detail::postgres_schema_script(),
                    later = ejk::detail::postgres_schema_script(1);
  ASSERT_TRUE(all.ends_with(later));
  server->must(database, "DROP SCHEMA ejk CASCADE");
  server->must(database, all.substr(0, all.size() - later.size()));
  run("a", 5, 0, false);
  EXPECT_EQ(push("a", Push::everything).refused, 1u);
  EXPECT_THAT(said.text(), HasSubstr("ejk store upgrade"));
  server->must(database, later);
  EXPECT_EQ(push("a", Push::everything).sent, 1u);
  EXPECT_THAT(counts(), testing::ElementsAre(5));
}

TEST_F(SentCalls, HostileRowsArePassedOver) {
  run("a", 5, 2);
  push("a", Push::noted);
  server->must(database,
               "UPDATE ejk.calls SET record = 'no JSON' WHERE call_id = "
               "(SELECT call_id FROM ejk.calls ORDER BY call_id LIMIT 1); "
               "INSERT INTO ejk.calls SELECT decode(md5('x'), 'hex'), device, op, key, record, "
               "author, written_at FROM ejk.calls WHERE record <> 'no JSON'; "
               "INSERT INTO ejk.calls SELECT decode(md5('y'), 'hex'), '../..', op, key, '[]', "
               "author, written_at FROM ejk.calls LIMIT 1");
  EXPECT_THAT(counts(), SizeIs(1));
  EXPECT_EQ(said.count(), 3u) << said.text();
  server->must(database, "UPDATE ejk.call_counts SET calls = 9223372036854775807");
  EXPECT_THAT(counts(), IsEmpty());
  EXPECT_THAT(said.text(), HasSubstr("counts make no sense"));
}

TEST_F(SentCalls, TimesThatAddUpToNoNumberSpoilNoOtherCall) {
  run("a", 5, 2);
  push("a", Push::noted);
  server->must(database,
               "UPDATE ejk.call_counts SET timed_seconds = 1.7e308; "
               "INSERT INTO ejk.call_counts SELECT call_id, '\\x0011223344556677', calls, "
               "timed_calls, timed_seconds, first, last, author FROM ejk.call_counts");
  EXPECT_THAT(counts(), testing::ElementsAre(10, 4));
  for (const auto& [key, call] : read()) EXPECT_EQ(call.timed_seconds, 1e12);
  EXPECT_EQ(said.count(), 0u) << said.text();
}

}  // namespace
