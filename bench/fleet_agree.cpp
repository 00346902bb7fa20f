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

#include "harness.h"
#include "store/pins.h"
#include "tls_database.h"

namespace {

using namespace ejk;
using namespace ejk::testing;
using detail::Pins;
using detail::PostgresPins;

constexpr int ranks = 32, calls = 500, rounds = 9;

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
  if (!bench::there_is_a_server()) return 1;
  PostgresServer server(true);
  const std::string url = bench::store_behind_tls(server).url;
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
