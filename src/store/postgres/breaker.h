// SPDX-License-Identifier: Apache-2.0
// Keeps callers from waiting for a database that does not answer. It has no clock of its own.
#pragma once

#include <algorithm>
#include <functional>
#include <utility>

namespace ejk::detail::postgres {

// Open: no query is sent until a probe has succeeded. The pauses between probes double, and differ
// from process to process, so that a fleet does not come back all at once.
class Breaker {
 public:
  struct Options {
    double first_pause = 5, longest_pause = 300;  // seconds
    int failures = 3;                             // queries in a row
  };
  // `random` gives numbers from 0 to 1.
  Breaker(Options options, std::function<double()> random)
      : options_(options), random_(std::move(random)) {}

  bool open() const { return open_; }
  double next_probe() const { return next_probe_; }

  // True if that opened it.
  bool connect_failed(double now) {
    pause_ = open_ ? std::min(2 * pause_, options_.longest_pause) : options_.first_pause;
    next_probe_ = now + pause_ * (0.75 + 0.5 * random_());
    failed_ = 0;
    return !std::exchange(open_, true);
  }
  bool query_failed(double now) { return ++failed_ >= options_.failures && connect_failed(now); }
  // True if that closed it.
  bool succeeded() {
    failed_ = 0;
    return std::exchange(open_, false);
  }

 private:
  Options options_;
  std::function<double()> random_;
  bool open_ = false;
  int failed_ = 0;
  double pause_ = 0, next_probe_ = 0;
};

}  // namespace ejk::detail::postgres
