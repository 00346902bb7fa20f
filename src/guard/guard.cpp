// SPDX-License-Identifier: Apache-2.0
// Which failures count: the order of runs in children, their repetition beside the control.
#include "guard/guard.h"

#include <algorithm>
#include <utility>

#include <ejk/store.h>

#include "base/thrown.h"
#include "candidates/thread_fields.h"
#include "guard/child_process.h"
#include "guard/compile_ahead.h"
#include "guard/parcel_file.h"

namespace ejk::detail {
namespace {

// One core runs the configs.
int spare_cores() {
  constexpr int most = 3;
  return std::clamp(visible_cores() - 1, 0, most);
}

}  // namespace

Rejection rejection_of(DeviceError::Kind kind) {
  switch (kind) {
    case DeviceError::Kind::build:
      return Rejection::unbuildable;
    case DeviceError::Kind::invalid_launch:
      return Rejection::invalid_launch;
    case DeviceError::Kind::out_of_memory:
      return Rejection::out_of_memory;
    case DeviceError::Kind::lost:
      return Rejection::crashed;
    case DeviceError::Kind::absent:
    case DeviceError::Kind::other:
      break;
  }
  return Rejection::threw;
}

Guard::Guard(Trial& trial, GuardLimits limits, std::function<bool()> enough,
             std::shared_ptr<Stopwatch> stopwatch)
    : trial_(trial), limits_(limits), enough_(std::move(enough)), stopwatch_(std::move(stopwatch)) {
  if (limits_.memory_bytes == 0) limits_.memory_bytes = default_memory_limit();
}

double Guard::deadline() const {
  if (!control_) return std::max(limits_.control_deadline_seconds, limits_.min_deadline_seconds);
  return std::max(limits_.min_deadline_seconds, limits_.deadline_over_control * control_seconds_);
}

Guard::~Guard() = default;

size_t Guard::job_of(const AnyConfig& config) {
  const auto found = std::ranges::find_if(
      jobs_, [&](const AnyConfig* known) { return known != nullptr && *known == config; });
  if (found != jobs_.end()) return static_cast<size_t>(found - jobs_.begin());
  jobs_.push_back(&announced_.emplace_back(config));
  return jobs_.size() - 1;
}

void Guard::announce(std::span<const AnyConfig> configs) {
  for (const AnyConfig& c : configs) job_of(c);
}

std::string Guard::start_worker() {
  try {
    parcel_ = write_parcel(trial_);
  } catch (...) {
    return base::what_was_thrown();
  }
  const int compilers = limits_.compilers >= 0 ? limits_.compilers : spare_cores();
  if (compilers > 0 && !default_store_path().empty())
    ahead_ = std::make_unique<CompileAhead>(trial_, parcel_, limits_, compilers);
  return child_for(0).why_not_started();
}

void Guard::rest() {
  if (!parcel_.valid()) end_child();
}

void Guard::end_child() { child_.reset(); }

GuardChild& Guard::child_for(size_t job) {
  if (child_ && child_->alive() && (parcel_.valid() || job < child_knows_)) return *child_;
  end_child();  // two children at once would need twice the memory
  child_knows_ = jobs_.size();
  child_ = parcel_.valid()
               ? std::make_unique<GuardChild>(trial_, parcel_, GuardChild::Purpose::runs, limits_,
                                              enough_)
               : std::make_unique<GuardChild>(trial_, *stopwatch_, jobs_, limits_, enough_);
  return *child_;
}

JobReport Guard::run_job(size_t job, double deadline_seconds, double idle_seconds) {
  const double still = waited_ > 0 ? limits_.still_again_seconds : limits_.still_seconds;
  const Patience patience{deadline_seconds, idle_seconds, still, limits_.own_seconds};
  JobReport report = child_for(job).run(job, jobs_[job], patience);
  // A lock that a thread of the host held at the fork is never given back in the child.
  if (report.hung) report = child_for(job).run(job, jobs_[job], patience);
  if (jobs_[job] == nullptr) return report;
  const bool several = asks_for_several_threads(jobs_[job]->to_value());
  if (report.finding.waited) ++waited_, several_threads_waited_ |= several;
  if (report.finding.passed()) any_passed_ = true, several_threads_passed_ |= several;
  return report;
}

bool Guard::would_wait(const AnyConfig& config) const {
  constexpr int enough = 3;
  if (waited_ >= enough && !any_passed_) return true;
  return several_threads_waited_ && !several_threads_passed_ &&
         asks_for_several_threads(config.to_value());
}

Finding Guard::prove(const AnyConfig& control) {
  const size_t job = job_of(control);
  control_.reset();
  Finding finding = run_job(job, deadline(), limits_.min_deadline_seconds).finding;
  if (finding.passed()) {
    control_ = control, control_seconds_ = finding.seconds;
    why_not_.clear();
  } else {
    why_not_ = "the control does not pass in a child process: " + finding.sentence();
  }
  return finding;
}

Finding Guard::again(const AnyConfig& config) {
  return run_job(job_of(config), deadline()).finding;
}

std::optional<Finding> Guard::reference() {
  constexpr size_t job = 0;
  JobReport report = run_job(job, std::max(deadline(), limits_.control_deadline_seconds));
  if (report.finding.passed() && !report.has_reference) return std::nullopt;
  return std::move(report.finding);
}

// ---- many configs ------------------------------------------------------------------------------

class Guard::Tour {
 public:
  using Each = std::function<bool(size_t, Finding)>;

  Tour(Guard& guard, std::span<const AnyConfig> configs, const Each& each)
      : guard_(guard), each_(each) {
    for (const AnyConfig& c : configs) jobs_.push_back(guard_.job_of(c));
    if (guard_.control_) control_ = guard_.job_of(*guard_.control_);
    if (!guard_.ahead_) return;
    std::vector<Job> configs_to_compile;
    for (const size_t job : jobs_) configs_to_compile.push_back(guard_.jobs_[job]);
    guard_.ahead_->begin(configs_to_compile, guard_.deadline());
  }
  ~Tour() {
    if (guard_.ahead_) guard_.ahead_->end();
    guard_.rest();
  }
  Tour(const Tour&) = delete;
  Tour& operator=(const Tour&) = delete;

  void go() {
    std::vector<size_t> last;
    for (size_t i = 0; i < jobs_.size(); ++i)
      if (compiled(i).spills) last.push_back(i);
      else if (!first_run(i)) return;
    for (const size_t i : last)
      if (!first_run(i)) return;
    if (!control_ && !be_patient()) return;
    for (Failed& f : failed_)
      if (!each_(f.index, without_control(std::move(f.report)))) return;
  }

 private:
  struct Failed {
    size_t index;  // of the config
    JobReport report;
    bool fresh;  // nothing ran before it in its child
  };

  // What others found when they compiled it.
  CompileAhead::Report compiled(size_t index) {
    return guard_.ahead_ ? guard_.ahead_->take(index, guard_.enough_) : CompileAhead::Report{};
  }

  // False if `each_` wants no more.
  bool first_run(size_t index) {
    const size_t job = jobs_[index];
    if (guard_.would_wait(*guard_.jobs_[job]))
      return each_(
          index,
          {.rejection = {}, .why = "would wait in a child process as others did", .waited = true});
    const bool fresh = guard_.child_for(job).jobs_done() == 0;
    const double least = guard_.limits_.min_deadline_seconds;
    JobReport report = control_ ? guard_.run_job(job, guard_.deadline())
                                : guard_.run_job(job, patient_ ? control_deadline() : least, least);
    report.finding.compile_seconds += compiled(index).seconds;
    const bool passed = report.finding.passed();
    if (!control_ && report.finding.rejection == Rejection::timed_out)
      patient_ = (waited_ += report.finding.seconds) >= control_deadline();
    if (passed && !control_) return found_control(index, std::move(report.finding));
    if (!passed && (report.may_be_ours || (report.needs_control && !control_))) {
      failed_.push_back({index, std::move(report), fresh});
      return !control_ || judge_failed();
    }
    return each_(index, std::move(report.finding));
  }

  // No candidate has passed. Those that were late get as much time as a control would have got.
  bool be_patient() {
    patient_ = true;
    std::vector<size_t> late;
    std::erase_if(failed_, [&](const Failed& f) {
      const bool was_late = f.report.finding.rejection == Rejection::timed_out;
      if (was_late) late.push_back(f.index);
      return was_late;
    });
    return std::ranges::all_of(late, [&](size_t index) { return first_run(index); });
  }

  bool found_control(size_t index, Finding finding) {
    control_ = jobs_[index];
    guard_.control_ = *guard_.jobs_[*control_], guard_.control_seconds_ = finding.seconds;
    return each_(index, std::move(finding)) && judge_failed();
  }

  bool judge_failed() {
    for (Failed& f : std::exchange(failed_, {}))
      if (!each_(f.index, judged(f))) return false;
    return true;
  }

  static Finding unknown(std::string why) { return {Rejection::unknown, std::move(why)}; }

  // Once more, in a child of its own, directly after the control.
  Finding judged(Failed& first) {
    const std::string why = first.report.finding.sentence();
    const size_t job = jobs_[first.index];
    guard_.end_child();
    const Finding control = guard_.run_job(*control_, control_deadline()).finding;
    if (!control.passed())
      return unknown(why + "; but the control did not pass either: " + control.sentence());
    guard_.control_seconds_ = std::max(guard_.control_seconds_, control.seconds);
    JobReport again = guard_.run_job(job, guard_.deadline());
    const auto kind = first.report.finding.rejection;
    // Waiting would let it run in the host, which it must not after it died here.
    const bool died = kind != Rejection::timed_out && kind != Rejection::unknown;
    if (died && again.finding.waited)
      return unknown(why + "; but it only waited when it was repeated");
    if (!again.finding.passed()) return std::move(again.finding);
    // It failed where others had run before it, or was only late: they, or the machine, may have
    // been the cause. A second pass clears it.
    const bool excused = !first.fresh || !died || kind == Rejection::out_of_memory;
    if (excused) again = guard_.run_job(job, guard_.deadline());
    if (excused && again.finding.passed()) return std::move(again.finding);
    return unknown(why + "; but not when it was repeated");
  }

  double control_deadline() const {
    return std::max(guard_.deadline(), guard_.limits_.control_deadline_seconds);
  }

  static Finding without_control(JobReport report) {
    Finding& f = report.finding;
    // Outside of a child process it could not be stopped.
    const bool endless = f.rejection == Rejection::timed_out && !report.waited;
    if (report.needs_control && !endless && f.rejection != Rejection::out_of_memory)
      return unknown(f.sentence() + "; and no other config passed");
    return std::move(f);
  }

  Guard& guard_;
  const Each& each_;
  std::vector<size_t> jobs_;       // of the configs
  std::optional<size_t> control_;  // its job
  std::vector<Failed> failed_;     // to be repeated beside the control
  // Until there is a control, an endless config must not take the time of those behind it.
  bool patient_ = false;
  double waited_ = 0;  // seconds, for configs that were late
};

void Guard::run(std::span<const AnyConfig> configs,
                const std::function<bool(size_t, Finding)>& each) {
  Tour(*this, configs, each).go();
}

}  // namespace ejk::detail
