// SPDX-License-Identifier: Apache-2.0
// Which recorded calls to tune first: where most time goes and most of it can be saved.
#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include <ejk/names.h>
#include <ejk/offline.h>

#include "offline/stored_call.h"

namespace ejk {

namespace {

// What the tunings of one op, or of all, gained.
struct Gains {
  double sum = 0;
  int count = 0;
  void add(double gain) { sum += gain, ++count; }
  // As if `weight` further tunings had gained `before`: few tunings do not make a rule, and nothing
  // is ever taken for hopeless, so that the time spent in a call always counts.
  double expected(double before, double weight) const {
    return (weight * before + sum) / (weight + count);
  }
  std::string text(const std::string& of) const {
    return std::to_string(count) + (count == 1 ? " call" : " calls") + of + " gained " +
           std::to_string(std::lround(100 * sum / count)) + " %" +
           (count == 1 ? "" : " on average");
  }
};

// Share of the heuristic's time that the chosen config saves. Nothing is known without a heuristic.
std::optional<double> gain_of(const Entry& entry) {
  if (entry.outcome == Outcome::unresolved) return 0;
  if (entry.outcome == Outcome::failed || entry.evidence.speedup <= 0) return std::nullopt;
  return std::max(0., 1 - 1 / entry.evidence.speedup);
}

// Of a call of which nothing is known, and what that counts beside what other ops gained.
constexpr double guess = 0.1, guess_weight = 4;
// What that counts beside what other calls of the op gained.
constexpr double other_ops_weight = 2;
// What was cut short may get better still.
constexpr double left_to_gain = 0.02;

}  // namespace

std::vector<PlannedCall> plan_tuning(std::vector<RecordedCall> calls, PersistentCache* store) {
  const auto choices = store == nullptr ? nullptr : choices_of(*store, devices_of(calls));
  return plan_with_choices(std::move(calls), choices.get()).to_tune;
}

TuningPlan plan_with_choices(std::vector<RecordedCall> calls, PersistentCache* store) {
  std::map<std::string, Gains> by_op;
  Gains all;
  if (store != nullptr)
    store->for_each(
        "",
        [&](const Entry& entry) {
          if (const auto gain = gain_of(entry)) by_op[entry.id.op].add(*gain), all.add(*gain);
          return true;
        },
        Detail::choice);

  TuningPlan out;
  for (RecordedCall& call : calls) {
    PlannedCall planned;
    planned.seconds = call.seconds();
    auto stored = store == nullptr ? std::nullopt : stored_for(*store, call);
    if (stored && stored->is_tuned()) {
      out.tuned.push_back(std::move(stored->entry));
      continue;
    }
    if (stored && stored->entry.outcome == Outcome::failed) {
      planned.expected_gain = 0;
      planned.why = "an earlier tuning rejected every candidate";
    } else if (stored) {
      planned.expected_gain = left_to_gain;
      planned.why = stored->for_any_outputs       ? "it was tuned without its outputs"
                    : !is_measured(stored->entry) ? "it was not measured here"
                                                  : "its tuning was cut short";
    } else {
      planned.expected_gain = all.expected(guess, guess_weight);
      planned.why = all.count == 0 ? "nothing is known yet" : all.text(" of other ops");
      if (const auto op = by_op.find(call.id.op); op != by_op.end()) {
        planned.expected_gain = op->second.expected(planned.expected_gain, other_ops_weight);
        planned.why = op->second.text(" of the op");
      }
    }
    if (planned.expected_gain <= 0 && stored) {
      out.in_vain.push_back(std::move(call.id));
      continue;
    }
    planned.call = std::move(call);
    out.to_tune.push_back(std::move(planned));
  }
  // Calls that were never timed come last, by their number. Equal ones stay in the order of op and
  // key.
  std::ranges::stable_sort(out.to_tune, [](const PlannedCall& a, const PlannedCall& b) {
    if (a.worth() != b.worth()) return a.worth() > b.worth();
    return a.call.calls > b.call.calls;
  });
  return out;
}

}  // namespace ejk
