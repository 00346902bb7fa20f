// SPDX-License-Identifier: Apache-2.0
// ejk explain: what a call would run with here, and why. Of a recorded call whose kernel is known,
// the whole chain; of anything else, what the layers of the store hold.
#include <algorithm>
#include <utility>

#include <ejk/device.h>
#include <ejk/error.h>

#include "calls.h"
#include "platform/here.h"
#include "store/snapshot.h"
#include "verbs.h"

namespace ejk::cli {
namespace {

struct ExplainOptions {
  Filter filter;
  KernelOptions kernels;
};

struct LayerAnswer {
  const Held* held;
  bool answers;
  std::string why;
};

// `asked`: whether a layer in front was. One whose config does not fit hides those behind it, too.
LayerAnswer judge(const Held& held, bool& asked) {
  const Entry& e = held.entry;
  const Device* device = detail::device_here(e.id.device);
  if (device == nullptr) return {&held, false, "it is for another device, " + e.id.device};
  if (e.outcome == Outcome::failed) return {&held, false, "its tuning rejected every candidate"};
  if (std::exchange(asked, true)) return {&held, false, "a layer in front is asked"};
  std::string why = e.outcome == Outcome::unresolved
                        ? "the machine was too noisy to tell: the incumbent is used"
                        : "it is used";
  std::string misfit;
  if (const ConfigType* type = registered_config(e.id.op, device->platform); type == nullptr)
    why += " if its kernel accepts it (the kernel is not known here; pass --plugin LIB to check)";
  else if (type->from_value(e.config, misfit) == nullptr)
    return {&held, false, "its config does not fit " + std::string(type->name) + ": " + misfit};
  if (!e.evidence.complete) why += "; its tuning was cut short and goes on where that is allowed";
  if (e.environment != device->environment)
    why += "; it was measured in another environment (" + config_text(e.environment) + ")";
  return {&held, true, why};
}

// What happens to a call without a stored answer.
std::string without_answer(const AutotunePolicy& policy) {
  if (policy.allow_autotune) return "it would be tuned, or run with the heuristic";
  if (policy.allow_heuristics) return "it would run with the heuristic";
  return "EJKERNEL_AUTOTUNE_POLICY=frozen makes that an error";
}

// Nothing else is asked where a run has a snapshot.
std::vector<Held> entries_of(Store& snapshot, const Filter& filter) {
  std::vector<Held> out;
  snapshot.for_each("", [&](const Entry& entry) {
    if (matches(filter, entry.id)) out.push_back({entry, snapshot.where(), ""});
    return true;
  });
  return out;
}

Value explain_stored(const std::vector<Held>& entries, const std::string& otherwise, Output& out) {
  Value list = Value::array();
  for (size_t i = 0; i < entries.size();) {
    const EntryId& id = entries[i].entry.id;
    out.line(call_name(id.op, id.key) + "  " + call_text(id.spec));
    Value layers = Value::array();
    bool asked = false, answered = false;
    Value config;
    for (; i < entries.size() && entries[i].entry.id.op == id.op &&
           entries[i].entry.id.key == id.key && entries[i].entry.id.spec == id.spec &&
           entries[i].entry.id.device == id.device;
         ++i) {
      const LayerAnswer answer = judge(entries[i], asked);
      if (answer.answers) answered = true, config = entries[i].entry.config;
      out.line("  " + entries[i].where + ": " + config_text(entries[i].entry.config) + ": " +
               answer.why);
      layers.push_back(Value::object({{"where", entries[i].where},
                                      {"device", id.device},
                                      {"answers", answer.answers},
                                      {"config", entries[i].entry.config},
                                      {"why", answer.why}}));
    }
    if (!answered) out.line("  nothing that is stored answers here: " + otherwise);
    list.push_back(Value::object({{"op", id.op},
                                  {"key", id.key},
                                  {"call", call_text(id.spec)},
                                  {"origin", answered ? origin_name(Origin::persistent) : "none"},
                                  {"config", config},
                                  {"layers", std::move(layers)}}));
  }
  return list;
}

void print_lines(const std::string& text, Output& out) {
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    out.line(std::string_view(text).substr(at, end - at));
    at = end + 1;
  }
}

int explain_verb(const ExplainOptions& options, Output& out) {
  check_key(options.filter.key);
  load_plugins(options.kernels);
  Problems problems;
  const auto snapshot = detail::snapshot_of_launch();
  auto entries =
      snapshot ? entries_of(*snapshot, options.filter)
               : read_entries(stores_to_read(options.kernels.store), options.filter, problems);
  const auto store = open_layers(options.kernels.store, true, problems);
  Progress progress;
  const auto selector = selector_for(store, policy_from_environment(), progress);

  Value calls = Value::array();
  for (const RecordedCall& call :
       recorded_calls(options.kernels, *store, options.filter, problems)) {
    if (detail::device_here(call.id.device) == nullptr || !is_registered(call.id.op)) continue;
    try {
      const auto made = rebuild_call(call);
      const Explanation explanation = selector->explain(made->invocation(), made->kernel());
      print_lines(explanation.text(), out);
      calls.push_back(explanation.to_value());
    } catch (const Error& error) {
      say(error.what());
      continue;
    }
    std::erase_if(entries, [&](const Held& held) {
      return held.entry.id.op == call.id.op && held.entry.id.key == call.id.key &&
             held.entry.id.device == call.id.device;
    });
  }
  Value stored = explain_stored(entries, without_answer(selector->policy()), out);
  if (calls.as_array().empty() && stored.as_array().empty())
    throw Failure(exit_nothing,
                  "neither the store nor the recorded calls have " + key_text(options.filter.key));
  out.document(Value::object({{"calls", std::move(calls)},
                              {"stored", std::move(stored)},
                              {"problems", problems.to_value()}}));
  return exit_ok;
}

}  // namespace

void add_explain(Verbs& verbs) {
  verbs.add<ExplainOptions>(
      {"explain", "Explain which config a call would run with here, tier by tier",
       "ejk explain matmul: --plugin libmy_kernels.so"},
      explain_verb, [](const VerbLine& line, ExplainOptions& to) {
        line.key_of_entry(to.filter.key);
        line.store(to.kernels.store);
        line.filter(to.filter);
        line.with_kernels(to.kernels);
      });
}

}  // namespace ejk::cli
