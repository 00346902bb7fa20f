// SPDX-License-Identifier: Apache-2.0
// The live page: what it shows, and a tuning that it can show while it goes on.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <ejk/offline.h>
#include <ejk/tuner.h>

#include "http.h"
#include "verbs.h"

namespace ejk::cli {

// What the page is made of, at one moment.
struct LiveShown {
  Value state;                          // what is being tuned
  std::shared_ptr<const Value> report;  // as report_of gives it; shared, as it may be large
  uint64_t report_version = 0;
};
std::optional<HttpAnswer> live_answer(const std::string& path, const LiveShown& shown);

// A tuning that can be watched. All functions may be called by any thread.
class LiveTuning {
 public:
  // `planned`: how many calls there are; 0: not known. `store`: where results are read, which
  // outlives this. Serves at once. Throws Failure.
  LiveTuning(const std::string& listen, size_t planned, double budget_seconds,
             PersistentCache& store);
  ~LiveTuning();

  const std::string& url() const;
  // Around one call: what `tune` returns or throws is shown and passed on.
  Entry tune(const RecordedCall& call, double budget_seconds, const std::function<Entry()>& tune);
  void tell(const TuneProgress& progress);
  // Nothing more is tuned; what was stays to be seen until Ctrl-C.
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Returns at Ctrl-C.
void wait_for_interrupt();

}  // namespace ejk::cli
