// SPDX-License-Identifier: Apache-2.0
// ejk show: one entry with its evidence and every candidate's measurement.
#include <algorithm>

#include <fmt/format.h>

#include <ejk/device.h>
#include <ejk/invocation.h>
#include <ejk/names.h>

#include "platform/here.h"
#include "verbs.h"

namespace ejk::cli {
namespace {

struct ShowOptions {
  std::string store;
  Filter filter;
  int candidates = 20;  // at most so many; 0: all
};

using enum Table::Align;

using Facts = std::vector<std::pair<std::string, std::string>>;

std::string or_dash(const std::string& text) { return text.empty() ? "-" : text; }

// What the program of the chosen config took to compile; 0: it has none.
double compile_seconds(const Entry& entry) {
  for (const Measurement& m : entry.candidates)
    if (is(m.status, CandidateStatus::ok)) return m.compile_seconds;
  return 0;
}

void add_evidence(const Entry& entry, Facts& to) {
  const Evidence& e = entry.evidence;
  to.emplace_back("time", interval_text(time_text(e.seconds), time_text(e.seconds_low),
                                        time_text(e.seconds_high), e.samples));
  if (const double compiled = compile_seconds(entry); compiled > 0)
    to.emplace_back("compiled in", time_text(compiled));
  to.emplace_back("heuristic", time_text(e.heuristic_seconds));
  to.emplace_back("speedup", interval_text(ratio_text(e.speedup), ratio_text(e.speedup_low),
                                           ratio_text(e.speedup_high), e.samples));
  to.emplace_back("noise", noise_text(e.noise, e.samples));
  to.emplace_back("samples", std::to_string(e.samples) + (e.complete ? "" : " (cut short)"));
  to.emplace_back(
      "how", fmt::format("{}, clock {}, caches {}, first runs {}, data {}", or_dash(e.strategy),
                         or_dash(e.clock), or_dash(e.cache), or_dash(e.guard), or_dash(e.data)));
  to.emplace_back("when", or_dash(e.time) + " by " +
                              (e.library.empty() ? "an unknown version" : "version " + e.library));
}

void show_candidates(const Entry& entry, int most, Output& out) {
  if (entry.candidates.empty()) return;
  std::vector<const Measurement*> sorted;
  for (const Measurement& m : entry.candidates) sorted.push_back(&m);
  const auto rank = [](const Measurement& m) {
    return named<CandidateStatus>(m.status).value_or(CandidateStatus::rejected);
  };
  std::ranges::stable_sort(sorted, [&](const Measurement* a, const Measurement* b) {
    if (rank(*a) != rank(*b)) return rank(*a) < rank(*b);
    return a->ratio < b->ratio;
  });
  // Only programs of devices are compiled.
  const bool compiled =
      std::ranges::any_of(entry.candidates, [](const auto& m) { return m.compile_seconds > 0; });
  std::vector<Table::Column> columns = {
      {"STATUS"},         {"TIME", right}, {"RATIO", right}, {"INTERVAL", right},
      {"SAMPLES", right}, {"CONFIG"},      {"WHY"}};
  constexpr ptrdiff_t behind_time = 2;
  if (compiled) columns.insert(columns.begin() + behind_time, {"COMPILED IN", right});
  Table table(std::move(columns));
  const auto tone = [](const Measurement& m) {
    return is(m.status, CandidateStatus::ok)         ? Tone::good
           : is(m.status, CandidateStatus::rejected) ? Tone::bad
                                                     : Tone::plain;
  };
  const size_t count =
      most == 0 ? sorted.size() : std::min(sorted.size(), static_cast<size_t>(most));
  for (size_t i = 0; i < count; ++i) {
    const Measurement& m = *sorted[i];
    std::vector<Table::Cell> cells = {
        {m.status, tone(m)},
        time_text(m.seconds),
        m.ratio > 0 ? fmt::format("{:.3f}", m.ratio) : "-",
        m.ratio > 0 && m.samples >= min_samples
            ? fmt::format("{:.3f} to {:.3f}", m.ratio_low, m.ratio_high)
            : "-",
        std::to_string(m.samples),
        config_text(m.config),
        why_text(m.kind, m.why)};
    if (compiled) cells.insert(cells.begin() + behind_time, time_text(m.compile_seconds));
    table.add(std::move(cells));
  }
  out.line();
  out.table(table);
  if (count < sorted.size())
    out.line(fmt::format("... and {} more (--candidates 0 shows all)", sorted.size() - count));
}

void show_entry(const Held& held, int candidates, Output& out) {
  const Entry& e = held.entry;
  const Device* here = detail::device_here(e.id.device);
  Facts facts = {{"op", e.id.op},
                 {"key", e.id.key},
                 {"label", make_label(e.id.op, e.id.key)},
                 {"call", call_text(e.id.spec)},
                 {"device", e.id.device + (here != nullptr ? " (this machine)" : "")},
                 {"environment", config_text(e.environment) +
                                     (here != nullptr && e.environment != here->environment
                                          ? " (another one than now)"
                                          : "")},
                 {"outcome", std::string(outcome_name(e.outcome)) + ", " + e.provenance}};
  const Value* const heuristic = heuristic_of(e);
  const std::string change = heuristic == nullptr ? "" : change_text(*heuristic, e.config);
  const bool same = heuristic != nullptr && change.empty();
  facts.emplace_back("config",
                     config_text(e.config) + (same ? std::string(", ") + as_the_heuristic : ""));
  if (!change.empty()) facts.emplace_back("differs", change);
  add_evidence(e, facts);
  facts.emplace_back("file", (held.file.empty() ? held.where : held.file) +
                                 (held.other_environment ? " (one of this environment answers)"
                                  : held.hidden          ? " (hidden by a layer in front)"
                                                         : ""));
  out.facts(facts);
  show_candidates(e, candidates, out);
}

int show_verb(const ShowOptions& options, Output& out) {
  check_key(options.filter.key);
  Problems problems;
  const auto entries = read_entries(stores_to_read(options.store), options.filter, problems);
  if (entries.empty()) throw Failure(exit_nothing, "no entry has " + key_text(options.filter.key));
  Value list = Value::array();
  for (const Held& held : entries) {
    if (!list.as_array().empty()) out.line();
    show_entry(held, options.candidates, out);
    Value document = entry_to_document(held.entry);
    document["where"] = held.where;
    document["file"] = held.file;
    document["hidden"] = held.hidden;
    list.push_back(std::move(document));
  }
  out.document(Value::object({{"entries", std::move(list)}, {"problems", problems.to_value()}}));
  return exit_ok;
}

}  // namespace

void add_show(Verbs& verbs) {
  verbs.add<ShowOptions>({"show", "Show an entry: config, evidence, every candidate",
                          "ejk show matmul:1a2b --candidates 5"},
                         show_verb, [](const VerbLine& line, ShowOptions& to) {
                           line.key_of_entry(to.filter.key);
                           line.store(to.store);
                           line.filter(to.filter);
                           line.number("--candidates", to.candidates, "N", at_least(0),
                                       "Show at most so many candidates; 0: all")
                               .shows_default();
                         });
}

}  // namespace ejk::cli
