// SPDX-License-Identifier: Apache-2.0
// ejk tune: recorded calls, the labelled calls of a lowered computation, or one call given here.
#include <algorithm>

#include <fmt/format.h>

#include <ejk/error.h>
#include <ejk/offline.h>

#include "calls.h"

namespace ejk::cli {
namespace {

using enum Table::Align;

Value tuned_value(const Entry& e, bool already) {
  Value out = entry_to_document(e);
  out.erase("candidates");
  out["call"] = call_text(e.id.spec);
  out["already"] = already;
  return out;
}

std::string remark(const Entry& e, bool already, bool kept) {
  std::string out = already ? "tuned before" : std::string(outcome_name(e.outcome));
  if (!e.evidence.complete) out += ", cut short";
  if (!kept) out += ", not kept";
  return out;
}

// What came out of it, and the exit code.
int finish(const OfflineResult& result, PersistentCache& store, const Problems& problems,
           Output& out) {
  Table table(
      {{"OP"}, {"KEY"}, {"TIME", right}, {"SPEEDUP", right}, {"STATE"}, {"CONFIG"}, {"CALL"}});
  Value tuned = Value::array(), skipped = Value::array();
  bool all_kept = true;
  const size_t fresh = result.entries.size() - std::min(result.already, result.entries.size());
  for (size_t i = 0; i < result.entries.size(); ++i) {
    const Entry& e = result.entries[i];
    const bool already = i >= fresh;
    const auto stored = store.get(e.id);
    const bool kept = stored && stored->entry.config == e.config;
    all_kept = all_kept && kept;
    table.add({e.id.op, e.id.key, time_text(e.evidence.seconds), ratio_text(e.evidence.speedup),
               remark(e, already, kept), config_text(e.config), call_text(e.id.spec)});
    tuned.push_back(tuned_value(e, already));
    tuned.as_array().back()["kept"] = kept;
  }
  if (!table.empty()) out.table(table);
  for (const auto& s : result.skipped) {
    out.line("not tuned: " + s.op + " " + s.key + ": " + s.why);
    skipped.push_back(Value::object({{"op", s.op}, {"key", s.key}, {"why", s.why}}));
  }
  if (!result.note.empty()) out.line(result.note);
  if (!all_kept) out.line("what is not kept was found, but could not be written to the store");
  const bool interrupted = StopOnInterrupt::requested().load();
  if (interrupted) out.line("interrupted: what was found until then is kept");
  out.document(Value::object({{"tuned", std::move(tuned)},
                              {"skipped", std::move(skipped)},
                              {"note", result.note},
                              {"interrupted", interrupted},
                              {"problems", problems.to_value()}}));
  if (interrupted) return exit_interrupted;
  if (result.entries.empty()) return result.skipped.empty() ? exit_nothing : exit_failed;
  return all_kept ? exit_ok : exit_failed;
}

OfflineResult tune_line(const TuneOptions& options, ConfigSelectorChain& selector) {
  OfflineResult result;
  const auto made = rebuild_call(call_from_line(options.op, options.args));
  const EntryId id = id_of(made->invocation());
  const auto stored = selector.persistent()->get(id);
  if (!options.retune && stored && stored->entry.evidence.complete &&
      stored->entry.outcome != Outcome::failed) {
    result.entries.push_back(stored->entry);
    result.already = 1;
    result.note = "nothing was tuned: the call is tuned already (--retune does it again)";
    return result;
  }
  try {
    result.entries.push_back(selector.tune(made->invocation(), made->kernel()).second);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::no_configuration) throw;
    result.skipped.push_back({id.op, id.key, error.what()});
  }
  return result;
}

int show_plan(const TuneOptions& options, PersistentCache& store, Problems& problems, Output& out) {
  auto calls =
      recorded_calls(options.kernels, {.ops = options.ops, .device = "this", .key = ""}, problems);
  const size_t recorded = calls.size();
  const auto plan = plan_tuning(std::move(calls), &store);
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
  if (table.empty())
    out.line(fmt::format("nothing to tune: {} calls of this device are recorded in {}", recorded,
                         recorded_folder(options.kernels)));
  else out.table(table);
  const bool none = table.empty();
  out.document(Value::object({{"plan", std::move(list)}, {"problems", problems.to_value()}}));
  return none ? exit_nothing : exit_ok;
}

}  // namespace

int tune_verb(const TuneOptions& options, Output& out) {
  const int ways =
      int{options.all_recorded} + int{!options.lowered.empty()} + int{!options.op.empty()};
  if (ways != 1)
    throw Failure(exit_usage,
                  "tune needs to know what: --recorded, --lowered FILE, or an op with "
                  "its arguments (ejk tune --help says more)");
  if (options.op.empty() && !options.args.empty())
    throw Failure(exit_usage, "--arg belongs to an op given on the line");
  if (options.dry_run && !options.all_recorded)
    throw Failure(exit_usage, "--dry-run shows the order of --recorded calls");
  load_plugins(options.kernels);
  Problems problems;
  const auto store = open_layers(options.store, options.dry_run, problems);
  if (options.dry_run) return show_plan(options, *store, problems, out);

  const StopOnInterrupt stop;
  Progress progress;
  const auto selector = selector_for(store, options.budget_per_call, progress);
  OfflineOptions offline;
  offline.folder = recorded_folder(options.kernels);
  offline.ops = options.ops;
  offline.budget_seconds = options.budget;
  offline.retune = options.retune;
  offline.labels.prefixes = options.prefixes;
  offline.on_progress = [&](const TuneProgress& p) {
    progress.show(fmt::format("{} {}: {}", p.op, p.key, p.message));
  };
  if (!options.op.empty()) return finish(tune_line(options, *selector), *store, problems, out);
  if (options.all_recorded) {
    if (!options.kernels.recorded.empty())
      static_cast<void>(recorded_calls(options.kernels, {}, problems));  // says if it is not there
    return finish(autotune_recorded(*selector, offline), *store, problems, out);
  }
  FoundLabels labels;
  try {
    const StillWorking working("reading " + options.lowered);
    labels = find_labels_in(options.lowered, offline.labels);
  } catch (const Error& error) {
    throw Failure(exit_nothing, error.what());
  }
  return finish(autotune_labels(*selector, labels, offline), *store, problems, out);
}

}  // namespace ejk::cli
