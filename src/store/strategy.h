// SPDX-License-Identifier: Apache-2.0
// How a tuning found its config: the three facts that Evidence::strategy tells in one text.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <ejk/names.h>

namespace ejk::detail {

struct Strategy {
  std::optional<Search> search = Search::race;  // before the race; nullopt: one not known here
  bool single_run = false;                      // there was no time for a race
  bool given_list = false;                      // of configs that were given by hand

  // Then not all candidates were looked at, perhaps. A single run does not tell.
  bool may_have_searched() const { return search != Search::race || single_run; }
};

inline constexpr std::string_view single_run_text = "single run";
inline constexpr std::string_view given_list_suffix = " among given configs";

// Says of a tuning that its candidates were given by hand.
inline void mark_given_list(Evidence& evidence) { evidence.strategy += given_list_suffix; }

inline std::string text_of(const Strategy& strategy) {
  std::string text(strategy.single_run ? single_run_text : name_of(*strategy.search));
  return strategy.given_list ? text.append(given_list_suffix) : text;
}

inline Strategy strategy_of(const Evidence& evidence) {
  Strategy out;
  std::string_view text = evidence.strategy;
  out.given_list = text.ends_with(given_list_suffix);
  if (out.given_list) text.remove_suffix(given_list_suffix.size());
  out.single_run = text == single_run_text;
  if (!out.single_run && !text.empty()) out.search = named<Search>(text);
  return out;
}

}  // namespace ejk::detail
