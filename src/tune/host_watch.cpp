// SPDX-License-Identifier: Apache-2.0
// Which changes of this process are a config's doing.
#include "tune/host_watch.h"

#include "tune/tuning.h"

namespace ejk::detail {
namespace {

// A function that is only measured does as it likes: there is no other one to run instead.
// Nor is a config asked for what the driver of a device does: it starts threads and a compiler.
bool watched(const Tuning& t) {
  return t.task.trial->device() == nullptr && (t.task.guard || t.task.candidates->size() > 1);
}

std::string sentence(const std::string& what) {
  return what.empty() ? "" : "left changed: " + what;
}

bool run_again(Tuning& t, const AnyConfig& config) {
  return !failure_of([&] { static_cast<void>(outputs_of_run(t, config)); });
}

}  // namespace

HostWatch::HostWatch(Tuning& t, Of of) : tuning_(t) {
  if (!watched(t)) return;
  thread_.emplace();
  if (t.alone && of == Of::process) process_.emplace();
}

std::string HostWatch::put_back() const { return sentence(put_back_parts()); }

std::string HostWatch::put_back_after(const AnyConfig& config) const {
  return sentence(parts_that_come_again(config));
}

std::string HostWatch::put_back_parts() const {
  return joined(thread_ ? thread_->put_back() : "", process_ ? process_->put_back() : "");
}

// Modes of the thread are put back in any case: the results of the program depend on them.
std::string HostWatch::parts_that_come_again(const AnyConfig& config) const {
  std::optional<ProcessState> after;
  if (process_) after.emplace();
  if (put_back_parts().empty() || tuning_.stopped()) return {};
  static_cast<void>(run_again(tuning_, config));
  std::string again = put_back_parts();
  if (again.empty() && after) after->put_back();
  return again;
}

FirstRunWatch::FirstRunWatch(Tuning& t) : watch_(t) {
  if (watched(t) && t.alone) files_.emplace(), held_ = current_holdings();
}

std::string FirstRunWatch::put_back_after(const AnyConfig& config, bool passed) const {
  const std::string missing = files_ ? files_->missing() : "";  // cannot be put back
  const std::string what = missing.empty() ? watch_.parts_that_come_again(config)
                                           : joined(watch_.put_back_parts(), missing);
  if (what.empty() && files_ && passed) return left_behind(config);
  return sentence(what);
}

std::string FirstRunWatch::left_behind(const AnyConfig& config) const {
  Tuning& t = watch_.tuning_;
  const HostWatch first(t);
  std::string what =
      grows_with_every_run(held_, [&] { return !t.has_enough() && run_again(t, config); });
  first.put_back();
  return what;
}

}  // namespace ejk::detail
