// SPDX-License-Identifier: Apache-2.0
// HTML from documents: the report, and the page that shows a tuning while it goes on. Whatever is
// quoted is escaped.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <ejk/names.h>
#include <ejk/value.h>

namespace ejk::cli {

// What the live page shows: a store, or a tuning.
enum class LiveStage : uint8_t { store, tuning, finished };
constexpr auto names_of(LiveStage) { return ejk::detail::words("store", "tuning", "finished"); }
// Of a candidate meanwhile, in the order in which they are listed.
enum class LiveStatus : uint8_t { best, racing, slower, rejected };
constexpr auto names_of(LiveStatus) {
  return ejk::detail::words("best", "racing", "slower", "rejected");
}

std::string html(std::string_view text);

// Of a document that `ejk report --json` prints: the content of the page, and the whole page, which
// needs nothing else.
std::string report_html(const Value& document);
std::string report_page(const Value& document);

// Of a document of LiveTuning: what is being tuned.
std::string now_html(const Value& state);
// Both, with the script that asks the server for more.
std::string live_page(const Value& state, const std::string& report, uint64_t version);
std::string_view live_script();

}  // namespace ejk::cli
