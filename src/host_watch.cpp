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
  if (watched(t) && t.alone) files_.emplace(), held_ = current_holdings();
}

std::string FirstRunWatch::put_back(const AnyConfig& config, bool passed) const {
  const std::string what = joined(watch_.put_back_parts(), files_ ? files_->missing() : "");
  if (what.empty() && files_ && passed) return left_behind(config);
  return sentence(what);
}

bool FirstRunWatch::run_again(const AnyConfig& config) const {
  return !failure_of([&] { static_cast<void>(outputs_of_run(tuning_, config)); });
}

std::string FirstRunWatch::left_behind(const AnyConfig& config) const {
  const std::string what = grows_with_every_run(held_, [&] { return run_again(config); });
  watch_.put_back();
  return what;
}

}  // namespace ejk::detail
