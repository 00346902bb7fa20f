// SPDX-License-Identifier: Apache-2.0
// How long 32 ranks take to agree on the configs of 500 calls, in one question each, while they
// offer different ones: over TLS on loopback, with and without the time to connect, and one call at
// a time.
#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <stdexcept>
#include <thread>

#include <ejk/ejk.h>

#include "../tests/postgres_server.h"
#include "harness.h"
#include "store/pins.h"

namespace {

using namespace ejk;
using namespace ejk::testing;
using detail::Pins;
using detail::PostgresPins;

constexpr int ranks = 32, calls = 500, rounds = 9;
constexpr const char* password = "bench";

// Seconds until the last of the ranks knows the configs of all calls.
double agree(const std::string& url, const std::string& run, bool connected, bool in_one) {
  std::set<std::string> digests;
  std::mutex mutex;
  std::barrier begin(ranks + 1);
  std::vector<std::jthread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      std::vector<std::pair<EntryId, Value>> offers;
      for (int i = 0; i < calls; ++i)
        offers.emplace_back(call_id((i * 7 + r) % calls), Value::object({{"block", r}}));
      const auto board = std::make_shared<PostgresPins>(url, run, 60, 60);
      if (connected) board->read();
      Pins pins(board);
      begin.arrive_and_wait();
      if (in_one) pins.pin_all(offers);
      else
        for (const auto& [id, config] : offers) pins.pin(id, config);
      begin.arrive_and_wait();
      std::string text;
      for (int i = 0; i < calls; ++i) text += stable_json(*pins.find(call_id(i)));
      const std::lock_guard lock(mutex);
      digests.insert(text);
    });
  begin.arrive_and_wait();
  const double start = bench::seconds();
  begin.arrive_and_wait();
  const double took = bench::seconds() - start;
  threads.clear();
  if (digests.size() != 1) throw std::runtime_error("the ranks do not agree");
  return took;
}

}  // namespace

int main() {
  ::setenv("EJKERNEL_LOG", "0", 1);
  if (const std::string why = PostgresServer::why_not(); !why.empty()) {
    std::printf("%s\n", why.c_str());
    return 1;
  }
  PostgresServer server(true);
  server.serve_tls();
  const std::string database = server.new_database();
  server.must("postgres", std::string("CREATE ROLE ann LOGIN PASSWORD '") + password +
                              "'; GRANT ejk_writer TO ann");
  const std::string url = server.tcp_url(database, "ann", password) +
                          "?sslmode=verify-full&sslrootcert=" + server.path("authority.crt");
  while (!detail::PostgresStore(url, patient_options([](const std::string&) {}))
              .ask({"SELECT 1"})) {  // the server reads its settings a bit later
  }
  std::vector<double> batch, with_connecting;
  for (int i = 0; i < rounds; ++i) {
    batch.push_back(agree(url, "batch " + std::to_string(i), true, true));
    with_connecting.push_back(agree(url, "connect " + std::to_string(i), false, true));
  }
  const double one_by_one = agree(url, "one by one", true, false);
  const double in_batch = bench::median(batch), connecting = bench::median(with_connecting);
  std::printf("%d ranks agree on %d calls\n", ranks, calls);
  std::printf("  %-36s %8.0f ms\n", "in one question each", in_batch * 1e3);
  std::printf("  %-36s %8.0f ms\n", "the same and connecting", connecting * 1e3);
  std::printf("  %-36s %8.0f ms\n", "a question for each call", one_by_one * 1e3);
  bench::print_json({{"agree_500_keys_ms", in_batch * 1e3},
                     {"agree_500_keys_with_connecting_ms", connecting * 1e3},
                     {"agree_500_keys_one_by_one_ms", one_by_one * 1e3}});
}
