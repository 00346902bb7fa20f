// SPDX-License-Identifier: Apache-2.0
// Picks the fastest of several configurations by measuring them side by side.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ejk/any_config.h>
#include <ejk/candidates.h>
#include <ejk/detail/export.h>
#include <ejk/error.h>
#include <ejk/names.h>
#include <ejk/stopwatch.h>
#include <ejk/store.h>
#include <ejk/tensor.h>

namespace EJK_EXPORT ejk {

namespace detail {
class Journal;
struct Parcel;
}  // namespace detail

// One array a run wrote or returned, to be compared between configurations.
struct OutputBytes {
  DType dtype;                   // of all elements
  std::vector<std::byte> bytes;  // packed
};

// How far two results of floating type may differ and still be the same result.
struct Tolerance {
  double relative = 0;  // of the element or of the usual element, whichever is larger
  double absolute = 0;  // added to the relative part
};

// One call on private copies of its arguments: what candidates are run on. Made by the executor,
// and implemented by you only for a kernel that is not C++.
//
// A tuner calls it from one thread at a time, in this order:
//   - A first run: reset, run, wait, outputs; the same for run_reference. In a child process, `arm`
//     comes before the first of them, and `overrun` or `trespass` after each run.
//   - A timed sample: reset, then `run` several times, then `wait`. If `repeatable` is false, each
//     run has a reset before it and a `wait` after it. Only `run` and `wait` are timed.
// The tuner does not own the trial: it lives until `tune` returns.
class Trial {
 public:
  virtual ~Trial() = default;
  // Puts in-out arguments back to what they were and fills outputs with poison.
  virtual void reset() = 0;
  // False if a run changes what the next one reads, so that reset() must come between them.
  virtual bool repeatable() const { return true; }
  // One execution. Throws what the kernel throws.
  virtual void run(const AnyConfig& config) = 0;
  // The kernel's own slow and right answer; false if it has none.
  virtual bool run_reference() = 0;
  // What the last run left: outputs, in-out arguments and the returned value, as a copy.
  virtual std::vector<OutputBytes> outputs() = 0;
  // How far a floating-point output may be off; nullopt: as usual for its type.
  virtual std::optional<Tolerance> tolerance(DType) const { return std::nullopt; }
  // True if forward plus backward was asked for and only forward is run, although the kernel has a
  // gradient: it takes no cotangent that can be made here.
  virtual bool leaves_backward_out() const { return false; }
  // The device with memory of its own that runs happen on; the thread's own time does not tell what
  // they cost. nullptr: the CPU.
  virtual const Device* device() const { return nullptr; }
  // How a process that was forked before this trial was made can make it again, as a fork that
  // comes later cannot use a device. nullptr: it cannot, so first runs on a device happen here.
  virtual std::shared_ptr<const detail::Parcel> parcel() { return nullptr; }
  // Until all that `run` has only begun, as launches are, is done.
  virtual void wait() {}
  // The arrays' memory, to be evicted from the caches before a cold sample.
  virtual std::vector<std::span<std::byte>> memory() { return {}; }

  // For runs in a child process, where overruns shall be noticed. All may be left as they are.
  // Closes the memory around the arrays, and inputs to writers: called once in each child.
  virtual void arm() {}
  // What a run wrote beside its arrays, for people; nullopt: nothing that could be seen.
  virtual std::optional<std::string> overrun() const { return std::nullopt; }
  // The array beside which an armed process faulted, by the address of the fault; nullopt if the
  // address is beside no array.
  virtual std::optional<std::string> trespass(const void* /*address*/) const {
    return std::nullopt;
  }
};

// ---- what a tuning is given and gives -----------------------------------------------------------

// When a tuning ends, whatever it has.
struct TuneBudget {
  double seconds = 10;        // wall time, about: a run that has begun is finished
  int evaluations = 0;        // configurations tried; 0: any number
  double target_seconds = 0;  // fast enough: the tuning ends with the first that is; 0: none is
};

// What happens during a tuning, as it happens.
struct TuneProgress {
  // What happened.
  enum class Kind {
    candidate,   // `config` had its first run; `message`: why it was rejected, "" if it was not
    round,       // one more round was measured
    eliminated,  // `config` is clearly slower than the best;
                 // `message`: the times of both
    best,        // `config` is the new best so far
    finished,    // `config` is the winner; null if there is none
    measured,    // there is a first time of `config`, or a better known one: `seconds`
  };
  // What happened, in the tuning of which call; the config and the words that go with it.
  Kind kind = Kind::round;
  std::string_view op, key;
  Value config;
  std::string_view message;
  uint64_t tried = 0, candidates = 0;  // first runs so far, and configurations there are
  size_t racing = 0, rejected = 0;     // candidates that still race, and those that never will
  int round = 0;                       // rounds measured so far
  std::optional<Clock> clock;          // that measured them; none: there is no round yet
  double best_seconds = 0;             // of the best so far; 0: not known yet
  double seconds = 0;                  // of `config`, as far as it was measured; 0: it was not
  double speedup = 0;                  // of the best over the heuristic; 0: not known
  double elapsed = 0, remaining = 0;   // seconds; what remains is an estimate, at most the budget
  double compile_seconds = 0;          // of device programs so far, in all processes
};
// Called on the tuning thread. Texts are valid during the call only. If it throws, it is not called
// again.
using ProgressSink = std::function<void(const TuneProgress&)>;

// Shows a tuning on stderr: one line that changes on a terminal, now and then a line elsewhere.
ProgressSink progress_display();
// progress_display() if $EJKERNEL_AUTOTUNE_PROGRESS is 1, else nothing.
ProgressSink progress_from_environment();

// What a tuner is given. Pointers must stay valid until `tune` returns.
struct TuneTask {
  std::string op, key;  // for messages
  // What is run, and with which configs.
  Trial* trial = nullptr;
  std::shared_ptr<const CandidateSet> candidates;
  std::function<bool(const AnyConfig&)> is_valid = {};  // empty: all are
  // Races as incumbent and control.
  std::optional<AnyConfig> heuristic;
  // Whether the heuristic can win although it is not one of the candidates: if all of these are
  // clearly slower, or if the tuning is cut short before one of them beats it.
  bool heuristic_may_win = false;
  TuneBudget budget;  // when to end
  // What an earlier tuning of the same call found. Only what is new, or was cut off, is measured,
  // against the earlier winner.
  std::vector<Measurement> known = {};
  Value known_winner;
  bool known_complete = true;
  // The same op measured for other calls or devices, one list each: where a search begins.
  std::vector<std::vector<Measurement>> histories = {};
  bool guard = true;                   // first runs happen in a child process where that works
  detail::Journal* journal = nullptr;  // of what this process is about to run
  ProgressSink on_progress = {};       // empty: no progress is reported
  // Set from elsewhere (a signal handler) to end the tuning with what it has.
  const std::atomic<bool>* stop = nullptr;
  TuningLease* lease = nullptr;  // is refreshed between runs
};

// What a tuner found.
struct TuneResult {
  Outcome outcome = Outcome::failed;  // whether there is a winner
  std::optional<uint64_t> winner;     // a point of the candidates; their number: the heuristic
  AnyConfig config;                   // of the winner; empty if there is none
  Evidence evidence;                  // of the winner, against the heuristic
  // Of up to 256 candidates all, in their order, else those that were tried; equal configs are
  // measured once and share the numbers. A status of "untried" means that the budget was spent
  // before its turn.
  std::vector<Measurement> candidates;
  std::optional<Rejection> heuristic_rejection;  // as what the heuristic was rejected, if it was,
  std::string heuristic_problem;                 // and why
  std::string note;  // what else is worth knowing (the reference threw); ""
};

// ---- the tuner ---------------------------------------------------------------------------------

// How a tuner measures.
struct TunerOptions {
  int warmup = 1;                            // runs of each candidate before it is timed, at least
  int iters = 3;                             // rounds, at least
  uint64_t seed = 0;                         // of shuffles and searches
  CacheState cache = CacheState::automatic;  // what a sample begins with
  // How sets too large to race are searched: a name that make_search knows.
  std::string strategy = "auto";
  std::shared_ptr<Stopwatch> stopwatch = {};  // empty: system_stopwatch()
};

// Thread-safe as long as the trials are different. Derive and override `tune` to bring your own.
class Tuner {
 public:
  // Throws Error(invalid_argument) if a number is negative.
  explicit Tuner(int warmup = 1, int iters = 3, uint64_t seed = 0);
  explicit Tuner(TunerOptions options);
  virtual ~Tuner() = default;

  // Finds the fastest candidate that gives correct results:
  //   1. First runs, in a child process. A candidate is rejected if it crashes, hangs, throws,
  //      writes out of bounds or leaves its process changed, or if its outputs differ from the
  //      expected ones: those of the reference, else of the heuristic, else of the first candidate
  //      that writes any.
  //   2. A search for the best few, if the set is large.
  //   3. A race: rounds in shuffled order, one sample of each candidate per round. All samples have
  //      the same number of runs. What slows down a whole round is removed before samples are
  //      compared.
  //   4. The decision. In a tie within the noise the incumbent stays (the heuristic, else the first
  //      candidate). If the incumbent is beaten, or is not a candidate, the earlier candidate wins.
  // What a candidate does never makes it throw. Changes that a run makes to this process are
  // undone.
  virtual TuneResult tune(const TuneTask& task);

  // The fastest of `candidates`, by calling make_fn(candidate) once for each and racing the
  // functions it returned on the arguments. Throws Error(no_configuration) if there are none or
  // all of them throw.
  template <class Config, class MakeFn, class... Args>
  Config autotune(MakeFn&& make_fn, const std::vector<Config>& candidates, Args&&... args) {
    std::vector<std::function<void()>> calls;
    for (const Config& c : candidates) {
      try {
        calls.push_back([fn = make_fn(c), &args...]() mutable { static_cast<void>(fn(args...)); });
      } catch (const std::exception&) {  // fails like one that throws when it runs
        calls.push_back([why = std::current_exception()] { std::rethrow_exception(why); });
      }
    }
    return candidates[fastest(calls)];
  }

  // Median seconds of fn(args...), measured as a race measures. Throws what it throws.
  template <class Fn, class... Args>
  double measure(Fn&& fn, Args&&... args) {
    return time([&] { static_cast<void>(fn(args...)); }).seconds;
  }
  // The same with interval and number of samples.
  Evidence time(const std::function<void()>& call);

  // What it was made with.
  int warmup() const noexcept { return options_.warmup; }
  int iters() const noexcept { return options_.iters; }
  const TunerOptions& options() const noexcept { return options_; }

 private:
  size_t fastest(const std::vector<std::function<void()>>& calls);

  TunerOptions options_;
};

// Milliseconds of one call of fn, measured as a race measures: `num_warmup` runs before it is
// timed and `num_iters` samples, at least. Throws what fn throws.
template <class Fn>
double benchmark(Fn&& fn, int num_iters = 10, int num_warmup = 1) {
  return 1e3 * Tuner(num_warmup, num_iters).measure(std::forward<Fn>(fn));
}

// While one lives, Ctrl-C (SIGINT) does not end the process but sets `requested()`: tunings end
// with what they have. A second Ctrl-C ends the process as before. One at a time.
class [[nodiscard]] StopOnInterrupt {
 public:
  StopOnInterrupt();
  ~StopOnInterrupt();
  StopOnInterrupt(const StopOnInterrupt&) = delete;
  StopOnInterrupt& operator=(const StopOnInterrupt&) = delete;
  static const std::atomic<bool>& requested() noexcept;  // lives as long as the process
};

}  // namespace ejk
