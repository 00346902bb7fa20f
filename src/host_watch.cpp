// SPDX-License-Identifier: Apache-2.0
// Which changes of this process are a config's doing.
#include "host_watch.h"

#include "tuning.h"

namespace ejk::detail {
namespace {

// A function that is only measured does as it likes: there is no other one to run instead.
bool watched(const Tuning& t) { return t.task.guard || t.task.candidates->size() > 1; }

std::string sentence(const std::string& what) {
  return what.empty() ? "" : "left changed: " + what;
}

}  // namespace

HostWatch::HostWatch(const Tuning& t, Of of) {
  if (!watched(t)) return;
  thread_.emplace();
  if (t.alone && of == Of::process) process_.emplace();
}

std::string HostWatch::put_back() const { return sentence(put_back_parts()); }

std::string HostWatch::put_back_parts() const {
  return joined(thread_ ? thread_->put_back() : "", process_ ? process_->put_back() : "");
}

FirstRunWatch::FirstRunWatch(Tuning& t) : tuning_(t), watch_(t) {
  if (!watched(t)) return;
  if (t.alone) files_.emplace(), held_ = current_holdings();
  else shared_.emplace();
}

std::string FirstRunWatch::put_back(const AnyConfig& config, bool passed) const {
  std::string what = joined(watch_.put_back_parts(), files_ ? files_->missing() : "");
  if (shared_) what = joined(what, changed_beside_others(config));
  if (what.empty() && files_ && passed) return left_behind(config);
  return sentence(what);
}

bool FirstRunWatch::run_again(const AnyConfig& config) const {
  return !failure_of([&] { static_cast<void>(outputs_of_run(tuning_, config)); });
}

// What comes again is the config's doing. What does not was another thread's, who gets it back.
std::string FirstRunWatch::changed_beside_others(const AnyConfig& config) const {
  const ProcessState after;
  if (shared_->put_back().empty()) return {};
  static_cast<void>(run_again(config));
  std::string again = shared_->put_back();
  if (again.empty()) after.put_back();
  watch_.put_back();
  return again;
}

std::string FirstRunWatch::left_behind(const AnyConfig& config) const {
  const std::string what = grows_with_every_run(held_, [&] { return run_again(config); });
  watch_.put_back();
  return what;
}

}  // namespace ejk::detail
