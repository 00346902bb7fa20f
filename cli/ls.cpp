// SPDX-License-Identifier: Apache-2.0
// ejk ls: the entries of a store.
#include <ejk/device.h>
#include <ejk/names.h>

#include "platform/here.h"
#include "verbs.h"

namespace ejk::cli {
namespace {

struct LsOptions {
  std::string store;
  Filter filter;
  bool all = false;  // hidden ones too
};

using enum Table::Align;

std::string state_of(const Held& held) {
  const Entry& e = held.entry;
  const bool unknown = !is_measured(e) && e.evidence.samples == 0;
  std::string out = unknown ? e.provenance : std::string(outcome_name(e.outcome));
  if (!e.evidence.complete && !unknown) out += ", cut short";
  if (!is_measured(e) && !unknown) out += ", " + e.provenance;
  if (held.other_environment) out += ", of another environment";
  else if (held.hidden) out += ", hidden";
  return out;
}

// What the heuristic does not say already.
std::string short_config(const Entry& e) {
  const Value* const heuristic = heuristic_of(e);
  if (heuristic == nullptr) return config_text(e.config);
  const std::string change = change_text(*heuristic, e.config);
  return change.empty() ? as_the_heuristic : change;
}

int ls_verb(const LsOptions& options, Output& out) {
  Problems problems;
  auto paths = stores_to_read(options.store);
  const auto entries = read_entries(paths, {}, problems, Detail::choice);
  for (std::string& path : paths) path = shown_store(path);

  Value list = Value::array();
  std::string device;
  Table table({});
  const auto flush = [&] {
    if (!table.empty()) out.table(table);
  };
  for (const Held& held : entries) {
    if (!matches(options.filter, held.entry.id) || (held.hidden && !options.all)) continue;
    list.push_back(entry_summary(held));
    const Entry& e = held.entry;
    if (device != e.id.device) {
      flush();
      if (!device.empty()) out.line();
      device = e.id.device;
      out.line(device + (detail::device_here(device) != nullptr ? "  (this machine)" : ""));
      table = Table(
          {{"OP"}, {"KEY"}, {"TIME", right}, {"SPEEDUP", right}, {"STATE"}, {"CONFIG"}, {"CALL"}});
    }
    table.add({e.id.op,
               e.id.key,
               time_text(e.evidence.seconds),
               ratio_text(e.evidence.speedup),
               {state_of(held), tone_of(e)},
               short_config(e),
               call_text(e.id.spec)});
  }
  flush();
  const size_t shown = list.as_array().size();
  const std::string& place = paths.front();
  if (entries.empty())
    out.line("no entries in " + place + " (ejk tune and ejk import add entries)");
  else if (shown == 0)
    out.line(place + " has " + count_text(entries.size(), "entry", "entries") +
             "; none matches the given op and device (ejk ls alone lists all)");
  Value places = Value::array();
  for (const std::string& path : paths) places.push_back(path);
  out.document(Value::object({{"stores", std::move(places)},
                              {"entries", std::move(list)},
                              {"problems", problems.to_value()}}));
  return shown == 0 && (!options.filter.ops.empty() || !options.filter.key.empty()) ? exit_nothing
                                                                                    : exit_ok;
}

}  // namespace

void add_ls(Verbs& verbs) {
  verbs.add<LsOptions>(
      {"ls", "List the entries of a store", "ejk ls matmul --device this"}, ls_verb,
      [](const VerbLine& line, LsOptions& to) {
        line.values("ops", to.filter.ops, "OP", "Only these ops: NAME or NAME@vVERSION").names_op();
        line.store(to.store);
        line.device(to.filter.device);
        line.flag("--all", to.all,
                  "Also entries that do not answer here, because another one does");
      });
}

}  // namespace ejk::cli
