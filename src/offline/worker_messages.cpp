// SPDX-License-Identifier: Apache-2.0
#include "offline/worker_messages.h"

#include <algorithm>
#include <cmath>

#include <ejk/error.h>
#include <ejk/invocation.h>
#include <ejk/worker.h>

namespace ejk::detail {
namespace {

double number_in(const Value& answer, std::string_view name) {
  const Value* found = answer.find(name);
  const double number = found != nullptr && found->is_number() ? found->as_double() : 0;
  return std::isfinite(number) && number > 0 ? number : 0;
}

// The spec of the call whatever the class of its config must be; nullopt if it names no class.
std::optional<std::string> spec_without_numerics(const std::string& text) {
  Value spec = parse_json(text);
  if (!spec.is_object() || spec.find("numerics") == nullptr) return std::nullopt;
  spec.erase("numerics");
  return stable_json(spec);
}

// A record from before outputs counted is tuned under the key that its call has now.
bool is_of(const std::string& spec, const RecordedCall& call) {
  return !call.id.spec.empty() &&
         (spec == call.id.spec || spec_without_outputs(spec) == call.id.spec);
}

bool has_key_of(const Entry& entry, const RecordedCall& call, Numerics numerics) {
  if (numerics == Numerics::any) return entry.id.key == call.id.key || is_of(entry.id.spec, call);
  const auto spec = spec_without_numerics(entry.id.spec);
  return spec && is_of(*spec, call);
}

const Value& member(const Value& request, std::string_view name) {
  const Value* found = request.find(name);
  if (found == nullptr)
    throw Error(ErrorKind::parse, "the request has no member \"" + std::string(name) + "\"");
  return *found;
}

bool is_set(const Value& request, std::string_view name) {
  const Value* found = request.find(name);
  return found != nullptr && found->as_bool();
}

}  // namespace

Value answer_in(const std::string& line) {
  try {
    Value answer = parse_json(line);
    if (!text_in(answer, "event").empty()) return answer;
  } catch (const Error&) {
  }
  throw Rubbish{line};
}

std::string text_in(const Value& answer, std::string_view name) {
  const Value* found = answer.find(name);
  return found != nullptr && found->is_string() ? found->as_string() : "";
}

std::optional<WorkerEvent> event_in(const Value& answer) {
  return named<WorkerEvent>(text_in(answer, "event"));
}

uint64_t count_in(const Value& answer, std::string_view name) {
  constexpr double most = 1e18;
  return static_cast<uint64_t>(std::min(number_in(answer, name), most));
}

Value progress_to_document(const TuneProgress& p) {
  Value out = Value::object({{"event", name_of(WorkerEvent::progress)},
                             {"kind", name_of(p.kind)},
                             {"tried", p.tried},
                             {"candidates", p.candidates},
                             {"racing", p.racing},
                             {"rejected", p.rejected},
                             {"round", p.round},
                             {"best_seconds", p.best_seconds},
                             {"speedup", p.speedup},
                             {"elapsed", p.elapsed},
                             {"remaining", p.remaining}});
  if (p.clock) out["clock"] = name_of(*p.clock);
  if (p.config.is_null()) return out;
  out["config"] = p.config;
  if (p.seconds > 0) out["seconds"] = p.seconds;
  if (!p.message.empty()) out["message"] = p.message;
  return out;
}

bool ProgressNews::is_news(const TuneProgress& p) {
  constexpr std::chrono::milliseconds pause{100};
  if (p.kind != TuneProgress::Kind::round) return true;
  const auto now = std::chrono::steady_clock::now();
  return now >= next_ && (next_ = now + pause, true);
}

TuneProgress progress_in(const Value& answer) {
  TuneProgress p;
  p.kind = named<TuneProgress::Kind>(text_in(answer, "kind")).value_or(TuneProgress::Kind::round);
  if (const Value* config = answer.find("config")) p.config = *config;
  const Value* message = answer.find("message");
  if (message != nullptr && message->is_string()) p.message = message->as_string();
  p.tried = count_in(answer, "tried"), p.candidates = count_in(answer, "candidates");
  p.racing = count_in(answer, "racing"), p.rejected = count_in(answer, "rejected");
  p.round = static_cast<int>(std::min<uint64_t>(count_in(answer, "round"), 1'000'000'000));
  p.clock = named<ejk::Clock>(text_in(answer, "clock"));
  p.best_seconds = number_in(answer, "best_seconds"), p.speedup = number_in(answer, "speedup");
  p.seconds = number_in(answer, "seconds");
  p.elapsed = number_in(answer, "elapsed"), p.remaining = number_in(answer, "remaining");
  return p;
}

Entry entry_in(const Value& answer, const RecordedCall& call, bool backward, Numerics numerics) {
  try {
    const Value* document = answer.find("entry");
    Entry entry = entry_from_document(document == nullptr ? Value() : *document);
    const bool right_key = backward || has_key_of(entry, call, numerics);
    if (right_key && entry.id.op == call.id.op && entry.id.device == call.id.device) return entry;
  } catch (const Error&) {
  }
  throw Rubbish{to_json(answer)};
}

bool understands(const Value& ready, std::string_view member) {
  const Value* const known = ready.find("understands");
  if (known == nullptr || !known->is_array()) return false;
  return std::ranges::any_of(known->as_array(),
                             [&](const Value& name) { return name == Value(member); });
}

void throw_failure(const Value& answer) {
  const auto kind = named<ErrorKind>(text_in(answer, "kind"));
  throw Error(kind.value_or(ErrorKind::invalid_argument), text_in(answer, "message"));
}

Value request_to_document(const TuneRequest& request) {
  Value plugins = Value::array();
  for (const std::string& path : request.plugins) plugins.push_back(path);
  Value out = Value::object({{"protocol", worker_protocol},
                             {"request", request.number},
                             {"record", record_to_document(request.call)},
                             {"store", request.store},
                             {"budget_seconds", request.budget_seconds},
                             {"validate_backward", request.validate_backward},
                             {"retune", request.retune},
                             {"plugins", std::move(plugins)}});
  if (request.numerics != Numerics::any) out[numerics_member] = name_of(request.numerics);
  return out;
}

TuneRequest request_from_document(const Value& document) {
  TuneRequest out;
  out.call = record_from_document(member(document, "record"));
  out.store = member(document, "store").as_string();
  out.budget_seconds = member(document, "budget_seconds").as_double();
  if (std::isnan(out.budget_seconds))
    throw Error(ErrorKind::parse, "got a budget_seconds that is not a number");
  out.validate_backward = is_set(document, "validate_backward");
  if (const Value* const word = document.find(numerics_member)) {
    const auto numerics = named<Numerics>(word->as_string());
    if (!numerics)
      throw Error(ErrorKind::parse, "got " + std::string(numerics_member) + " " + to_json(*word) +
                                        "; expected \"any\" or \"same\"");
    out.numerics = *numerics;
  }
  out.retune = is_set(document, "retune");
  if (const Value* plugins = document.find("plugins"))
    for (const Value& path : plugins->as_array()) out.plugins.push_back(path.as_string());
  return out;
}

}  // namespace ejk::detail
