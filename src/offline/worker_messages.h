// SPDX-License-Identifier: Apache-2.0
// What hosts and workers say to each other, read without trust (docs/reference/worker.md).
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ejk/names.h>
#include <ejk/record.h>
#include <ejk/selector.h>
#include <ejk/store.h>
#include <ejk/tuner.h>

namespace ejk {

constexpr auto names_of(TuneProgress::Kind) {
  return detail::words("candidate", "round", "eliminated", "best", "finished", "measured");
}
constexpr auto names_of(Numerics) { return detail::words("any", "same"); }

}  // namespace ejk

namespace ejk::detail {

// ---- a worker's answers, as its host reads them

enum class WorkerEvent : uint8_t { ready, refused, progress, tuned, failed };
constexpr auto names_of(WorkerEvent) {
  return words("ready", "refused", "progress", "tuned", "failed");
}

// Thrown for a line that is not an answer.
struct Rubbish {
  std::string line;
};

// An object with an "event". Throws Rubbish.
Value answer_in(const std::string& line);
// Members of an answer; "" and 0 if they are missing or of another kind.
std::string text_in(const Value& answer, std::string_view name);
std::optional<WorkerEvent> event_in(const Value& answer);  // nullopt: one not known here
uint64_t count_in(const Value& answer, std::string_view name);
Value progress_to_document(const TuneProgress& progress);
// What a worker tells: what concerns one candidate always, of rounds only some.
class ProgressNews {
 public:
  bool is_news(const TuneProgress& p);

 private:
  std::chrono::steady_clock::time_point next_{};
};
// Its message is that of the answer, which must live longer.
TuneProgress progress_in(const Value& answer);
// The entry of that call. Throws Rubbish if it is of another one, or none.
Entry entry_in(const Value& answer, const RecordedCall& call, bool backward, Numerics numerics);
// Whether a worker that is ready names this member of requests, which not every worker knows.
bool understands(const Value& ready, std::string_view member);
[[noreturn]] void throw_failure(const Value& answer);

// ---- a host's requests, as a worker reads them

struct TuneRequest {
  uint64_t number = 0;
  RecordedCall call;
  std::string store;  // "": the default place
  double budget_seconds = 0;
  bool validate_backward = false;
  Numerics numerics = Numerics::any;
  bool retune = false;
  std::vector<std::string> plugins = {};
};

// The member of requests that a worker must name in its `ready` before it is sent.
inline constexpr std::string_view numerics_member = "numerics";
Value request_to_document(const TuneRequest& request);
// Without its number, which may be anything. Throws Error(parse).
TuneRequest request_from_document(const Value& document);

}  // namespace ejk::detail
