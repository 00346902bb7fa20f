// SPDX-License-Identifier: Apache-2.0
// Processes of many machines that tune the same calls by leases of one database. Some are killed
// while they hold one, and their clocks are hours apart.
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

#include "base/time.h"
#include "postgres_server.h"
#include "store/shared.h"

namespace {

time_t hours_off = 0;  // of this process's clock

timespec real_time() {
  timespec now{};
  ::syscall(SYS_clock_gettime, CLOCK_REALTIME, &now);
  return now;
}

}  // namespace

// These stand in for the C library's, in this program and the libraries that it uses.
extern "C" time_t time(time_t* out) noexcept {
  const time_t now = real_time().tv_sec + hours_off * 3600;
  if (out != nullptr) *out = now;
  return now;
}

extern "C" int clock_gettime(clockid_t clock, timespec* out) noexcept {
  const long failed = ::syscall(SYS_clock_gettime, clock, out);
  if (failed == 0 && clock == CLOCK_REALTIME) out->tv_sec += hours_off * 3600;
  return static_cast<int>(failed);
}

namespace ejk {
namespace {

using namespace ejk::testing;
using detail::PostgresStore;
using detail::SharedStore;

constexpr int processes = 8, calls = 12, deaths = 4;
constexpr double lease_seconds = 5;

// What all processes count together.
struct Counts {
  std::atomic<int> tunings[calls];
};

std::shared_ptr<Counts> shared_counts() {
  void* const memory =
      ::mmap(nullptr, sizeof(Counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return {new (memory) Counts{}, [](Counts* counts) { ::munmap(counts, sizeof *counts); }};
}

// As a tuning does it: get, lease, look again, measure, put. The first who tunes one of the first
// calls is killed. False if it had to wait for longer than it may.
bool tune_all(const std::string& near, const std::string& url, int process, Counts& counts) {
  hours_off = 7 * (process - processes / 2);
  PostgresStore::Options options = patient_options([](const std::string&) {});
  options.lease_seconds = lease_seconds;
  SharedStore store(
      std::make_shared<DirectoryStore>(
          near, DirectoryStore::Options{false, [](const std::string&) {}, environment()}),
      url, options);
  std::vector<int> order(calls);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::shuffle(order, std::mt19937(static_cast<unsigned>(process)));
  for (const int call : order) {
    const EntryId id = call_id(call);
    if (store.get(id, Detail::choice)) continue;
    const auto lease = store.lease(id, lease_seconds + 5);
    if (!lease) return false;
    if (store.get(id, Detail::choice)) continue;
    if (counts.tunings[call]++ == 0 && call < deaths) ::kill(::getpid(), SIGKILL);
    Entry entry = make_entry(id, process);
    entry.evidence.time = base::utc_now();
    if (!store.put(entry)) return false;
  }
  return true;
}

TEST(LeaseFaults, EveryDeadHolderCostsOneTuningMoreWhateverClocksSay) {
  if (const std::string why = PostgresServer::why_not(); !why.empty()) GTEST_SKIP() << why;
  if (thread_sanitized) GTEST_SKIP() << "no threads after a fork";
  PostgresServer server;
  const std::string url = server.url(server.new_database());
  const Scratch scratch(memory_directory());
  const auto counts = shared_counts();
  std::vector<pid_t> children;
  for (int process = 0; process < processes; ++process)
    children.push_back(start_child(
        [&] { return tune_all(scratch / std::to_string(process), url, process, *counts); }));
  int content = 0, killed = 0;
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    content += WIFEXITED(status) && WEXITSTATUS(status) == 0;
    killed += WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  }
  EXPECT_EQ(killed, deaths);
  EXPECT_EQ(content, processes - deaths)
      << "no process waits for longer than a lease lasts, and 5 s";
  for (int call = 0; call < calls; ++call)
    EXPECT_EQ(counts->tunings[call], call < deaths ? 2 : 1) << call;
}

// Else the test above would show nothing.
TEST(LeaseFaults, AClockThatIsOffIsWhatTheLibraryReads) {
  const std::string year = base::utc_now().substr(0, 4);
  const auto chrono = std::chrono::system_clock::now();
  hours_off = 2 * 366 * 24;
  EXPECT_GT(base::utc_now().substr(0, 4), year);
  EXPECT_GT(std::chrono::system_clock::now() - chrono, std::chrono::hours(hours_off - 1));
  hours_off = 0;
}

}  // namespace
}  // namespace ejk
