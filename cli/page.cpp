// SPDX-License-Identifier: Apache-2.0
#include "page.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include <ejk/names.h>

#include "output.h"
#include "report.h"

namespace ejk::cli {

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

namespace {

const Value& at(const Value& object, std::string_view name) { return *object.find(name); }
double number(const Value& object, std::string_view name) { return at(object, name).as_double(); }

// A figure with the very number of the document beside its short text.
std::string figure(const Value& object, std::string_view name, const std::string& text) {
  return fmt::format("<data class=\"{}\" value=\"{}\">{}</data>", name,
                     stable_json(at(object, name)), html(text));
}
std::string time_figure(const Value& object, std::string_view name) {
  return figure(object, name, time_text(number(object, name)));
}
std::string ratio_figure(const Value& object, std::string_view name) {
  return figure(object, name, ratio_text(number(object, name)));
}
std::string count_figure(const Value& object, std::string_view name) {
  return figure(object, name, std::to_string(at(object, name).as_int()));
}

std::string state_html(const Value& e) {
  const std::string& outcome = at(e, "outcome").as_string();
  const bool known = named<Outcome>(outcome).has_value();
  return fmt::format("<span class=\"state {}\">{}{}</span>", known ? outcome : "", html(outcome),
                     at(e, "complete").as_bool() ? "" : ", cut short");
}

// ---- the candidates of an entry: a line each, which unfolds under a pointer or finger

// Positions in per cent on a logarithmic scale that all points of a list fit on. An interval that
// does not is cut: one wild sample must not press all others together.
class Scale {
 public:
  explicit Scale(const Value::Array& timed) {
    for (const Value& m : timed)
      least_ = std::min(least_, number(m, "ratio")), most_ = std::max(most_, number(m, "ratio"));
    least_ /= 1.02, most_ *= 1.02;
  }
  double at(double ratio) const {
    return 100 * std::log(std::clamp(ratio, least_, most_) / least_) / std::log(most_ / least_);
  }

 private:
  double least_ = 1, most_ = 1;
};

std::string compile_text(const Value& m) {
  return m.find("compile_seconds") == nullptr
             ? ""
             : ", compiled in " + time_text(number(m, "compile_seconds"));
}

std::string timed_row(const Value& m, const Scale& scale) {
  const double ratio = number(m, "ratio");
  const double low = has_interval(m) ? number(m, "ratio_low") : ratio;
  const double high = has_interval(m) ? number(m, "ratio_high") : ratio;
  const std::string& status = at(m, "status").as_string();
  const std::string interval = has_interval(m) ? fmt::format(" ({:.3g} to {:.3g})", low, high) : "";
  return fmt::format(
      "<li tabindex=\"0\"{}><span>{}</span><span class=\"track\"><i style=\"left:{:.1f}%;"
      "width:{:.1f}%\"></i><b style=\"left:{:.1f}%\"></b></span><span class=\"what\"><code>{}"
      "</code> <small>{}, {}; {:.3g}{} of the incumbent's time, {}{}</small></span></li>\n",
      is(status, CandidateStatus::ok) ? " class=\"won\"" : "",
      html(time_text(number(m, "seconds"))), scale.at(low), scale.at(high) - scale.at(low),
      scale.at(ratio), html(config_text(at(m, "config"))),
      is(status, CandidateStatus::ok) ? "chosen" : html(status),
      html(time_text(number(m, "seconds"))), ratio, interval,
      count_text(static_cast<size_t>(at(m, "samples").as_int()), "sample", "samples"),
      compile_text(m));
}

// A candidate with a word in the place of its times.
std::string worded_row(std::string_view attributes, const std::string& time_html,
                       std::string_view word, const Value& config, const std::string& more) {
  return fmt::format(
      "<li tabindex=\"0\"{}><span>{}</span><span class=\"track\">{}</span><span "
      "class=\"what\"><code>{}</code> <small>{}</small></span></li>\n",
      attributes, time_html, html(word), html(config_text(config)), html(more));
}

std::string rejected_row(const Value& r) {
  const std::string& kind = at(r, "kind").as_string();
  return worded_row(" class=\"no\"", "-", kind.empty() ? "rejected" : kind, at(r, "config"),
                    "rejected: " + why_text(kind, at(r, "why").as_string()) + compile_text(r));
}

// The best ones, and all others folded away.
std::string candidates(const Value& e) {
  constexpr size_t shown_at_once = 12;
  const auto &timed = at(e, "timed").as_array(), &rejected = at(e, "rejected").as_array();
  const int64_t untried = at(e, "untried").as_int();
  const size_t count = timed.size() + rejected.size();
  if (count == 0) return "";
  const Scale scale(timed);
  std::string out = fmt::format(
      "<h3>Candidates</h3><p class=\"note\">{} timed, {} rejected, {} not tried. Ordered by their "
      "time over the incumbent's (the dashed line), measured side by side; logarithmic. Point at "
      "one, or tap it, for all that is known of it.</p><ol style=\"--one:{:.1f}%\">\n",
      timed.size(), rejected.size(), untried, scale.at(1));
  for (size_t i = 0; i < count; ++i) {
    if (i == shown_at_once)
      out += fmt::format("</ol><details><summary>{} more</summary><ol style=\"--one:{:.1f}%\">\n",
                         count - shown_at_once, scale.at(1));
    out += i < timed.size() ? timed_row(timed[i], scale) : rejected_row(rejected[i - timed.size()]);
  }
  return out + (count > shown_at_once ? "</ol></details>" : "</ol>");
}

// ---- the rest of an entry

std::string bar(std::string_view kind, double share) {
  return fmt::format(
      "<span class=\"bar\"><span class=\"{}\" style=\"width:{:.1f}%\"></span></span>", kind,
      100 * share);
}

// Heuristic and tuned as bars.
std::string comparison(const Value& e) {
  const double tuned = number(e, "seconds"), heuristic = number(e, "heuristic_seconds");
  if (!(tuned > 0) || !(heuristic > 0)) return "";
  const double longest = std::max(tuned, heuristic);
  return fmt::format(
      "<div class=\"pair\"><span>heuristic</span>{}<span>{}</span><span>tuned</span>{}<span>{}"
      "</span></div>",
      bar("guess", heuristic / longest), html(time_text(heuristic)), bar("tuned", tuned / longest),
      html(time_text(tuned)));
}

std::string facts(const Value& e) {
  std::string out = "<dl>";
  const auto add = [&](std::string_view name, const std::string& value) {
    out += fmt::format("<div><dt>{}</dt><dd>{}</dd></div>", name, value);
  };
  add("state", state_html(e));
  add("time", time_figure(e, "seconds"));
  if (e.find("compile_seconds") != nullptr) add("compiled in", time_figure(e, "compile_seconds"));
  add("heuristic", time_figure(e, "heuristic_seconds"));
  add("speedup", ratio_figure(e, "speedup") +
                     (has_interval(e) ? " <small>(" + ratio_figure(e, "speedup_low") + " to " +
                                            ratio_figure(e, "speedup_high") + ")</small>"
                                      : ""));
  add("noise",
      figure(e, "noise", has_interval(e) ? "\u00b1" + percent_text(number(e, "noise")) : "-"));
  add("samples", count_figure(e, "samples"));
  if (number(e, "tuning_seconds") > 0) add("tuning took", time_figure(e, "tuning_seconds"));
  return out + "</dl>";
}

// A parameter's values in their order, each with what it costs over the best one.
std::string values_html(const Value& parameter) {
  if (number(parameter, "worth") == 0) return "<small>all alike</small>";
  const auto& values = at(parameter, "values").as_array();
  double least = number(values.front(), "best_ratio");
  for (const Value& v : values) least = std::min(least, number(v, "best_ratio"));
  std::string out;
  for (const Value& v : values) {
    const double loss = number(v, "best_ratio") / least - 1;
    out += fmt::format("<span class=\"value{}\">{} <small>{}</small></span> ",
                       loss == 0 ? " best" : "", html(plain_text(at(v, "value"))),
                       loss == 0 ? "best" : html("+" + percent_text(loss)));
  }
  return out;
}

std::string parameters(const Value& list) {
  if (list.as_array().empty()) return "";
  std::string out =
      "<h3>What each parameter is worth</h3><p class=\"note\">How much slower the best config is "
      "under the parameter's worst value than under its best one.</p><table><thead><tr><th>"
      "parameter<th>worth<th>by value</thead>";
  for (const Value& p : list.as_array())
    out += "<tr><td><code>" + html(at(p, "name").as_string()) + "</code><td>" +
           figure(p, "worth", percent_text(number(p, "worth"))) + "<td>" + values_html(p) + "\n";
  return out + "</table>";
}

std::string entry_html(size_t number_of_entry, const Value& e) {
  const Value& config = at(e, "config");
  return fmt::format(
             "<section id=\"entry-{}\"><h2>{} <small>{}</small></h2><p class=\"call\"><code>{}"
             "</code><br><small>{}</small></p>",
             number_of_entry, html(at(e, "op").as_string()), html(at(e, "key").as_string()),
             html(at(e, "call").as_string()), html(at(e, "device").as_string())) +
         facts(e) +
         (config.is_null()
              ? "<p>Every candidate was rejected.</p>"
              : "<p class=\"config\"><code>" + html(config_text(config)) + "</code></p>") +
         comparison(e) + candidates(e) + parameters(at(e, "parameters")) +
         "<p><a href=\"#top\">to the top</a></p></section>\n";
}

// ---- above the entries

std::string gains_html(const Value& gains) {
  if (gains.as_array().empty()) return "";
  std::string out = "<div id=\"gains\"><h2>Largest gains</h2><ul>";
  for (const Value& g : gains.as_array())
    out += fmt::format(
        "<li><a href=\"#entry-{}\">{}</a> <strong>{}</strong> <span class=\"times\">{} &rarr; {}"
        "</span>{}<small>{}</small></li>\n",
        at(g, "entry").as_int(), html(at(g, "op").as_string()), ratio_figure(g, "speedup"),
        time_figure(g, "heuristic_seconds"), time_figure(g, "seconds"),
        bar("tuned", number(g, "seconds") / number(g, "heuristic_seconds")),
        html(at(g, "call").as_string()));
  return out + "</ul></div>\n";
}

std::string coverage_html(const Value& coverage) {
  if (coverage.is_null()) return "";
  std::string out =
      "<div id=\"recorded\"><h2>Recorded calls</h2><p>Covered: " +
      figure(at(coverage, "coverage"), "calls",
             percent_text(number(at(coverage, "coverage"), "calls"))) +
      " of the calls, " +
      figure(at(coverage, "coverage"), "time",
             percent_text(number(at(coverage, "coverage"), "time"))) +
      " of the time. Left to save by tuning: " + time_figure(coverage, "expected_regret_seconds") +
      " of " + time_figure(coverage, "seconds") +
      ".</p><table><thead><tr><th>answer<th>shapes<th>calls<th>time</thead>";
  for (const Value& tier : at(coverage, "tiers").as_array())
    if (at(tier, "shapes").as_int() > 0)
      out += "<tr><td>" + html(at(tier, "tier").as_string()) + "<td>" +
             count_figure(tier, "shapes") + "<td>" + count_figure(tier, "calls") + "<td>" +
             time_figure(tier, "seconds") + "\n";
  return out + "</table></div>\n";
}

// A table for each device.
std::string entries_html(const Value::Array& entries) {
  std::string out = "<div id=\"entries\"><h2>Entries</h2>";
  for (size_t i = 0; i < entries.size(); ++i) {
    const Value& e = entries[i];
    const std::string& device = at(e, "device").as_string();
    if (i == 0 || device != at(entries[i - 1], "device").as_string())
      out += (i == 0 ? "" : "</table>") + fmt::format("<h3>{}</h3>", html(device)) +
             "<table class=\"list\"><thead><tr><th>op<th>speedup<th>time<th>state<th>call</thead>";
    out +=
        fmt::format("<tr><td><a href=\"#entry-{}\">{}</a><td>{}<td>{}<td>{}<td><small>{}</small>\n",
                    i, html(at(e, "op").as_string()), ratio_figure(e, "speedup"),
                    time_figure(e, "seconds"), state_html(e), html(at(e, "call").as_string()));
  }
  return out + "</table></div>\n";
}

// ---- what is being tuned

// The best time over the time spent, both from their beginning: the lower, the better.
std::string progress_plot(const Value::Array& history) {
  if (history.size() < 2) return "";
  double last = 0, most = 0;
  for (const Value& point : history)
    last = std::max(last, number(point, "elapsed")),
    most = std::max(most, number(point, "seconds"));
  std::string points;
  double y = 0;
  for (const Value& point : history) {
    const double x = last > 0 ? 300 * number(point, "elapsed") / last : 0;
    if (!points.empty()) points += fmt::format("{:.1f},{:.1f} ", x, y);
    y = 96 - 90 * number(point, "seconds") / most;
    points += fmt::format("{:.1f},{:.1f} ", x, y);
  }
  return fmt::format(
      "<svg viewBox=\"0 0 300 100\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"Best "
      "time so far: from {} to {}\"><polyline points=\"{}\"/></svg>",
      html(time_text(number(history.front(), "seconds"))),
      html(time_text(number(history.back(), "seconds"))), points);
}

std::string live_row(const Value& m, size_t place) {
  const auto status = named<LiveStatus>(at(m, "status").as_string()).value_or(LiveStatus::racing);
  const std::string_view kind = status == LiveStatus::best       ? " class=\"won\""
                                : status == LiveStatus::rejected ? " class=\"no\""
                                                                 : "";
  return worded_row(fmt::format(" id=\"candidate-{}\"{}", place, kind), time_figure(m, "seconds"),
                    at(m, "status").as_string(), at(m, "config"), at(m, "why").as_string());
}

std::string call_now(const Value& call) {
  std::string out =
      fmt::format("<h2>{} <small>{}</small></h2><p class=\"call\"><code>{}</code></p>",
                  html(at(call, "op").as_string()), html(at(call, "key").as_string()),
                  html(at(call, "call").as_string()));
  const double all = std::max(1., number(call, "candidates"));
  out += fmt::format(
      "<progress max=\"{:.0f}\" value=\"{:.0f}\" aria-label=\"candidates tried\"></progress>"
      "<p class=\"figures\"><span>{} of {} tried</span><span>{} rejected</span><span>{} racing, "
      "round {}</span><span>best {}</span><span>{} the heuristic's speed</span><span>at most {} "
      "left</span></p>",
      all, std::min(all, number(call, "tried")), count_figure(call, "tried"),
      count_figure(call, "candidates"), count_figure(call, "rejected"),
      count_figure(call, "racing"), count_figure(call, "round"), time_figure(call, "best_seconds"),
      ratio_figure(call, "speedup"), time_figure(call, "remaining"));
  out += progress_plot(at(call, "history").as_array());
  const auto& list = at(call, "list").as_array();
  if (list.empty()) return out;
  out += "<h3>Candidates</h3><ol>\n";
  std::vector<size_t> order(list.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  const auto rank = [&](size_t i) {
    return named<LiveStatus>(at(list[i], "status").as_string()).value_or(LiveStatus::racing);
  };
  std::ranges::stable_sort(order, {}, rank);
  for (const size_t i : order) out += live_row(list[i], i);
  out += "</ol>";
  if (const int64_t more = at(call, "not_listed").as_int(); more > 0)
    out += fmt::format("<p class=\"note\">... and {} more.</p>", more);
  return out;
}

constexpr std::string_view head_and_style = R"(<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,"><style>
:root{--text:#1c2329;--back:#fff;--pale:#57646d;--line:#d9e0e4;--card:#f3f6f8;--good:#0a7d4b;
--plain:#8fa3b0;--bad:#b3261e;--link:#0b5cad}
@media(prefers-color-scheme:dark){:root{--text:#e3e9ed;--back:#14191d;--pale:#9fb0bb;--line:#34414a;
--card:#1d252b;--good:#35b57c;--plain:#6d818e;--bad:#ff8a80;--link:#8ec7ff}}
*{box-sizing:border-box}
body{font:15px/1.45 system-ui,sans-serif;max-width:64rem;margin:0 auto;padding:0 .9rem 3rem;
color:var(--text);background:var(--back);overflow-wrap:anywhere}
a{color:var(--link)}
h1{margin:1.2rem 0 .8rem;font-size:1.6rem}
h2{margin:1.6rem 0 .4rem;font-size:1.25rem}
h3{margin:1.2rem 0 .3rem;font-size:1rem}
p{margin:.4rem 0}
small,.note,th,dt{color:var(--pale);font-weight:400}
small,.note{font-size:.87rem}
code{font:.87rem/1.4 ui-monospace,monospace}
data,.state,th{white-space:nowrap}
section{border-top:1px solid var(--line);margin-top:2rem}
.cards,dl{display:grid;grid-template-columns:repeat(auto-fill,minmax(8.2rem,1fr));gap:.5rem;
margin:.6rem 0;padding:0}
.cards div,dl div{background:var(--card);border-radius:.4rem;padding:.45rem .6rem}
.cards b{display:block;font-size:1.35rem;font-weight:600}
dt{font-size:.8rem}
dd{margin:0}
.config{background:var(--card);border-radius:.4rem;padding:.45rem .6rem}
table{border-collapse:collapse;width:100%}
td,th{padding:.3rem .8rem .3rem 0;text-align:left;vertical-align:top}
td{border-top:1px solid var(--line)}
.list td:nth-child(5),.list th:nth-child(5){width:100%;padding-right:0}
.list td:first-child{min-width:10rem}
.state{font-size:.87rem}
.state.tuned{color:var(--good)}
.state.unresolved{color:var(--pale)}
.state.failed,.no .track{color:var(--bad)}
ul,ol{list-style:none;margin:.4rem 0;padding:0}
#gains li{margin:.7rem 0}
#gains strong{color:var(--good);font-size:1.15rem;margin:0 .3rem}
.bar{display:block;height:.55rem;background:var(--plain);border-radius:.2rem;margin:.2rem 0;
overflow:hidden}
.bar span{display:block;height:100%}
.pair .bar{background:none;height:.9rem;margin:.25rem 0}
.bar .guess{background:var(--plain)}
.bar .tuned{background:var(--good)}
.pair{display:grid;grid-template-columns:auto 1fr auto;gap:0 .7rem;max-width:40rem;margin:.6rem 0}
ol li{position:relative;display:grid;grid-template-columns:4.8rem minmax(6rem,2fr) 3fr;gap:.6rem;
align-items:center;border-radius:.2rem;cursor:default;line-height:1.5rem;font-size:.87rem}
ol li:hover,ol li:focus{background:var(--card)}
ol li>:first-child{text-align:right}
.track{position:relative;height:1.5rem}
.track i,.track b{position:absolute;top:50%;background:var(--plain)}
.track i{height:1px}
.track b{width:.5rem;height:.5rem;border-radius:50%;margin:-.25rem}
.track:has(b)::before{content:"";position:absolute;left:var(--one);height:100%;
border-left:1px dashed var(--pale)}
.won .track i,.won .track b{background:var(--good)}
.won{font-weight:600}
.what{overflow:hidden;white-space:nowrap;text-overflow:ellipsis}
li:hover .what,li:focus .what{position:absolute;z-index:1;top:100%;left:0;right:0;white-space:normal;
pointer-events:none;background:var(--back);border:1px solid var(--plain);border-radius:.4rem;
padding:.4rem .6rem;line-height:1.4;font-weight:400;box-shadow:0 .2rem .8rem #0004}
li:hover .what small,li:focus .what small{display:block}
.value{display:inline-block;margin-right:.8rem}
.value.best{font-weight:600}
#now .figures{display:flex;flex-wrap:wrap;gap:.2rem 1.2rem;margin:.4rem 0}
#now svg{display:block;width:100%;height:7rem;margin:.4rem 0;background:var(--card);border-radius:.4rem}
#now polyline{fill:none;stroke:var(--good);stroke-width:2;vector-effect:non-scaling-stroke}
#now progress{width:100%;accent-color:var(--good)}
#gone{background:var(--bad);color:var(--back);padding:.4rem .6rem;border-radius:.4rem}
a:focus-visible,summary:focus-visible,li:focus-visible{outline:2px solid var(--link)}
summary{cursor:pointer;color:var(--link);padding:.3rem 0}
@media(max-width:40rem){
.list thead{display:none}
.list,.list tbody{display:block}
.list tr{display:grid;grid-template-columns:auto auto 1fr;gap:.1rem 1rem;padding:.5rem 0;
border-top:1px solid var(--line)}
.list td{border:0;padding:0;width:auto;min-width:0}
.list td:first-child,.list td:nth-child(5){grid-column:1/-1}
.list td:nth-child(2){font-weight:600}
ol li{grid-template-columns:4.4rem 1fr;line-height:1.9rem;padding-right:.3rem}
ol li .what{display:none}
ol li:hover .what,ol li:focus .what{display:block}
}
</style>
)";

}  // namespace

std::string report_html(const Value& document) {
  const Value& summary = at(document, "summary");
  std::string out = "<div id=\"summary\"><div class=\"cards\">";
  const auto card = [&](const std::string& value, std::string_view name) {
    out += fmt::format("<div><b>{}</b>{}</div>", value, name);
  };
  card(count_figure(summary, "faster") + " of " + count_figure(summary, "entries"),
       "calls faster than the heuristic's guess, beyond the noise");
  card(ratio_figure(summary, "mean_speedup"), "mean speedup of all calls");
  card(count_figure(summary, "tuned"), "tuned");
  card(count_figure(summary, "unresolved"), "unresolved: too noisy to tell");
  card(count_figure(summary, "failed"), "failed: every candidate was rejected");
  card(figure(summary, "worst_noise", percent_text(number(summary, "worst_noise"))),
       "noise of the machine, at worst");
  out += "</div></div>\n" + gains_html(at(document, "gains")) +
         coverage_html(at(document, "recorded"));
  const auto& entries = at(document, "entries").as_array();
  out += entries_html(entries);
  for (size_t i = 0; i < entries.size(); ++i) out += entry_html(i, entries[i]);
  return out;
}

std::string now_html(const Value& state) {
  const auto stage = named<LiveStage>(at(state, "stage").as_string()).value_or(LiveStage::store);
  if (stage == LiveStage::store) {
    const Value* const problems = state.find("problems");
    std::string out;
    if (problems != nullptr)
      for (const Value& problem : problems->as_array())
        out += "<p class=\"note\">" + html(problem.as_string()) + "</p>";
    return out;
  }
  std::string out = "<p class=\"figures\">";
  out += fmt::format("<span>{}</span>", stage == LiveStage::tuning ? "Tuning." : "Tuned.");
  out += fmt::format("<span>{} of {} calls tuned, {} not</span><span>{} so far</span>",
                     count_figure(state, "done"), count_figure(state, "planned"),
                     count_figure(state, "skipped"), time_figure(state, "elapsed"));
  if (stage == LiveStage::tuning)
    out += fmt::format("<span>about {} left</span>", time_figure(state, "remaining"));
  out += "</p>";
  for (const Value& why : at(state, "problems").as_array())
    out += "<p class=\"note\">not tuned: " + html(why.as_string()) + "</p>";
  const Value& call = at(state, "now");
  return call.is_null() ? out : out + call_now(call);
}

std::string report_page(const Value& document) {
  return std::string(head_and_style) +
         R"(<meta http-equiv="Content-Security-Policy"
content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>ejk report</title></head><body id="top">
<h1>ejk report</h1>)" +
         report_html(document) + "</body></html>\n";
}

std::string live_page(const Value& state, const std::string& report, uint64_t version) {
  return std::string(head_and_style) +
         fmt::format(
             "<title>ejk</title><script src=\"/live.js\" defer></script></head><body id=\"top\">\n"
             "<h1>ejk</h1><p id=\"gone\" role=\"status\" hidden>The tool does not answer any more. "
             "This is its last state.</p><div id=\"now\">{}</div><div id=\"report\" "
             "data-version=\"{}\">{}</div></body></html>\n",
             now_html(state), version, report);
}

std::string_view live_script() {
  return R"("use strict";
// Keeps the page as the tool says it is. The server escapes whatever it quotes.
const now = document.getElementById("now");
const report = document.getElementById("report");
const gone = document.getElementById("gone");

// Where an element is: its id, or its number in the part of the page that has one.
function placeOf(element, kind) {
  if (element.id) return () => document.getElementById(element.id);
  const part = element.closest("section[id],div[id]").id;
  const number = [...document.getElementById(part).querySelectorAll(kind)].indexOf(element);
  return () => document.getElementById(part)?.querySelectorAll(kind)[number];
}

// New content keeps the focus and what was unfolded.
function put(element, html) {
  if (element.shown === html) return;
  element.shown = html;
  const reachable = "a,summary,[tabindex]";
  const active = document.activeElement;
  const focused = active && active !== element && element.contains(active)
    ? placeOf(active, reachable) : () => null;
  const open = [...element.querySelectorAll("details[open]")].map((d) => placeOf(d, "details"));
  element.innerHTML = html;
  for (const place of open) place()?.setAttribute("open", "");
  focused()?.focus({preventScroll: true});
}

async function ask(path) {
  const answer = await fetch(path, {cache: "no-store"});
  if (!answer.ok) throw new Error(path + ": " + answer.status);
  return answer;
}

async function refresh() {
  try {
    const said = await (await ask("/state")).json();
    put(now, said.html);
    if (String(said.report_version) !== report.dataset.version) {
      put(report, await (await ask("/report")).text());
      report.dataset.version = said.report_version;
    }
    gone.hidden = true;
    document.body.dataset.stage = said.state.stage;
  } catch (error) {
    gone.hidden = false;
  }
  setTimeout(refresh, gone.hidden ? 1000 : 5000);
}
refresh();
)";
}

}  // namespace ejk::cli
