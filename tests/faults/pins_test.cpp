// SPDX-License-Identifier: Apache-2.0
// What every place for pins promises, and a database of them that is away, old, or another's.
#include <signal.h>
#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ejk/error.h>

#include "base/sha256.h"
#include "postgres_server.h"
#include "store/keep.h"
#include "store/pins.h"
#include "store/shared.h"

namespace ejk {
namespace {

using namespace ejk::testing;
using detail::DirectoryPins;
using detail::PinBoard;
using detail::Pins;
using detail::PostgresPins;
using detail::PostgresStore;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr double patient = 60;

std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::io);
    return error.what();
  }
  return "";
}

Value block(int size) { return Value::object({{"block", size}}); }

// What a rank came to, for all calls.
std::string digest_of(Pins& pins, int calls) {
  std::string text;
  for (int i = 0; i < calls; ++i) text += stable_json(pins.find(call_id(i)).value_or(Value()));
  return base::sha256_hex(text);
}

std::vector<int> shuffled(int count, int seed) {
  std::vector<int> out(static_cast<size_t>(count));
  std::iota(out.begin(), out.end(), 0);
  std::ranges::shuffle(out, std::mt19937(static_cast<unsigned>(seed)));
  return out;
}

// One server for all tests that do it no harm.
PostgresServer& server() {
  static PostgresServer* const common = [] {
    static PostgresServer made(true);
    for (const char* role : {"reader", "writer", "admin"})
      made.must("postgres", std::string("CREATE ROLE ") + role + " LOGIN");
    made.new_database();
    for (const char* role : {"reader", "writer", "admin"})
      made.must("postgres", std::string("GRANT ejk_") + role + " TO " + role);
    return &made;
  }();
  return *common;
}

// ---- every place

struct Kind {
  std::string name;
  std::function<std::shared_ptr<PinBoard>(const std::string& place, const std::string& run)> open;
  std::function<std::string(const Scratch&)> place;
  std::function<std::string()> why_not = [] { return ""; };
};

const Kind kinds[] = {
    {"Directory",
     [](const std::string& place, const std::string& run) {
       return std::make_shared<DirectoryPins>(place, run);
     },
     [](const Scratch& scratch) { return scratch / "store"; }},
    {"Postgres",
     [](const std::string& place, const std::string& run) {
       return std::make_shared<PostgresPins>(place, run, patient, patient);
     },
     [](const Scratch&) { return server().url(server().new_database(), "writer"); },
     PostgresServer::why_not},
};

class PinPlaces : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    if (const std::string why = GetParam().why_not(); !why.empty()) GTEST_SKIP() << why;
    place = GetParam().place(scratch);
  }
  std::unique_ptr<Pins> rank(const std::string& run = "run") {
    return std::make_unique<Pins>(GetParam().open(place, run));
  }

  Scratch scratch{memory_directory()};
  std::string place;
};

INSTANTIATE_TEST_SUITE_P(, PinPlaces, ::testing::ValuesIn(kinds),
                         [](const auto& kind) { return kind.param.name; });

TEST_P(PinPlaces, KeepWhatWasWrittenFirst) {
  const auto one = rank(), other = rank();
  EXPECT_EQ(one->find(call_id(0)), std::nullopt);
  EXPECT_EQ(other->find(call_id(0)), std::nullopt);
  EXPECT_EQ(one->pin(call_id(0), block(1)), block(1));
  EXPECT_EQ(other->pin(call_id(0), block(2)), block(1));
  EXPECT_EQ(one->pin(call_id(0), block(3)), block(1));
  EXPECT_EQ(rank()->find(call_id(0)), block(1)) << "a rank that starts again";
  EXPECT_EQ(rank("another run")->find(call_id(0)), std::nullopt);
}

TEST_P(PinPlaces, ABatchPinsTheCallsThatAreNotPinnedYet) {
  const auto one = rank(), other = rank();
  other->find(call_id(0));
  one->pin_all({{call_id(0), block(10)}, {call_id(1), block(11)}});
  other->pin_all({{call_id(2), block(22)}, {call_id(1), block(21)}, {call_id(1), block(31)}});
  for (const auto& pins : {rank(), rank()}) {
    EXPECT_EQ(pins->find(call_id(0)), block(10));
    EXPECT_EQ(pins->find(call_id(1)), block(11));
    EXPECT_EQ(pins->find(call_id(2)), block(22));
  }
  EXPECT_EQ(other->find(call_id(1)), block(11));
  EXPECT_EQ(one->pin(call_id(2), block(12)), block(22));
}

TEST_P(PinPlaces, KeepNothingOfWhoOnlyAsks) {
  const auto one = rank();
  EXPECT_EQ(one->pin(call_id(0), std::nullopt), std::nullopt);
  EXPECT_EQ(rank()->pin(call_id(0), block(2)), block(2));
  EXPECT_EQ(one->pin(call_id(0), std::nullopt), block(2));
}

TEST_P(PinPlaces, GiveBackOddConfigsAsTheyWere) {
  const Value odd = Value::object({{"text", std::string("a\"\\{,}NULL\x80\0b\xc3\xa9\n", 17)},
                                   {"number", std::numeric_limits<double>::infinity()},
                                   {"large", std::string(3 << 18, 'x')}});
  rank()->pin_all({{call_id(0), odd}, {call_id(1), odd}, {call_id(2), Value()}});
  const auto other = rank();
  EXPECT_EQ(other->find(call_id(0)), odd);
  EXPECT_EQ(other->find(call_id(1)), odd) << "more than one text of a log can hold";
  EXPECT_EQ(other->find(call_id(2)), Value());
}

TEST_P(PinPlaces, GiveAllRanksTheSameWhateverTheirOrder) {
  constexpr int ranks = 8, calls = 40;
  std::vector<std::string> digests(ranks);
  {
    std::vector<std::jthread> threads;
    for (int r = 0; r < ranks; ++r)
      threads.emplace_back([&, r] {
        const auto pins = rank();
        std::vector<std::pair<EntryId, Value>> rest;
        for (const int i : shuffled(calls, r)) {
          if (i % 2 == 0) pins->pin(call_id(i), block(r));
          else rest.emplace_back(call_id(i), block(r));
        }
        pins->pin_all(rest);
        digests[static_cast<size_t>(r)] = digest_of(*pins, calls);
      });
  }
  EXPECT_EQ(std::set(digests.begin(), digests.end()).size(), 1u);
}

// ---- directories

TEST(DirectoryPinsTest, TextThatIsNotPinsIsAnErrorThatSaysWhere) {
  const Scratch scratch(memory_directory());
  DirectoryPins board(scratch / "store", "run");
  const std::string file = board.where() + "/00000000.json";
  for (const char* text : {"", "{", "[]", "{\"a\":1}"}) {
    write_text(file, text);
    EXPECT_THAT(error_of([&] { DirectoryPins(scratch / "store", "run").read(); }),
                AllOf(HasSubstr(board.where()), HasSubstr("not a valid list of pins")))
        << text;
  }
  write_text(file, "{\"" + detail::call_id(call_id(0)) + "\":\"no JSON\"}");
  Pins pins(std::make_shared<DirectoryPins>(scratch / "store", "run"));
  EXPECT_THAT(error_of([&] { pins.find(call_id(0)); }),
              HasSubstr("config that is pinned there is not valid"));
}

TEST(DirectoryPinsTest, ADirectoryThatCannotBeWrittenIsAnError) {
  const Scratch scratch(memory_directory());
  write_text(scratch / "store", "a file");
  DirectoryPins board(scratch / "store", "run");
  EXPECT_THAT(error_of([&] {
                board.pin({{detail::call_id(call_id(0)), "1"}});
              }),
              HasSubstr("EJKERNEL_PERSISTENT_CACHE_PIN"));
}

// ---- databases

class DatabasePins : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = PostgresServer::why_not(); !why.empty()) GTEST_SKIP() << why;
  }
  static std::shared_ptr<PostgresPins> board(const std::string& url, const std::string& run = "r",
                                             double seconds = patient) {
    return std::make_shared<PostgresPins>(url, run, seconds, seconds);
  }
  static PinBoard::Offer offer(int call, const char* config) {
    return {detail::call_id(call_id(call)), config};
  }

  // 32 ranks, half of which read their choices before a writer improves them and half after, pin
  // 500 calls in orders of their own; gives what they offered and what they came to.
  struct Outcome {
    std::set<std::string> offered, agreed;
  };
  static Outcome agree(const std::string& ranks_url, const std::string& database) {
    constexpr int ranks = 32, calls = 500, improved = 50;
    PostgresStore writer(server().url(database, "writer"), patient_options());
    for (int i = 0; i < calls; ++i) EXPECT_TRUE(writer.put(make_entry(call_id(i), 1, 10)));
    std::mutex mutex;
    Outcome out;
    std::barrier begin(ranks + 1), better(ranks / 2 + 1);
    std::atomic<bool> done = false;
    std::vector<std::jthread> threads;
    for (int r = 0; r < ranks; ++r)
      threads.emplace_back([&, r] {
        PostgresStore store(ranks_url, patient_options());
        const bool early = r % 2 == 0;
        begin.arrive_and_wait();
        if (!early) better.arrive_and_wait();
        const auto id = call_id(0);
        const auto found = store.prefetch(id.device, id.op, environment());
        std::map<std::string, Value> choices;
        for (int i = 0; i < calls; ++i)
          if (const auto entry = store.find(found, call_id(i)))
            choices[entry->id.key] = entry->config;
        Pins pins(board(ranks_url));
        std::vector<std::pair<EntryId, Value>> offers;
        std::string own;
        for (int i = 0; i < calls; ++i) own += stable_json(choices[call_id(i).key]);
        for (const int i : shuffled(calls, r))
          offers.emplace_back(call_id(i), choices[call_id(i).key]);
        pins.pin_all(offers);
        const std::string digest = digest_of(pins, calls);
        const std::lock_guard lock(mutex);
        out.offered.insert(base::sha256_hex(own)), out.agreed.insert(digest);
      });
    std::jthread improving([&] {
      begin.arrive_and_wait();
      for (int i = 0, samples = 11; !done; i = (i + 1) % improved, ++samples) {
        EXPECT_TRUE(writer.put(make_entry(call_id(i), samples, samples)));
        if (samples == 11 + improved) static_cast<void>(better.arrive());
      }
    });
    threads.clear();
    done = true;
    return out;
  }
};

TEST_F(DatabasePins, ManyRanksAgreeOnManyCallsWhileAnotherProcessImprovesThem) {
  const std::string database = server().new_database();
  const Outcome found = agree(server().url(database, "writer"), database);
  EXPECT_GT(found.offered.size(), 1u) << "they saw different states of the store";
  EXPECT_EQ(found.agreed.size(), 1u);
}

TEST_F(DatabasePins, TheyAgreeThroughPgBouncerThatSharesSessions) {
  if (::access("/usr/sbin/pgbouncer", X_OK) != 0)
    GTEST_SKIP() << "PgBouncer is not installed (Debian: pgbouncer)";
  const std::string database = server().new_database(), port = PostgresServer::free_port();
  const std::string settings = server().path("pins.ini");
  write_text(settings, "[databases]\n" + database + " = host=" + server().path("") +
                           " port=" + server().port() + " user=writer dbname=" + database +
                           "\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = " + port +
                           "\nunix_socket_dir =\nauth_type = any\npool_mode = transaction\n"
                           "default_pool_size = 8\n");
  const pid_t bouncer = server().start({"/usr/sbin/pgbouncer", settings});
  const std::string url = "postgresql://writer@127.0.0.1:" + port + "/" + database;
  const auto answers = [&] {
    PostgresStore store(url, patient_options([](const std::string&) {}));
    return static_cast<bool>(store.ask({"SELECT 1"}));
  };
  wait_until(answers, "PgBouncer");
  const Outcome found = agree(url, database);
  EXPECT_GT(found.offered.size(), 1u);
  EXPECT_EQ(found.agreed.size(), 1u);
  ::kill(bouncer, SIGKILL);
  PostgresServer::wait_for(bouncer);
}

TEST_F(DatabasePins, ARankThatIsKilledBlocksNoOther) {
  if (thread_sanitized) GTEST_SKIP() << "a forked child cannot start a thread there";
  const std::string url = server().url(server().new_database(), "writer");
  const pid_t rank = start_child([&] {
    for (int run = 0;; ++run) {
      PostgresPins pins(url, "endless " + std::to_string(run), patient, patient);
      for (int i = 0; i < 100; ++i) pins.pin({offer(i, "1")});
    }
    return true;
  });
  Pins pins(board(url, "endless 0"));
  wait_until([&] { return pins.pin(call_id(50), std::nullopt).has_value(); }, "the first pins");
  ::kill(rank, SIGKILL);
  PostgresServer::wait_for(rank);
  for (int i = 0; i < 100; ++i) EXPECT_NE(pins.pin(call_id(i), Value(2)), std::nullopt);
  EXPECT_EQ(pins.find(call_id(50)), Value(1));
}

TEST_F(DatabasePins, ARankWaitsWhileTheServerHasTooManyClients) {
  server().must("postgres", "CREATE ROLE few LOGIN CONNECTION LIMIT 1");
  server().must("postgres", "GRANT ejk_writer TO few");
  const std::string url = server().url(server().new_database(), "few");
  auto first = std::make_unique<PostgresStore>(url, patient_options([](const std::string&) {}));
  ASSERT_TRUE(first->ask({"SELECT 1"}));
  std::jthread rank([&] { EXPECT_EQ(Pins(board(url)).pin(call_id(0), block(7)), block(7)); });
  wait_until(
      [] {
        return read_text(server().log()).find("too many connections for role") != std::string::npos;
      },
      "the refusal");
  first.reset();
}

TEST_F(DatabasePins, ADatabaseThatIsAwayIsAnErrorThatNamesTheCure) {
  const Scratch scratch(memory_directory());
  EXPECT_THAT(error_of([&] { board("postgresql:///d?host=" + scratch / "nowhere")->read(); }),
              AllOf(HasSubstr("nowhere"), HasSubstr("ejk snapshot publish"),
                    HasSubstr("unset EJKERNEL_PERSISTENT_CACHE_PIN")));
}

TEST_F(DatabasePins, ADatabaseThatStopsAnsweringIsAnErrorAtTheDeadline) {
  PostgresServer own;
  const std::string url = own.url(own.new_database());
  board(url)->read();                    // makes the tables
  const auto pins = board(url, "r", 5);  // long enough to connect on a busy machine
  pins->read();
  own.stop_time();
  // Who waited without a deadline would wait for ever.
  EXPECT_THAT(error_of([&] { pins->pin({offer(0, "1")}); }), HasSubstr("unset EJKERNEL"));
  EXPECT_THAT(error_of([&] { board(url, "r", 0.3)->read(); }), HasSubstr("took longer than"));
  own.go_on();
  Pins later(board(url));
  EXPECT_NE(later.pin(call_id(0), Value(2)), std::nullopt);
}

TEST_F(DatabasePins, OutliveACrashOfTheServer) {
  PostgresServer own;
  const std::string url = own.url(own.new_database());
  Pins(board(url)).pin(call_id(0), block(1));
  own.kill(SIGKILL);
  own.begin();
  EXPECT_EQ(Pins(board(url)).pin(call_id(0), block(2)), block(1));
}

TEST_F(DatabasePins, RolesMayDoWhatTheyAreFor) {
  const std::string database = server().new_database();
  const auto url = [&](const char* role) { return server().url(database, role); };
  EXPECT_EQ(board(url("writer"))->pin({offer(0, "1")}).size(), 1u);
  PostgresStore writer(url("writer"), patient_options([](const std::string&) {}));
  for (const char* sql : {"DELETE FROM ejk.pins", "UPDATE ejk.pins SET config = ''",
                          "INSERT INTO ejk.pins SELECT * FROM ejk.pins", "SELECT ejk.unpin('r')"})
    EXPECT_EQ(writer.ask({sql}).sqlstate, "42501") << sql;
  Pins reader(board(url("reader")));
  EXPECT_EQ(reader.find(call_id(0)), Value(1));
  EXPECT_THAT(error_of([&] { reader.pin(call_id(1), Value(1)); }), HasSubstr("ejk_writer"));
  EXPECT_THAT(error_of([&] { board(url("reader"))->pin({offer(1, "1")}); }),
              HasSubstr("grant this role ejk_writer"));
  PostgresStore admin(url("admin"), patient_options());
  EXPECT_EQ(admin.ask({"SELECT ejk.unpin('another')"}).rows.at(0).at(0), "0");
  EXPECT_EQ(admin.ask({"SELECT ejk.unpin('r')"}).rows.at(0).at(0), "1");
  EXPECT_THAT(board(url("writer"))->read(), IsEmpty());
}

TEST_F(DatabasePins, TheFirstRankOfARunRemovesThoseOfTheYearBefore) {
  const std::string database = server().new_database(), url = server().url(database, "writer");
  board(url, "old")->pin({offer(0, "1"), offer(1, "1")});
  server().must(database,
                "UPDATE ejk.pins SET written_at = now() - interval '2 years' WHERE call_id = "
                "(SELECT call_id FROM ejk.pins LIMIT 1)");
  board(url, "old")->pin({offer(2, "1")});
  EXPECT_EQ(board(url, "old")->read().size(), 3u) << "the run goes on";
  board(url, "new")->pin({offer(0, "2")});
  EXPECT_EQ(board(url, "old")->read().size(), 2u);
}

TEST_F(DatabasePins, OlderAndNewerSchemasSayWhatToDo) {
  const std::string name = "ejk_schema_2";
  server().must("postgres", "CREATE DATABASE " + name);
  server().must(name, detail::postgres_schema_script());
  server().must(name,
                "DROP FUNCTION ejk.pin, ejk.unpin; DROP TABLE ejk.pins; "
                "UPDATE ejk.meta SET version = 2");
  const std::string url = server().url(name, "writer");
  PostgresStore store(url, patient_options());
  EXPECT_TRUE(store.put(make_entry(call_id(0)))) << "an older schema is written";
  EXPECT_THAT(error_of([&] { board(url)->read(); }), HasSubstr("ejk store upgrade"));
  EXPECT_THAT(error_of([&] { board(url)->pin({offer(0, "1")}); }), HasSubstr("ejk store upgrade"));
  server().must(name, detail::postgres_schema_script(2));
  EXPECT_EQ(board(url)->pin({offer(0, "1")}).size(), 1u);
  EXPECT_TRUE(store.get(call_id(0))) << "what was there stays";
  server().must(name, "UPDATE ejk.meta SET version = version + 1");
  Pins newer(board(url));
  EXPECT_EQ(newer.find(call_id(0)), Value(1));
  EXPECT_THAT(error_of([&] { newer.pin(call_id(1), Value(1)); }), HasSubstr("newer version"));
}

// The way of a call: the store's database is where its run pins.
TEST_F(DatabasePins, ADatabaseAmongTheLayersHoldsThePins) {
  const std::string url = server().url(server().new_database(), "writer");
  const Scratch scratch(memory_directory());
  ::setenv(detail::pin_variable, "1", 1);
  ::setenv("EJKERNEL_RUN", "layers", 1);
  const auto store = std::make_shared<detail::SharedStore>(
      std::make_shared<DirectoryStore>(scratch / "near"), url, patient_options());
  const PersistentCache layers({store});
  const auto pins = detail::pins_of_launch(detail::pin_mode_of_launch(), &layers);
  EXPECT_EQ(pins->pin(call_id(0), block(1)), block(1));
  EXPECT_EQ(detail::pins_of_launch(detail::PinMode::shared, &layers), pins) << "one for all";
  EXPECT_EQ(Pins(board(url, "layers")).find(call_id(0)), block(1));
  EXPECT_FALSE(pins->trusted());
  for (const char* name : {detail::pin_variable, "EJKERNEL_RUN"}) ::unsetenv(name);
}

}  // namespace
}  // namespace ejk
