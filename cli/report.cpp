// SPDX-License-Identifier: Apache-2.0
// ejk report: a store as one HTML file without scripts and without anything from the network.
// The page is made from the very document that --json prints.
#include "report.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include <fmt/format.h>

#include <ejk/device.h>
#include <ejk/names.h>

#include "calls.h"
#include "files.h"
#include "page.h"
#include "verbs.h"
#include "what_if.h"

namespace ejk::cli {
namespace {

bool was_timed(const Measurement& m) { return m.ratio > 0 && std::isfinite(m.ratio); }

// By parameter and the text of its value.
using BestRatios = std::map<std::string, std::map<std::string, double>>;

// Parameters of nested configs are named as "forward.threads".
void add_parameters(const Value& config, double ratio, const std::string& prefix,
                    BestRatios& best) {
  for (const auto& [name, value] : config.as_object().members) {
    if (value.is_object()) {
      add_parameters(value, ratio, prefix + name + ".", best);
      continue;
    }
    const auto [it, added] = best[prefix + name].emplace(stable_json(value), ratio);
    if (!added) it->second = std::min(it->second, ratio);
  }
}

// What is lost by the worst value of a parameter if all others are chosen well: the best ratio
// under each of its values, and the largest of these over the smallest. Who left the race as slower
// has few samples, and counts with the least that they show.
Value parameters_of(const Entry& entry) {
  const auto winner =
      std::ranges::find(entry.candidates, name_of(CandidateStatus::ok), &Measurement::status);
  const double fastest = winner == entry.candidates.end() ? 0 : winner->ratio;
  BestRatios best;
  for (const Measurement& m : entry.candidates) {
    if (!was_timed(m) || !m.config.is_object()) continue;
    add_parameters(m.config,
                   is(m.status, CandidateStatus::slower) ? std::max(fastest, m.ratio_low) : m.ratio,
                   "", best);
  }
  Value out = Value::array();
  for (const auto& [name, values] : best) {
    if (values.size() < 2) continue;
    const auto [least, most] =
        std::ranges::minmax_element(values, {}, [](const auto& value) { return value.second; });
    Value list = Value::array();
    for (const auto& [value, ratio] : values)
      list.push_back(Value::object({{"value", parse_json(value)}, {"best_ratio", ratio}}));
    std::ranges::stable_sort(list.as_array(), {}, [](const Value& v) {
      const Value& value = *v.find("value");
      return value.is_number() ? value.as_double() : 0;
    });
    out.push_back(Value::object({{"name", name},
                                 {"worth", most->second / least->second - 1},
                                 {"values", std::move(list)}}));
  }
  auto& list = out.as_array();
  std::ranges::stable_sort(list, [](const Value& a, const Value& b) {
    return a.find("worth")->as_double() > b.find("worth")->as_double();
  });
  return out;
}

// What a candidate's program took to compile, beside what else is said of it. Only programs of
// devices are compiled.
Value with_compile_time(Value candidate, const Value& document) {
  const Value* seconds = document.find("compile_seconds");
  if (seconds != nullptr && seconds->is_number() && seconds->as_double() > 0)
    candidate["compile_seconds"] = seconds->as_double();
  return candidate;
}

}  // namespace

Value entry_report(const Held& held) {
  Value out = entry_summary(held);
  out.erase("file");
  const Evidence& e = held.entry.evidence;
  out["seconds_low"] = e.seconds_low;
  out["seconds_high"] = e.seconds_high;
  out["heuristic_seconds"] = e.heuristic_seconds;
  out["noise"] = e.noise;
  out["tuning_seconds"] = e.tuning_seconds;
  out["strategy"] = e.strategy;
  out["parameters"] = parameters_of(held.entry);
  Value timed = Value::array(), rejected = Value::array();
  size_t untried = 0;
  const Value document = entry_to_document(held.entry);
  for (size_t i = 0; i < held.entry.candidates.size(); ++i) {
    const Measurement& m = held.entry.candidates[i];
    const Value& written = document.find("candidates")->as_array()[i];
    if (is(m.status, CandidateStatus::rejected))
      rejected.push_back(with_compile_time(
          Value::object({{"config", m.config}, {"kind", m.kind}, {"why", m.why}}), written));
    else if (was_timed(m))
      timed.push_back(with_compile_time(Value::object({{"config", m.config},
                                                       {"status", m.status},
                                                       {"seconds", m.seconds},
                                                       {"ratio", m.ratio},
                                                       {"ratio_low", m.ratio_low},
                                                       {"ratio_high", m.ratio_high},
                                                       {"samples", m.samples}}),
                                        written));
    else ++untried;
    if (is(m.status, CandidateStatus::ok)) out = with_compile_time(std::move(out), written);
  }
  std::ranges::stable_sort(timed.as_array(), [](const Value& a, const Value& b) {
    return a.find("ratio")->as_double() < b.find("ratio")->as_double();
  });
  out["timed"] = std::move(timed);
  out["rejected"] = std::move(rejected);
  out["untried"] = untried;
  return out;
}

bool has_interval(const Value& measured) {
  return measured.find("samples")->as_int() >= min_samples;
}

namespace {

// More than the noise could have made. Few samples say enough if all of them are twice as fast.
bool is_faster(const Value& e) {
  const auto number = [&](std::string_view name) { return e.find(name)->as_double(); };
  if (!has_interval(e)) return number("samples") >= 2 && number("speedup_low") > 2;
  return number("speedup_low") > 1 && number("speedup") > 1 + number("noise");
}

// Of these the largest, with the place of each in the list of entries.
Value gains_of(const Value& entries) {
  constexpr size_t most = 5;
  Value out = Value::array();
  const auto& list = entries.as_array();
  for (size_t i = 0; i < list.size(); ++i) {
    if (!is_faster(list[i])) continue;
    Value gain = Value::object({{"entry", i}});
    for (const char* name :
         {"op", "key", "call", "device", "heuristic_seconds", "seconds", "speedup"})
      gain[name] = *list[i].find(name);
    out.push_back(std::move(gain));
  }
  auto& gains = out.as_array();
  std::ranges::stable_sort(gains, std::greater<>(),
                           [](const Value& g) { return g.find("speedup")->as_double(); });
  if (gains.size() > most) gains.resize(most);
  return out;
}

Value summary_of(const Value& entries) {
  size_t tuned = 0, unresolved = 0, failed = 0, faster = 0, with_speedup = 0;
  double logs = 0, noise = 0;
  for (const Value& e : entries.as_array()) {
    const auto outcome = named<Outcome>(e.find("outcome")->as_string());
    ++(outcome == Outcome::tuned ? tuned : outcome == Outcome::failed ? failed : unresolved);
    const double speedup = e.find("speedup")->as_double();
    if (speedup > 0) logs += std::log(speedup), ++with_speedup;
    if (is_faster(e)) ++faster;
    if (has_interval(e)) noise = std::max(noise, e.find("noise")->as_double());
  }
  return Value::object(
      {{"entries", entries.as_array().size()},
       {"tuned", tuned},
       {"unresolved", unresolved},
       {"failed", failed},
       {"faster", faster},
       {"mean_speedup", with_speedup > 0 ? std::exp(logs / static_cast<double>(with_speedup)) : 0},
       {"worst_noise", noise}});
}

}  // namespace

Value report_of(Value entries) {
  Value summary = summary_of(entries), gains = gains_of(entries);
  return Value::object({{"summary", std::move(summary)},
                        {"gains", std::move(gains)},
                        {"recorded", Value()},
                        {"entries", std::move(entries)}});
}

Value report_of_store(const Filter& filter, const KernelOptions& kernels, Problems& problems) {
  Value list = Value::array();
  for (const Held& held : read_entries(stores_to_read(kernels.store), filter, problems))
    if (!held.hidden) list.push_back(entry_report(held));
  Value out = report_of(std::move(list));
  const auto store = open_layers(kernels.store, true, problems);
  const auto calls = recorded_calls(kernels, *store, filter, problems);
  if (!calls.empty()) out["recorded"] = coverage_document(calls, *store);
  return out;
}

namespace {

struct ReportOptions {
  Filter filter;
  KernelOptions kernels;
  std::string file = "ejk-report.html";
};

int report_verb(const ReportOptions& options, Output& out) {
  Problems problems;
  load_plugins(options.kernels);
  Value document = report_of_store(options.filter, options.kernels, problems);
  const size_t count = document.find("entries")->as_array().size();
  if (count == 0)
    throw Failure(exit_nothing, "there are no such entries to report in " +
                                    store_name(options.kernels.store) +
                                    "; `ejk ls` lists what is there");
  document["file"] = options.file;
  document["problems"] = problems.to_value();
  write_whole(options.file, report_page(document));
  out.line("report of " + count_text(count, "entry", "entries") + " written to " + options.file);
  out.document(document);
  return exit_ok;
}

}  // namespace

void add_report(Verbs& verbs) {
  verbs.add<ReportOptions>(
      {"report", "Write a report of a store as one HTML file", "ejk report tuned.html --op matmul"},
      report_verb, [](const VerbLine& line, ReportOptions& to) {
        line.value("file", to.file, "FILE", "The HTML file").shows_default();
        line.store(to.kernels.store);
        line.filter(to.filter);
        line.recorded_in(to.kernels);
      });
}

}  // namespace ejk::cli
