// SPDX-License-Identifier: Apache-2.0
// A shared database that is away, slow, killed, of another version, or full of nonsense: calls go
// on, one warning says so, and nothing that was acknowledged is lost.
#include <signal.h>
#include <stdlib.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <thread>

#include <gtest/gtest.h>

#include <ejk/error.h>
#include <ejk/open_store.h>

#include "postgres_server.h"
#include "store/entry_file.h"
#include "store/keep.h"
#include "store/shared.h"

namespace ejk {
namespace {

using namespace ejk::testing;
using detail::Outbox;
using detail::PostgresStore;
using detail::SharedStore;
using detail::postgres::Trouble;
using Sent = PostgresStore::Sent;

constexpr const char* password = "s3cret/pass";
constexpr const char* password_in_url = "s3cret%2Fpass";

// Waits for what another thread or the server does.
void wait_until(const std::function<bool()>& done) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  while (!done()) {
    if (std::chrono::steady_clock::now() > until) throw std::runtime_error("it does not come");
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

class PostgresFaults : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = PostgresServer::why_not(); !why.empty()) GTEST_SKIP() << why;
  }
  static void TearDownTestSuite() { common.reset(); }

  // One for the tests that do it no harm.
  static PostgresServer& server() {
    if (!common) {
      common = std::make_unique<PostgresServer>(true);
      for (const char* role : {"nobody", "reader", "writer", "admin"})
        common->must("postgres",
                     std::string("CREATE ROLE ") + role + " LOGIN PASSWORD '" + password + "'");
      common->new_database();
      for (const char* role : {"reader", "writer", "admin"})
        common->must("postgres", std::string("GRANT ejk_") + role + " TO " + role);
    }
    return *common;
  }
  // Deadlines are short where they shall pass, and long where they shall not.
  PostgresStore::Options options(double deadline = 60) {
    PostgresStore::Options out = patient_options(warnings.sink());
    out.connect_seconds = out.get_seconds = out.put_seconds = out.prefetch_seconds = deadline;
    out.breaker = {.first_pause = 0.02, .longest_pause = 0.1};
    return out;
  }
  std::unique_ptr<SharedStore> shared(const std::string& url, const PostgresStore::Options& with,
                                      const std::string& place = "near") {
    return std::make_unique<SharedStore>(
        std::make_shared<DirectoryStore>(
            scratch / place, DirectoryStore::Options{false, warnings.sink(), environment()}),
        url, with);
  }
  bool outbox_is_empty(const std::string& place = "near") {
    return Outbox(scratch / place).empty();
  }
  int block_of(Store& store, const EntryId& of) {
    const auto entry = store.get(of, Detail::choice);
    return entry ? static_cast<int>(entry->config.find("block")->as_int()) : -1;
  }
  void expect_no_secret() {
    EXPECT_EQ(warnings.text().find("s3cret"), std::string::npos) << warnings.text();
  }

  Scratch scratch{memory_directory()};
  Warnings warnings;
  const EntryId id = call_id(1);

 private:
  static inline std::unique_ptr<PostgresServer> common;
};

// ---- it is not there

TEST_F(PostgresFaults, WithoutAServerTheLocalStoreServesAndOneWarningSaysSo) {
  const std::string url = "postgresql:///d?host=" + scratch / "nowhere";
  {
    auto with = options();
    with.breaker = {};  // its pause is longer than this takes
    const auto store = shared(url, with);
    EXPECT_FALSE(store->get(id));
    EXPECT_TRUE(store->put(make_entry(id, 7)));
    EXPECT_EQ(block_of(*store, id), 7);
    const auto lease = store->lease(id, 0);
    EXPECT_NE(lease, nullptr) << "the local one";
    EXPECT_TRUE(store->far().is_away());
    int seen = 0;
    store->for_each("", [&](const Entry&) { return ++seen > 0; });
    EXPECT_EQ(seen, 1);
  }
  EXPECT_EQ(warnings.count(), 1u) << warnings.text();
  EXPECT_NE(warnings.text().find(scratch / "near"), std::string::npos) << "what happens instead";
  EXPECT_FALSE(outbox_is_empty()) << "for the next process";
}

TEST_F(PostgresFaults, WhatCouldNotBeSentIsSentByTheNextProcess) {
  shared("postgresql:///d?host=" + scratch / "nowhere", options())->put(make_entry(id, 7));
  ASSERT_FALSE(outbox_is_empty());
  const std::string url = server().url(server().new_database());
  const auto store = shared(url, options());
  EXPECT_FALSE(store->get(call_id(2))) << "any question wakes the sender";
  wait_until([&] { return outbox_is_empty(); });
  EXPECT_EQ(block_of(store->far(), id), 7);
}

TEST_F(PostgresFaults, RequiredMeansAnErrorThatNamesTheCureAndNoSecret) {
  ::setenv("EJKERNEL_PERSISTENT_CACHE_URL_REQUIRED", "1", 1);
  OpenStoreOptions with{.on_warning = warnings.sink(), .directory = scratch / "near"};
  std::string said;
  try {
    open_store(server().tcp_url("ejk_1", "writer", "wrong-s3cret"), with);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::io);
    said = error.what();
  }
  EXPECT_NE(said.find("EJKERNEL_PERSISTENT_CACHE_URL_REQUIRED"), std::string::npos) << said;
  EXPECT_NE(said.find("password authentication failed"), std::string::npos) << said;
  EXPECT_EQ(said.find("s3cret"), std::string::npos) << said;
  ::unsetenv("EJKERNEL_PERSISTENT_CACHE_URL_REQUIRED");
  expect_no_secret();
}

TEST_F(PostgresFaults, AStoppedServerIsLeftAtTheDeadlineAndUsedAgainAfterwards) {
  PostgresServer own;
  const std::string url = own.url(own.new_database());
  auto with = options();
  with.get_seconds = with.prefetch_seconds = with.put_seconds = 0.05;
  with.connect_seconds = 0.2;
  PostgresStore slow(url, with);
  wait_until([&] { return slow.put(make_entry(id, 1)); });
  const size_t told = warnings.text().size();  // a slow server may be left before
  own.stop_time();
  // Nothing answers any more: who waited without a deadline would wait for ever.
  EXPECT_FALSE(slow.get(id));
  wait_until([&] { return slow.get(id), slow.is_away(); });
  EXPECT_EQ(slow.send(make_entry(id, 2, 99), false), Sent::later);
  EXPECT_EQ(warnings.text().find("answers again", told), std::string::npos);
  EXPECT_NE(warnings.text().find("cannot be used", told), std::string::npos);
  own.go_on();
  wait_until([&] { return block_of(slow, id) == 1 || block_of(slow, id) == 2; });
  EXPECT_NE(warnings.text().find("answers again", told), std::string::npos);
}

TEST_F(PostgresFaults, WhatWasPutMeanwhileIsSentWhenTheServerIsBack) {
  PostgresServer own;
  const std::string url = own.url(own.new_database());
  const auto store = shared(url, options());
  EXPECT_TRUE(store->put(make_entry(id, 1)));
  EXPECT_TRUE(outbox_is_empty()) << "it was acknowledged";
  own.kill(SIGKILL);
  EXPECT_TRUE(store->put(make_entry(call_id(2), 2)));
  EXPECT_TRUE(store->put(make_entry(id, 3, 99)));
  EXPECT_FALSE(outbox_is_empty());
  EXPECT_EQ(block_of(*store, id), 3);
  own.begin();
  wait_until([&] { return outbox_is_empty(); });
  EXPECT_EQ(block_of(store->far(), id), 3);
  EXPECT_EQ(block_of(store->far(), call_id(2)), 2);
}

TEST_F(PostgresFaults, NoAcknowledgedPutIsLostWhenTheServerIsKilled) {
  PostgresServer own;
  const std::string url = own.url(own.new_database());
  constexpr int clients = 8, puts = 40, calls = 10;
  std::vector<std::map<std::string, Entry>> acknowledged(clients);
  std::atomic<int> done = 0;
  {
    std::vector<std::jthread> threads;
    for (int c = 0; c < clients; ++c)
      threads.emplace_back([&, c] {
        const auto store = shared(url, options(), "near" + std::to_string(c));
        std::mt19937 random(static_cast<unsigned>(c));
        for (int i = 0; i < puts; ++i, ++done) {
          const Entry entry = make_entry(call_id(static_cast<int>(random() % calls)), c * puts + i,
                                         static_cast<int>(random() % 1000));
          EXPECT_TRUE(store->put(entry));
          if (store->far().send(entry, false) != Sent::kept) continue;
          auto [best, first] =
              acknowledged[static_cast<size_t>(c)].try_emplace(entry.id.key, entry);
          if (!first && better_evidence(entry, best->second)) best->second = entry;
        }
      });
    for (int kills = 1; kills <= 2; ++kills) {
      wait_until([&] { return done >= kills * clients * puts / 4; });
      own.kill(SIGKILL);
      own.begin();
    }
  }
  // Each pushes what is left of its own.
  std::vector<std::unique_ptr<SharedStore>> stores;
  for (int c = 0; c < clients; ++c) {
    const std::string place = "near" + std::to_string(c);
    stores.push_back(shared(url, options(), place));
    EXPECT_EQ(stores.back()->push(false).left, 0u);
    EXPECT_TRUE(outbox_is_empty(place));
  }
  PostgresStore far(url, options());
  for (const auto& best : acknowledged)
    for (auto [key, entry] : best) {
      const auto there = far.get(entry.id);
      ASSERT_TRUE(there);
      entry.trusted = false;
      EXPECT_FALSE(better_evidence(entry, *there)) << key;
    }
  // And all stores have the same best ones.
  for (int call = 0; call < calls; ++call)
    for (const auto& store : stores) {
      auto near = store->get(call_id(call), Detail::all);
      const auto best = far.get(call_id(call));
      ASSERT_EQ(near.has_value(), best.has_value());
      if (!near) continue;
      near->trusted = false;
      EXPECT_FALSE(better_evidence(*near, *best)) << "all of them were sent";
    }
}

// ---- it says no

TEST_F(PostgresFaults, AWrongPasswordIsOneWarningWithoutIt) {
  auto with = options();
  with.breaker = {};
  const auto store = shared(server().tcp_url("ejk_1", "writer", "wrong-s3cret"), with);
  EXPECT_TRUE(store->put(make_entry(id, 7)));
  EXPECT_FALSE(store->get(call_id(2)));
  EXPECT_EQ(block_of(*store, id), 7);
  EXPECT_EQ(warnings.count(), 1u) << warnings.text();
  EXPECT_NE(warnings.text().find("password authentication failed"), std::string::npos);
  EXPECT_EQ(store->where().find("s3cret"), std::string::npos);
  expect_no_secret();
}

TEST_F(PostgresFaults, RolesMayDoWhatTheyAreFor) {
  const std::string database = server().new_database();
  const auto url = [&](const char* role) {
    return server().tcp_url(database, role, password_in_url);
  };
  PostgresStore writer(url("writer"), options()), admin(url("admin"), options());
  EXPECT_TRUE(writer.put(make_entry(id, 1, 10)));
  EXPECT_NE(writer.lease(id, 0), nullptr);
  EXPECT_FALSE(writer.put(make_entry(id, 2, 1), true)) << "replacing is for admins";
  EXPECT_FALSE(writer.erase(id));
  for (const char* sql :
       {"DELETE FROM ejk.entries", "UPDATE ejk.entries SET document = ''", "TRUNCATE ejk.entries",
        "INSERT INTO ejk.entries SELECT * FROM ejk.entries", "SELECT * FROM ejk.leases",
        "UPDATE ejk.meta SET version = 2", "CREATE TABLE ejk.own (a int)", "DROP SCHEMA ejk"})
    EXPECT_EQ(writer.ask({sql}).sqlstate, "42501") << sql;
  EXPECT_EQ(block_of(writer, id), 1);
  {
    const auto reader = shared(url("reader"), options(), "reader");
    EXPECT_EQ(block_of(*reader, id), 1);
    EXPECT_TRUE(reader->put(make_entry(id, 3, 99)));
    EXPECT_EQ(block_of(*reader, id), 3) << "its own";
    EXPECT_NE(reader->lease(call_id(3), 0), nullptr) << "the local one";
    EXPECT_TRUE(outbox_is_empty("reader")) << "what is never taken is not kept for later";
  }
  EXPECT_EQ(block_of(writer, id), 1);
  {
    const auto shared_writer = shared(url("writer"), options(), "writer");
    EXPECT_EQ(block_of(*shared_writer, id), 1);
    EXPECT_TRUE(shared_writer->put(make_entry(id, 4, 1), true)) << "locally";
    EXPECT_EQ(block_of(*shared_writer, id), 4);
    EXPECT_TRUE(outbox_is_empty("writer"));
  }
  EXPECT_EQ(block_of(writer, id), 1) << "there the better one stays";
  EXPECT_TRUE(admin.put(make_entry(id, 2, 1), true));
  EXPECT_EQ(block_of(admin, id), 2);
  EXPECT_TRUE(admin.erase(id));
  EXPECT_FALSE(admin.get(id));
  expect_no_secret();
}

TEST_F(PostgresFaults, ARoleWithoutRightsIsToldWhichOneItNeeds) {
  PostgresStore store(server().tcp_url("ejk_1", "nobody", password_in_url), options());
  EXPECT_FALSE(store.get(id));
  EXPECT_NE(warnings.text().find("ejk_reader"), std::string::npos) << warnings.text();
}

TEST_F(PostgresFaults, ADatabaseWithoutAStoreIsToldHowToMakeOne) {
  PostgresStore store(server().url("postgres"), options());
  EXPECT_FALSE(store.get(id));
  EXPECT_NE(warnings.text().find("ejk store init"), std::string::npos) << warnings.text();
}

TEST_F(PostgresFaults, ANewerSchemaIsReadAndNotWritten) {
  const std::string database = server().new_database();
  PostgresStore(server().url(database), options()).put(make_entry(id, 1, 10));
  server().must(database, "UPDATE ejk.meta SET version = 2");
  {
    PostgresStore store(server().url(database), options());
    EXPECT_EQ(block_of(store, id), 1);
    EXPECT_FALSE(store.put(make_entry(id, 2, 99)));
    EXPECT_FALSE(store.writable());
    EXPECT_EQ(block_of(store, id), 1);
    EXPECT_EQ(warnings.count(), 1u) << warnings.text();
  }
  server().must(database, "UPDATE ejk.meta SET min_client = 2");
  PostgresStore store(server().url(database), options());
  EXPECT_FALSE(store.get(id));
  EXPECT_NE(warnings.text().find("cannot read"), std::string::npos) << warnings.text();
}

// ---- between it and us

TEST_F(PostgresFaults, WorksThroughPgBouncerThatSharesSessions) {
  if (::access("/usr/sbin/pgbouncer", X_OK) != 0)
    GTEST_SKIP() << "PgBouncer is not installed (Debian: pgbouncer)";
  const std::string database = server().new_database(), port = PostgresServer::free_port();
  const std::string settings = server().path("pgbouncer.ini");
  const std::string to =
      "host=" + server().path("") + " port=" + server().port() + " user=writer dbname=" + database;
  write_text(settings, "[databases]\n" + database + " = " + to +
                           "\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = " + port +
                           "\nunix_socket_dir =\nauth_type = any\npool_mode = transaction\n"
                           "default_pool_size = 2\n");
  const pid_t bouncer = server().start({"/usr/sbin/pgbouncer", settings});
  const std::string url = "postgresql://writer@127.0.0.1:" + port + "/" + database;
  {
    PostgresStore first(url, options());
    wait_until([&] { return first.put(make_entry(id, 1)); });
    std::atomic<int> holders = 0;
    std::vector<std::jthread> threads;
    for (int t = 0; t < 8; ++t)
      threads.emplace_back([&, t] {
        PostgresStore own(url, options());
        for (int i = 0; i < 20; ++i)
          EXPECT_TRUE(own.put(make_entry(call_id(i % 5), t, 20 * t + i)));
        const auto lease = own.lease(id, 60);
        EXPECT_NE(lease, nullptr);
        EXPECT_EQ(holders.fetch_add(1), 0);
        holders.fetch_sub(1);
      });
    threads.clear();
    for (int call = 0; call < 5; ++call) EXPECT_EQ(block_of(first, call_id(call)), 7);
  }
  ::kill(bouncer, SIGKILL);
  PostgresServer::wait_for(bouncer);
}

TEST_F(PostgresFaults, ACertificateOfAnotherAuthorityIsRefused) {
  if (std::system("command -v openssl >/dev/null") != 0) GTEST_SKIP() << "no openssl here";
  PostgresServer own(true);
  const auto openssl = [&](const std::string& line) {
    return std::system(("openssl " + line + " >>'" + own.log() + "' 2>&1").c_str()) == 0;
  };
  const auto authority = [&](const std::string& name) {
    return openssl(
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=" + name +
        " -keyout " + own.path(name + ".key") + " -out " + own.path(name + ".crt"));
  };
  ASSERT_TRUE(authority("right") && authority("wrong"));
  const std::string key = own.data() + "/server.key", certificate = own.data() + "/server.crt";
  write_text(own.path("names"), "subjectAltName=IP:127.0.0.1\n");
  ASSERT_TRUE(
      openssl("req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=db -keyout " + key +
              " -out " + own.path("request")) &&
      openssl("x509 -req -days 2 -CAcreateserial -in " + own.path("request") + " -CA " +
              own.path("right.crt") + " -CAkey " + own.path("right.key") + " -extfile " +
              own.path("names") + " -out " + certificate))
      << read_text(own.log());
  fs::permissions(key, fs::perms::owner_read);
  if (::getuid() == 0) {
    ASSERT_EQ(::chown(key.c_str(), PostgresServer::nobody, PostgresServer::nobody), 0);
    ASSERT_EQ(::chown(certificate.c_str(), PostgresServer::nobody, PostgresServer::nobody), 0);
  }
  own.must("postgres", "ALTER SYSTEM SET ssl = on");
  own.must("postgres", "SELECT pg_reload_conf()");
  const std::string database = own.new_database();
  own.must("postgres", std::string("CREATE ROLE ann LOGIN PASSWORD '") + password +
                           "'; GRANT ejk_writer TO ann");
  const auto url = [&](const std::string& name) {
    return own.tcp_url(database, "ann", password_in_url) +
           "?sslmode=verify-full&sslrootcert=" + own.path(name + ".crt");
  };
  PostgresStore right(url("right"), options());
  wait_until([&] { return right.put(make_entry(id, 1)); });  // the settings may be read a bit later
  EXPECT_EQ(
      right.ask({"SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"}).rows.at(0).at(0),
      "t");
  auto with = options();
  with.breaker = {};
  PostgresStore wrong(url("wrong"), with);
  EXPECT_FALSE(wrong.get(id));
  EXPECT_NE(warnings.text().find("certificate verify failed"), std::string::npos)
      << warnings.text();
  expect_no_secret();
}

// ---- what others wrote

TEST_F(PostgresFaults, HostileRowsAreMissesWithAWarning) {
  const std::string database = server().new_database();
  PostgresStore store(server().url(database), options());
  const auto put_row = [&](int call, const std::string& document) {
    EXPECT_TRUE(store.put(make_entry(call_id(call), 1)));
    EXPECT_TRUE(store.ask({"UPDATE ejk.entries SET document = $1 WHERE key = $2",
                           {document, call_id(call).key},
                           60}));
  };
  std::string why;
  const std::string other = *detail::entry_text(make_entry(call_id(99)), why);
  server().must(database, "ALTER TABLE ejk.entries DROP CONSTRAINT entries_document_check");
  put_row(0, "");
  put_row(1, "not JSON");
  put_row(2, std::string(100'000, '['));
  put_row(3, other);
  put_row(4, std::string((size_t{16} << 20) + 1, ' '));
  put_row(5, R"({"schema": 1, "op": "../../../etc/passwd", "key": "..", "device": {}})");
  for (int call = 0; call < 6; ++call) {
    const size_t before = warnings.count();
    EXPECT_FALSE(store.get(call_id(call))) << call;
    EXPECT_FALSE(store.get(call_id(call))) << call;
    EXPECT_EQ(warnings.count(), before + 1) << call << warnings.text();
  }
  EXPECT_TRUE(store.prefetch(id.device, id.op, environment()).entries.empty());
  store.for_each("", [](const Entry&) { return ADD_FAILURE(), true; });
  // One that is sound answers although a broken one would come first.
  Entry elsewhere = make_entry(call_id(1), 8);
  elsewhere.environment = Value("elsewhere");
  EXPECT_TRUE(store.put(elsewhere));
  EXPECT_EQ(block_of(store, call_id(1)), 8);
  EXPECT_TRUE(store.put(make_entry(call_id(1), 9, 99))) << "and is written over";
  EXPECT_EQ(block_of(store, call_id(1)), 9);
}

TEST_F(PostgresFaults, WhatComesFromTheDatabaseIsNotTrustedHereEither) {
  const std::string url = server().url(server().new_database());
  PostgresStore(url, options()).put(make_entry(id, 5));
  const auto store = shared(url, options());
  const auto first = store->get(id, Detail::choice);
  ASSERT_TRUE(first);
  EXPECT_FALSE(first->trusted);
  const auto near =
      DirectoryStore(scratch / "near", {true, warnings.sink(), environment()}).get(id);
  ASSERT_TRUE(near) << "it was written there";
  EXPECT_FALSE(near->trusted);
}

// ---- what is asked

TEST_F(PostgresFaults, OneQuestionBringsAllCallsOfAnOp) {
  const std::string url = server().url(server().new_database());
  PostgresStore far(url, options());
  for (int call = 0; call < 20; ++call) far.put(make_entry(call_id(call), call));
  const auto store = shared(url, options());
  EXPECT_EQ(block_of(*store, call_id(0)), 0);
  EXPECT_TRUE(far.erase(call_id(1)));
  EXPECT_TRUE(far.put(make_entry(call_id(30), 30)));
  EXPECT_EQ(block_of(*store, call_id(1)), 1) << "it came with the first";
  EXPECT_EQ(block_of(*store, call_id(30)), -1) << "it was not there then";
  { const auto lease = store->lease(call_id(30), 0); }
  EXPECT_EQ(block_of(*store, call_id(30)), 30) << "who held the lease may have put it";
}

TEST_F(PostgresFaults, CandidatesComeWhenTheyAreAskedFor) {
  const std::string url = server().url(server().new_database());
  Entry entry = make_entry(id, 5);
  Measurement slower;
  slower.config = Value::object({{"block", 1}}), slower.status = "slower";
  entry.candidates.push_back(slower);
  PostgresStore(url, options()).put(entry);
  const auto store = shared(url, options());
  EXPECT_TRUE(store->get(id, Detail::choice));
  EXPECT_EQ(store->get(id, Detail::all)->candidates.size(), 1u);
}

// ---- processes

TEST_F(PostgresFaults, AForkedChildLeavesTheConnectionAlone) {
  const std::string url = server().url(server().new_database());
  auto store = shared(url, options());
  EXPECT_TRUE(store->put(make_entry(id, 1)));
  const pid_t child = start_child([&] {
    const bool served = block_of(*store, id) == 1 && store->put(make_entry(call_id(2), 2));
    store.reset();
    return served;
  });
  EXPECT_TRUE(child_succeeded(child));
  EXPECT_FALSE(outbox_is_empty()) << "what the child put is left for others";
  EXPECT_TRUE(store->put(make_entry(call_id(3), 3)));
  EXPECT_EQ(block_of(store->far(), call_id(3)), 3) << "the connection still works";
  EXPECT_EQ(store->push(false).sent, 1u);
  EXPECT_EQ(block_of(store->far(), call_id(2)), 2);
}

TEST_F(PostgresFaults, TheLeaseOfADeadHolderRunsOut) {
  const std::string database = server().new_database(), url = server().url(database);
  if (thread_sanitized) GTEST_SKIP() << "no threads after a fork";
  auto with = options();
  with.lease_seconds = 6;
  PostgresStore store(url, with);
  int told[2];
  ASSERT_EQ(::pipe(told), 0);
  const pid_t child = start_child([&] {
    PostgresStore own(url, with);
    const auto lease = own.lease(id, 0);
    const char held = lease ? 'y' : 'n';
    if (::write(told[1], &held, 1) != 1) return false;
    for (;;) ::pause();
  });
  char held = 'n';
  EXPECT_EQ(::read(told[0], &held, 1), 1);
  EXPECT_EQ(held, 'y');
  EXPECT_EQ(store.lease(id, 0), nullptr);
  const auto expiry = [&] {
    return server().query(database, "SELECT expires FROM ejk.leases").rows.at(0).at(0);
  };
  const auto first = expiry();
  wait_until([&] { return expiry() != first; });  // a holder that lives renews it
  ::kill(child, SIGKILL);
  EXPECT_FALSE(child_succeeded(child));
  EXPECT_NE(store.lease(id, 60), nullptr);
}

}  // namespace
}  // namespace ejk
