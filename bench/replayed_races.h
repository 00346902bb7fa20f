// SPDX-License-Identifier: Apache-2.0
// Races on recorded noise: the work was equal, so a candidate whose times are multiplied by more
// than 1 is slower for sure, and every machine gets the same answers.
#pragma once

#include <cmath>
#include <map>
#include <numeric>
#include <random>

#include "../tests/replay.h"
#include "base/shuffle.h"
#include "harness.h"
#include "recorded.h"
#include "tune/decide.h"
#include "tune/statistics.h"

namespace bench {

class ReplayedRaces {
 public:
  static constexpr std::array<int, 5> gaps = {0, 2, 3, 5, 10};  // percent; 0: all are equal

  void run(const std::vector<std::filesystem::path>& files) {
    std::printf("%-28s", "replayed: share right, rounds");
    for (int gap : gaps)
      std::printf("  %10s", gap == 0 ? "equals" : (std::to_string(gap) + " %").c_str());
    std::printf("\n");
    for (const auto& file : files) {
      std::string name = file.filename().string();
      name.resize(name.size() - std::string_view(".json.gz").size());
      add(replay::read_trace(name, unzipped(file)));
    }
  }

  std::vector<ejk::Value::Member> figures() const {
    std::vector<ejk::Value::Member> all;
    for (const auto& [gap, shares] : shares_) {
      const std::string name =
          gap == 0 ? "replay_equals_first" : "replay_right_" + std::to_string(gap);
      const double sum = std::accumulate(shares.begin(), shares.end(), 0.);
      all.push_back({name, sum / static_cast<double>(shares.size())});
      all.push_back({name + "_worst", *std::min_element(shares.begin(), shares.end())});
    }
    all.push_back({"replay_rounds", median(rounds_)});
    all.push_back({"replay_files", static_cast<int64_t>(shares_.at(0).size())});
    return all;
  }

 private:
  static constexpr size_t max_candidates = 8, step = 4;  // rows between the starts of two races

  void add(const replay::Trace& trace) {
    constexpr auto needed = static_cast<size_t>(ejk::detail::max_rounds);
    if (trace.columns() < 2 || trace.rounds() < needed)
      throw std::runtime_error(trace.name + " has " + std::to_string(trace.rounds()) +
                               " rounds of " + std::to_string(trace.columns()) +
                               " candidates; expected at least " + std::to_string(needed) +
                               " of 2");
    std::printf("%-28s", trace.name.c_str());
    std::mt19937_64 random(1);
    for (int gap : gaps) {
      int right = 0, races = 0;
      std::vector<double> rounds;
      for (size_t first = 0; first + needed <= trace.rounds(); first += step, ++races)
        right += race(trace, first, gap, random, rounds);
      shares_[gap].push_back(static_cast<double>(right) / races);
      std::printf("  %5.1f %% %2.0f", 100 * shares_[gap].back(), median(rounds));
      rounds_.insert(rounds_.end(), rounds.begin(), rounds.end());
    }
    std::printf("\n");
    std::fflush(stdout);
  }

  // Whether the best was picked; of equals that is the first.
  static bool race(const replay::Trace& trace, size_t first, int gap, std::mt19937_64& random,
                   std::vector<double>& rounds) {
    const size_t candidates = std::min(max_candidates, trace.columns());
    std::vector<size_t> columns = ejk::base::shuffled(trace.columns(), random);
    columns.resize(candidates);
    const size_t best = gap == 0 ? 0 : random() % candidates;
    std::vector<double> factors(candidates, 1 + gap / 100.);
    factors[best] = 1;
    replay::Race all{.candidates = candidates,
                     .script = replay::script_of(trace, first, columns, factors)};
    const ejk::TuneResult result = replay::tune(all);
    rounds.push_back(result.evidence.samples);
    return result.winner == best;
  }

  std::map<int, std::vector<double>> shares_;  // by gap, one per file
  std::vector<double> rounds_;                 // of the winner, one per race
};

}  // namespace bench
