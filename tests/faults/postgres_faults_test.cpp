// SPDX-License-Identifier: Apache-2.0
// A shared database that is away, slow, killed, of another version, or full of nonsense: calls go
// on, one warning says so, and nothing that was acknowledged is lost.
#include <signal.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <clocale>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <thread>

#include <gtest/gtest.h>

#include <ejk/ejk.h>

#include "fakes.h"
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

double seconds_of(const std::function<void()>& something) {
  const auto begin = std::chrono::steady_clock::now();
  something();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// How long something takes, over what a wait of so many seconds takes beside it: on a busy machine
// both are late.
double over_wait_of(double seconds, const std::function<void()>& something) {
  double waited = 0;
  std::thread beside([&] {
    waited =
        seconds_of([&] { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); });
  });
  const double all = seconds_of(something);
  beside.join();
  return all / waited;
}

// Deadlines are kept to within this; without them it would be minutes.
constexpr double on_time = 3;
// Of a deadline of a minute, where an answer comes before it.
constexpr double at_once = 0.5;

// The first call of a program with that store. It asks for a choice, for a lease and again for the
// choice, tunes, puts what it found, and runs.
void call_with(std::shared_ptr<Store> store) {
  fakes::Setup program;
  SelectorOptions options = program.options();
  options.persistent =
      std::make_shared<PersistentCache>(std::vector<std::shared_ptr<Store>>{std::move(store)});
  const Executor executor(std::move(options));
  const std::vector<float> x(8);
  std::vector<float> y{0};
  executor(fakes::Show{}, x, y);
  EXPECT_EQ(y[0], 2) << "the config that its tuning chose";
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

TEST_F(PostgresFaults, TheNextProcessSendsWhatCouldNotBeSent) {
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
    const std::string url = server().tcp_url("ejk_1", "writer", "wrong-s3cret");
    open_store(url + "?connect_timeout=60", with);  // it may be slow here; it shall answer
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
  auto with = options(0.5);
  PostgresStore slow(url, with);
  wait_until([&] { return slow.put(make_entry(id, 1)); });
  const size_t told = warnings.text().size();  // a slow server may be left before
  own.stop_time();
  // Nothing answers any more: who waited without a deadline would wait for ever.
  EXPECT_LT(over_wait_of(with.get_seconds, [&] { EXPECT_FALSE(slow.get(id)); }), on_time);
  wait_until([&] { return slow.get(id), slow.is_away(); });
  EXPECT_LT(over_wait_of(with.get_seconds, [&] { EXPECT_FALSE(slow.get(id)); }), 1)
      << "no call waits for what is known to be away";
  EXPECT_EQ(slow.send(make_entry(id, 2, 99), ejk::IfPresent::keep_better), Sent::later);
  const auto says = [&](const char* words) {
    return warnings.text().find(words, told) != std::string::npos;
  };
  wait_until([&] { return says("cannot be used"); }, "the warning");  // behind is_away()
  EXPECT_FALSE(says("answers again"));
  own.go_on();
  wait_until([&] { return block_of(slow, id) == 1 || block_of(slow, id) == 2; });
  EXPECT_TRUE(says("answers again"));
}

TEST_F(PostgresFaults, CallsOfManyThreadsLeaveAStoppedServerAtTheirDeadlines) {
  PostgresServer own;
  auto with = options(0.5);
  with.breaker = {};
  const auto store = shared(own.url(own.new_database()), with);
  wait_until(
      [&] { return store->put(make_entry(id)) && store->push(detail::Push::noted).left == 0; });
  const size_t told = warnings.count();
  own.stop_time();
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      const EntryId call = call_id(t, "op" + std::to_string(t));
      const auto get = [&] { EXPECT_FALSE(store->get(call, Detail::choice)); };
      EXPECT_LT(over_wait_of(with.connect_seconds + with.prefetch_seconds, get), on_time);
      const auto put = [&] { EXPECT_TRUE(store->put(make_entry(call, t))); };
      EXPECT_LT(over_wait_of(with.connect_seconds + with.put_seconds, put), on_time);
      const auto lease = [&] { EXPECT_TRUE(store->lease(call, 0)); };
      EXPECT_LT(over_wait_of(with.connect_seconds + with.get_seconds, lease), on_time);
    });
  threads.clear();
  wait_until([&] { return warnings.count() > told; }, "the warning");
  EXPECT_EQ(warnings.count(), told + 1) << warnings.text();
}

TEST_F(PostgresFaults, ACallThatMeetsAStoppedServerRunsWithinItsDeadlines) {
  PostgresServer own;
  auto with = options(0.5);
  with.breaker = {};
  const std::shared_ptr<SharedStore> store = shared(own.url(own.new_database()), with);
  wait_until(
      [&] { return store->put(make_entry(id)) && store->push(detail::Push::noted).left == 0; });
  const size_t told = warnings.count();
  own.stop_time();
  EXPECT_LT(over_wait_of(with.connect_seconds + with.prefetch_seconds, [&] { call_with(store); }),
            on_time);
  wait_until([&] { return store->get(call_id(2)), store->far().is_away(); });
  wait_until([&] { return warnings.count() > told; }, "the warning");  // behind is_away()
  EXPECT_EQ(warnings.count(), told + 1) << warnings.text();
}

TEST_F(PostgresFaults, AQuestionThatTakesLongHoldsUpNoOtherOp) {
  const std::string url = server().url(server().new_database());
  const EntryId slow = call_id(1, "slow@v1");
  PostgresStore(url, options()).put(make_entry(slow, 5));
  auto with = options(0.5);
  with.connect_seconds = with.prefetch_seconds = 60;
  const auto store = shared(url, with);
  wait_until(
      [&] { return store->put(make_entry(id)) && store->push(detail::Push::noted).left == 0; });
  const size_t told = warnings.count();

  detail::postgres::Link::Options patient;
  patient.connect_seconds = 60, patient.idle_seconds = 1e6;
  detail::postgres::Link other(detail::postgres::read_address(url), patient);
  const auto script = [&](const char* sql) { return other.ask({sql, {}, 60, true}); };
  ASSERT_TRUE(script("BEGIN; LOCK TABLE ejk.entries"));
  int block = 0;
  std::jthread asking([&] { block = block_of(*store, slow); });
  const char* waiting = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
  wait_until([&] { return !server().query("postgres", waiting).rows.empty(); }, "the question");
  const auto put = [&] { EXPECT_TRUE(store->put(make_entry(call_id(2), 2))); };
  EXPECT_LT(over_wait_of(with.put_seconds, put), on_time);
  const auto lease = [&] { EXPECT_TRUE(store->lease(call_id(3), 0)) << "the local one"; };
  EXPECT_LT(over_wait_of(with.get_seconds, lease), on_time);
  const auto get = [&] { EXPECT_FALSE(store->get(call_id(4))); };
  EXPECT_LT(over_wait_of(with.get_seconds, get), on_time);
  EXPECT_FALSE(store->far().is_away()) << "it is busy";
  EXPECT_TRUE(script("ROLLBACK"));
  asking.join();
  EXPECT_EQ(block, 5);
  EXPECT_EQ(warnings.count(), told) << warnings.text();
}

TEST_F(PostgresFaults, EntriesThatWerePutMeanwhileAreSentWhenTheServerIsBack) {
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
  constexpr int clients = 32, puts = 12, calls = 10;
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
          if (store->far().send(entry, ejk::IfPresent::keep_better) != Sent::kept) continue;
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
    EXPECT_EQ(stores.back()->push(detail::Push::noted).left, 0u);
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
  // The database has the best of all directories, and a directory that gets all of them, in any
  // order, has the same.
  const auto contents = [](Store& store) {
    std::set<std::string> out;
    store.for_each("", [&](const Entry& entry) {
      Entry same = entry;
      same.trusted = false;
      return out.insert(to_json(entry_to_document(same))), true;
    });
    return out;
  };
  const std::set<std::string> in_database = contents(far);
  EXPECT_EQ(in_database.size(), static_cast<size_t>(calls));
  std::mt19937 random(1);
  for (int round = 0; round < 3; ++round) {
    std::ranges::shuffle(stores, random);
    DirectoryStore together(scratch / ("together" + std::to_string(round)),
                            {false, warnings.sink(), environment()});
    for (int c = 0; c < clients; ++c)
      DirectoryStore(stores[static_cast<size_t>(c)]->local_directory(),
                     {true, warnings.sink(), environment()})
          .for_each("", [&](const Entry& entry) { return together.put(entry), true; });
    EXPECT_EQ(contents(together), in_database) << round;
  }
}

class Disk {
 public:
  explicit Disk(std::string path) : path_(std::move(path)) {
    fs::create_directory(path_);
    mounted_ = mount("16m", 0);
  }
  ~Disk() { ::umount(path_.c_str()); }
  Disk(const Disk&) = delete;
  Disk& operator=(const Disk&) = delete;

  bool mounted() const { return mounted_; }
  bool grow() { return mount("64m", MS_REMOUNT); }
  const std::string& path() const { return path_; }

 private:
  bool mount(const std::string& size, unsigned long flags) {
    const std::string options = "size=" + size + ",uid=65534,gid=65534,mode=700";
    return ::mount("ejk", path_.c_str(), "tmpfs", flags, options.c_str()) == 0;
  }

  const std::string path_;
  bool mounted_;
};

TEST_F(PostgresFaults, AFullDiskKeepsWhatWasPutForLater) {
  Disk disk(scratch / "disk");
  if (!disk.mounted()) GTEST_SKIP() << "a small disk cannot be mounted here (root can)";
  PostgresServer own;
  own.new_database();
  own.must("postgres", "CREATE TABLESPACE small LOCATION '" + disk.path() + "'");
  own.must("postgres", "CREATE DATABASE full_one TEMPLATE ejk_template TABLESPACE small");
  own.must("full_one", "CREATE TABLE filler (text text)");
  const auto with = options();
  const std::shared_ptr<SharedStore> store = shared(own.url("full_one"), with);
  EXPECT_TRUE(store->put(make_entry(id, 1)));
  EXPECT_TRUE(outbox_is_empty());
  const auto fill = "INSERT INTO filler SELECT repeat('x', 1000) FROM generate_series(1, 100)";
  wait_until([&] { return own.query("full_one", fill).sqlstate == "53100"; }, "a full disk");
  int call = 1;  // there is still room in the pages that the table has
  while (outbox_is_empty() && call < 1000) EXPECT_TRUE(store->put(make_entry(call_id(++call), 2)));
  EXPECT_EQ(block_of(*store, call_id(call)), 2) << "the directory has it";
  EXPECT_EQ(block_of(*store, id), 1) << "what is there can still be read";
  EXPECT_FALSE(outbox_is_empty());
  EXPECT_LT(seconds_of([&] { call_with(store); }) / with.put_seconds, at_once);
  EXPECT_EQ(warnings.count(), 1u) << warnings.text();
  EXPECT_NE(warnings.text().find("No space left"), std::string::npos) << warnings.text();
  ASSERT_TRUE(disk.grow());
  EXPECT_EQ(store->push(detail::Push::noted).left, 0u);
  EXPECT_TRUE(outbox_is_empty());
  EXPECT_EQ(block_of(store->far(), call_id(call)), 2);
}

TEST_F(PostgresFaults, EntriesPutWhileTheDatabaseIsReadOnlyAreSentAfterwards) {
  const std::string database = server().new_database(), url = server().url(database);
  const std::string alter = "ALTER DATABASE " + database;
  server().must("postgres", alter + " SET default_transaction_read_only = on");
  {
    const auto store = shared(url, options());
    EXPECT_TRUE(store->put(make_entry(id, 7)));
    EXPECT_EQ(block_of(*store, id), 7) << "the directory has it";
    EXPECT_FALSE(outbox_is_empty());
  }
  EXPECT_FALSE(outbox_is_empty()) << "after the last try of the process too";
  EXPECT_EQ(warnings.count(), 1u) << warnings.text();
  EXPECT_NE(warnings.text().find("read-only"), std::string::npos) << warnings.text();
  server().must("postgres", alter + " RESET default_transaction_read_only");
  const auto store = shared(url, options());
  EXPECT_EQ(store->push(detail::Push::noted).left, 0u);
  EXPECT_TRUE(outbox_is_empty());
  EXPECT_EQ(block_of(store->far(), id), 7);
}

TEST_F(PostgresFaults, OnlyEntriesThatMayBeAcceptedLaterAreKept) {
  const std::string database = server().new_database();
  PostgresStore store(server().url(database), options());
  const auto fail_with = [&](const std::string& code) {
    server().must(database,
                  "CREATE OR REPLACE FUNCTION public.ail() RETURNS trigger LANGUAGE plpgsql AS "
                  "$$ BEGIN RAISE EXCEPTION SQLSTATE '" +
                      code + "'; END $$");
  };
  fail_with("57014");
  server().must(database,
                "CREATE TRIGGER ail BEFORE INSERT ON ejk.entries "
                "FOR EACH ROW EXECUTE FUNCTION public.ail()");
  for (const char* code : {"25006", "40001", "53100", "55P03", "57014", "58030"}) {
    fail_with(code);
    EXPECT_EQ(store.send(make_entry(id), IfPresent::keep_better), Sent::later) << code;
  }
  for (const char* code : {"22003", "23514", "42501"}) {
    fail_with(code);
    EXPECT_EQ(store.send(make_entry(id), IfPresent::keep_better), Sent::never) << code;
  }
}

// ---- what waits to be sent

TEST_F(PostgresFaults, AReplacementThatWaitedReplacesNothingOfOtherEnvironments) {
  const std::string url = server().url(server().new_database());
  const std::string nowhere = "postgresql:///d?host=" + scratch / "nowhere";
  const Value elsewhere("elsewhere");
  const auto entry_elsewhere = [&](int block, int samples) {
    Entry entry = make_entry(id, block, samples);
    entry.environment = elsewhere;
    return entry;
  };
  {
    const auto store = shared(url, options());
    EXPECT_TRUE(store->put(make_entry(id, 1, 10)));
    EXPECT_TRUE(store->put(entry_elsewhere(2, 10)));
    ASSERT_TRUE(outbox_is_empty());
  }
  shared(nowhere, options())->put(make_entry(id, 3, 1), IfPresent::replace);
  PostgresStore far(url, options());
  EXPECT_TRUE(far.put(entry_elsewhere(4, 99)));
  const auto store = shared(url, options());
  EXPECT_EQ(store->push(detail::Push::noted).left, 0u);
  EXPECT_TRUE(outbox_is_empty());
  EXPECT_EQ(block_of(far, id), 3) << "what was replaced";
  EXPECT_EQ(far.get(id, Detail::choice, &elsewhere)->config, Value::object({{"block", 4}}));

  // A note of an older version does not say which environment it means.
  EXPECT_TRUE(far.put(make_entry(id, 5, 50)));
  write_text(scratch / "near/outbox/0123456789abcdef.json",
             stable_json(Value::object({{"device", id.device},
                                        {"op", id.op},
                                        {"key", id.key},
                                        {"spec", id.spec},
                                        {"replace", true}})));
  EXPECT_EQ(store->push(detail::Push::noted).left, 0u);
  EXPECT_TRUE(outbox_is_empty());
  EXPECT_EQ(block_of(far, id), 5);
  EXPECT_EQ(far.get(id, Detail::choice, &elsewhere)->config, Value::object({{"block", 4}}));
}

TEST_F(PostgresFaults, AnEntryThatCannotBeReadNowIsSentLater) {
  const std::string url = server().url(server().new_database());
  const std::string nowhere = "postgresql:///d?host=" + scratch / "nowhere";
  shared(nowhere, options())->put(make_entry(id, 7));
  auto near = open_store(scratch / "near", warnings);
  const std::string file = near.file_of(make_entry(id, 7));
  fs::rename(file, scratch / "aside");
  fs::create_symlink(scratch / "aside", file);
  const auto store = shared(url, options());
  EXPECT_EQ(store->push(detail::Push::noted).sent, 0u);
  EXPECT_FALSE(outbox_is_empty());
  fs::remove(file);
  fs::rename(scratch / "aside", file);
  EXPECT_EQ(store->push(detail::Push::noted).sent, 1u);
  EXPECT_TRUE(outbox_is_empty());
  EXPECT_EQ(block_of(store->far(), id), 7);

  shared(nowhere, options())->put(make_entry(call_id(2), 8));
  EXPECT_TRUE(near.erase(call_id(2)));
  EXPECT_EQ(store->push(detail::Push::noted).sent, 0u);
  EXPECT_TRUE(outbox_is_empty()) << "it is not waited for";
}

TEST_F(PostgresFaults, AnErasureSaysThatADatabaseThatIsAwayBringsTheEntryBack) {
  const std::string url = server().url(server().new_database());
  EXPECT_TRUE(shared(url, options())->put(make_entry(id, 1)));
  EXPECT_TRUE(shared("postgresql:///d?host=" + scratch / "nowhere", options())->erase(id));
  EXPECT_NE(warnings.text().find("erase it again"), std::string::npos) << warnings.text();
  const auto store = shared(url, options());
  EXPECT_EQ(block_of(*store, id), 1);
  EXPECT_TRUE(store->erase(id));
  EXPECT_FALSE(store->get(id));
}

// ---- the network between

// Two hosts and the cable between them. The names of this process's are its own.
class Cable {
 public:
  Cable()
      : server_("ejk_server_" + std::to_string(::getpid())),
        client_("ejk_client_" + std::to_string(::getpid())) {
    works_ = ip("netns add " + server_) && ip("netns add " + client_) &&
             ip("link add wire netns " + server_ + " type veth peer name wire netns " + client_) &&
             ip("-n " + server_ + " address add 10.77.0.1/24 dev wire") &&
             ip("-n " + client_ + " address add 10.77.0.2/24 dev wire") &&
             ip("-n " + server_ + " link set wire up") && ip("-n " + client_ + " link set wire up");
  }
  ~Cable() { ip("netns delete " + server_), ip("netns delete " + client_); }
  Cable(const Cable&) = delete;
  Cable& operator=(const Cable&) = delete;

  bool works() const { return works_; }
  static std::string file_of(const std::string& network) { return "/run/netns/" + network; }
  std::string server() const { return file_of(server_); }
  std::string client() const { return file_of(client_); }
  std::string address() const { return "10.77.0.1"; }

  void unplug() { EXPECT_TRUE(ip("-n " + server_ + " link set wire down")); }
  void plug_in() { EXPECT_TRUE(ip("-n " + server_ + " link set wire up")); }
  // Nothing comes back from the server, and no error is reported.
  void swallow() { EXPECT_TRUE(ip("-n " + server_ + " route add blackhole 10.77.0.2/32")); }
  void pass_on() { EXPECT_TRUE(ip("-n " + server_ + " route delete blackhole 10.77.0.2/32")); }

 private:
  static bool ip(const std::string& words) {
    return std::system(("PATH=$PATH:/usr/sbin:/sbin ip " + words + " 2>/dev/null").c_str()) == 0;
  }

  const std::string server_, client_;
  bool works_ = false;
};

struct Breakage {
  const char* name;
  void (Cable::*begin)();
  void (Cable::*end)();
};

class NetworkFaults : public PostgresFaults, public ::testing::WithParamInterface<Breakage> {};

TEST_P(NetworkFaults, ACallGoesOnAndWhatItPutArrivesAfterwards) {
  Cable cable;
  if (!cable.works()) GTEST_SKIP() << "no network namespaces here (root with iproute2 has them)";
  PostgresServer far_away(true, "", cable.server());
  const std::string url = "postgresql://postgres@" + cable.address() + ":" + far_away.port() + "/" +
                          far_away.new_database() + "?sslmode=disable";
  std::thread([&] {
    ASSERT_TRUE(enter_network(cable.client()));
    auto with = options(0.5);
    const auto store = shared(url, with);
    wait_until([&] {  // a slow machine may miss a deadline
      store->put(make_entry(id, 1));
      return store->push(detail::Push::noted).left == 0;
    });
    const size_t told = warnings.count();
    (cable.*GetParam().begin)();
    // Who waited without a deadline would wait for a quarter of an hour.
    const auto put = [&] { EXPECT_TRUE(store->put(make_entry(call_id(2), 2))); };
    EXPECT_LT(over_wait_of(with.put_seconds, put), on_time);
    EXPECT_EQ(block_of(*store, call_id(2)), 2);
    const auto ask = [&] { EXPECT_FALSE(store->get(call_id(3))); };
    EXPECT_LT(over_wait_of(with.get_seconds, ask), on_time);
    wait_until([&] { return store->get(call_id(3)), store->far().is_away(); });
    EXPECT_FALSE(outbox_is_empty());
    wait_until([&] { return warnings.count() > told; }, "the warning");  // behind is_away()
    EXPECT_EQ(warnings.count(), told + 1) << warnings.text();
    (cable.*GetParam().end)();
    wait_until([&] { return store->get(call_id(3)), outbox_is_empty(); });
    wait_until([&] { return block_of(store->far(), call_id(2)) == 2; });
  }).join();
}

INSTANTIATE_TEST_SUITE_P(Network, NetworkFaults,
                         ::testing::Values(Breakage{"CutLink", &Cable::unplug, &Cable::plug_in},
                                           Breakage{"LostPackets", &Cable::swallow,
                                                    &Cable::pass_on}),
                         [](const auto& each) { return std::string(each.param.name); });

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
  EXPECT_FALSE(writer.put(make_entry(id, 2, 1), ejk::IfPresent::replace))
      << "replacing is for admins";
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
    EXPECT_TRUE(shared_writer->put(make_entry(id, 4, 1), ejk::IfPresent::replace)) << "locally";
    EXPECT_EQ(block_of(*shared_writer, id), 4);
    EXPECT_TRUE(outbox_is_empty("writer"));
  }
  EXPECT_EQ(block_of(writer, id), 1) << "there the better one stays";
  EXPECT_TRUE(admin.put(make_entry(id, 2, 1), ejk::IfPresent::replace));
  EXPECT_EQ(block_of(admin, id), 2);
  EXPECT_TRUE(admin.erase(id));
  EXPECT_FALSE(admin.get(id));
  expect_no_secret();
}

TEST_F(PostgresFaults, ARoleWithoutRightsIsToldWhichOneItNeeds) {
  auto with = options();
  with.breaker = {};
  const std::shared_ptr<SharedStore> store =
      shared(server().tcp_url("ejk_1", "nobody", password_in_url), with);
  EXPECT_LT(seconds_of([&] { call_with(store); }) / with.connect_seconds, at_once);
  EXPECT_FALSE(store->get(id));
  EXPECT_TRUE(store->put(make_entry(id, 7)));
  EXPECT_EQ(block_of(*store, id), 7) << "the directory has it";
  EXPECT_EQ(warnings.count(), 1u) << warnings.text();
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
  server().must(database, "UPDATE ejk.meta SET version = version + 1");
  {
    PostgresStore store(server().url(database), options());
    EXPECT_EQ(block_of(store, id), 1);
    EXPECT_FALSE(store.put(make_entry(id, 2, 99)));
    EXPECT_FALSE(store.writable());
    EXPECT_EQ(block_of(store, id), 1);
    EXPECT_EQ(warnings.count(), 1u) << warnings.text();
  }
  auto with = options();
  with.breaker = {};
  EXPECT_LT(seconds_of([&] { call_with(shared(server().url(database), with)); }) / with.put_seconds,
            at_once);
  EXPECT_EQ(warnings.count(), 2u) << warnings.text();
  server().must(database, "UPDATE ejk.meta SET min_client = version");
  const std::shared_ptr<SharedStore> store = shared(server().url(database), with, "other");
  EXPECT_LT(seconds_of([&] { call_with(store); }) / with.connect_seconds, at_once);
  EXPECT_FALSE(store->get(id));
  EXPECT_EQ(warnings.count(), 3u) << warnings.text();
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
    const auto with = options();
    const size_t told = warnings.count();  // before it listened
    EXPECT_LT(seconds_of([&] { call_with(shared(url, with)); }) / with.connect_seconds, at_once);
    EXPECT_EQ(warnings.count(), told) << warnings.text();
  }
  ::kill(bouncer, SIGKILL);
  PostgresServer::wait_for(bouncer);
}

TEST_F(PostgresFaults, ACertificateOfAnotherAuthorityIsRefused) {
  if (std::system("command -v openssl >/dev/null") != 0) GTEST_SKIP() << "no openssl here";
  PostgresServer own(true);
  ASSERT_TRUE(own.authority("wrong"));
  own.serve_tls();
  const std::string database = own.new_database();
  own.must("postgres", std::string("CREATE ROLE ann LOGIN PASSWORD '") + password +
                           "'; GRANT ejk_writer TO ann");
  const auto url = [&](const std::string& name) {
    return own.tcp_url(database, "ann", password_in_url) +
           "?sslmode=verify-full&sslrootcert=" + own.path(name + ".crt");
  };
  PostgresStore right(url("authority"), options());
  wait_until([&] { return right.put(make_entry(id, 1)); });  // the settings may be read a bit later
  EXPECT_EQ(
      right.ask({"SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"}).rows.at(0).at(0),
      "t");
  auto with = options();
  with.breaker = {};
  const size_t told = warnings.count();  // before TLS was on
  const std::shared_ptr<SharedStore> wrong = shared(url("wrong"), with);
  EXPECT_LT(seconds_of([&] { call_with(wrong); }) / with.connect_seconds, at_once);
  EXPECT_FALSE(wrong->get(id));
  EXPECT_TRUE(wrong->put(make_entry(id, 2)));
  EXPECT_EQ(block_of(*wrong, id), 2) << "the directory has it";
  EXPECT_EQ(warnings.count(), told + 1) << warnings.text();
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
  const std::string other = *detail::entry_text(make_entry(call_id(99)));
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
  const auto prefetched = store.prefetch(id.device, id.op, environment());
  for (int call = 0; call < 6; ++call) EXPECT_FALSE(store.find(prefetched, call_id(call))) << call;
  store.for_each("", [](const Entry&) { return ADD_FAILURE(), true; });
  // One that is sound answers although a broken one would come first.
  Entry elsewhere = make_entry(call_id(1), 8);
  elsewhere.environment = Value("elsewhere");
  EXPECT_TRUE(store.put(elsewhere));
  EXPECT_EQ(block_of(store, call_id(1)), 8);
  EXPECT_TRUE(store.put(make_entry(call_id(1), 9, 99))) << "and is written over";
  EXPECT_EQ(block_of(store, call_id(1)), 9);
}

TEST_F(PostgresFaults, NamesThatLookLikePathsLeadNowhere) {
  const std::string url = server().url(server().new_database());
  for (const char* name :
       {"../../escaped", "/escaped", "..", "a/../../escaped", "%2e%2e/escaped"}) {
    EntryId hostile = call_id(1, name);
    EXPECT_TRUE(PostgresStore(url, options()).put(make_entry(hostile, 3))) << name;
    EXPECT_EQ(block_of(*shared(url, options()), hostile), 3) << name;
    hostile.device = name;
    EXPECT_TRUE(PostgresStore(url, options()).put(make_entry(hostile, 4))) << name;
    EXPECT_EQ(block_of(*shared(url, options()), hostile), 4) << name;
  }
  for (const std::string& file : files_below(scratch.path()))
    EXPECT_TRUE(file.starts_with("near/")) << file;
  EXPECT_FALSE(fs::exists("/escaped"));
}

struct Touch {
  static constexpr std::string_view op_id = "touch";
  struct Config {
    int block = 1;
  };
  bool is_valid(const Config& config, const Invocation&) const { return config.block > 0; }
  Config heuristic_cfg(const Invocation&) const { return {}; }
  void run(const Config& config, View<float, 1> a) const {
    a.data[0] += static_cast<float>(config.block);
  }
};

TEST_F(PostgresFaults, AConfigOfAnotherKernelIsAMissAndOneWarning) {
  const std::string url = server().url(server().new_database());
  float data[4] = {};
  const View<float, 1> argument{data, {4}};
  const auto executor = [&](const std::string& place) {
    SelectorOptions how{.policy = AutotunePolicy{.allow_autotune = false}};
    how.persistent = std::make_shared<PersistentCache>(
        std::vector<std::shared_ptr<Store>>{shared(url, options(), place)});
    how.on_warning = warnings.sink();
    return Executor(std::move(how));
  };
  const Explanation plain = executor("plain").explain(Touch{}, argument);
  const EntryId own{plain.device, plain.op, plain.key, plain.spec};
  int place = 0;
  for (const Value& config :
       {Value::object({{"tile", 8}}), Value::object({{"block", "; DROP SCHEMA ejk"}}),
        Value::object({{"block", 0}}), Value("../../etc/passwd"), Value(), Value(7)}) {
    Entry foreign = make_entry(own);
    foreign.config = config;
    foreign.environment = Value();
    EXPECT_TRUE(PostgresStore(url, options()).put(foreign, ejk::IfPresent::replace));
    const size_t told = warnings.count();
    const Executor fresh = executor(std::to_string(place++));
    const auto choice = fresh.choose_config(Touch{}, argument);
    EXPECT_EQ(choice.origin, Origin::heuristics) << to_json(config);
    EXPECT_EQ(choice.config.block, 1);
    fresh.choose_config(Touch{}, argument);
    EXPECT_EQ(warnings.count(), told + 1) << to_json(config) << warnings.text();
  }
}

TEST_F(PostgresFaults, AnEntryFromTheDatabaseIsNotTrusted) {
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

TEST_F(PostgresFaults, ASingleQueryBringsAllCallsOfAnOp) {
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

TEST_F(PostgresFaults, EntriesOfOtherDevicesAreNotSent) {
  const std::string database = server().new_database();
  PostgresStore store(server().url(database), options());
  std::vector<PostgresStore::CallCount> counts;
  for (const char* device : {"a|first", "b|second", "c|third"})
    for (int call = 0; call < 2; ++call)
      for (const char* op : {"add@v1", "sub@v1"}) {
        Entry entry = make_entry(call_id(call, op));
        entry.id.device = device;
        EXPECT_TRUE(store.put(entry));
        entry.environment = Value("elsewhere");
        EXPECT_TRUE(store.put(entry));
        PostgresStore::CallCount& count = counts.emplace_back();
        count.call = detail::call_id(entry.id), count.id = entry.id, count.record = "{}";
      }
  EXPECT_EQ(store.count_calls("0123456789abcdef", counts), Sent::kept);
  // Pages of one entry, and rows of others that nobody can read.
  server().must(database,
                "UPDATE ejk.entries SET document = CASE device WHEN 'b|second' THEN replace("
                "document, '\"schema\"', '\"pad\":\"' || repeat('x', 5000000) || '\",\"schema\"') "
                "ELSE 'not JSON' END");
  const auto of_second = [](const std::string& device) { return device == "b|second"; };
  const auto seen_of = [&](const std::string& op) {
    std::multiset<std::string> seen;
    const auto see = [&](const Entry& entry) {
      EXPECT_EQ(entry.id.device, "b|second");
      return seen.insert(entry.id.op + entry.id.key + environment_id(entry)), true;
    };
    EXPECT_TRUE(store.read_all(op, see, Detail::choice, of_second));
    EXPECT_EQ(seen.size(), std::set<std::string>(seen.begin(), seen.end()).size()) << "each once";
    return seen.size();
  };
  EXPECT_EQ(seen_of(""), 8u);
  EXPECT_EQ(seen_of("sub@v1"), 4u);
  EXPECT_EQ(warnings.count(), 0u) << warnings.text();
  int visits = 0;
  const auto stop = [&](const Entry&) { return ++visits < 2; };
  EXPECT_TRUE(store.read_all("", stop, Detail::choice, of_second));
  EXPECT_EQ(visits, 2);
  std::vector<std::string> calls;
  const auto count = [&](const auto& call) { calls.push_back(call.id.device); };
  EXPECT_TRUE(store.for_each_call(count, 60, of_second));
  EXPECT_EQ(calls, std::vector<std::string>(4, "b|second"));
  calls.clear();
  EXPECT_TRUE(store.for_each_call(count, 60));
  EXPECT_EQ(calls.size(), 12u);
  EXPECT_TRUE(store.for_each_call([](const auto&) { ADD_FAILURE(); }, 60,
                                  [](const std::string&) { return false; }));
}

TEST_F(PostgresFaults, AfterManyChangesAllCallsOfTheOpAreAskedForAgain) {
  const std::string url = server().url(server().new_database());
  const auto store = shared(url, options());
  EXPECT_EQ(block_of(*store, id), -1);
  EXPECT_TRUE(PostgresStore(url, options()).put(make_entry(id, 7)));
  EXPECT_EQ(block_of(*store, id), -1) << "it was not there then";
  for (int call = 2; call < 1003; ++call) store->lease(call_id(call), 0);
  EXPECT_EQ(block_of(*store, id), 7);
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

TEST_F(PostgresFaults, ADecimalCommaOfTheLocaleChangesNoNumber) {
  const std::string url = server().url(server().new_database());
  const std::string make = "localedef -i de_DE -f UTF-8 " + scratch / "de_DE.UTF-8";
  static_cast<void>(std::system((make + " >/dev/null 2>&1").c_str()));
  ::setenv("LOCPATH", scratch.path().c_str(), 1);
  const bool has_comma = std::setlocale(LC_NUMERIC, "de_DE.UTF-8") != nullptr;
  ::unsetenv("LOCPATH");
  if (!has_comma) GTEST_SKIP() << "no locale with a decimal comma here (Debian: locales)";
  EXPECT_EQ(std::to_string(0.5).substr(0, 3), "0,5");
  PostgresStore store(url, options());
  EXPECT_NE(store.lease(id, 0), nullptr);
  PostgresStore::CallCount count;
  count.call = detail::call_id(id), count.id = id, count.record = "{}";
  count.calls = 2, count.timed_calls = 1, count.timed_seconds = 1.5;
  EXPECT_EQ(store.count_calls("0123456789abcdef", {count}), Sent::kept);
  double seconds = 0;
  EXPECT_TRUE(store.for_each_call([&](const auto& call) { seconds = call.timed_seconds; }, 60));
  EXPECT_EQ(seconds, 1.5);
  std::setlocale(LC_NUMERIC, "C");
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
  EXPECT_EQ(store->push(detail::Push::noted).sent, 1u);
  EXPECT_EQ(block_of(store->far(), call_id(2)), 2);
}

TEST_F(PostgresFaults, WhereNoThreadCanBeStartedTheLocalStoreServes) {
  if (thread_sanitized) GTEST_SKIP() << "no threads after a fork";
  const std::string url = server().url(server().new_database());
  EXPECT_TRUE(as_nobody([&] {
    rlimit usual{};
    ::getrlimit(RLIMIT_NPROC, &usual);
    const auto allow_threads = [&](bool allowed) {
      const rlimit now{allowed ? usual.rlim_cur : 0, usual.rlim_max};
      return ::setrlimit(RLIMIT_NPROC, &now) == 0;
    };
    bool well = allow_threads(false);
    const auto store = shared(url, options());
    well = well && !store->get(id) && store->put(make_entry(id, 7)) && block_of(*store, id) == 7;
    well = well && !outbox_is_empty() && warnings.count() == 1;
    // The connection gets its thread, and who sends has none.
    well = well && allow_threads(true) && !store->far().get(id) && allow_threads(false);
    well = well && !store->get(call_id(2)) && !outbox_is_empty();
    well = well && allow_threads(true) && !store->get(call_id(2));
    if (well) wait_until([&] { return outbox_is_empty(); }, "the sender");
    well = well && block_of(store->far(), id) == 7;
    if (!well) std::fprintf(stderr, "%s\n", warnings.text().c_str());
    return well;
  }));
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
