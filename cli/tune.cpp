// SPDX-License-Identifier: Apache-2.0
// ejk tune: recorded calls, the labelled calls of a lowered computation, or one call given here.
#include <algorithm>
#include <memory>
#include <set>

#include <fmt/format.h>

#include <ejk/error.h>
#include <ejk/offline.h>
#include <ejk/ops.h>
#include <ejk/worker.h>

#include "calls.h"
#include "live.h"
#include "offline/shard.h"
#include "store/pins.h"
#include "store/snapshot.h"
#include "verbs.h"

namespace ejk::cli {
namespace {

struct TuneOptions {
  KernelOptions kernels;
  bool all_recorded = false;
  std::string lowered;  // file or dump folder
  std::vector<std::string> prefixes;
  std::string op;                 // of a call given on the line
  std::vector<std::string> args;  // of it: f32[512,512], 3, true, "text"
  std::string device;             // where it is tuned; of recorded calls: only those
  std::vector<std::string> ops;   // of recorded calls: only these
  double budget = 0;              // seconds for all of them; 0: any
  double budget_per_call = 10;
  double deadline = 60;  // seconds beyond its budget, for a worker
  std::string worker;    // command of a worker for kernels that are not known here
  bool in_process = false;
  bool retune = false;
  std::string numerics = "any";
  bool dry_run = false;
  bool share = false;  // of recorded calls: with other processes
  std::string shard;   // "I/N": which part of them, or where this process begins
  bool serve = false;  // a page that shows it
  std::string listen = "127.0.0.1:0";
};

using enum Table::Align;

enum class Tuned { here, elsewhere, before };

// Of an entry of the result.
Tuned when(const OfflineResult& result, size_t entry) {
  if (entry + result.already < result.entries.size()) return Tuned::here;
  return entry + result.already < result.entries.size() + result.elsewhere ? Tuned::elsewhere
                                                                           : Tuned::before;
}

Value tuned_value(const Entry& e, Tuned when) {
  Value out = entry_to_document(e);
  out.erase("candidates");
  out["call"] = call_text(e.id.spec);
  out["already"] = when != Tuned::here;
  out["elsewhere"] = when == Tuned::elsewhere;
  return out;
}

std::string remark(const Entry& e, Tuned when, bool kept) {
  std::string out = when == Tuned::here        ? std::string(outcome_name(e.outcome))
                    : when == Tuned::elsewhere ? "tuned elsewhere"
                                               : "tuned before";
  if (!e.evidence.complete) out += ", cut short";
  if (!kept) out += ", not kept";
  return out;
}

// The module and class of a call that Python recorded; "" for others.
std::string python_kernel(const RecordedCall& call) {
  if (!call.arguments.is_array() || call.arguments.as_array().empty()) return "";
  const Value* name = call.arguments.as_array().front().find("python");
  return name != nullptr && name->is_string() ? name->as_string() : "";
}

Numerics numerics_of(const TuneOptions& options) {
  return options.numerics == "same" ? Numerics::same : Numerics::any;
}

// What the keys of calls tell about what is tuned already; nullptr: nothing, as choices under
// Numerics::same have keys that only who makes the call knows.
PersistentCache* known_choices(const TuneOptions& options, PersistentCache& store) {
  return options.retune || numerics_of(options) == Numerics::same ? nullptr : &store;
}

// Tunes calls in worker processes: this program's own kernels in its own, those of others where the
// user says. One call at a time, so that they do not disturb each other's timing.
class Workers {
 public:
  Workers(const TuneOptions& options, PersistentCache& store, const ProgressSink& on_progress)
      : options_(options),
        own_(setup({"/proc/self/exe", "worker"}, store, on_progress)),
        others_(setup({"/bin/sh", "-c", options.worker}, store, on_progress)) {}

  std::set<std::string> lost;  // calls whose workers died
  bool unusable = false;       // a worker does not start, or refuses to work

  Entry tune(const RecordedCall& call, double budget_seconds) {
    Worker& worker = worker_for(call);
    try {
      return worker.tune(call, budget_seconds);
    } catch (const WorkerLost& error) {
      lost.insert(call_name(call.id.op, call.id.key));
      throw WorkerLost(std::string(error.what()) +
                       " (a debugger shows where: ejk tune --in-process)");
    } catch (const Error&) {
      unusable |= !is_usable(worker);
      throw;
    }
  }

 private:
  static bool is_usable(Worker& worker) {
    if (StopOnInterrupt::requested()) return true;  // not known after Ctrl-C
    try {
      return static_cast<void>(worker.device()), true;
    } catch (const Error&) {
      return false;
    }
  }

  WorkerOptions setup(std::vector<std::string> command, PersistentCache& store,
                      const ProgressSink& on_progress) const {
    WorkerOptions out;
    out.command = std::move(command);
    out.plugins = plugin_paths(options_.kernels);
    const std::string& given = options_.kernels.store;
    if (!given.empty()) out.store = is_shared(given) ? given : store.layers().front()->where();
    out.retune = options_.retune;
    out.numerics = numerics_of(options_);
    out.patience_seconds = options_.deadline;
    out.on_progress = on_progress;
    out.on_warning = [](const std::string& message) { say(message); };
    out.stop = &StopOnInterrupt::requested();
    return out;
  }

  Worker& worker_for(const RecordedCall& call) {
    const std::string python = python_kernel(call);
    if (python.empty() && (options_.worker.empty() || is_registered(call.id.op))) return own_;
    if (!options_.worker.empty()) return others_;
    const std::string module = python.substr(0, python.find(':'));
    throw Error(ErrorKind::invalid_argument,
                "[" + call.id.op + "] its kernel is " + python +
                    " of Python: python -m ejk tune --import " + module +
                    " tunes it, or --worker 'python -m ejk worker --import " + module + "'");
  }

  const TuneOptions& options_;
  Worker own_, others_;
};

std::string with_cure(const OfflineResult::Skipped& skipped) {
  const bool unknown = skipped.why.find("no kernel of that op") != std::string::npos;
  return skipped.why + (unknown ? "; --plugin LIB makes kernels of your own known" : "");
}

// Messages of a chain have several lines.
void lines(std::string_view text, Output& out) {
  for (bool first = true;; first = false) {
    const size_t end = text.find('\n');
    out.line((first ? "" : "  ") + std::string(text.substr(0, end)));
    if (end == std::string_view::npos) return;
    text.remove_prefix(end + 1);
  }
}

// What came out of it, and the exit code.
int finish(const OfflineResult& result, const Workers& workers, PersistentCache& store,
           const TuneOptions& options, const Problems& problems, Output& out) {
  Table table(
      {{"OP"}, {"KEY"}, {"TIME", right}, {"SPEEDUP", right}, {"STATE"}, {"CONFIG"}, {"CALL"}});
  Value tuned = Value::array(), skipped = Value::array();
  bool all_kept = true;
  const size_t fresh = result.entries.size() - std::min(result.already, result.entries.size());
  for (size_t i = 0; i < result.entries.size(); ++i) {
    const Entry& e = result.entries[i];
    const Tuned tuned_when = when(result, i);
    // What was tuned already was just read there.
    const bool here = tuned_when == Tuned::here;
    const auto stored = here ? store.get(e.id, Detail::choice, &e.environment) : std::nullopt;
    // Others who share may have gone on with it meanwhile.
    const bool kept = !here || (stored && (options.share || stored->entry.config == e.config));
    all_kept = all_kept && kept;
    if (here || !options.share)  // each of many processes shows what is its own
      table.add({e.id.op,
                 e.id.key,
                 time_text(e.evidence.seconds),
                 ratio_text(e.evidence.speedup),
                 {remark(e, tuned_when, kept), tone_of(e)},
                 config_text(e.config),
                 call_text(e.id.spec)});
    tuned.push_back(tuned_value(e, tuned_when));
    tuned.as_array().back()["kept"] = kept;
  }
  if (!table.empty()) out.table(table);
  for (const auto& s : result.skipped) {
    const std::string why = with_cure(s);
    lines("not tuned: " + call_name(s.op, s.key) + ": " + why, out);
    skipped.push_back(Value::object({{"op", s.op},
                                     {"key", s.key},
                                     {"why", why},
                                     {"lost", workers.lost.contains(call_name(s.op, s.key))}}));
  }
  if (options.share && !result.entries.empty())
    out.line(fmt::format("{} tuned here, {} elsewhere meanwhile, {} before",
                         count_text(fresh, "call", "calls"), result.elsewhere,
                         result.already - result.elsewhere));
  // What is left out has said why; the note says it again, for those who read nothing else.
  if (result.skipped.empty() && !result.note.empty() && !(options.share && result.already > 0))
    lines(result.note, out);
  if (!all_kept)
    out.line(
        "results marked \"not kept\" could not be written to the store; --store DIR names another");
  const bool interrupted = StopOnInterrupt::requested().load();
  if (interrupted) out.line("interrupted: what was found until then is kept");
  out.document(Value::object({{"tuned", std::move(tuned)},
                              {"skipped", std::move(skipped)},
                              {"note", result.note},
                              {"interrupted", interrupted},
                              {"problems", problems.to_value()}}));
  if (interrupted) return exit_interrupted;
  if (result.entries.empty()) return result.skipped.empty() ? exit_nothing : exit_failed;
  return all_kept && workers.lost.empty() && !workers.unusable ? exit_ok : exit_failed;
}

// The complete tuning of this very call that is stored.
std::optional<Entry> tuned_before(ConfigSelectorChain& selector, RebuiltCall& made) {
  if (selector.policy().numerics == Numerics::same)
    return selector.tuned(made.invocation(), made.kernel());
  const EntryId id = id_of(made.invocation());
  auto stored = selector.persistent()->get(id, Detail::choice);
  const bool is_whole = stored && stored->entry.evidence.complete &&
                        stored->entry.outcome != Outcome::failed && stored->entry.id.key == id.key;
  return is_whole ? std::optional(std::move(stored->entry)) : std::nullopt;
}

OfflineResult tune_line(const TuneOptions& options, ConfigSelectorChain& selector,
                        const OfflineOptions& offline) {
  OfflineResult result;
  RecordedCall call = call_from_line(options.op, options.args, device_for(options.device));
  auto made = make_line_call(call);
  const EntryId id = id_of(made->invocation());
  if (auto stored = options.retune ? std::nullopt : tuned_before(selector, *made)) {
    result.entries.push_back(std::move(*stored));
    result.already = 1;
    result.note = "nothing was tuned: the call is tuned already (--retune does it again)";
    return result;
  }
  try {
    if (offline.tune_call) {
      call.id = id;
      made.reset();  // its arrays
      result.entries.push_back(offline.tune_call(call, selector.policy().budget_seconds));
    } else {
      const auto tuned = options.retune ? selector.tune(made->invocation(), made->kernel())
                                        : selector.resume(made->invocation(), made->kernel());
      result.entries.push_back(tuned.second);
    }
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::no_configuration) throw;
    result.skipped.push_back({id.op, id.key, error.what()});
  } catch (const WorkerLost& error) {
    result.skipped.push_back({id.op, id.key, error.what()});
  }
  return result;
}

std::string device_filter(const TuneOptions& options) {
  return options.device.empty() ? "this" : device_for(options.device).fingerprint;
}

std::vector<RecordedCall> calls_to_tune(const TuneOptions& options, const PersistentCache& store,
                                        Problems& problems) {
  return recorded_calls(options.kernels, store,
                        {.ops = options.ops, .device = device_filter(options), .key = ""},
                        problems);
}

// As it is given, or the part of the job array that this process is.
std::optional<Shard> shard_of(const TuneOptions& options) {
  if (options.shard.empty()) return options.share ? detail::shard_of_launch() : std::nullopt;
  const auto shard = detail::read_shard(options.shard);
  if (!shard)
    throw Failure(exit_usage, "--shard: got " + options.shard +
                                  "; expected I/N with I from 0 to N-1, such as 0/8");
  return shard;
}

void keep_shard(std::vector<RecordedCall>& calls, const TuneOptions& options) {
  if (const auto shard = shard_of(options); shard && !options.share)
    std::erase_if(calls, [&](const auto& call) { return !detail::is_in_shard(call.id, *shard); });
}

int show_plan(const TuneOptions& options, PersistentCache& store, Problems& problems, Output& out) {
  auto calls = calls_to_tune(options, store, problems);
  const size_t recorded = calls.size();
  const auto shard = shard_of(options);
  keep_shard(calls, options);
  auto plan = plan_tuning(std::move(calls), known_choices(options, store));
  if (options.share) {
    std::vector<PlannedCall> ordered;
    for (const size_t i :
         detail::order_in_plan(plan.size(), shard.value_or(detail::random_shard())))
      ordered.push_back(std::move(plan[i]));
    plan = std::move(ordered);
  }
  Table table({{"OP"},
               {"KEY"},
               {"CALLS", right},
               {"SPENT", right},
               {"MAY SAVE", right},
               {"WHY"},
               {"CALL"}});
  Value list = Value::array();
  for (const PlannedCall& p : plan) {
    const std::string why =
        is_registered(p.call.id.op) ? p.why : p.why + "; no kernel is known here";
    table.add({p.call.id.op, p.call.id.key, std::to_string(p.call.calls), time_text(p.seconds),
               percent_text(p.expected_gain), why, call_text(p.call.id.spec)});
    list.push_back(Value::object({{"op", p.call.id.op},
                                  {"key", p.call.id.key},
                                  {"call", call_text(p.call.id.spec)},
                                  {"calls", p.call.calls},
                                  {"seconds", p.seconds},
                                  {"expected_gain", p.expected_gain},
                                  {"known", is_registered(p.call.id.op)},
                                  {"why", p.why}}));
  }
  if (!table.empty()) out.table(table);
  else if (recorded == 0)
    out.line("nothing to tune: no matching calls of this device are recorded in " +
             where_to_record(options.kernels));
  else
    out.line(std::string("nothing to tune: all recorded calls") +
             (shard && !options.share ? " of this shard" : "") +
             " are tuned (--retune tunes them again)");
  const bool none = table.empty();
  out.document(Value::object({{"plan", std::move(list)}, {"problems", problems.to_value()}}));
  return none ? exit_nothing : exit_ok;
}

std::unique_ptr<LiveTuning> watched(const TuneOptions& options, PersistentCache& store,
                                    Problems& problems) {
  size_t planned = options.op.empty() ? 0 : 1;
  if (options.all_recorded) {
    auto calls = calls_to_tune(options, store, problems);
    keep_shard(calls, options);
    planned = plan_tuning(std::move(calls), known_choices(options, store)).size();
  }
  auto live = std::make_unique<LiveTuning>(options.listen, planned, options.budget, store);
  say("watch it at " + live->url());
  return live;
}

// The report can be seen until Ctrl-C; one that ended the tuning ends all of it.
int stay(LiveTuning& live, int code, Output& out) {
  live.finish();
  code = out.finish(code);
  if (StopOnInterrupt::requested()) return code;
  say("the tuning is over; its report stays at " + live.url() + " until Ctrl-C");
  wait_for_interrupt();
  return code;
}

// Processes that share need what the database has from their beginning, and must reach it.
void check_database(const PersistentCache& store) {
  detail::SharedStore* const shared = detail::database_of(store);
  if (shared == nullptr) return;
  const auto answer = shared->far().ask({"SELECT 1", {}, 10});
  if (!answer)
    throw Failure(exit_failed, shared->far().where() + " cannot be used: " + answer.why +
                                   " (ejk store check says more)");
  if (!shared->far().writable())
    throw Failure(exit_failed, shared->far().where() +
                                   " can only be read by this role; --share needs ejk_writer");
}

// Throws Failure(usage) for what does not go together.
void check_line(const TuneOptions& options) {
  const auto refuse = [](const std::string& why) { throw Failure(exit_usage, why); };
  const int ways =
      int{options.all_recorded} + int{!options.lowered.empty()} + int{!options.op.empty()};
  if (ways != 1)
    refuse(
        "tune: expected one of --recorded, --lowered FILE, or an op with its arguments "
        "(ejk tune --help says more)");
  if (options.op.empty() && !options.args.empty()) refuse("--arg needs an op on the command line");
  if (options.in_process && !options.worker.empty())
    refuse("--in-process and --worker cannot be used together");
  if (options.serve && (options.in_process || options.dry_run))
    refuse(
        "--serve cannot be used with --in-process, where it would disturb the "
        "measurements, or with --dry-run");
  if (options.dry_run && !options.all_recorded)
    refuse("--dry-run needs --recorded: it shows the order of recorded calls");
  if ((options.share || !options.shard.empty()) && !options.all_recorded)
    refuse("--share and --shard are for --recorded calls");
  if (options.share && options.retune)
    refuse(
        "got --share and --retune; expected one of them, because each process would tune "
        "every call again; use --shard I/N --retune without --share");
}

void check_launch() {
  if (detail::snapshot_of_launch())
    throw Failure(exit_usage, std::string(detail::snapshot_variable) +
                                  " is set, and nothing is tuned beside a snapshot; unset it");
  if (detail::pin_mode_of_launch() != detail::PinMode::off)
    throw Failure(exit_usage, std::string(detail::pin_variable) +
                                  " is set, and nothing is tuned in a run with pins; unset it");
}

// Tunes what the line asks for, in workers.
class LineTuning {
 public:
  LineTuning(const TuneOptions& options, std::optional<Shard> shard,
             std::shared_ptr<PersistentCache> store, Problems& problems, Output& out)
      : options_(options),
        shard_(shard),
        store_(std::move(store)),
        problems_(problems),
        out_(out),
        selector_(selector_for(
            store_, {.numerics = numerics_of(options), .budget_seconds = per_call()}, progress_)),
        live_(options.serve ? watched(options, *store_, problems) : nullptr),
        workers_(options, *store_, [this](const TuneProgress& p) {
          progress_.show(progress_text(p));
          if (live_) live_->tell(p);
        }) {
    set_up();
  }

  int run() {
    if (!options_.op.empty()) return finished(tune_line(options_, *selector_, offline_));
    return options_.all_recorded ? tune_recorded() : tune_lowered();
  }

 private:
  double per_call() const {
    return options_.budget > 0 ? std::min(options_.budget, options_.budget_per_call)
                               : options_.budget_per_call;
  }

  void set_up() {
    offline_.folder = recorded_folder(options_.kernels);
    offline_.ops = options_.ops;
    if (!options_.device.empty()) offline_.device = device_for(options_.device).fingerprint;
    offline_.budget_seconds = options_.budget;
    offline_.retune = options_.retune;
    offline_.share = options_.share;
    offline_.shard = shard_;
    // As long as another one's workers may take, and then its lease.
    offline_.held_seconds = 60 + 5 * (per_call() + options_.deadline);
    offline_.labels.prefixes = options_.prefixes;
    offline_.on_progress = [this](const TuneProgress& p) {
      progress_.show(call_name(p.op, p.key) + ": " + std::string(p.message));
    };
    if (options_.in_process) return;
    offline_.tune_call = [this](const RecordedCall& call, double budget_seconds) {
      const auto tune = [&] { return tune_in_worker(call, budget_seconds); };
      return live_ ? live_->tune(call, budget_seconds, tune) : tune();
    };
  }

  Entry tune_in_worker(const RecordedCall& call, double budget_seconds) {
    Entry entry = workers_.tune(call, budget_seconds);
    // Before the lease ends: who takes the call next must find the entry.
    if (detail::SharedStore* const shared = detail::database_of(*store_); shared && options_.share)
      shared->push(detail::Push::noted);
    return entry;
  }

  int finished(const OfflineResult& result) {
    const int code = finish(result, workers_, *store_, options_, problems_, out_);
    return live_ ? stay(*live_, code, out_) : code;
  }

  int tune_recorded() {
    check_recorded_folder(options_.kernels);
    OfflineResult result = autotune_recorded(*selector_, offline_);
    const bool none = result.entries.empty() && result.skipped.empty();
    // A shard may be empty: its process has done its part.
    const bool others =
        none && shard_ && !options_.share && !calls_to_tune(options_, *store_, problems_).empty();
    if (none && !others && options_.ops.empty())
      result.note = "nothing was tuned: no calls of this device are recorded in " +
                    where_to_record(options_.kernels);
    const int code = finished(result);
    return code == exit_nothing && others ? int{exit_ok} : code;
  }

  int tune_lowered() {
    FoundLabels labels;
    try {
      const StillWorking working("reading " + options_.lowered);
      labels = find_labels_in(options_.lowered, offline_.labels);
    } catch (const Error& error) {
      throw Failure(exit_nothing, error.what());
    }
    const int code = finished(autotune_labels(*selector_, labels, offline_));
    const bool none =
        code == exit_failed &&
        recorded_calls(options_.kernels, *store_, {{}, "this", ""}, problems_).empty();
    return none ? int{exit_nothing} : code;
  }

  const TuneOptions& options_;
  const std::optional<Shard> shard_;
  const std::shared_ptr<PersistentCache> store_;
  Problems& problems_;
  Output& out_;
  const StopOnInterrupt stop_;
  Progress progress_;
  const std::shared_ptr<ConfigSelectorChain> selector_;
  const std::unique_ptr<LiveTuning> live_;
  Workers workers_;
  OfflineOptions offline_;
};

int tune_verb(const TuneOptions& options, Output& out) {
  check_line(options);
  const auto shard = shard_of(options);
  check_launch();
  load_plugins(options.kernels);
  Problems problems;
  const auto store = open_layers(options.kernels.store, options.dry_run, problems);
  if (options.share && !options.dry_run) check_database(*store);
  if (options.dry_run) return show_plan(options, *store, problems, out);
  return LineTuning(options, shard, store, problems, out).run();
}

int worker_verb() {
  ops::register_kernels();
  return run_worker([](const std::string& message) { say(message); });
}

void add_what_to_tune(const VerbLine& line, TuneOptions& to) {
  line.call(to.op, to.args);
  line.call_device(to.device);
  line.flag("--recorded", to.all_recorded,
            "Tune all recorded calls, those first that can save most time");
  line.value("--lowered", to.lowered, "FILE", "The labelled calls of this file or dump folder");
  line.prefixes(to.prefixes);
  line.repeated("--op", to.ops, "OP", "With --recorded: only this op; may be repeated").names_op();
  line.store(to.kernels.store);
  line.with_kernels(to.kernels);
}

void add_how_to_tune(const VerbLine& line, TuneOptions& to) {
  line.number("--budget", to.budget, "S", at_least(0),
              "Seconds for all calls together; 0: any time")
      .shows_default();
  line.number("--budget-per-call", to.budget_per_call, "S", above(0), "Seconds for one call, about")
      .shows_default();
  line.value("--worker", to.worker, "COMMAND",
             "The command of a worker process for kernels that this tool does not have, such as "
             "kernels in Python: 'python -m ejk worker --import MODULE'");
  line.number("--deadline", to.deadline, "S", above(0),
              "End a worker that does not answer within this time after its budget")
      .shows_default();
  line.flag("--in-process", to.in_process,
            "Tune in this process, for debuggers; a kernel that crashes ends it");
  line.flag("--share", to.share,
            "With --recorded: tune together with other processes that have the same store; "
            "each takes calls that no other one has at the moment");
  line.value("--shard", to.shard, "I/N",
             "With --recorded: only part I of N, from 0 to N-1, by the hash of each call's "
             "name; with --share: begin there; default: as the job array says, or anywhere");
  line.flag("--retune", to.retune, "Tune calls again that are already tuned");
  line.value(
          "--numerics", to.numerics, "WHICH",
          "same: tune for programs whose policy says numerics = same: only configs whose results "
          "are bitwise equal to those of the heuristic's; default: any")
      .one_of({"any", "same"});
  line.flag("--dry-run", to.dry_run,
            "With --recorded: show what would be tuned, in which order and why");
  const OptionLine serve = line.flag(
      "--serve", to.serve, "Show the tuning in a browser, and its report afterwards, until Ctrl-C");
  line.listen(to.listen).needs(serve);
}

}  // namespace

void add_tune(Verbs& verbs) {
  verbs.add<TuneOptions>(
      {"tune", "Tune recorded calls, the calls of a lowered computation, or one call",
       "ejk tune --recorded --budget 600 --plugin libmy_kernels.so"},
      tune_verb, [](const VerbLine& line, TuneOptions& to) {
        add_what_to_tune(line, to);
        add_how_to_tune(line, to);
      });
}

void add_worker(Verbs& verbs) {
  // Started by tune: what it says is for programs.
  verbs.add_hidden("worker", "Tune what comes on standard input; docs/reference/worker.md says how",
                   [](Output&) { return worker_verb(); });
}

}  // namespace ejk::cli
