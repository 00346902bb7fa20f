// SPDX-License-Identifier: Apache-2.0
// ejk bench: what is stored against the heuristic, side by side, on this machine and now.
#include <fmt/format.h>

#include <ejk/error.h>

#include "base/thrown.h"
#include "calls.h"

namespace ejk::cli {
namespace {

using enum Table::Align;

struct Row {
  EntryId id;
  Value config;
  Evidence evidence;
  std::string note;  // why it could not be measured
};

AnyConfig typed_config(const AnyKernel& kernel, const Value& value) {
  std::string why;
  AnyConfig out(kernel.config_type().from_value(value, why), &kernel.config_type());
  if (!out) throw Failure(exit_failed, "the stored config does not fit the kernel: " + why);
  return out;
}

Row measure(const RecordedCall& call, PersistentCache& store, double seconds, Progress& progress) {
  Row row{call.id, {}, {}, ""};
  try {
    const auto made = rebuild_call(call);
    row.id = id_of(made->invocation());
    const auto stored = store.get(row.id);
    if (!stored)
      throw Failure(exit_nothing,
                    "nothing is stored for it (ejk tune measures and keeps something)");
    if (stored->entry.outcome == Outcome::failed)
      throw Failure(exit_nothing, "its tuning rejected every candidate");
    row.config = stored->entry.config;
    // Nothing is kept: this is a look, not a tuning.
    const auto selector = selector_for(nullptr, {.budget_seconds = seconds}, progress);
    const AnyConfig config = typed_config(made->kernel(), row.config);
    row.evidence = selector->tune(made->invocation(), made->kernel(), candidate_list({config}))
                       .second.evidence;
    if (row.evidence.heuristic_seconds <= 0) row.note = "the kernel has no heuristic";
  } catch (...) {
    row.note = base::what_was_thrown();
  }
  return row;
}

}  // namespace

int bench_verb(const BenchOptions& options, Output& out) {
  if (options.op.empty() && !options.args.empty())
    throw Failure(exit_usage, "--arg needs an op on the command line");
  load_plugins(options.kernels);
  Problems problems;
  const auto store = existing_layers(options.kernels.store, problems);
  Filter filter = options.filter;
  filter.device = filter.device.empty() ? "this" : device_for(filter.device).fingerprint;
  std::vector<RecordedCall> calls;
  // An op with arguments is one call; without, it picks recorded ones.
  if (!options.args.empty()) {
    calls.push_back(call_from_line(options.op, options.args, device_for(options.filter.device)));
    (void)make_line_call(calls.front());  // a wrong line is told before anything is measured
  } else {
    const bool names_key = options.op.find(':') != std::string::npos;  // OP:KEY, or a label
    if (names_key) filter.key = options.op;
    else if (!options.op.empty()) filter.ops = {options.op};
    calls = recorded_calls(options.kernels, *store, filter, problems);
  }
  if (calls.empty())
    throw Failure(exit_nothing, "no matching calls of this device are recorded in " +
                                    where_to_record(options.kernels));

  const StopOnInterrupt stop;
  Progress progress;
  Table table({{"OP"},
               {"KEY"},
               {"STORED", right},
               {"HEURISTIC", right},
               {"SPEEDUP", right},
               {"INTERVAL"},
               {"NOISE", right},
               {"CONFIG"},
               {"NOTE"}});
  Value list = Value::array();
  size_t measured = 0;
  for (const RecordedCall& call : calls) {
    if (stop.requested()) break;
    const Row row = measure(call, *store, options.seconds, progress);
    const Evidence& e = row.evidence;
    measured += e.seconds > 0;
    table.add({row.id.op, row.id.key, time_text(e.seconds), time_text(e.heuristic_seconds),
               ratio_text(e.speedup),
               e.speedup > 0 && e.samples >= min_samples
                   ? fmt::format("{:.3g} to {:.3g}", e.speedup_low, e.speedup_high)
                   : "-",
               noise_text(e.noise, e.samples), config_text(row.config), row.note});
    list.push_back(Value::object({{"op", row.id.op},
                                  {"key", row.id.key},
                                  {"call", call_text(row.id.spec)},
                                  {"config", row.config},
                                  {"seconds", e.seconds},
                                  {"heuristic_seconds", e.heuristic_seconds},
                                  {"speedup", e.speedup},
                                  {"speedup_low", e.speedup_low},
                                  {"speedup_high", e.speedup_high},
                                  {"noise", e.noise},
                                  {"samples", e.samples},
                                  {"clock", e.clock},
                                  {"note", row.note}}));
  }
  out.table(table);
  out.document(Value::object({{"benchmarks", std::move(list)}, {"problems", problems.to_value()}}));
  if (stop.requested()) return exit_interrupted;
  return measured == 0 ? exit_failed : exit_ok;
}

}  // namespace ejk::cli
