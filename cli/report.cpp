// SPDX-License-Identifier: Apache-2.0
// ejk report: a store as one HTML file without scripts and without anything from the network.
// The page is made from the very document that --json prints.
#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include <ejk/device.h>
#include <ejk/names.h>

#include "calls.h"
#include "files.h"
#include "what_if.h"

namespace ejk::cli {
namespace {

// ---- the document ---------------------------------------------------------------------------

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

Value entry_report(const Held& held) {
  Value out = entry_summary(held);
  out.erase("file");
  const Evidence& e = held.entry.evidence;
  out["seconds_low"] = e.seconds_low;
  out["seconds_high"] = e.seconds_high;
  out["heuristic_seconds"] = e.heuristic_seconds;
  out["noise"] = e.noise;
  out["strategy"] = e.strategy;
  out["parameters"] = parameters_of(held.entry);
  Value timed = Value::array(), rejected = Value::array();
  size_t untried = 0;
  for (const Measurement& m : held.entry.candidates) {
    if (is(m.status, CandidateStatus::rejected))
      rejected.push_back(Value::object({{"config", m.config}, {"kind", m.kind}, {"why", m.why}}));
    else if (was_timed(m))
      timed.push_back(Value::object({{"config", m.config},
                                     {"status", m.status},
                                     {"seconds", m.seconds},
                                     {"ratio", m.ratio},
                                     {"ratio_low", m.ratio_low},
                                     {"ratio_high", m.ratio_high},
                                     {"samples", m.samples}}));
    else ++untried;
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
  return measured.find("samples")->as_int() >= least_samples;
}

Value summary_of(const Value& entries) {
  size_t tuned = 0, unresolved = 0, failed = 0, with_speedup = 0;
  double logs = 0, noise = 0;
  for (const Value& e : entries.as_array()) {
    const auto outcome = named<Outcome>(e.find("outcome")->as_string());
    ++(outcome == Outcome::tuned ? tuned : outcome == Outcome::failed ? failed : unresolved);
    const double speedup = e.find("speedup")->as_double();
    if (speedup > 0) logs += std::log(speedup), ++with_speedup;
    if (has_interval(e)) noise = std::max(noise, e.find("noise")->as_double());
  }
  return Value::object(
      {{"entries", entries.as_array().size()},
       {"tuned", tuned},
       {"unresolved", unresolved},
       {"failed", failed},
       {"mean_speedup", with_speedup > 0 ? std::exp(logs / static_cast<double>(with_speedup)) : 0},
       {"worst_noise", noise}});
}

// ---- the page -------------------------------------------------------------------------------

std::string html(std::string_view text) {
  std::string out;
  for (const char c : printable(text)) {
    if (c == '&') out += "&amp;";
    else if (c == '<') out += "&lt;";
    else if (c == '>') out += "&gt;";
    else if (c == '"') out += "&quot;";
    else out += c;
  }
  return out;
}

const Value& at(const Value& object, std::string_view name) { return *object.find(name); }
double number(const Value& object, std::string_view name) { return at(object, name).as_double(); }

// A figure with the very number of the document beside its short text.
std::string figure(const Value& object, std::string_view name, const std::string& text) {
  return fmt::format("<data class=\"{}\" value=\"{}\">{}</data>", name,
                     stable_json(at(object, name)), html(text));
}

// A line per candidate: its ratio to the incumbent with interval, on a logarithmic scale.
std::string distribution(const Value& timed) {
  const auto& list = timed.as_array();
  if (list.empty()) return "";
  constexpr size_t most = 60;
  const size_t count = std::min(list.size(), most);
  const auto low_of = [](const Value& m) {
    const double low = number(m, "ratio_low");
    return has_interval(m) && low > 0 && std::isfinite(low) ? low : number(m, "ratio");
  };
  const auto high_of = [](const Value& m) {
    const double high = number(m, "ratio_high");
    return has_interval(m) && high > 0 && std::isfinite(high) ? high : number(m, "ratio");
  };
  double least = 1, largest = 1;
  for (size_t i = 0; i < count; ++i)
    least = std::min(least, low_of(list[i])), largest = std::max(largest, high_of(list[i]));
  const double span = std::max(std::log(largest / least), 1e-3);
  const auto x = [&](double ratio) { return 40 + 540 * std::log(ratio / least) / span; };
  const double height = 10.0 * static_cast<double>(count) + 34;
  std::string out = fmt::format(
      "<svg viewBox=\"0 0 620 {:.0f}\" role=\"img\" aria-label=\"times of the candidates over the "
      "incumbent's\"><line class=\"one\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"4\" y2=\"{:.0f}\"/>",
      height, x(1), x(1), height - 22);
  for (size_t i = 0; i < count; ++i) {
    const Value& m = list[i];
    const double y = 12 + 10 * static_cast<double>(i);
    out += fmt::format(
        "<g class=\"{}\"><title>{}: {:.3f}{}</title><line x1=\"{:.1f}\" "
        "x2=\"{:.1f}\" "
        "y1=\"{:.0f}\" y2=\"{:.0f}\"/><circle cx=\"{:.1f}\" cy=\"{:.0f}\" r=\"3.2\"/></g>",
        is(at(m, "status").as_string(), CandidateStatus::ok) ? "won" : "other",
        html(config_text(at(m, "config"))), number(m, "ratio"),
        has_interval(m) ? fmt::format(" ({:.3f} to {:.3f})", low_of(m), high_of(m)) : "",
        x(low_of(m)), x(high_of(m)), y, y, x(number(m, "ratio")), y);
  }
  out += fmt::format(
      "<text x=\"40\" y=\"{0:.0f}\">{1:.3g}</text><text class=\"mid\" x=\"{2:.1f}\" y=\"{0:.0f}\">1"
      "</text><text class=\"end\" x=\"580\" y=\"{0:.0f}\">{3:.3g} x the incumbent's "
      "time</text></svg>",
      height - 8, least, x(1), largest);
  if (list.size() > count)
    out += fmt::format("<p>The best {} of {} that were timed.</p>", count, list.size());
  return out;
}

// Heuristic and tuned as bars; the tuned one with its interval.
std::string comparison(const Value& e) {
  const double tuned = number(e, "seconds"), heuristic = number(e, "heuristic_seconds");
  if (!(tuned > 0) || !(heuristic > 0)) return "";
  const double scale = 460 / std::max({tuned, heuristic, number(e, "seconds_high")});
  return fmt::format(
      "<svg viewBox=\"0 0 620 58\" role=\"img\" aria-label=\"heuristic against tuned\">"
      "<text x=\"0\" y=\"18\">heuristic</text><rect class=\"heuristic\" x=\"80\" y=\"6\" "
      "width=\"{:.1f}\" "
      "height=\"16\"/><text x=\"0\" y=\"46\">tuned</text><rect class=\"tuned\" x=\"80\" y=\"34\" "
      "width=\"{:.1f}\" height=\"16\"/>{}</svg>",
      scale * heuristic, scale * tuned,
      has_interval(e)
          ? fmt::format(
                "<line class=\"interval\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"42\" y2=\"42\"/>",
                80 + scale * number(e, "seconds_low"), 80 + scale * number(e, "seconds_high"))
          : "");
}

std::string parameters(const Value& list) {
  if (list.as_array().empty()) return "";
  std::string out =
      "<h3>What each parameter is worth</h3><p>How much slower the best config is under the "
      "parameter's worst value than under its best one.</p><table><tr><th>parameter<th>worth<th>"
      "best ratio by value</tr>";
  for (const Value& p : list.as_array()) {
    std::string values;
    for (const Value& v : at(p, "values").as_array())
      values += (values.empty() ? "" : ", ") + stable_json(at(v, "value")) +
                fmt::format(": {:.3f}", number(v, "best_ratio"));
    out += "<tr><td>" + html(at(p, "name").as_string()) + "<td>" +
           figure(p, "worth", percent_text(number(p, "worth"))) + "<td>" + html(values) + "</tr>";
  }
  return out + "</table>";
}

std::string rejections(const Value& list) {
  if (list.as_array().empty()) return "";
  std::string out =
      fmt::format("<details><summary>{} rejected</summary><table><tr><th>config<th>why</tr>",
                  list.as_array().size());
  for (const Value& r : list.as_array())
    out += "<tr><td>" + html(config_text(at(r, "config"))) + "<td>" +
           html(why_text(at(r, "kind").as_string(), at(r, "why").as_string())) + "</tr>";
  return out + "</table></details>";
}

std::string entry_html(size_t number_of_entry, const Value& e) {
  std::string out =
      fmt::format("<section id=\"entry-{}\"><h2>{} <small>{}</small></h2><p>{}<br>{}</p>",
                  number_of_entry, html(at(e, "op").as_string()), html(at(e, "key").as_string()),
                  html(at(e, "call").as_string()), html(at(e, "device").as_string()));
  out += fmt::format(
      "<table><tr><th>outcome<th>config<th>time<th>heuristic<th>speedup<th>noise<th>samples</tr>"
      "<tr><td>{}<td>{}<td>{}<td>{}<td>{}{}<td>{}<td>{}</tr></table>",
      html(at(e, "outcome").as_string()), html(config_text(at(e, "config"))),
      figure(e, "seconds", time_text(number(e, "seconds"))),
      figure(e, "heuristic_seconds", time_text(number(e, "heuristic_seconds"))),
      figure(e, "speedup", ratio_text(number(e, "speedup"))),
      has_interval(e)
          ? " <small>(" + figure(e, "speedup_low", ratio_text(number(e, "speedup_low"))) + " to " +
                figure(e, "speedup_high", ratio_text(number(e, "speedup_high"))) + ")</small>"
          : "",
      figure(e, "noise",
             noise_text(number(e, "noise"), static_cast<int>(at(e, "samples").as_int()))),
      figure(e, "samples", std::to_string(at(e, "samples").as_int())));
  if (!at(e, "complete").as_bool())
    out += "<p>Cut short: the tuning goes on where that is allowed.</p>";
  out += comparison(e);
  if (!at(e, "timed").as_array().empty())
    out += "<h3>Candidates</h3>" + distribution(at(e, "timed"));
  out += parameters(at(e, "parameters")) + rejections(at(e, "rejected"));
  return out + "</section>\n";
}

std::string coverage_html(const Value& coverage) {
  if (coverage.is_null()) return "";
  std::string out = "<div id=\"recorded\"><h2>Recorded calls</h2><p>Covered: " +
                    figure(at(coverage, "coverage"), "calls",
                           percent_text(number(at(coverage, "coverage"), "calls"))) +
                    " of the calls, " +
                    figure(at(coverage, "coverage"), "time",
                           percent_text(number(at(coverage, "coverage"), "time"))) +
                    " of the time. Expected regret: " +
                    figure(coverage, "expected_regret_seconds",
                           time_text(number(coverage, "expected_regret_seconds"))) +
                    " of " + figure(coverage, "seconds", time_text(number(coverage, "seconds"))) +
                    ".</p><table><tr><th>answer<th>shapes<th>calls<th>time</tr>";
  for (const Value& tier : at(coverage, "tiers").as_array())
    if (at(tier, "shapes").as_int() > 0)
      out += "<tr><td>" + html(at(tier, "tier").as_string()) + "<td>" +
             figure(tier, "shapes", std::to_string(at(tier, "shapes").as_int())) + "<td>" +
             figure(tier, "calls", std::to_string(at(tier, "calls").as_int())) + "<td>" +
             figure(tier, "seconds", time_text(number(tier, "seconds"))) + "</tr>";
  return out + "</table></div>\n";
}

constexpr std::string_view head = R"(<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>ejk report</title><link rel="icon" href="data:,"><style>
body{font:15px/1.45 system-ui,sans-serif;max-width:60rem;margin:0 auto;padding:0 .8rem;
color:#1c2329;background:#fff}
section{border-top:1px solid #cdd5da;margin-top:1.6rem}
table{border-collapse:collapse;display:block;overflow-x:auto;max-width:100%}
td,th{padding:.2rem .7rem .2rem 0;text-align:left;vertical-align:top}
th{font-weight:600;color:#57646d}
small{color:#57646d;font-weight:400}
p,h2{overflow-wrap:anywhere}
data{white-space:nowrap}
svg{width:100%;height:auto;max-width:40rem;display:block;font:11px system-ui,sans-serif;
fill:#1c2329}
.one,.interval{stroke:#1c2329}
.one{stroke-dasharray:3 3}
.other line{stroke:#8fa3b0}
.other circle,.heuristic{fill:#8fa3b0}
.won line{stroke:#0a7d4b}
.won circle,.tuned{fill:#0a7d4b}
.mid{text-anchor:middle}
.end{text-anchor:end}
@media(prefers-color-scheme:dark){
body{background:#14191d;color:#e3e9ed}
a{color:#8ec7ff}
svg{fill:#e3e9ed}
.one,.interval{stroke:#e3e9ed}
th,small{color:#9fb0bb}
section{border-color:#34414a}
}
</style></head><body>
)";

std::string page(const Value& document) {
  const Value& summary = at(document, "summary");
  const auto count = [&](const char* name) {
    return figure(summary, name, std::to_string(at(summary, name).as_int()));
  };
  std::string out(head);
  out += "<h1>ejk report</h1><div id=\"summary\"><p>" + count("entries") +
         " entries: " + count("tuned") + " tuned, " + count("unresolved") + " unresolved, " +
         count("failed") + " failed. Mean speedup over the heuristic: " +
         figure(summary, "mean_speedup", ratio_text(number(summary, "mean_speedup"))) +
         ". Noise of the machine while measuring, at worst: " +
         figure(summary, "worst_noise", percent_text(number(summary, "worst_noise"))) +
         ".</p></div>\n";
  out += coverage_html(at(document, "recorded"));
  out += "<div id=\"entries\"><h2>Entries</h2><table><tr><th>op<th>call<th>time<th>speedup</tr>";
  const auto& entries = at(document, "entries").as_array();
  for (size_t i = 0; i < entries.size(); ++i)
    out += fmt::format("<tr><td><a href=\"#entry-{}\">{}</a><td>{}<td>{}<td>{}</tr>", i,
                       html(at(entries[i], "op").as_string()),
                       html(at(entries[i], "call").as_string()),
                       figure(entries[i], "seconds", time_text(number(entries[i], "seconds"))),
                       figure(entries[i], "speedup", ratio_text(number(entries[i], "speedup"))));
  out += "</table></div>\n";
  for (size_t i = 0; i < entries.size(); ++i) out += entry_html(i, entries[i]);
  return out + "</body></html>\n";
}

}  // namespace

int report_verb(const ReportOptions& options, Output& out) {
  Problems problems;
  const auto entries = read_entries(store_paths(options.kernels.store), options.filter, problems);
  Value list = Value::array();
  for (const Held& held : entries)
    if (!held.hidden) list.push_back(entry_report(held));
  if (list.as_array().empty())
    throw Failure(exit_nothing, "there are no such entries to report in " +
                                    store_path(options.kernels.store) +
                                    "; `ejk ls` lists what is there");
  load_plugins(options.kernels);
  const auto calls = recorded_calls(options.kernels, options.filter, problems);
  Value recorded;
  if (!calls.empty())
    recorded = coverage_document(calls, *open_layers(options.kernels.store, true, problems));
  Value summary = summary_of(list);
  const Value document = Value::object({{"file", options.file},
                                        {"summary", std::move(summary)},
                                        {"recorded", std::move(recorded)},
                                        {"entries", std::move(list)},
                                        {"problems", problems.to_value()}});
  write_whole(options.file, page(document));
  out.line("report of " +
           count_text(at(document, "entries").as_array().size(), "entry", "entries") +
           " written to " + options.file);
  out.document(document);
  return exit_ok;
}

}  // namespace ejk::cli
