// SPDX-License-Identifier: Apache-2.0
// Right and harmless ones only: first runs in a child process, compared with the expected outputs.
#include <algorithm>
#include <map>
#include <utility>

#include "base/format.h"
#include "candidates/thread_fields.h"
#include "store/crash_journal.h"
#include "tune/tuning.h"

namespace ejk::detail {
namespace {

// One that passes in every child and dies here every time must not end process after process.
constexpr int max_deaths = 3;

// ---- what the outputs must be ------------------------------------------------------------------

Expected expect(Tuning& t, std::vector<OutputBytes> outputs) {
  return Expected::sharing(
      t.checks.untouched, std::move(outputs),
      [&trial = *t.task.trial](DType dtype) { return trial.tolerance(dtype); });
}

enum class Place { child, here };

// What a second run leaves; nullopt if it does not come back.
std::optional<std::vector<OutputBytes>> outputs_again(Tuning& t, const AnyConfig& config,
                                                      Place place) {
  std::optional<std::vector<OutputBytes>> outputs;
  if (place == Place::child) {
    if (Finding f = t.checks.guard->again(config); f.passed()) outputs = std::move(f.outputs);
  } else if (!t.stopped()) {
    const HostWatch watch(t);
    static_cast<void>(failure_of([&] { outputs = outputs_of_run(t, config); }));
    watch.put_back();
  }
  return outputs;
}

// Of one whose outputs are not the expected ones: that may be so in some of its runs only.
void reject_outputs(Tuning& t, EntrantId who, std::vector<OutputBytes> outputs,
                    std::string difference, Place place) {
  Entrant& e = t.entrants[who];
  const auto again = outputs_again(t, e.config, place);
  const auto change =
      again ? expect(t, std::move(outputs)).difference(*again) : std::optional<std::string>();
  if (change) e.reject(Rejection::unsteady, "its results change from run to run: " + *change);
  else e.reject(Rejection::wrong, std::move(difference));
}

// Where nothing else says what is right, the first outputs that changed anything do: one that does
// nothing must not set the measure for those that work.
void compare(Tuning& t, EntrantId who, std::vector<OutputBytes> outputs, Place place) {
  if (!t.checks.expected && same_bytes(outputs, *t.checks.untouched))
    return t.checks.idle.push_back(who);
  if (!t.checks.expected) {
    t.checks.expected = expect(t, std::move(outputs));
    return;
  }
  if (auto difference = t.checks.expected->difference(outputs))
    reject_outputs(t, who, std::move(outputs), std::move(*difference), place);
}

// Candidates that wrote nothing, and ran before one showed what there is to write.
void judge_idle(Tuning& t) {
  if (!t.checks.expected || t.checks.idle.empty()) return;
  const auto difference = t.checks.expected->difference(*t.checks.untouched);
  for (EntrantId i : std::exchange(t.checks.idle, {}))
    if (difference && t.entrants[i].racing()) t.entrants[i].reject(Rejection::wrong, *difference);
}

// ---- runs --------------------------------------------------------------------------------------

void count(Tuning& t, EntrantId who) {
  t.entrants[who].ran = true;
  ++t.tried;
  t.tell(TuneProgress::Kind::candidate, who, t.entrants[who].why);
}

void run_here(Tuning& t, EntrantId who) {
  Entrant& e = t.entrants[who];
  const FirstRunWatch watch(t);
  std::vector<OutputBytes> outputs;
  std::optional<std::string> overrun;
  const auto failure = failure_of([&] {
    {
      const Intent intent(t.task.journal, e.config);
      double with_compiler = 0;
      if (t.task.trial->device() != nullptr)
        with_compiler = t.sampler.take(e.config, Sampling{}).seconds;
      e.first_run = t.sampler.take(e.config, Sampling{}).seconds;
      e.compile_seconds = std::max(0., with_compiler - e.first_run);
    }
    overrun = t.task.trial->overrun();
    outputs = t.task.trial->outputs();
  });
  const std::string changes = watch.put_back_after(e.config, !failure && !overrun);
  if (!failure && overrun) e.reject(Rejection::out_of_bounds, *overrun);
  else e.reject_if(failure, changes);
  if (e.racing())
    e.reject_if(failure_of([&] { compare(t, who, std::move(outputs), Place::here); }), "");
  count(t, who);
}

void judge(Tuning& t, EntrantId who, Finding finding) {
  Entrant& e = t.entrants[who];
  e.first_run = finding.seconds, e.compile_seconds = finding.compile_seconds;
  e.spills = finding.spills;
  if (finding.passed()) {
    t.checks.passed_in_child = true;
    compare(t, who, std::move(finding.outputs), Place::child);
  } else e.reject(*finding.rejection, finding.why);
  count(t, who);
}

bool time_for_more(const Tuning& t) {
  return !t.has_enough() && (!t.entrants.any_can_win() || t.may_try_more());
}

// The guard could not try them. The tuning stays open for a process in which it can.
void leave_open(Tuning& t, std::span<const EntrantId> who) {
  for (EntrantId i : who) t.entrants[i].status = Status::untried, t.complete = false;
}

// A config that asks for one thread waits for no thread of a pool: here it would wait as well.
bool may_wait_for_a_pool(const Entrant& e) {
  const Value config = e.config.to_value();
  return asks_for_several_threads(config) || !speaks_of_threads(config);
}

// Returns those that must run here. One that only waits in a child does, for its threads may be
// here. So does what the child could say nothing about, unless others passed beside it: then it is
// no fault of the guard, and this process is too dear to find out.
std::vector<EntrantId> run_guarded(Tuning& t, const std::vector<EntrantId>& who) {
  std::vector<AnyConfig> configs;
  std::vector<EntrantId> waiting, unsaid;
  for (EntrantId i : who) configs.push_back(t.entrants[i].config);
  t.checks.guard->run(configs, [&](size_t index, Finding finding) {
    const EntrantId i = who[index];
    if (finding.waited || finding.rejection == Rejection::unknown) {
      (finding.waited ? waiting : unsaid).push_back(i);
      t.entrants[i].why = std::move(finding.why);
    } else judge(t, i, std::move(finding));
    t.rest();
    return time_for_more(t);
  });
  if (t.checks.passed_in_child) {
    const auto alone = std::stable_partition(waiting.begin(), waiting.end(), [&](EntrantId i) {
      return may_wait_for_a_pool(t.entrants[i]);
    });
    leave_open(t, {alone, waiting.end()}), leave_open(t, std::exchange(unsaid, {}));
    waiting.erase(alone, waiting.end());
  }
  for (EntrantId i : waiting) {
    const std::string why = std::exchange(t.entrants[i].why, {});
    if (t.checks.waited.empty()) t.checks.waited = why;
  }
  waiting.insert(waiting.end(), unsaid.begin(), unsaid.end());
  return waiting;
}

// ---- the control and the reference -------------------------------------------------------------

void do_without_guard(Tuning& t, const std::string& why) {
  if (!t.checks.guard) return;
  t.note += fmt::format("first runs are not guarded: {}; ", why);
  t.checks.guard.reset();
}

// Once others were tried in children, too.
void tell_who_waited(Tuning& t) {
  if (t.checks.waited.empty() || std::exchange(t.checks.told_who_waited, true)) return;
  if (!t.checks.passed_in_child) return do_without_guard(t, t.checks.waited);
  t.note +=
      "some configs only wait in a child process, perhaps for threads that only exist here, such "
      "as a pool's: their first runs are not guarded; ";
}

// The guard proves itself on the heuristic. One that throws, or changes what it must leave alone,
// is a bad heuristic, not a bad guard; one that waits runs here. What else it dies of is decided
// when others have been tried in a child.
void prove_guard(Tuning& t, std::vector<OutputBytes>& outputs) {
  Entrant& e = t.entrants[*t.roles.heuristic];
  Finding finding = t.checks.guard->prove(e.config);
  e.first_run = finding.seconds, e.compile_seconds = finding.compile_seconds;
  if (finding.passed()) {
    t.checks.passed_in_child = true;
    outputs = std::move(finding.outputs);
    count(t, *t.roles.heuristic);
    return;
  }
  t.checks.guard->rest();
  if (finding.waited) {
    t.checks.waited = std::move(finding.why);
    return;
  }
  if (!is_its_own_doing(*finding.rejection)) {
    t.checks.doubt = std::move(finding);
    return;
  }
  e.reject(*finding.rejection, finding.why);
  count(t, *t.roles.heuristic);
}

// Once others were tried: if one of them passed in a child, it was the heuristic's own fault. If
// none did, children cannot run this kernel, and what they said of it does not count.
void settle_doubt(Tuning& t) {
  Entrant& heuristic = t.entrants[*t.roles.heuristic];
  const Finding doubt = *std::exchange(t.checks.doubt, std::nullopt);
  if (t.checks.passed_in_child) {
    heuristic.reject(*doubt.rejection, doubt.why);
    return count(t, *t.roles.heuristic);
  }
  do_without_guard(t, doubt.sentence());
  for (Entrant& e : t.entrants)
    if (e.ran && e.rejection && e.rejection != Rejection::threw &&
        e.rejection != Rejection::unbuildable && e.rejection != Rejection::invalid_launch &&
        e.rejection != Rejection::wrong)
      e.status = Status::racing, e.ran = false, e.rejection.reset(), e.why.clear();
}

// Where there is no guard, or it waits in a child.
std::optional<std::vector<OutputBytes>> reference_here(Tuning& t, std::string& failure) {
  bool has_one = false;
  const HostWatch watch(t, HostWatch::Of::thread);
  const auto thrown = failure_of([&] {
    t.task.trial->reset();
    has_one = t.task.trial->run_reference();
  });
  watch.put_back();
  if (thrown) failure = "threw: " + thrown->why;
  return has_one ? std::optional(t.task.trial->outputs()) : std::nullopt;
}

std::optional<std::vector<OutputBytes>> reference_outputs(Tuning& t) {
  std::string failure;
  std::optional<Finding> finding;
  if (t.checks.guard && !(finding = t.checks.guard->reference())) return std::nullopt;
  if (finding && finding->passed()) return std::move(finding->outputs);
  if (finding && !finding->waited) failure = finding->sentence();
  else if (auto outputs = reference_here(t, failure)) return outputs;
  if (!failure.empty() && !t.stopped())
    t.note += fmt::format(
        "the reference {}: results are compared with those of the first config that runs; ",
        failure);
  return std::nullopt;
}

void announce(Tuning& t, std::span<const EntrantId> who) {
  if (!t.checks.guard) return;
  for (EntrantId i : who)
    if (t.entrants[i].racing()) t.checks.guard->announce({&t.entrants[i].config, 1});
}

std::string died_of_it(int deaths) {
  return deaths == 1 ? "a process died while it ran it"
                     : fmt::format("{} processes died while they ran it", deaths);
}

// A heuristic that ended processes is not used as a control at first.
void leave_out_deadly_heuristic(Tuning& t) {
  if (!t.roles.heuristic || !t.task.journal) return;
  Entrant& e = t.entrants[*t.roles.heuristic];
  const auto suspects = t.task.journal->suspects();
  const auto found = suspects.find(stable_json(e.config.to_value()));
  if (!e.racing() || found == suspects.end()) return;
  e.suspect = true;
  if (found->second <= (t.checks.guard ? max_deaths : 1)) return;
  e.leave_out(died_of_it(found->second));
  // Where there is a guard it can be tried once more. A search would go on in every process.
  if (!t.checks.guard && !too_large_to_race(*t.task.candidates)) t.complete = false;
}

// Before anything else runs: the guard, the reference, the heuristic.
void prepare(Tuning& t) {
  t.task.trial->reset();
  t.checks.untouched = std::make_shared<const std::vector<OutputBytes>>(t.task.trial->outputs());
  leave_out_deadly_heuristic(t);
  const bool has_heuristic = t.roles.heuristic && t.entrants[*t.roles.heuristic].racing();
  std::vector<OutputBytes> of_heuristic;
  if (t.checks.guard && has_heuristic) prove_guard(t, of_heuristic);
  if (t.stopped()) return;
  if (auto outputs = reference_outputs(t)) t.checks.expected = expect(t, std::move(*outputs));
  if (!has_heuristic || t.checks.doubt) return;
  Entrant& e = t.entrants[*t.roles.heuristic];
  if (!e.ran) run_here(t, *t.roles.heuristic);
  else if (e.racing()) compare(t, *t.roles.heuristic, std::move(of_heuristic), Place::child);
}

// ---- suspects ----------------------------------------------------------------------------------

// A process died while it ran this config, which may be innocent: it runs in a child first, and
// here at once only where there is none, after a single death. One that only waits in a child does
// not run here: it could end this process too.
void try_suspect(Tuning& t, EntrantId who, int deaths) {
  Entrant& e = t.entrants[who];
  e.suspect = true;
  bool waited = false;
  if (t.checks.guard) {
    t.checks.guard->run({&e.config, 1}, [&](size_t, Finding finding) {
      waited = finding.waited;
      if (finding.rejection == Rejection::unknown || finding.waited) return true;
      const bool fatal = finding.rejection == Rejection::crashed && finding.fatal_signal;
      const std::string why = finding.sentence();
      judge(t, who, std::move(finding));
      // A read out of bounds may be harmless outside of the child; without a control nothing is
      // sure.
      if (fatal && t.entrants.any_can_win()) t.task.journal->condemn(e.config.to_value(), why);
      return true;
    });
    if (e.ran && !e.racing()) return;
  }
  if (waited || deaths > (e.ran ? max_deaths : 1)) {
    t.complete = t.complete && e.ran;  // where there is a guard it can be tried once more
    return e.leave_out(died_of_it(deaths) + (waited ? ", and it only waits in a child" : ""));
  }
  if (e.ran) return;
  run_here(t, who);
  if (e.racing()) acquit(t, e);
}

void reject_condemned(Tuning& t, std::span<const EntrantId> who) {
  if (!t.task.journal) return;
  for (EntrantId i : who)
    if (const auto why = t.task.journal->condemned(t.entrants[i].config.to_value()))
      t.entrants[i].reject(Rejection::quarantined, *why);
}

// ---- what is left ------------------------------------------------------------------------------

// The heuristic first: the others are compared with it.
std::vector<EntrantId> not_yet_run(const Tuning& t, const std::vector<EntrantId>& but) {
  std::vector<EntrantId> list;
  const auto add = [&](EntrantId i) {
    const Entrant& e = t.entrants[i];
    if (e.racing() && !e.ran && std::ranges::find(but, i) == but.end()) list.push_back(i);
  };
  if (t.roles.heuristic) add(*t.roles.heuristic);
  for (EntrantId i : t.entrants.ids())
    if (i != t.roles.heuristic) add(i);
  return list;
}

void leave_untried(Tuning& t, std::span<const EntrantId> who) {
  for (EntrantId i : who) {
    Entrant& e = t.entrants[i];
    if (!e.racing() || e.ran) continue;
    e.leave_out("the budget was spent before its turn");
    t.complete = false;
  }
}

}  // namespace

Intent::Intent(Journal* journal, const AnyConfig& config) : journal_(journal) {
  if (journal_) journal_->intend(config.to_value());
}

Intent::~Intent() {
  if (journal_) journal_->done();
}

std::vector<OutputBytes> outputs_of_run(Tuning& t, const AnyConfig& config) {
  t.task.trial->reset();
  {
    const Intent intent(t.task.journal, config);
    t.task.trial->run(config);
    t.task.trial->wait();
  }
  return t.task.trial->outputs();
}

void acquit(Tuning& t, Entrant& e) {
  if (e.suspect) t.task.journal->acquit(e.config.to_value());
  e.suspect = false;
}

void first_runs(Tuning& t, std::span<const EntrantId> who) {
  reject_condemned(t, who);
  announce(t, who);
  if (!std::exchange(t.checks.prepared, true)) prepare(t);
  if (t.stopped()) return leave_untried(t, who);
  const auto deaths = t.task.journal ? t.task.journal->suspects() : std::map<std::string, int>{};
  std::vector<EntrantId> plain, suspects;
  for (EntrantId i : who) {
    const Entrant& e = t.entrants[i];
    if (!e.racing() || e.ran) continue;
    const bool suspect = !deaths.empty() && deaths.contains(stable_json(e.config.to_value()));
    (suspect ? suspects : plain).push_back(i);
  }
  if (t.checks.doubt) std::erase(plain, *t.roles.heuristic);
  if (t.checks.guard && !plain.empty()) plain = run_guarded(t, plain);
  if (!who.empty()) tell_who_waited(t);
  if (t.checks.doubt && !who.empty()) {
    settle_doubt(t);
    if (!t.checks.guard) plain = not_yet_run(t, suspects);
  }
  for (EntrantId i : plain)
    if (t.rest(); time_for_more(t)) run_here(t, i);
  for (EntrantId i : suspects)
    if (time_for_more(t))
      try_suspect(t, i, deaths.at(stable_json(t.entrants[i].config.to_value())));
  leave_untried(t, who);
  judge_idle(t);
  if (t.checks.guard) t.checks.guard->rest();
}

}  // namespace ejk::detail
