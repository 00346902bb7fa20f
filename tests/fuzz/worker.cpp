// SPDX-License-Identifier: Apache-2.0
// Any bytes as a line from a worker to its host, and from the host to its worker.
#include <cmath>
#include <string>

#include <ejk/error.h>

#include "fuzz.h"
#include "offline/worker_messages.h"

namespace {

using namespace ejk::detail;

void check_answer(const std::string& line) {
  try {
    const ejk::Value answer = answer_in(line);
    fuzz::demand(!text_in(answer, "event").empty(), "an answer without an event");
    const ejk::TuneProgress p = progress_in(answer);
    for (const double number : {p.best_seconds, p.speedup, p.elapsed, p.remaining})
      fuzz::demand(std::isfinite(number) && number >= 0, "a progress that cannot be");
    fuzz::demand(p.round >= 0, "a negative round");
    if (text_in(answer, "event") == "failed") throw_failure(answer);
    ejk::RecordedCall call;
    call.id = {"cpu|fuzz", "fuzz@v1", "0123456789abcdef", ""};
    const ejk::Entry entry = entry_in(answer, call, false, ejk::Numerics::any);
    fuzz::demand(entry.id.op == call.id.op && entry.id.key == call.id.key &&
                     entry.id.device == call.id.device,
                 "an entry of another call");
  } catch (const Rubbish&) {
  } catch (const ejk::Error&) {
  }
}

void check_request(std::string_view line) {
  try {
    const TuneRequest request = request_from_document(ejk::parse_json(line));
    fuzz::demand(!std::isnan(request.budget_seconds), "a budget that is no number");
    const ejk::Value again = request_to_document(request);
    fuzz::demand(request_to_document(request_from_document(again)) == again,
                 "a request comes back changed");
  } catch (const ejk::Error&) {
  }
}

}  // namespace

void fuzz::check(std::string_view bytes) {
  check_answer(std::string(bytes));
  check_request(bytes);
}
