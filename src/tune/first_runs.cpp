// SPDX-License-Identifier: Apache-2.0
// Right and harmless ones only: first runs in a child process, compared with the expected outputs.
#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "candidates/thread_fields.h"
#include "store/crash_journal.h"
#include "tune/tuning.h"

namespace ejk::detail {
namespace {

using Kind = Finding::Kind;

// One that passes in every child and dies here every time must not end process after process.
constexpr int most_deaths = 3;

// The kind is told beside it.
std::string reason(const Finding& finding) {
  const std::string kind = std::string(name_of(rejection_of(finding.kind))) + ": ";
  return finding.why.starts_with(kind) ? finding.why.substr(kind.size()) : finding.why;
}

// ---- what the outputs must be ------------------------------------------------------------------

Expected expect(Tuning& t, std::vector<OutputBytes> outputs) {
  return Expected::sharing(t.untouched, std::move(outputs), [&trial = *t.task.trial](DType dtype) {
    return trial.tolerance(dtype);
  });
}

enum class Place { child, here };

// What a second run leaves; nullopt if it does not come back.
std::optional<std::vector<OutputBytes>> outputs_again(Tuning& t, const AnyConfig& config,
                                                      Place place) {
  std::optional<std::vector<OutputBytes>> outputs;
  if (place == Place::child) {
    if (Finding f = t.guard->again(config); f.kind == Kind::passed) outputs = std::move(f.outputs);
  } else if (!t.stopped()) {
    const HostWatch watch(t);
    static_cast<void>(failure_of([&] { outputs = outputs_of_run(t, config); }));
    watch.put_back();
  }
  return outputs;
}

// Of one whose outputs are not the expected ones: that may be so in some of its runs only.
void reject_outputs(Tuning& t, size_t who, std::vector<OutputBytes> outputs, std::string difference,
                    Place place) {
  Entrant& e = t.entrants[who];
  const auto again = outputs_again(t, e.config, place);
  const auto change =
      again ? expect(t, std::move(outputs)).difference(*again) : std::optional<std::string>();
  if (change) t.reject(e, Rejection::unsteady, "its results change from run to run: " + *change);
  else t.reject(e, Rejection::wrong, std::move(difference));
}

// Where nothing else says what is right, the first outputs that changed anything do: one that does
// nothing must not set the measure for those that work.
void compare(Tuning& t, size_t who, std::vector<OutputBytes> outputs, Place place) {
  if (!t.expected && same_bytes(outputs, *t.untouched)) return t.idle.push_back(who);
  if (!t.expected) {
    t.expected = expect(t, std::move(outputs));
    return;
  }
  if (auto difference = t.expected->difference(outputs))
    reject_outputs(t, who, std::move(outputs), std::move(*difference), place);
}

// Those that left everything untouched before somebody showed what there is to do.
void judge_idle(Tuning& t) {
  if (!t.expected || t.idle.empty()) return;
  const auto difference = t.expected->difference(*t.untouched);
  for (size_t i : std::exchange(t.idle, {}))
    if (difference && t.entrants[i].racing())
      t.reject(t.entrants[i], Rejection::wrong, *difference);
}

// ---- runs --------------------------------------------------------------------------------------

void count(Tuning& t, size_t who) {
  t.entrants[who].ran = true;
  ++t.tried;
  t.tell(TuneProgress::Kind::candidate, who, t.entrants[who].why);
}

void run_here(Tuning& t, size_t who) {
  Entrant& e = t.entrants[who];
  const FirstRunWatch watch(t);
  std::vector<OutputBytes> outputs;
  std::optional<std::string> overrun;
  const auto failure = failure_of([&] {
    {
      const Intent intent(t.task.journal, e.config);
      e.first_run = t.sampler.take(e.config, Sampling{}).seconds;
    }
    overrun = t.task.trial->overrun();
    outputs = t.task.trial->outputs();
  });
  const std::string changes = watch.put_back_after(e.config, !failure && !overrun);
  if (!failure && overrun) t.reject(e, Rejection::out_of_bounds, *overrun);
  else t.reject_if(e, failure, changes);
  if (e.racing())
    t.reject_if(e, failure_of([&] { compare(t, who, std::move(outputs), Place::here); }), "");
  count(t, who);
}

void judge(Tuning& t, size_t who, Finding finding) {
  Entrant& e = t.entrants[who];
  e.first_run = finding.seconds;
  if (finding.kind == Kind::passed) {
    t.passed_in_child = true;
    compare(t, who, std::move(finding.outputs), Place::child);
  } else t.reject(e, rejection_of(finding.kind), reason(finding));
  count(t, who);
}

bool any_ran(const Tuning& t) {
  return std::ranges::any_of(t.entrants, [](const Entrant& e) { return e.can_win() && e.ran; });
}

bool time_for_more(const Tuning& t) { return !t.has_enough() && (!any_ran(t) || t.may_try_more()); }

// Not tried any further, which is no verdict. The tuning may be complete without it.
void leave_out(Entrant& e, std::string why) { e.status = Status::untried, e.why = std::move(why); }

// The guard could not try them. The tuning stays open for a process in which it can.
void leave_open(Tuning& t, std::span<const size_t> who) {
  for (size_t i : who) leave_out(t.entrants[i], t.entrants[i].why), t.complete = false;
}

// A config that asks for one thread waits for no thread of a pool: here it would wait as well.
bool may_wait_for_a_pool(const Entrant& e) {
  const Value config = e.config.to_value();
  return asks_for_several_threads(config) || !speaks_of_threads(config);
}

// Returns those that must run here. One that only waits in a child does, for its threads may be
// here. So does what the child could say nothing about, unless others passed beside it: then it is
// no fault of the guard, and this process is too dear to find out.
std::vector<size_t> run_guarded(Tuning& t, const std::vector<size_t>& who) {
  std::vector<AnyConfig> configs;
  std::vector<size_t> waiting, unsaid;
  for (size_t i : who) configs.push_back(t.entrants[i].config);
  t.guard->run(configs, [&](size_t index, Finding finding) {
    const size_t i = who[index];
    if (finding.kind == Kind::waited || finding.kind == Kind::unknown) {
      (finding.kind == Kind::waited ? waiting : unsaid).push_back(i);
      t.entrants[i].why = std::move(finding.why);
    } else judge(t, i, std::move(finding));
    return time_for_more(t);
  });
  if (t.passed_in_child) {
    const auto alone = std::stable_partition(waiting.begin(), waiting.end(), [&](size_t i) {
      return may_wait_for_a_pool(t.entrants[i]);
    });
    leave_open(t, {alone, waiting.end()}), leave_open(t, std::exchange(unsaid, {}));
    waiting.erase(alone, waiting.end());
  }
  for (size_t i : waiting) {
    const std::string why = std::exchange(t.entrants[i].why, {});
    if (t.waited.empty()) t.waited = why;
  }
  waiting.insert(waiting.end(), unsaid.begin(), unsaid.end());
  return waiting;
}

// ---- the control and the reference -------------------------------------------------------------

void do_without_guard(Tuning& t, const std::string& why) {
  if (!t.guard) return;
  t.note += fmt::format("first runs are not guarded: {}; ", why);
  t.guard.reset();
}

// Once others were tried in children, too.
void tell_who_waited(Tuning& t) {
  if (t.waited.empty() || std::exchange(t.told_who_waited, true)) return;
  if (!t.passed_in_child) return do_without_guard(t, t.waited);
  t.note +=
      "some configs only wait in a child process, perhaps for threads that only exist here, such "
      "as a pool's: their first runs are not guarded; ";
}

// The guard proves itself on the heuristic. One that throws, or changes what it must leave alone,
// is a bad heuristic, not a bad guard; one that waits runs here. What else it dies of is decided
// when others have been tried in a child.
void prove_guard(Tuning& t, std::vector<OutputBytes>& outputs) {
  Entrant& e = t.entrants[*t.heuristic];
  Finding finding = t.guard->prove(e.config);
  e.first_run = finding.seconds;
  if (finding.kind == Kind::passed) {
    t.passed_in_child = true;
    outputs = std::move(finding.outputs);
    count(t, *t.heuristic);
    return;
  }
  t.guard->rest();
  if (finding.kind == Kind::waited) {
    t.waited = std::move(finding.why);
    return;
  }
  if (finding.kind != Kind::threw && finding.kind != Kind::changed_host) {
    t.doubt = std::move(finding);
    return;
  }
  t.reject(e, rejection_of(finding.kind), reason(finding));
  count(t, *t.heuristic);
}

// Once others were tried: if one of them passed in a child, it was the heuristic's own fault. If
// none did, children cannot run this kernel, and what they said of it does not count.
void settle_doubt(Tuning& t) {
  Entrant& heuristic = t.entrants[*t.heuristic];
  const Finding doubt = *std::exchange(t.doubt, std::nullopt);
  if (t.passed_in_child) {
    t.reject(heuristic, rejection_of(doubt.kind), reason(doubt));
    return count(t, *t.heuristic);
  }
  do_without_guard(t, doubt.why);
  for (Entrant& e : t.entrants)
    if (e.ran && e.rejection && e.rejection != Rejection::threw && e.rejection != Rejection::wrong)
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
  if (thrown) failure = "threw: " + *thrown;
  return has_one ? std::optional(t.task.trial->outputs()) : std::nullopt;
}

std::optional<std::vector<OutputBytes>> reference_outputs(Tuning& t) {
  std::string failure;
  std::optional<Finding> finding;
  if (t.guard && !(finding = t.guard->reference())) return std::nullopt;
  if (finding && finding->kind == Kind::passed) return std::move(finding->outputs);
  if (finding && finding->kind != Kind::waited) failure = finding->why;
  else if (auto outputs = reference_here(t, failure)) return outputs;
  if (!failure.empty() && !t.stopped())
    t.note += fmt::format(
        "the reference {}: results are compared with those of the first config that runs; ",
        failure);
  return std::nullopt;
}

void announce(Tuning& t, std::span<const size_t> who) {
  if (!t.guard) return;
  for (size_t i : who)
    if (t.entrants[i].racing()) t.guard->announce({&t.entrants[i].config, 1});
}

std::string died_of_it(int deaths) {
  return deaths == 1 ? "a process died while it ran it"
                     : fmt::format("{} processes died while they ran it", deaths);
}

// A heuristic that ended processes is no control to begin with.
void leave_out_deadly_heuristic(Tuning& t) {
  if (!t.heuristic || !t.task.journal) return;
  Entrant& e = t.entrants[*t.heuristic];
  const auto suspects = t.task.journal->suspects();
  const auto found = suspects.find(stable_json(e.config.to_value()));
  if (!e.racing() || found == suspects.end()) return;
  e.suspect = true;
  if (found->second <= (t.guard ? most_deaths : 1)) return;
  leave_out(e, died_of_it(found->second));
  // Where there is a guard it can be tried once more. A search would go on in every process.
  if (!t.guard && !too_large_to_race(*t.task.candidates)) t.complete = false;
}

// Before anything else runs: the guard, the reference, the heuristic.
void prepare(Tuning& t) {
  t.task.trial->reset();
  t.untouched = std::make_shared<const std::vector<OutputBytes>>(t.task.trial->outputs());
  leave_out_deadly_heuristic(t);
  const bool has_heuristic = t.heuristic && t.entrants[*t.heuristic].racing();
  std::vector<OutputBytes> of_heuristic;
  if (t.guard && has_heuristic) prove_guard(t, of_heuristic);
  if (t.stopped()) return;
  if (auto outputs = reference_outputs(t)) t.expected = expect(t, std::move(*outputs));
  if (!has_heuristic || t.doubt) return;
  Entrant& e = t.entrants[*t.heuristic];
  if (!e.ran) run_here(t, *t.heuristic);
  else if (e.racing()) compare(t, *t.heuristic, std::move(of_heuristic), Place::child);
}

// ---- suspects ----------------------------------------------------------------------------------

// A process died while it ran this config, which may be innocent: it runs in a child first, and
// here at once only where there is none, after a single death. One that only waits in a child does
// not run here: nobody could tell whether it would end this process too.
void try_suspect(Tuning& t, size_t who, int deaths) {
  Entrant& e = t.entrants[who];
  e.suspect = true;
  bool waited = false;
  if (t.guard) {
    t.guard->run({&e.config, 1}, [&](size_t, Finding finding) {
      waited = finding.kind == Kind::waited;
      if (finding.kind == Kind::unknown || finding.kind == Kind::waited) return true;
      const bool fatal = finding.kind == Kind::crashed && finding.fatal_signal;
      const std::string why = finding.why;
      judge(t, who, std::move(finding));
      // A read out of bounds may be harmless outside of the child; without a control nothing is
      // sure.
      if (fatal && any_ran(t)) t.task.journal->condemn(e.config.to_value(), why);
      return true;
    });
    if (e.ran && !e.racing()) return;
  }
  if (waited || deaths > (e.ran ? most_deaths : 1)) {
    t.complete = t.complete && e.ran;  // where there is a guard it can be tried once more
    return leave_out(e, died_of_it(deaths) + (waited ? ", and it only waits in a child" : ""));
  }
  if (e.ran) return;
  run_here(t, who);
  if (e.racing()) acquit(t, e);
}

void reject_condemned(Tuning& t, std::span<const size_t> who) {
  if (!t.task.journal) return;
  for (size_t i : who)
    if (const auto why = t.task.journal->condemned(t.entrants[i].config.to_value()))
      t.reject(t.entrants[i], Rejection::quarantined, *why);
}

// ---- what is left ------------------------------------------------------------------------------

// The heuristic first: the others are compared with it.
std::vector<size_t> not_yet_run(const Tuning& t, const std::vector<size_t>& but) {
  std::vector<size_t> list;
  const auto add = [&](size_t i) {
    const Entrant& e = t.entrants[i];
    if (e.racing() && !e.ran && std::ranges::find(but, i) == but.end()) list.push_back(i);
  };
  if (t.heuristic) add(*t.heuristic);
  for (size_t i = 0; i < t.entrants.size(); ++i)
    if (i != t.heuristic) add(i);
  return list;
}

void leave_untried(Tuning& t, std::span<const size_t> who) {
  for (size_t i : who) {
    Entrant& e = t.entrants[i];
    if (!e.racing() || e.ran) continue;
    e.status = Status::untried, e.why = "the budget was spent before its turn";
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
  }
  return t.task.trial->outputs();
}

bool Tuning::has_enough() const { return stopped() || (spent() && any_ran(*this)); }

void acquit(Tuning& t, Entrant& e) {
  if (e.suspect) t.task.journal->acquit(e.config.to_value());
  e.suspect = false;
}

void first_runs(Tuning& t, std::span<const size_t> who) {
  reject_condemned(t, who);
  announce(t, who);
  if (!std::exchange(t.prepared, true)) prepare(t);
  if (t.stopped()) return leave_untried(t, who);
  const auto deaths = t.task.journal ? t.task.journal->suspects() : std::map<std::string, int>{};
  std::vector<size_t> plain, suspects;
  for (size_t i : who) {
    const Entrant& e = t.entrants[i];
    if (!e.racing() || e.ran) continue;
    const bool suspect = !deaths.empty() && deaths.contains(stable_json(e.config.to_value()));
    (suspect ? suspects : plain).push_back(i);
  }
  if (t.doubt) std::erase(plain, *t.heuristic);
  if (t.guard && !plain.empty()) plain = run_guarded(t, plain);
  if (!who.empty()) tell_who_waited(t);
  if (t.doubt && !who.empty()) {
    settle_doubt(t);
    if (!t.guard) plain = not_yet_run(t, suspects);
  }
  for (size_t i : plain)
    if (time_for_more(t)) run_here(t, i);
  for (size_t i : suspects)
    if (time_for_more(t))
      try_suspect(t, i, deaths.at(stable_json(t.entrants[i].config.to_value())));
  leave_untried(t, who);
  judge_idle(t);
  if (t.guard) t.guard->rest();
}

}  // namespace ejk::detail
