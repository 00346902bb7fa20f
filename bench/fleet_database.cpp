// SPDX-License-Identifier: Apache-2.0
// What a database behind the store costs, on loopback with TLS: beside a bare loop of libpq with
// the same queries, beside no database, and while it is away. bench/fleet.py runs it.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <stdexcept>
#include <thread>

#include <ejk/ejk.h>

#include "harness.h"
#include "store/keep.h"
#include "store/shared.h"
#include "tls_database.h"

namespace {

using namespace ejk;
using namespace ejk::testing;
namespace postgres = ejk::detail::postgres;
using detail::PostgresStore;
using detail::SharedStore;

constexpr int calls = 500;
constexpr const char* on_disk = "/var/tmp";  // where puts are flushed to something

// One connection that waits for each answer, as a first program with libpq does.
class BareLoop {
 public:
  explicit BareLoop(const postgres::Address& address) {
    std::vector<const char*> keywords, values;
    for (const auto& [keyword, value] : address.parameters)
      keywords.push_back(keyword.c_str()), values.push_back(value.c_str());
    keywords.push_back(nullptr), values.push_back(nullptr);
    connection_ = pq_.PQconnectStartParams(keywords.data(), values.data(), 0);
    while (pq_.PQconnectPoll(connection_) != postgres::polling_ok)
      if (pq_.PQstatus(connection_) == postgres::connection_bad)
        throw std::runtime_error(pq_.PQerrorMessage(connection_));
  }
  ~BareLoop() { pq_.PQfinish(connection_); }
  BareLoop(const BareLoop&) = delete;
  BareLoop& operator=(const BareLoop&) = delete;

  int rows(const std::string& sql, const std::vector<std::string>& parameters) {
    std::vector<const char*> values;
    for (const std::string& parameter : parameters) values.push_back(parameter.c_str());
    pq_.PQsendQueryParams(connection_, sql.c_str(), static_cast<int>(values.size()), nullptr,
                          values.data(), nullptr, nullptr, 0);
    int count = -1;
    while (postgres::Result* const result = pq_.PQgetResult(connection_)) {
      if (pq_.PQresultStatus(result) == postgres::tuples_ok) count = pq_.PQntuples(result);
      pq_.PQclear(result);
    }
    return count;
  }

 private:
  const postgres::Libpq& pq_ = postgres::libpq();
  postgres::Connection* connection_;
};

struct Touch {
  static constexpr std::string_view op_id = "bench.touch";
  struct Config {
    int block = 1;
  };
  Config heuristic_cfg(const Invocation&) const { return {}; }
  [[gnu::noinline]] void run(const Config& config, View<float, 1> a) const {
    a.data[0] += static_cast<float>(config.block);
  }
};

std::shared_ptr<DirectoryStore> directory(const std::string& path) {
  return std::make_shared<DirectoryStore>(
      path, DirectoryStore::Options{false, [](const std::string&) {}, {}});
}

Executor executor_with(std::shared_ptr<Store> store) {
  SelectorOptions options{.policy = AutotunePolicy{.allow_autotune = false}};
  if (store)
    options.persistent =
        std::make_shared<PersistentCache>(std::vector<std::shared_ptr<Store>>{std::move(store)});
  return Executor(std::move(options));
}

// The median over rounds of one over the other.
double ratio(const std::vector<double>& one, const std::vector<double>& other) {
  std::vector<double> ratios;
  for (size_t i = 0; i < one.size(); ++i) ratios.push_back(one[i] / other[i]);
  return bench::median(ratios);
}

// As large as that of a tuning of 81 candidates: a choice of 1.5 kB and 35 kB beside it.
Entry typical_entry(int call) {
  Entry entry = make_entry(call_id(call), 64, 50);
  entry.device = Value::object({{"kind", "cpu"}, {"model", std::string(900, 'm')}});
  for (int block = 0; block < 81; ++block) {
    Measurement slower;
    slower.config = Value::object({{"block", block}});
    slower.status = "slower", slower.why = std::string(300, 'w');
    entry.candidates.push_back(slower);
  }
  return entry;
}

// How many hosts in a second connect and get all choices of an op, of 16 at a time. They and the
// server share this machine.
double host_starts_per_second(const std::string& url, const EntryId& id) {
  constexpr int at_once = 16, each = 4;
  const double start = bench::seconds();
  {
    std::vector<std::jthread> hosts;
    for (int host = 0; host < at_once; ++host)
      hosts.emplace_back([&] {
        for (int i = 0; i < each; ++i)
          if (PostgresStore(url, patient_options())
                  .prefetch(id.device, id.op, environment())
                  .rows.size() != calls)
            std::abort();
      });
  }
  return at_once * each / (bench::seconds() - start);
}

std::string hex(const std::string& digits) { return "\\x" + digits; }

void expect(bool right) {
  if (!right) throw std::runtime_error("a query did not bring what it should");
}

// Seconds of each put.
std::vector<double> put_all(PostgresStore& store) {
  if (!store.put(make_entry(call_id(0)))) throw std::runtime_error("a put was lost");
  std::vector<double> seconds;
  for (int i = 0; i < calls; ++i) {
    const double start = bench::seconds();
    if (!store.put(typical_entry(i))) throw std::runtime_error("a put was lost");
    seconds.push_back(bench::seconds() - start);
  }
  return seconds;
}

struct Answers {
  std::vector<double> get, bare_get, prefetch, bare_prefetch, find;
};

// The store's questions beside the same by a bare loop.
Answers ask(PostgresServer& server, const bench::TlsStore& made, PostgresStore& store,
            const EntryId& id) {
  // The text of what the store last asked is the server's.
  const auto last_query = [&] {
    return *server
                .query(made.database,
                       "SELECT query FROM pg_stat_activity WHERE usename = 'ann' "
                       "ORDER BY query_start DESC LIMIT 1")
                .rows.at(0)
                .at(0);
  };
  store.get(id, Detail::choice);
  const std::string get_sql = last_query();
  store.prefetch(id.device, id.op, environment());
  const std::string prefetch_sql = last_query();
  const std::string own = hex(environment_id(make_entry(id)));
  EntryId by_key = id;
  by_key.spec.clear();
  BareLoop bare(postgres::read_address(made.url));
  const PostgresStore::Prefetched prefetched = store.prefetch(id.device, id.op, environment());
  const auto asked = bench::interleave(
      {[&] { expect(store.get(id, Detail::choice).has_value()); },
       [&] {
         expect(bare.rows(get_sql, {own, hex(detail::call_id(id)), hex(detail::call_id(by_key))}) ==
                1);
       },
       [&] { expect(store.prefetch(id.device, id.op, environment()).rows.size() == calls); },
       [&] {
         expect(bare.rows(prefetch_sql, {own, id.device, id.op}) == calls);
       },
       [&] { expect(store.find(prefetched, id).has_value()); }},
      200);
  return {asked[0], asked[1], asked[2], asked[3], asked[4]};
}

struct WarmCalls {
  double over_without_store, control;
};

WarmCalls warm_calls(const Scratch& scratch, const std::string& url) {
  alignas(64) static float data[16] = {};
  const View<float, 1> argument{data, {16}};
  const auto behind =
      std::make_shared<SharedStore>(directory(scratch / "warm"), url, patient_options());
  const Executor with = executor_with(behind), without = executor_with(nullptr);
  const auto loop = [&](const Executor& executor) {
    return [&executor, argument] {
      for (int i = 0; i < 20'000; ++i) executor(Touch{}, argument), bench::clobber(data);
    };
  };
  const auto warm = bench::interleave({loop(with), loop(without), loop(without)}, 101);
  return {ratio(warm[0], warm[1]), ratio(warm[2], warm[1])};
}

PostgresStore::Options silent() {
  return patient_options([](const std::string&) {});
}

// The first call of shapes that no store has, with a database that is known to be away, over one
// with a directory.
double first_calls_while_away(const Scratch& scratch, const EntryId& id) {
  static float data[16] = {};
  const auto absent = std::make_shared<SharedStore>(
      directory(scratch / "away"), "postgresql:///d?host=" + scratch / "nowhere", silent());
  absent->get(id);
  expect(absent->far().is_away());
  const Executor away = executor_with(absent), local = executor_with(directory(scratch / "local"));
  int64_t next[2] = {1, 1};
  const auto calls_of = [](const Executor& executor, int64_t& shape) {
    return [&executor, &shape] {
      for (int i = 0; i < 50; ++i) executor(Touch{}, View<float, 1>{data, {++shape}});
    };
  };
  const auto first = bench::interleave({calls_of(away, next[0]), calls_of(local, next[1])}, 41);
  return ratio(first[0], first[1]);
}

// Of 300 puts whose server is killed twice meanwhile.
int lost_puts(PostgresServer& server, const Scratch& scratch) {
  const std::string database = server.new_database();
  constexpr int kills_at[] = {100, 200};
  {
    SharedStore sender(directory(scratch / "killed"), server.url(database), silent());
    for (int i = 0; i < 300; ++i) {
      if (std::ranges::find(kills_at, i) != std::end(kills_at))
        server.kill(SIGKILL), server.begin();
      expect(sender.put(make_entry(call_id(i))));
    }
    while (sender.push(detail::Push::everything).left > 0) {
    }
  }
  int lost = 300;
  PostgresStore(server.url(database), patient_options())
      .for_each(
          "", [&](const Entry&) { return --lost, true; }, Detail::choice);
  return lost;
}

void print_sizes(PostgresServer& server, const std::string& database) {
  const auto sizes = server
                         .query(database,
                                "SELECT round(avg(octet_length(document))), "
                                "round(avg(octet_length(candidates))) FROM ejk.entries")
                         .rows.at(0);
  std::printf("%d entries: %s bytes each, and %s of candidates\n\n", calls, sizes.at(0)->c_str(),
              sizes.at(1)->c_str());
}

}  // namespace

int main() {
  ::setenv("EJKERNEL_LOG", "0", 1);
  if (!bench::there_is_a_server()) return 1;
  Scratch scratch(memory_directory());
  PostgresServer server(true, "track_activity_query_size = 16384\nfsync = on", "", on_disk);
  const bench::TlsStore made = bench::store_behind_tls(server);
  PostgresStore store(made.url, patient_options());
  const EntryId id = call_id(7);
  const std::vector<double> put_seconds = put_all(store);
  const Answers asked = ask(server, made, store, id);
  const double host_starts = host_starts_per_second(made.url, id);
  const WarmCalls warm = warm_calls(scratch, made.url);
  const double first = first_calls_while_away(scratch, id);
  const int lost = lost_puts(server, scratch);

  const double get = bench::median(asked.get), prefetch = bench::median(asked.prefetch);
  const double get_ratio = ratio(asked.get, asked.bare_get);
  const double prefetch_ratio = ratio(asked.prefetch, asked.bare_prefetch);
  print_sizes(server, made.database);
  std::printf("%-52s %10s %10s %8s\n", "", "ours", "libpq", "ratio");
  std::printf("%-52s %7.0f us %7.0f us %8.2f\n", "a choice of one call", get * 1e6,
              bench::median(asked.bare_get) * 1e6, get_ratio);
  std::printf("%-52s %7.1f ms %7.1f ms %8.2f\n", "the choices of 500 calls", prefetch * 1e3,
              bench::median(asked.bare_prefetch) * 1e3, prefetch_ratio);
  std::printf("%-52s %7.1f us\n", "a choice of one call, of those",
              bench::median(asked.find) * 1e6);
  std::printf("%-52s %10.0f\n", "hosts that connect and get them, in a second", host_starts);
  std::printf("%-52s %7.2f ms\n", "a put", bench::median(put_seconds) * 1e3);
  std::printf("%-52s %10d\n", "puts of 300 lost by killing the server twice", lost);
  std::printf("%-52s %29.3f (A/A %.3f)\n", "a warm call, over one without a store",
              warm.over_without_store, warm.control);
  std::printf("%-52s %29.2f\n", "a first call while it is away, over a directory's", first);
  bench::print_json({{"get_us", get * 1e6},
                     {"get_over_libpq", get_ratio},
                     {"prefetch_500_ms", prefetch * 1e3},
                     {"prefetch_over_libpq", prefetch_ratio},
                     {"prefetched_us", bench::median(asked.find) * 1e6},
                     {"host_starts_per_second", host_starts},
                     {"put_ms", bench::median(put_seconds) * 1e3},
                     {"lost_puts", static_cast<double>(lost)},
                     {"warm_call_over_without_store", warm.over_without_store},
                     {"warm_call_a_a", warm.control},
                     {"absent_server_first_call_over_local", first}});
}
