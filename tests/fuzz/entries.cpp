// SPDX-License-Identifier: Apache-2.0
// Any bytes as the file of an entry, and what is in it as a config.
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <ejk/config.h>
#include <ejk/store.h>

#include "fuzz.h"

namespace {

enum class Order { row, column, tiled = 7 };
enum class Part : uint8_t { left = 1, right = 2, far = 128 };
constexpr Part operator|(Part a, Part b) {
  return static_cast<Part>(static_cast<uint8_t>(a) | static_cast<uint8_t>(b));
}
struct Config {
  int block = 1;
  uint64_t large = 0;
  float scale = 1;
  bool flag = false;
  Order order = Order::row;
  Part part = Part::left;
  std::string name = {};
  std::optional<int8_t> small = {};
  std::vector<std::tuple<int, std::string>> list = {};
  std::map<int, double> by_number = {};
};

void check_config(const ejk::Value& value) {
  std::string why;
  const auto read = ejk::config_type<Config>().from_value(value, why);
  fuzz::demand((read == nullptr) != why.empty(), "a config is refused without a reason");
  if (read == nullptr) return;
  const auto& config = *static_cast<const Config*>(read.get());
  const Order order = config.order;
  fuzz::demand(order == Order::row || order == Order::column || order == Order::tiled,
               "an enum has no enumerator");
  fuzz::demand((static_cast<unsigned>(config.part) & ~0x83u) == 0, "a part is no enumerator's");
  const ejk::Value again = ejk::to_value(config);
  fuzz::demand(ejk::config_type<Config>().from_value(again, why) != nullptr,
               "a config cannot be read back");
}

bool can_be_measured(const ejk::Evidence& e) {
  for (const double number :
       {e.seconds, e.seconds_low, e.seconds_high, e.heuristic_seconds, e.speedup, e.speedup_low,
        e.speedup_high, e.noise, e.tuning_seconds, e.resumed_seconds})
    if (!std::isfinite(number) || number < 0) return false;
  return e.samples >= 0 && e.samples <= 1'000'000;
}

}  // namespace

void fuzz::check(std::string_view bytes) {
  try {
    const ejk::Value document = ejk::parse_json(bytes);
    check_config(document);
    ejk::Entry entry = ejk::entry_from_document(document);
    check_config(entry.config);
    demand(can_be_measured(entry.evidence), "evidence that cannot be measured");
    const std::string text = ejk::to_json(ejk::entry_to_document(entry), 1);
    const ejk::Entry back = ejk::entry_from_document(ejk::parse_json(text));
    demand(ejk::to_json(ejk::entry_to_document(back), 1) == text, "an entry comes back changed");
    ejk::Entry measured;
    measured.evidence.complete = false;
    if (entry.provenance != "measured")
      demand(!ejk::better_evidence(entry, measured), "what was measured is replaced");
  } catch (const ejk::Error&) {
  }
}
