// SPDX-License-Identifier: Apache-2.0
// ejk bench: what is stored against the heuristic, side by side, on this machine and now.
#include <fmt/format.h>

#include <ejk/error.h>

#include "base/thrown.h"
#include "calls.h"
#include "verbs.h"

namespace ejk::cli {
namespace {

struct BenchOptions {
  KernelOptions kernels;
  Filter filter;
  std::string op;
  std::vector<std::string> args;
  double seconds = 2;  // for each call
};

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

// The call of the line, or the recorded ones that it picks. Throws Failure if there is none.
std::vector<RecordedCall> calls_to_measure(const BenchOptions& options,
                                           const PersistentCache& store, Problems& problems) {
  Filter filter = options.filter;
  filter.device = filter.device.empty() ? "this" : device_for(filter.device).fingerprint;
  // An op with arguments is one call; without, it picks recorded ones.
  if (!options.args.empty()) {
    auto call = call_from_line(options.op, options.args, device_for(options.filter.device));
    (void)make_line_call(call);  // a wrong line is told before anything is measured
    return {std::move(call)};
  }
  const bool names_key = options.op.find(':') != std::string::npos;  // OP:KEY, or a label
  if (names_key) filter.key = options.op;
  else if (!options.op.empty()) filter.ops = {options.op};
  auto calls = recorded_calls(options.kernels, store, filter, problems);
  if (calls.empty())
    throw Failure(exit_nothing, "no matching calls of this device are recorded in " +
                                    where_to_record(options.kernels));
  return calls;
}

void add_row(const Row& row, Table& table, Value& list) {
  const Evidence& e = row.evidence;
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

int bench_verb(const BenchOptions& options, Output& out) {
  if (options.op.empty() && !options.args.empty())
    throw Failure(exit_usage, "--arg needs an op on the command line");
  load_plugins(options.kernels);
  Problems problems;
  const auto store = existing_layers(options.kernels.store, problems);
  const auto calls = calls_to_measure(options, *store, problems);
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
    measured += row.evidence.seconds > 0;
    add_row(row, table, list);
  }
  out.table(table);
  out.document(Value::object({{"benchmarks", std::move(list)}, {"problems", problems.to_value()}}));
  if (stop.requested()) return exit_interrupted;
  return measured == 0 ? exit_failed : exit_ok;
}

}  // namespace

void add_bench(Verbs& verbs) {
  verbs.add<BenchOptions>(
      {"bench", "Measure stored configs against the heuristics",
       "ejk bench softmax --arg f32[64,64] --arg 1 --arg f32[64,64]"},
      bench_verb, [](const VerbLine& line, BenchOptions& to) {
        line.call(to.op, to.args);
        line.call_device(to.filter.device);
        line.value("--key", to.filter.key, "KEY", "Only recorded calls with this key");
        line.store(to.kernels.store);
        line.with_kernels(to.kernels);
        line.number("--seconds", to.seconds, "S", above(0), "Seconds for each call, about")
            .shows_default();
      });
}

}  // namespace ejk::cli
