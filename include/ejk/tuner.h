// SPDX-License-Identifier: Apache-2.0
// Picks the fastest of several configurations by measuring them side by side.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <ejk/any_config.h>
#include <ejk/error.h>
#include <ejk/store.h>
#include <ejk/tensor.h>

namespace ejk {

// One array a run wrote or returned, to be compared between configurations.
struct OutputBytes {
  DType dtype;
  std::vector<std::byte> bytes;  // packed
};

// One call on private copies of its arguments: what candidates are run on.
class Trial {
 public:
  virtual ~Trial() = default;
  // Puts in-out arguments back to what they were and fills outputs with poison.
  virtual void reset() = 0;
  // One execution. Throws what the kernel throws.
  virtual void run(const AnyConfig& config) = 0;
  // The kernel's own slow and right answer; false if it has none.
  virtual bool run_reference() = 0;
  // What the last run left: outputs, in-out arguments and the returned value, as a copy.
  virtual std::vector<OutputBytes> outputs() = 0;

  // For runs in a child process, where overruns shall be noticed. All may be left as they are.
  // Closes the memory around the arrays, and inputs to writers: called once in each child.
  virtual void arm() {}
  // What a run wrote beside its arrays, for people; nullopt: nothing that could be seen.
  virtual std::optional<std::string> overrun() const { return std::nullopt; }
  // Which array an armed process missed when it faulted at this address; nullopt: none of them.
  virtual std::optional<std::string> trespass(const void* /*address*/) const {
    return std::nullopt;
  }
};

struct TuneTask {
  std::string op, key;  // for messages
  Trial* trial = nullptr;
  std::span<const AnyConfig> candidates;
  // Races as incumbent and control. Never the answer unless it is among the candidates.
  std::optional<AnyConfig> heuristic;
  double budget_seconds = 10;
};

struct TuneResult {
  Outcome outcome = Outcome::failed;
  std::optional<size_t> winner;  // index into the candidates
  Evidence evidence;
  // In the order given; equal configs are measured once and share the numbers. A status of
  // "untried" means that the budget was spent before its turn.
  std::vector<Measurement> candidates;
  std::string note;  // what else went wrong (the reference threw, the heuristic was rejected); ""
};

// Thread-safe as long as the trials are different. Derive and override `tune` to bring your own.
class Tuner {
 public:
  // `warmup`: runs of each candidate before it is timed. `iters`: the least number of rounds.
  // Throws Error(invalid_argument) if one is negative.
  explicit Tuner(int warmup = 1, int iters = 3, uint64_t seed = 0);
  virtual ~Tuner() = default;

  // Races the candidates: rounds in shuffled order, one sample of each per round, decided on the
  // median of the per-round ratios to the incumbent, which is entered twice (A/A). A candidate
  // that throws, or whose outputs differ from the reference's (else the heuristic's, else those of
  // the first candidate that writes any), is rejected. Ties inside the noise leave the incumbent
  // (the heuristic, else the first candidate) or, if that is beaten or not a candidate, go to the
  // earlier candidate. Never throws for what a candidate does.
  virtual TuneResult tune(const TuneTask& task);

  // The fastest of `candidates`, by calling make_fn(candidate) once for each and racing the
  // functions it returned on the arguments. Throws Error(no_configuration) if there are none or
  // all of them throw.
  template <class Config, class MakeFn, class... Args>
  Config autotune(MakeFn&& make_fn, const std::vector<Config>& candidates, Args&&... args) {
    std::vector<std::function<void()>> calls;
    calls.reserve(candidates.size());
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
    return seconds_of([&] { static_cast<void>(fn(args...)); });
  }

  int warmup() const noexcept { return warmup_; }
  int iters() const noexcept { return iters_; }

 private:
  size_t fastest(std::span<const std::function<void()>> calls);
  double seconds_of(const std::function<void()>& call);

  int warmup_, iters_;
  uint64_t seed_;
};

}  // namespace ejk
