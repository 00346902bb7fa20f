// SPDX-License-Identifier: Apache-2.0
// What a warm call costs over the bare kernel, beside a hash-map probe of the same words.
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <thread>
#include <unordered_map>

#include <time.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <ejk/ejk.h>

#include "harness.h"

namespace {
std::atomic<long> allocations{0};
}
// Not inlined: the compiler would see a malloc freed by delete and complain.
[[gnu::noinline]] void* operator new(size_t n) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* p = std::malloc(n)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace {

using In = ejk::View<const float, 2>;
using InOut = ejk::View<float, 2>;

// Two rank-2 tensors and a scalar, almost no work: what is left is the dispatch.
struct Touch {
  static constexpr std::string_view op_id = "bench.touch";
  struct Config {
    int block = 1;
  };
  [[gnu::noinline]] void run(const Config& c, const In& a, const InOut& b, float alpha) const {
    b.data[0] = a.data[0] * alpha + static_cast<float>(c.block);
  }
};

// About 80 ns of work.
struct Small {
  static constexpr std::string_view op_id = "bench.small";
  struct Config {
    int rows = 1;
  };
  [[gnu::noinline]] void run(const Config&, const In& a, const InOut& b, float alpha) const {
    float sum = alpha;
    for (int i = 0; i < 20; ++i) sum = sum * 0.5f + a.data[i];  // a chain of dependent operations
    b.data[0] = sum;
  }
};

using Words = std::array<uint64_t, 12>;
struct WordsHash {
  size_t operator()(const Words& w) const { return XXH3_64bits(w.data(), sizeof(w)); }
};
using Map = std::unordered_map<Words, int, WordsHash>;

Words words_of(const In& a, const InOut& b) {
  return {1,
          2,
          static_cast<uint64_t>(a.shape[0]),
          static_cast<uint64_t>(a.shape[1]),
          3,
          4,
          static_cast<uint64_t>(b.shape[0]),
          static_cast<uint64_t>(b.shape[1]),
          5,
          6,
          7,
          8};
}

constexpr int calls = 20000;
constexpr int rounds = 61;

struct Arguments {
  std::vector<In> a;
  std::vector<InOut> b;
};

Arguments make_arguments(float* data, int keys) {
  Arguments out;
  for (int i = 0; i < keys; ++i) {
    out.a.push_back({data, {4 + i, 8}});
    out.b.push_back({data + 64, {4, 8 + i % 7}});
  }
  return out;
}

struct Costs {
  double overhead, probe, compiled_over_direct;
};

// Seconds per call, medians of per-round differences.
template <class K>
Costs measure(const ejk::Executor& executor, const Arguments& args, const Map& map) {
  const K kernel;
  const typename K::Config config{};
  const auto compiled = executor.compile(kernel, args.a[0], args.b[0], 2.f);
  const size_t keys = args.a.size();
  auto loop = [&](auto&& body) {
    return [&args, keys, body] {
      for (size_t i = 0, k = 0; i < calls; ++i, k = k + 1 == keys ? 0 : k + 1) {
        bench::clobber(args.a.data());
        body(args.a[k], args.b[k]);
      }
    };
  };
  int64_t sink = 0;
  const auto samples =
      bench::interleave({loop([&](const In& a, const InOut& b) { kernel.run(config, a, b, 2.f); }),
                         loop([&](const In& a, const InOut& b) { executor(kernel, a, b, 2.f); }),
                         loop([&](const In& a, const InOut& b) { compiled(a, b, 2.f); }),
                         loop([&](const In& a, const InOut& b) {
                           sink += map.find(words_of(a, b))->second;
                           bench::clobber(&sink);
                         }),
                         loop([&](const In&, const InOut&) {
                           sink += 1;
                           bench::clobber(&sink);
                         })},
                        rounds);
  std::vector<double> overhead, probe, ratio;
  for (int r = 0; r < rounds; ++r) {
    const auto i = static_cast<size_t>(r);
    overhead.push_back((samples[1][i] - samples[0][i]) / calls);
    probe.push_back((samples[3][i] - samples[4][i]) / calls);
    ratio.push_back(samples[2][i] / samples[0][i]);
  }
  return {bench::median(overhead), bench::median(probe), bench::median(ratio)};
}

// ---- two threads on one executor
// -----------------------------------------------------------------

// The calls a thread has made, on cache lines of its own: two, as they are fetched in pairs.
struct alignas(128) Progress {
  std::atomic<int64_t> calls{0};
};

struct Blocks {
  std::vector<double> wall, cpu;  // seconds of those that count
  int64_t run = 0;                // all of them

  void add(const Blocks& other) {
    wall.insert(wall.end(), other.wall.begin(), other.wall.end());
    cpu.insert(cpu.end(), other.cpu.begin(), other.cpu.end());
    run += other.run;
  }
};

double cpu_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// Blocks of calls for some milliseconds, on data of its own. With another thread beside it a block
// counts only if that one made at least half a block of calls meanwhile: the other core of a shared
// machine is often taken away, and that is not what the executor does to its callers. A lock or a
// shared cache line slows both down while both go on, so such blocks count.
template <class Call>
Blocks run_blocks(const Call& call, Progress& mine, const Progress* other) {
  constexpr int steps = 20;  // of a block, so that progress is seen within it
  constexpr double long_enough = 10e-3;
  alignas(128) float data[128] = {};
  const Arguments own = make_arguments(data, 1);
  Blocks blocks;
  auto theirs = [&] { return other == nullptr ? 0 : other->calls.load(std::memory_order_relaxed); };
  for (const double stop = bench::seconds() + long_enough; bench::seconds() < stop; ++blocks.run) {
    const int64_t before = theirs();
    const double cpu = cpu_seconds(), wall = bench::seconds();
    for (int step = 0; step < steps; ++step) {
      for (int i = 0; i < calls / steps; ++i) {
        bench::clobber(own.a.data());
        call(own.a[0], own.b[0]);
      }
      mine.calls.store(mine.calls.load(std::memory_order_relaxed) + calls / steps,
                       std::memory_order_relaxed);
    }
    const double wall_taken = bench::seconds() - wall, cpu_taken = cpu_seconds() - cpu;
    if (other != nullptr && theirs() - before < calls / 2) continue;
    blocks.wall.push_back(wall_taken), blocks.cpu.push_back(cpu_taken);
  }
  return blocks;
}

template <class Call>
Blocks run_two(const Call& call) {
  Progress mine, other;
  Blocks theirs;
  std::jthread thread([&] { theirs = run_blocks(call, other, &mine); });
  Blocks blocks = run_blocks(call, mine, &other);
  thread.join();
  blocks.add(theirs);
  return blocks;
}

struct Threads {
  double throughput, cpu, counted;  // two over one; the share of blocks with two that counted
};

// The lower quartile forgets blocks that were interrupted and is no single lucky one.
Threads two_over_one(const Blocks& one, const Blocks& two) {
  const auto quartile = [](const std::vector<double>& v) { return bench::quantile(v, 0.25); };
  return {2 * quartile(one.wall) / quartile(two.wall), quartile(two.cpu) / quartile(one.cpu),
          static_cast<double>(two.wall.size()) / static_cast<double>(two.run)};
}

// On the same executor, and the same for the bare kernel: what this machine's cores can give.
std::pair<Threads, Threads> two_threads_over_one(const ejk::Executor& executor) {
  const auto ours = [&](const In& a, const InOut& b) { executor(Touch{}, a, b, 2.f); };
  const auto bare = [](const In& a, const InOut& b) { Touch{}.run({}, a, b, 2.f); };
  Progress alone;
  Blocks one, two, one_bare, two_bare;
  for (int round = 0; round < 100; ++round) {
    one.add(run_blocks(ours, alone, nullptr));
    two.add(run_two(ours));
    one_bare.add(run_blocks(bare, alone, nullptr));
    two_bare.add(run_two(bare));
  }
  return {two_over_one(one, two), two_over_one(one_bare, two_bare)};
}

}  // namespace

int main() {
  alignas(64) static float data[256] = {};
  auto executor =
      ejk::Executor(ejk::SelectorOptions{.policy = ejk::AutotunePolicy{.allow_autotune = false}});
  const Arguments one = make_arguments(data, 1), many = make_arguments(data, 2000);

  // Every key gets its config by text, as a tuned one would be there.
  for (size_t i = 0; i < many.a.size(); ++i) {
    const auto inv = executor.describe(Touch{}, many.a[i], many.b[i], 2.f);
    executor.chain().cache().put(inv.device->fingerprint, inv.op(), inv.call_key(),
                                 Touch::Config{1});
  }
  const auto small = executor.describe(Small{}, one.a[0], one.b[0], 2.f);
  executor.chain().cache().put(small.device->fingerprint, small.op(), small.call_key(),
                               Small::Config{1});
  for (size_t i = 0; i < many.a.size(); ++i) executor(Touch{}, many.a[i], many.b[i], 2.f);

  Map map_1000, map_2000;
  for (size_t i = 0; i < 2000; ++i) {
    if (i < 1000) map_1000.emplace(words_of(many.a[i], many.b[i]), static_cast<int>(i));
    map_2000.emplace(words_of(many.a[i], many.b[i]), static_cast<int>(i));
  }

  const long before = allocations.load();
  for (int i = 0; i < calls; ++i)
    executor(Touch{}, many.a[static_cast<size_t>(i) % 2000], many.b[static_cast<size_t>(i) % 2000],
             2.f);
  const long during = allocations.load() - before;

  const Costs single = measure<Touch>(executor, one, map_1000);
  const Costs turns = measure<Touch>(executor, many, map_2000);
  const Costs compiled = measure<Small>(executor, one, map_1000);
  const auto [threads, bare] = two_threads_over_one(executor);

  std::printf("%-44s %10s %10s %8s\n", "two rank-2 tensors and a scalar", "ours ns", "probe ns",
              "ratio");
  std::printf("%-44s %10.1f %10.1f %8.2f\n", "one key", single.overhead * 1e9, single.probe * 1e9,
              single.overhead / single.probe);
  std::printf("%-44s %10.1f %10.1f %8.2f\n", "2000 keys in turn", turns.overhead * 1e9,
              turns.probe * 1e9, turns.overhead / turns.probe);
  std::printf("compiled call over direct, kernel of ~80 ns: %.3f\n", compiled.compiled_over_direct);
  std::printf("allocations in %d warm calls: %ld\n", calls, during);
  std::printf("%-44s %10s %10s %8s\n", "two threads over one", "throughput", "CPU time", "counted");
  std::printf("%-44s %10.2f %10.2f %6.0f %%\n", "one executor", threads.throughput, threads.cpu,
              100 * threads.counted);
  std::printf("%-44s %10.2f %10.2f %6.0f %%\n", "the bare kernel", bare.throughput, bare.cpu,
              100 * bare.counted);
  bench::print_json({{"overhead_ns", single.overhead * 1e9},
                     {"overhead_over_probe", single.overhead / single.probe},
                     {"overhead_over_probe_2000", turns.overhead / turns.probe},
                     {"compiled_over_direct", compiled.compiled_over_direct},
                     {"two_threads_over_one", threads.throughput},
                     {"two_threads_over_one_bare", bare.throughput},
                     {"two_threads_cpu", threads.cpu},
                     {"two_threads_cpu_bare", bare.cpu},
                     {"two_threads_counted", threads.counted},
                     {"two_threads_counted_bare", bare.counted},
                     {"allocations", during}});
}
