// SPDX-License-Identifier: Apache-2.0
// ejk top: where the time of recorded calls goes, and what tuning them would save.
#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

#include <fmt/format.h>

#include <ejk/offline.h>

#include "calls.h"
#include "offline/stored_call.h"
#include "verbs.h"

namespace ejk::cli {
namespace {

struct TopOptions {
  std::string device = "this";  // that recorded them
  KernelOptions kernels;
  std::vector<std::string> ops;
  int number = 10;  // list at most so many; 0: all
};

using enum Table::Align;

// A recorded call as it runs now.
struct Spent {
  RecordedCall call;
  double seconds = 0;        // in all its calls
  double saved_seconds = 0;  // of the heuristic's time, by the stored config
  double may_save_seconds = 0;
  std::string state;
};

auto order_of(const EntryId& id) { return std::tie(id.device, id.op, id.key, id.spec); }

struct ById {
  bool operator()(const EntryId& a, const EntryId& b) const { return order_of(a) < order_of(b); }
};

// Recorded, else counted with what a tuning measured; 0: neither is known.
double seconds_in(const RecordedCall& call, const std::optional<StoredCall>& stored) {
  const double recorded = call.seconds();
  if (recorded > 0 || !stored) return recorded;
  return static_cast<double>(call.calls) * stored->entry.evidence.seconds;
}

std::vector<Spent> spent_in(const std::vector<RecordedCall>& calls, const PersistentCache& store) {
  const auto choices = choices_of(store, devices_of(calls));
  std::map<EntryId, PlannedCall, ById> planned;
  for (PlannedCall& p : plan_with_choices(calls, choices.get()).to_tune)
    planned.emplace(p.call.id, std::move(p));
  std::vector<Spent> out;
  for (const RecordedCall& call : calls) {
    const auto stored = stored_for(*choices, call);
    Spent spent{call, seconds_in(call, stored), 0, 0, "an earlier tuning rejected every candidate"};
    if (stored && stored->entry.evidence.heuristic_seconds > 0)
      spent.saved_seconds =
          std::max(0., static_cast<double>(call.calls) * (stored->entry.evidence.heuristic_seconds -
                                                          stored->entry.evidence.seconds));
    if (const auto plan = planned.find(call.id); plan != planned.end()) {
      spent.may_save_seconds = spent.seconds * plan->second.expected_gain;
      spent.state = plan->second.why;
    } else if (stored && stored->is_tuned()) {
      spent.state = std::string(outcome_name(stored->entry.outcome));
      if (const double speedup = stored->entry.evidence.speedup; speedup > 0)
        spent.state += ", " + ratio_text(speedup) + " the heuristic's speed";
    }
    out.push_back(std::move(spent));
  }
  std::ranges::stable_sort(out, [](const Spent& a, const Spent& b) {
    return std::tuple(a.seconds, a.call.calls) > std::tuple(b.seconds, b.call.calls);
  });
  return out;
}

int top_verb(const TopOptions& options, Output& out) {
  load_plugins(options.kernels);
  Problems problems;
  const auto store = open_layers(options.kernels.store, true, problems);
  const auto calls = recorded_calls(
      options.kernels, *store, {.ops = options.ops, .device = options.device, .key = ""}, problems);
  if (calls.empty())
    throw Failure(exit_nothing,
                  "no matching calls are recorded in " + where_to_record(options.kernels));
  const std::vector<Spent> list = spent_in(calls, *store);
  double all = 0, saved = 0, may_save = 0;
  for (const Spent& s : list)
    all += s.seconds, saved += s.saved_seconds, may_save += s.may_save_seconds;

  Table table({{"TIME", right},
               {"SHARE", right},
               {"CALLS", right},
               {"MAY SAVE", right},
               {"SAVED", right},
               {"OP"},
               {"KEY"},
               {"STATE"},
               {"CALL"}});
  const size_t shown = options.number == 0
                           ? list.size()
                           : std::min(list.size(), static_cast<size_t>(options.number));
  Value documents = Value::array();
  for (size_t i = 0; i < list.size(); ++i) {
    const Spent& s = list[i];
    const double share = all > 0 ? s.seconds / all : 0;
    if (i < shown)
      table.add({time_text(s.seconds), percent_text(share), std::to_string(s.call.calls),
                 time_text(s.may_save_seconds), time_text(s.saved_seconds), s.call.id.op,
                 s.call.id.key, s.state, call_text(s.call.id.spec)});
    documents.push_back(Value::object({{"op", s.call.id.op},
                                       {"key", s.call.id.key},
                                       {"call", call_text(s.call.id.spec)},
                                       {"device", s.call.id.device},
                                       {"calls", s.call.calls},
                                       {"seconds", s.seconds},
                                       {"share", share},
                                       {"may_save_seconds", s.may_save_seconds},
                                       {"saved_seconds", s.saved_seconds},
                                       {"state", s.state}}));
  }
  out.table(table);
  if (shown < list.size())
    out.line(fmt::format("... and {} more (--number 0 lists all)", list.size() - shown));
  out.line(fmt::format("{} in all; stored configs save {} of the heuristics' time", time_text(all),
                       saved > 0 ? time_text(saved) : "nothing"));
  if (may_save > 0)
    out.line(fmt::format("tuning the rest may save about {} (ejk tune --recorded)",
                         time_text(may_save)));
  out.document(Value::object({{"calls", std::move(documents)},
                              {"seconds", all},
                              {"saved_seconds", saved},
                              {"may_save_seconds", may_save},
                              {"problems", problems.to_value()}}));
  return exit_ok;
}

}  // namespace

void add_top(Verbs& verbs) {
  verbs.add<TopOptions>(
      {"top", "List where the time of recorded calls goes, and what tuning would save",
       "ejk top --number 5"},
      top_verb, [](const VerbLine& line, TopOptions& to) {
        line.store(to.kernels.store);
        line.with_kernels(to.kernels);
        line.recorded_by(to.ops, to.device);
        line.number("--number", to.number, "N", at_least(0), "List at most so many calls; 0: all")
            .shows_default();
      });
}

}  // namespace ejk::cli
