// SPDX-License-Identifier: Apache-2.0
// What a warm call costs over the bare kernel, beside a hash-map probe of the same words.
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <thread>
#include <unordered_map>

#include <sys/resource.h>
#include <time.h>

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

// ---- two threads on one executor ---------------------------------------------------------------

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

// How often this thread lost its core to another one. Waiting for a lock is not among them.
long preemptions() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nivcsw;
}

template <class Call>
struct Worker {
  Call call;
  int64_t calls;  // of a block: some 150 us

  // Not inlined: one thread and two must run the same instructions.
  [[gnu::noinline]] void run_block(const Arguments& own, Progress& mine) const {
    constexpr int steps = 20;  // so that the other thread sees progress within the block
    for (int step = 0; step < steps; ++step) {
      for (int64_t i = 0; i < calls / steps; ++i) {
        bench::clobber(own.a.data());
        call(own.a[0], own.b[0]);
      }
      mine.calls.fetch_add(calls / steps, std::memory_order_relaxed);
    }
  }
};

// Blocks of calls for some milliseconds, on data of its own. A block counts only if the thread kept
// its core and, with another thread beside it, if that one made at least half a block of calls
// meanwhile: a shared machine often takes one core away, and that is not what the executor does to
// its callers. A lock or a shared cache line slows both down while both go on: such blocks count.
template <class Call>
Blocks run_blocks(const Worker<Call>& worker, Progress& mine, const Progress* other) {
  constexpr double long_enough = 10e-3;
  alignas(128) float data[128] = {};
  const Arguments own = make_arguments(data, 1);
  Blocks blocks;
  auto theirs = [&] { return other == nullptr ? 0 : other->calls.load(std::memory_order_relaxed); };
  for (const double stop = bench::seconds() + long_enough; bench::seconds() < stop; ++blocks.run) {
    const long preempted = preemptions();
    const double cpu = cpu_seconds(), wall = bench::seconds();
    const int64_t before = theirs();
    worker.run_block(own, mine);
    const int64_t meanwhile = theirs() - before;
    const double wall_taken = bench::seconds() - wall, cpu_taken = cpu_seconds() - cpu;
    if (preemptions() != preempted) continue;
    if (other != nullptr && meanwhile < worker.calls / 2) continue;
    blocks.wall.push_back(wall_taken), blocks.cpu.push_back(cpu_taken);
  }
  return blocks;
}

template <class Call>
Blocks run_alone(const Worker<Call>& worker, size_t core) {
  Progress mine;
  Blocks blocks;
  std::jthread([&] { bench::pin_to_core(core), blocks = run_blocks(worker, mine, nullptr); });
  return blocks;
}

// Each on its core: else both may sit on one while another process has the other.
template <class Call>
Blocks run_two(const Worker<Call>& worker) {
  std::array<Progress, 2> progress;
  std::array<Blocks, 2> blocks;
  const auto run = [&](size_t i) {
    bench::pin_to_core(i);
    blocks[i] = run_blocks(worker, progress[i], &progress[1 - i]);
  };
  { std::jthread first(run, size_t{0}), second(run, size_t{1}); }
  blocks[0].add(blocks[1]);
  return blocks[0];
}

struct Threads {
  double throughput, cpu;  // two over one
  int64_t counted, run;    // blocks with two
};

// The lower decile forgets blocks slowed down from outside and is no single lucky one. Interference
// of the two slows all of their blocks down: one shared atomic increment per call gives 0.5, one in
// 16 calls 1.4, a mutex 0.4, results on one cache line 1.0.
Threads two_over_one(const Blocks& one, const Blocks& two) {
  const auto typical = [](const std::vector<double>& v) { return bench::quantile(v, 0.1); };
  return {2 * typical(one.wall) / typical(two.wall), typical(two.cpu) / typical(one.cpu),
          static_cast<int64_t>(two.wall.size()), two.run};
}

// On the same executor, and the same for the bare kernel: what this machine's cores can give.
std::pair<Threads, Threads> two_threads_over_one(const ejk::Executor& executor) {
  const auto call = [&](const In& a, const InOut& b) { executor(Touch{}, a, b, 2.f); };
  const auto call_bare = [](const In& a, const InOut& b) { Touch{}.run({}, a, b, 2.f); };
  const Worker ours{call, calls};
  const Worker bare{call_bare, 5 * calls};
  constexpr size_t enough = 1500;  // blocks of each kind
  constexpr size_t min_rounds = 60, max_rounds = 600;
  Blocks one, two, one_bare, two_bare;
  const auto few = [&] { return std::min(two.wall.size(), two_bare.wall.size()) < enough; };
  for (size_t round = 0; round < min_rounds || (few() && round < max_rounds); ++round) {
    one.add(run_alone(ours, round % 2));
    two.add(run_two(ours));
    one_bare.add(run_alone(bare, round % 2));
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
  std::printf("%-44s %10s %10s %8s\n", "two threads over one", "throughput", "CPU time", "blocks");
  std::printf("%-44s %10.2f %10.2f %8ld of %ld\n", "one executor", threads.throughput, threads.cpu,
              threads.counted, threads.run);
  std::printf("%-44s %10.2f %10.2f %8ld of %ld\n", "the bare kernel", bare.throughput, bare.cpu,
              bare.counted, bare.run);
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
