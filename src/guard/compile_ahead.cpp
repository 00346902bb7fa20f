// SPDX-License-Identifier: Apache-2.0
// A thread per process, which tells it what to compile next.
#include "guard/compile_ahead.h"

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

#include "base/time.h"

namespace ejk::detail {

CompileAhead::CompileAhead(Trial& trial, const base::Fd& parcel, const GuardLimits& limits,
                           int processes)
    : trial_(trial), parcel_(parcel), limits_(limits), children_(static_cast<size_t>(processes)) {}

CompileAhead::~CompileAhead() { end(); }

void CompileAhead::begin(std::span<const Job> configs, double deadline) {
  end();
  if (configs.size() < 2) return;  // the first is the caller's
  patience_ = Patience{.deadline = deadline, .own = limits_.own_seconds};
  configs_.clear();
  for (const Job config : configs) configs_.push_back({config});
  front_ = 1, back_ = configs_.size();
  ended_ = false;
  try {
    for (auto& child : children_)
      threads_.emplace_back([this, &child] { compile_until_end(child); });
  } catch (const std::system_error&) {  // then there are fewer of them
  }
}

void CompileAhead::compile_until_end(std::unique_ptr<GuardChild>& child) {
  std::unique_lock lock(mutex_);
  while (!ended_ && front_ < back_) {
    Config& next = configs_[--back_];
    next.state = State::begun;
    const size_t job = back_ + 1;
    lock.unlock();
    const double begin = base::seconds_now();
    if (!child || !child->alive())
      child = std::make_unique<GuardChild>(trial_, parcel_, GuardChild::Purpose::compiles, limits_,
                                           enough_);
    const bool started = child->alive();
    bool spills = false;
    if (started) spills = child->run(job, next.config, patience_).finding.spills;
    lock.lock();
    next.state = State::done, next.report = {base::seconds_now() - begin, spills};
    changed_.notify_all();
    if (!started) return;
  }
}

CompileAhead::Report CompileAhead::take(size_t index, const std::function<bool()>& enough) {
  constexpr std::chrono::milliseconds between_looks{100};
  std::unique_lock lock(mutex_);
  if (index >= configs_.size()) return {};
  front_ = std::max(front_, index + 1);
  const Config& config = configs_[index];
  const auto is_free = [&] { return config.state != State::begun; };
  while (!changed_.wait_for(lock, between_looks, is_free))
    if (enough && enough()) return {};
  return config.report;
}

void CompileAhead::end() {
  ended_ = true;
  for (std::thread& thread : std::exchange(threads_, {})) thread.join();
  configs_.clear();
}

}  // namespace ejk::detail
