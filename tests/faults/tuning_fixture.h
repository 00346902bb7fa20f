// SPDX-License-Identifier: Apache-2.0
// What the tests of whole tunings share: named configs, a store on disk, what a tuning left there.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ejk/ejk.h>

#include "replay.h"

namespace ejk::testing {

// A config; kernels do what its name says.
struct Does {
  std::string does;
};

// Addresses only: nothing is touched, so that no machine suffers.
[[noreturn]] inline void allocate_without_end() {
  static std::vector<char*> taken;
  for (;;) taken.push_back(new char[size_t{1} << 26]);
}

// What scripted tunings measure with; only work() moves it. One thread at a time.
inline const auto stopwatch = std::make_shared<replay::ScriptedStopwatch>();

// Takes so many microseconds.
inline void work(int amount) { stopwatch->pass(1e-6 * amount); }

inline SelectorOptions options_on(const std::string& store, const WarningSink& warn,
                                  AutotunePolicy policy = {}) {
  SelectorOptions o;
  o.policy = policy;
  o.on_warning = warn;
  o.persistent = std::make_shared<PersistentCache>(store);
  return o;
}

// The same for kernels that take their time from work(): who wins does not depend on the machine.
inline SelectorOptions scripted_options_on(const std::string& store, const WarningSink& warn,
                                           AutotunePolicy policy = {}) {
  SelectorOptions o = options_on(store, warn, policy);
  o.tuner = std::make_shared<Tuner>(TunerOptions{.stopwatch = stopwatch});
  return o;
}

inline std::vector<Entry> entries_in(const std::string& store) {
  std::vector<Entry> found;
  PersistentCache(store).for_each("", [&](const Entry& e) {
    found.push_back(e);
    return true;
  });
  return found;
}

inline std::string name_of(const Value& config) { return config.find("does")->as_string(); }

inline const Measurement* measured(const Entry& entry, const std::string& name) {
  for (const Measurement& m : entry.candidates)
    if (name_of(m.config) == name) return &m;
  return nullptr;
}

}  // namespace ejk::testing
