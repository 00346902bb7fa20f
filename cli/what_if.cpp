// SPDX-License-Identifier: Apache-2.0
// ejk what-if: recorded calls against a store: which tier would answer, what is likely lost.
#include "what_if.h"

#include <algorithm>
#include <array>
#include <optional>

#include <fmt/format.h>

#include <ejk/device.h>
#include <ejk/names.h>
#include <ejk/offline.h>

#include "calls.h"
#include "offline/stored_call.h"
#include "platform/here.h"
#include "verbs.h"

namespace ejk::cli {
namespace {

using enum Table::Align;

// From best to worst; those before the last three run with something that is stored.
constexpr std::array<const char*, 8> tiers = {
    "measured here",     "measured in another environment or elsewhere",
    "cut short",         "too noisy to tell",
    "not measured",      "does not fit the kernel: heuristic",
    "failed: heuristic", "nothing: heuristic"};
constexpr size_t first_uncovered = 5;

// A kernel that is not known here is not asked.
bool fits(const Entry& entry) {
  const ConfigType* type = registered_config(entry.id.op, detail::platform_of(entry.id.device));
  std::string why;
  return type == nullptr || type->from_value(entry.config, why) != nullptr;
}

size_t tier_of(const std::optional<PersistentCache::Found>& found) {
  if (!found) return 7;
  const Entry& e = found->entry;
  if (e.outcome == Outcome::failed) return 6;
  if (!fits(e)) return 5;
  if (!is_measured(e) && e.evidence.samples == 0) return 4;
  if (e.outcome == Outcome::unresolved) return 3;
  if (!e.evidence.complete) return 2;
  const Device* device = detail::device_here(e.id.device);
  return device != nullptr && is_measured(e) && e.environment == device->environment ? 0 : 1;
}

struct Sum {
  uint64_t calls = 0, shapes = 0;
  double seconds = 0;
  void add(const RecordedCall& call) { calls += call.calls, ++shapes, seconds += call.seconds(); }
};

double share(double part, double whole) { return whole > 0 ? part / whole : 0; }
double share(uint64_t part, uint64_t whole) {
  return share(static_cast<double>(part), static_cast<double>(whole));
}

double number(const Value& object, std::string_view name) { return object.find(name)->as_double(); }
std::string text(const Value& object, std::string_view name) {
  return object.find(name)->as_string();
}

}  // namespace

Value coverage_document(const std::vector<RecordedCall>& calls, const PersistentCache& store) {
  const auto choices = choices_of(store, devices_of(calls));
  std::array<Sum, tiers.size()> sums;
  Sum all, covered, untimed, untimed_covered;
  for (const RecordedCall& call : calls) {
    const size_t tier = tier_of(choices->get(call.id));
    const bool is_covered = tier < first_uncovered;
    const bool is_timed = call.timed_calls > 0;
    sums[tier].add(call);
    all.add(call);
    if (is_covered) covered.add(call);
    if (!is_timed) untimed.add(call);
    if (!is_timed && is_covered) untimed_covered.add(call);
  }
  Value by_tier = Value::array();
  for (size_t i = 0; i < tiers.size(); ++i)
    by_tier.push_back(Value::object({{"tier", tiers[i]},
                                     {"covered", i < first_uncovered},
                                     {"shapes", sums[i].shapes},
                                     {"calls", sums[i].calls},
                                     {"seconds", sums[i].seconds}}));
  // What tuning the rest would save is what not having it costs.
  double regret = 0;
  Value to_tune = Value::array();
  for (const PlannedCall& p : plan_with_choices(calls, choices.get()).to_tune) {
    regret += p.worth();
    to_tune.push_back(Value::object({{"op", p.call.id.op},
                                     {"key", p.call.id.key},
                                     {"call", call_text(p.call.id.spec)},
                                     {"calls", p.call.calls},
                                     {"seconds", p.seconds},
                                     {"expected_gain", p.expected_gain},
                                     {"why", p.why}}));
  }
  const double by_calls = share(covered.calls, all.calls);
  // Calls that were never timed count by their number.
  const double by_time = all.seconds > 0 ? share(covered.seconds, all.seconds) : by_calls;
  Value coverage = Value::object({{"calls", by_calls}, {"time", by_time}});
  if (untimed.calls > 0)
    coverage["untimed"] = Value::object(
        {{"calls", untimed.calls}, {"covered", share(untimed_covered.calls, untimed.calls)}});
  return Value::object({{"coverage", std::move(coverage)},
                        {"expected_regret_seconds", regret},
                        {"seconds", all.seconds},
                        {"calls", all.calls},
                        {"shapes", all.shapes},
                        {"tiers", std::move(by_tier)},
                        {"to_tune", std::move(to_tune)}});
}

namespace {

struct WhatIfOptions {
  std::string device = "this";  // that recorded them
  KernelOptions kernels;
  std::vector<std::string> ops;
  double min_coverage = 0;  // percent of the time, and of calls without; below it: exit code 4
};

// Those of the device, and how many others there are. Throws Failure if there is none.
std::vector<RecordedCall> calls_of_device(const WhatIfOptions& options,
                                          const PersistentCache& store, Problems& problems,
                                          size_t& elsewhere) {
  Filter filter;
  filter.ops = options.ops;
  auto calls = recorded_calls(options.kernels, store, filter, problems);
  filter.device = options.device;
  elsewhere =
      std::erase_if(calls, [&](const RecordedCall& call) { return !matches(filter, call.id); });
  if (!calls.empty()) return calls;
  if (elsewhere == 0)
    throw Failure(exit_nothing,
                  "no matching calls are recorded in " + where_to_record(options.kernels));
  throw Failure(
      exit_nothing,
      fmt::format("no matching calls are recorded in {} by {}; {} by other devices (--device)",
                  shown_store(recorded_folder(options.kernels)), device_named(options.device),
                  elsewhere));
}

void show_tiers(const Value& document, Output& out) {
  const double all_calls = number(document, "calls"), all_seconds = number(document, "seconds");
  Table table({{"ANSWER"},
               {"SHAPES", right},
               {"CALLS", right},
               {"OF CALLS", right},
               {"TIME", right},
               {"OF TIME", right}});
  for (const Value& tier : document.find("tiers")->as_array())
    if (number(tier, "shapes") > 0)
      table.add({text(tier, "tier"), fmt::format("{:.0f}", number(tier, "shapes")),
                 fmt::format("{:.0f}", number(tier, "calls")),
                 percent_text(share(number(tier, "calls"), all_calls)),
                 time_text(number(tier, "seconds")),
                 percent_text(share(number(tier, "seconds"), all_seconds))});
  out.table(table);
}

void show_coverage(const Value& document, Output& out) {
  const Value& coverage = *document.find("coverage");
  const double seconds = number(document, "seconds");
  const double left = number(document, "expected_regret_seconds");
  out.line(fmt::format("covered: {} of the calls, {} of the time; left to save by tuning: {} of {}",
                       percent_text(number(coverage, "calls")),
                       percent_text(number(coverage, "time")),
                       left > 0 ? time_text(left) : "nothing", time_text(seconds)));
  const Value* const untimed = coverage.find("untimed");
  if (untimed != nullptr && seconds > 0)
    out.line(fmt::format("{:.0f} of the calls have no recorded time; covered of these: {}",
                         number(*untimed, "calls"), percent_text(number(*untimed, "covered"))));
}

void show_worst(const Value& document, Output& out) {
  constexpr size_t most = 10;
  Table worst({{"TO TUNE"},
               {"KEY"},
               {"CALLS", right},
               {"TIME", right},
               {"MAY SAVE", right},
               {"WHY"},
               {"CALL"}});
  const auto& to_tune = document.find("to_tune")->as_array();
  for (size_t i = 0; i < std::min(most, to_tune.size()); ++i)
    worst.add({text(to_tune[i], "op"), text(to_tune[i], "key"),
               fmt::format("{:.0f}", number(to_tune[i], "calls")),
               time_text(number(to_tune[i], "seconds")),
               percent_text(number(to_tune[i], "expected_gain")), text(to_tune[i], "why"),
               text(to_tune[i], "call")});
  if (worst.empty()) return;
  out.line();
  out.table(worst);
}

bool covers(const Value& document, double least) {
  const Value& coverage = *document.find("coverage");
  const Value* const untimed = coverage.find("untimed");
  return number(coverage, "time") >= least &&
         (untimed == nullptr || number(*untimed, "covered") >= least);
}

int what_if_verb(const WhatIfOptions& options, Output& out) {
  load_plugins(options.kernels);
  Problems problems;
  const auto store = existing_layers(options.kernels.store, problems);
  size_t elsewhere = 0;
  const auto calls = calls_of_device(options, *store, problems, elsewhere);
  Value document = coverage_document(calls, *store);
  document["device"] = device_named(options.device);
  document["other_devices"] = elsewhere;
  show_tiers(document, out);
  show_coverage(document, out);
  show_worst(document, out);
  if (elsewhere > 0)
    out.line(fmt::format("{} further recorded on other devices (--device)", elsewhere));
  document["problems"] = problems.to_value();
  out.document(document);
  return covers(document, options.min_coverage / 100) ? exit_ok : exit_unfit;
}

}  // namespace

void add_what_if(Verbs& verbs) {
  verbs.add<WhatIfOptions>(
      {"what-if", "Show which recorded calls a store covers, and what tuning the rest may save",
       "ejk what-if --min-coverage 90"},
      what_if_verb, [](const VerbLine& line, WhatIfOptions& to) {
        line.store(to.kernels.store);
        line.with_kernels(to.kernels);
        line.recorded_by(to.ops, to.device);
        line.number(
            "--min-coverage", to.min_coverage, "PERCENT", from_to(0, 100),
            "Exit with 4 if the store covers less than this of the recorded time, or of the "
            "calls without one");
      });
}

}  // namespace ejk::cli
