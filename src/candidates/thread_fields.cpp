// SPDX-License-Identifier: Apache-2.0
// Looks for thread counts in a config and the objects in it.
#include "candidates/thread_fields.h"

#include <algorithm>
#include <string_view>

#include <ejk/device.h>
#include <ejk/names.h>

namespace ejk::detail {
namespace {

bool is_threads(std::string_view name, const Value& value) {
  return value.is_int() && (name == "threads" || name == "num_threads");
}

// Whether a member that counts threads, here or in an object inside, is what `test` looks for.
template <class Test>
bool any_threads(const Value& config, const Test& test) {
  return config.is_object() && std::ranges::any_of(config.as_object().members, [&](const auto& m) {
           return is_threads(m.first, m.second) ? test(m.second) : any_threads(m.second, test);
         });
}

// Asks for as many threads as run here at most. Returns how many of its members asked for more.
int lower_threads(Value& config) {
  if (!config.is_object()) return 0;
  int lowered = 0;
  for (auto& [name, value] : config.as_object().members) {
    if (!is_threads(name, value)) lowered += lower_threads(value);
    else if (value.as_double() > visible_cores()) ++lowered, value = visible_cores();
  }
  return lowered;
}

}  // namespace

bool speaks_of_threads(const Value& config) {
  return any_threads(config, [](const Value&) { return true; });
}

bool asks_for_several_threads(const Value& config) {
  return any_threads(config, [](const Value& threads) { return threads.as_double() != 1; });
}

bool fits_these_cores(const Value& config) {
  return !any_threads(config,
                      [](const Value& threads) { return threads.as_double() > visible_cores(); });
}

bool tuned_with_fewer_cores(const Entry& entry) {
  const Value* cores = entry.environment.find("cores");
  return cores != nullptr && cores->is_int() && cores->as_double() < visible_cores() &&
         speaks_of_threads(entry.config);
}

std::optional<Value> config_for_these_cores(const Entry& entry) {
  Value best = entry.config;
  int least = lower_threads(best);
  if (least == 0) return best;
  double ratio = 0;
  for (const Measurement& m : entry.candidates) {
    Value config = m.config;
    const int lowered = lower_threads(config);
    const bool measured = m.ratio > 0 && (is(m.status, CandidateStatus::tied) ||
                                          is(m.status, CandidateStatus::slower));
    if (!measured || lowered > least || (lowered == least && (ratio == 0 || m.ratio >= ratio)))
      continue;
    best = std::move(config), least = lowered, ratio = m.ratio;
  }
  return ratio > 0 ? std::optional(best) : std::nullopt;
}

}  // namespace ejk::detail
