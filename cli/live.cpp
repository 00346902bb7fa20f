// SPDX-License-Identifier: Apache-2.0
#include "live.h"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include <ejk/names.h>

#include "page.h"
#include "report.h"

namespace ejk::cli {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begun) {
  return std::chrono::duration<double>(Clock::now() - begun).count();
}

// The call that is being tuned.
struct CallNow {
  static constexpr size_t max_listed = 500, max_history = 500;
  struct Candidate {
    Value config;
    LiveStatus status = LiveStatus::racing;
    std::string why;
    double seconds = 0;
  };

  EntryId id;
  TuneProgress last;
  std::vector<Candidate> candidates;        // in the order in which they came
  std::map<std::string, size_t> by_config;  // their places
  std::optional<size_t> best;
  size_t not_listed = 0;
  Value history = Value::array();  // the best so far

  void take(const TuneProgress& p) {
    using Kind = TuneProgress::Kind;
    if (p.candidates == 0) {  // the worker is silent
      last.elapsed = p.elapsed, last.remaining = p.remaining;
      return;
    }
    last = p;
    last.op = last.key = last.message = {};  // which are those of the caller
    if (p.best_seconds > 0 && history.as_array().size() < max_history &&
        (history.as_array().empty() ||
         history.as_array().back().find("seconds")->as_double() != p.best_seconds))
      history.push_back(Value::object({{"elapsed", p.elapsed}, {"seconds", p.best_seconds}}));
    Candidate* const one = p.config.is_null() ? nullptr : candidate(p.config);
    if (one == nullptr) return;
    if (p.seconds > 0) one->seconds = p.seconds;
    if (p.kind == Kind::candidate && !p.message.empty())
      one->status = LiveStatus::rejected, one->why = p.message;
    if (p.kind == Kind::eliminated) one->status = LiveStatus::slower, one->why = p.message;
    if (p.kind != Kind::best && p.kind != Kind::finished) return;
    if (best && candidates[*best].status == LiveStatus::best)
      candidates[*best].status = LiveStatus::racing;
    best = static_cast<size_t>(one - candidates.data());
    one->status = LiveStatus::best;
    if (p.best_seconds > 0) one->seconds = p.best_seconds;
  }

  Value document() const {
    Value list = Value::array();
    for (const Candidate& c : candidates)
      list.push_back(Value::object({{"config", c.config},
                                    {"status", name_of(c.status)},
                                    {"why", c.why},
                                    {"seconds", c.seconds}}));
    return Value::object({{"op", id.op},
                          {"key", id.key},
                          {"call", call_text(id.spec)},
                          {"tried", last.tried},
                          {"candidates", last.candidates},
                          {"rejected", last.rejected},
                          {"racing", last.racing},
                          {"round", last.round},
                          {"clock", last.clock ? name_of(*last.clock) : ""},
                          {"best_seconds", last.best_seconds},
                          {"speedup", last.speedup},
                          {"elapsed", last.elapsed},
                          {"remaining", last.remaining},
                          {"history", history},
                          {"list", std::move(list)},
                          {"not_listed", not_listed}});
  }

 private:
  Candidate* candidate(const Value& config) {
    const auto [found, added] = by_config.try_emplace(stable_json(config), candidates.size());
    if (!added) return &candidates[found->second];
    if (candidates.size() == max_listed) {
      by_config.erase(found);
      ++not_listed;
      return nullptr;
    }
    candidates.push_back({config, LiveStatus::racing, "", 0});
    return &candidates.back();
  }
};

}  // namespace

std::optional<HttpAnswer> live_answer(const std::string& path, const LiveShown& shown) {
  constexpr const char *html_type = "text/html; charset=utf-8", *json_type = "application/json";
  if (path == "/")
    return HttpAnswer{html_type,
                      live_page(shown.state, report_html(*shown.report), shown.report_version)};
  if (path == "/live.js")
    return HttpAnswer{"text/javascript; charset=utf-8", std::string(live_script())};
  if (path == "/report") return HttpAnswer{html_type, report_html(*shown.report)};
  if (path == "/report.json") return HttpAnswer{json_type, strict_json(*shown.report, 1)};
  if (path == "/state")
    return HttpAnswer{json_type,
                      strict_json(Value::object({{"state", shown.state},
                                                 {"html", now_html(shown.state)},
                                                 {"report_version", shown.report_version}}),
                                  0)};
  return std::nullopt;
}

struct LiveTuning::State {
  State(size_t calls, double budget, PersistentCache& where)
      : planned(calls), budget_seconds(budget), store(where) {}

  const size_t planned;
  const double budget_seconds;
  PersistentCache& store;
  const Clock::time_point begun = Clock::now();
  std::mutex mutex;
  std::optional<CallNow> now;
  Value entries = Value::array();
  std::shared_ptr<const Value> report = std::make_shared<Value>(report_of(Value::array()));
  Value problems = Value::array();  // why calls were not tuned
  uint64_t version = 0;
  size_t done = 0;
  double spent = -1;                   // in all, once it is over
  std::unique_ptr<PageServer> server;  // the last one: its threads ask the others

  // At the pace of the calls so far.
  double remaining(double elapsed) const {
    const size_t over = done + problems.as_array().size();
    const double of_this = now ? now->last.remaining : 0;
    const size_t left = planned > over + 1 ? planned - over - 1 : 0;
    const double estimate =
        of_this + (over > 0 ? elapsed / static_cast<double>(over) * static_cast<double>(left) : 0);
    return budget_seconds > 0 ? std::clamp(budget_seconds - elapsed, 0., std::max(0., estimate))
                              : estimate;
  }

  LiveShown shown() {
    const std::lock_guard lock(mutex);
    const bool over = spent >= 0;
    const double elapsed = over ? spent : seconds_since(begun);
    const size_t skipped = problems.as_array().size();
    Value state = Value::object({{"stage", name_of(over ? LiveStage::finished : LiveStage::tuning)},
                                 {"done", done},
                                 {"planned", std::max(planned, done + skipped + (now ? 1 : 0))},
                                 {"skipped", skipped},
                                 {"elapsed", elapsed},
                                 {"remaining", over ? 0 : remaining(elapsed)},
                                 {"problems", problems},
                                 {"now", now ? now->document() : Value()}});
    return {std::move(state), report, version};
  }

  void add(const Entry& tuned) {
    // With its candidates, which are in the store.
    auto found = store.get(tuned.id, Detail::all, &tuned.environment);
    const std::lock_guard lock(mutex);
    now.reset(), ++done;
    entries.push_back(entry_report({found ? std::move(found->entry) : tuned, "", ""}));
    report = std::make_shared<Value>(report_of(entries));
    ++version;
  }

  void skip(const RecordedCall& call, const std::string& why) {
    const std::lock_guard lock(mutex);
    now.reset();
    problems.push_back(call_name(call.id.op, call.id.key) + ": " + why);
  }
};

LiveTuning::LiveTuning(const std::string& listen, size_t planned, double budget_seconds,
                       PersistentCache& store)
    : state_(std::make_unique<State>(planned, budget_seconds, store)) {
  state_->server = std::make_unique<PageServer>(
      listen,
      [s = state_.get()](const std::string& path) { return live_answer(path, s->shown()); });
}

LiveTuning::~LiveTuning() = default;

const std::string& LiveTuning::url() const { return state_->server->url(); }

Entry LiveTuning::tune(const RecordedCall& call, double budget_seconds,
                       const std::function<Entry()>& tune) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->now.emplace();
    state_->now->id = call.id;
    state_->now->last.remaining = budget_seconds;
  }
  try {
    Entry entry = tune();
    state_->add(entry);
    return entry;
  } catch (const std::exception& error) {
    state_->skip(call, error.what());
    throw;
  }
}

void LiveTuning::tell(const TuneProgress& progress) {
  const std::lock_guard lock(state_->mutex);
  if (state_->now) state_->now->take(progress);
}

void LiveTuning::finish() {
  const std::lock_guard lock(state_->mutex);
  state_->spent = seconds_since(state_->begun);
}

void wait_for_interrupt() {
  while (!StopOnInterrupt::requested()) ::poll(nullptr, 0, 200);
}

}  // namespace ejk::cli
