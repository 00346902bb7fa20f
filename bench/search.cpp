// SPDX-License-Identifier: Apache-2.0
// How few evaluations "auto" needs on recorded spaces of real kernels, beside recorded peers.
// SPACES names the folder of NAME.json.gz files (and peers.json, if there is one); SEEDS how often.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <stdexcept>

#include <ejk/search.h>

#include "harness.h"
#include "recorded.h"

namespace {

namespace fs = std::filesystem;

constexpr int max_evaluations = 400;
constexpr int budgets[] = {25, 50, 100, 200, 400};

struct Space {
  std::string name, kernel;
  ejk::SearchSpace space;
  std::vector<std::optional<double>> seconds;  // by point
  std::vector<double> ratios;                  // of the valid points to the optimum, ascending
  std::vector<int> score_at;                   // the numbers of evaluations that are scored
  std::vector<double> random_at;               // what random search has found by then, on average

  double optimum = 0;
  double median() const { return ratios[ratios.size() / 2]; }
};

std::string text_of(const ejk::SearchSpace& space, size_t point) {
  ejk::Value config = ejk::Value::object();
  for (size_t p = 0; p < space.parameters.size(); ++p)
    config[space.parameters[p].name] = space.parameters[p].values[space.point(point)[p]];
  return ejk::stable_json(config);
}

// The expected best of k random points, as ratio to the optimum: exact, without replacement.
double random_best(const Space& space, int k) {
  const auto n = static_cast<double>(space.seconds.size());
  const double draws = std::min<double>(k, n);
  const double base = std::lgamma(n + 1) - std::lgamma(n - draws + 1);
  // That none of the j best is among the draws.
  auto all_missed = [&](size_t missed) {
    const auto j = static_cast<double>(missed);
    return n - j >= draws ? std::exp(std::lgamma(n - j + 1) - std::lgamma(n - j - draws + 1) - base)
                          : 0.0;
  };
  double sum = 0, before = all_missed(0);
  for (size_t j = 0; j < space.ratios.size(); ++j) {
    const double after = all_missed(j + 1);
    sum += space.ratios[j] * (before - after);
    before = after;
  }
  return sum / (1 - before);
}

void set_scored_points(Space& space) {
  const double target = 1 + (space.median() - 1) * 0.05;
  int low = 1, high = static_cast<int>(space.seconds.size());
  while (low < high) {
    const int middle = (low + high) / 2;
    if (random_best(space, middle) <= target) high = middle;
    else low = middle + 1;
  }
  const int top = std::max(low, 2);
  for (int i = 0; i < 50; ++i) {
    const int k = static_cast<int>(std::nearbyint(1 + (top - 1) * i / 49.0));
    if (k > max_evaluations || (!space.score_at.empty() && space.score_at.back() == k)) continue;
    const double random = random_best(space, k);
    if (random <= 1) continue;
    space.score_at.push_back(k);
    space.random_at.push_back(random);
  }
}

Space read_space(const fs::path& path) {
  const ejk::Value data = ejk::parse_json(bench::unzipped(path));
  Space out;
  out.name = path.stem().stem().string();
  const ejk::Value* kernel = data.find("kernel");
  out.kernel = kernel ? kernel->as_string() : out.name.substr(0, out.name.find('-'));
  for (const auto& [name, values] : data.find("params")->as_object().members)
    out.space.parameters.push_back({name, values.as_array()});
  for (const ejk::Value& row : data.find("results")->as_array()) {
    const auto& cells = row.as_array();
    for (size_t p = 0; p < out.space.parameters.size(); ++p) {
      const auto& values = out.space.parameters[p].values;
      out.space.points.push_back(
          static_cast<uint32_t>(std::ranges::find(values, cells[p]) - values.begin()));
    }
    out.seconds.push_back(cells.back().is_null() ? std::nullopt
                                                 : std::optional(cells.back().as_double()));
    if (out.seconds.back()) out.ratios.push_back(*out.seconds.back());
  }
  if (out.ratios.empty()) throw std::runtime_error("no times in " + path.string());
  std::ranges::sort(out.ratios);
  out.optimum = out.ratios.front();
  for (double& r : out.ratios) r /= out.optimum;
  set_scored_points(out);
  return out;
}

// best[k-1] is the best ratio after k evaluations; a failed one costs one too.
struct Run {
  std::vector<double> best;
  double search_seconds = 0;
  int asks = 0;
  double at(int k) const { return best[std::min<size_t>(static_cast<size_t>(k), best.size()) - 1]; }
};

Run replay(const Space& space, std::string_view strategy, uint64_t seed,
           std::vector<ejk::SearchHistory> histories) {
  Run run;
  const double made = bench::seconds();
  const auto search = ejk::make_search(strategy, space.space, seed, std::move(histories));
  run.search_seconds += bench::seconds() - made;
  for (int k = 0; k < max_evaluations; ++k) {
    double start = bench::seconds();
    const auto point = search->ask();
    run.search_seconds += bench::seconds() - start;
    if (!point) break;
    ++run.asks;
    start = bench::seconds();
    search->tell(*point, space.seconds[*point]);
    run.search_seconds += bench::seconds() - start;
    run.best.push_back(search->best() ? *search->best()->seconds / space.optimum : space.median());
  }
  return run;
}

// What was recorded in the other space at the points that this one has too.
ejk::SearchHistory history_for(const Space& space, const Space& other) {
  std::map<std::string, size_t> places;
  for (size_t i = 0; i < space.seconds.size(); ++i) places[text_of(space.space, i)] = i;
  ejk::SearchHistory history;
  for (size_t i = 0; i < other.seconds.size(); ++i)
    if (const auto found = places.find(text_of(other.space, i)); found != places.end())
      history.push_back({found->second, other.seconds[i]});
  return history;
}

double score_of(const Space& space, const std::vector<const Run*>& runs) {
  double sum = 0;
  for (size_t i = 0; i < space.score_at.size(); ++i) {
    double mean = 0;
    for (const Run* run : runs)
      mean += run->at(space.score_at[i]) / static_cast<double>(runs.size());
    sum += (space.random_at[i] - mean) / (space.random_at[i] - 1);
  }
  return space.score_at.empty()
             ? 0
             : std::clamp(sum / static_cast<double>(space.score_at.size()), -1.0, 1.0);
}

struct Row {
  std::string name;
  std::vector<std::string> spaces;
  double score = 0, half_width = 0;  // half_width: of the 95 % interval over seeds; 0 if unknown
  std::map<int, double> best, p5;
  double mean_p5() const { return (p5.at(25) + p5.at(50) + p5.at(100) + p5.at(200)) / 4; }
};

void print(const Row& row) {
  fmt::print("{:32} {:6} {:6.3f} {:7}", row.name, row.spaces.size(), row.score,
             row.half_width > 0 ? fmt::format("±{:.3f}", row.half_width) : "");
  for (const auto& [k, value] : row.best) fmt::print(" {:6.3f}", value);
  for (const auto& [k, value] : row.p5) fmt::print(" {:6.2f}", value);
  fmt::print(" {:6.3f}\n", row.mean_p5());
  std::fflush(stdout);
}

struct Measured {
  Row row;
  double ask_us = 0;  // the slowest space
  struct Figures {
    double score = 0, p5 = 0;
  };
  std::map<std::string, Figures> by_space;
};

Measured measure(const std::vector<Space>& spaces, std::string_view strategy, bool transfer,
                 int seeds) {
  Measured out;
  out.row.name = std::string(strategy) + (transfer ? " with transfer" : "");
  std::vector<double> by_seed(static_cast<size_t>(seeds));
  std::map<int, double> log_best;
  std::string per_space;
  for (const Space& space : spaces) {
    std::vector<ejk::SearchHistory> histories;
    for (const Space& other : spaces)
      if (transfer && other.kernel == space.kernel && &other != &space)
        histories.push_back(history_for(space, other));
    if (transfer && histories.empty()) continue;
    std::vector<Run> runs;
    double asks = 0, time = 0;
    for (int seed = 0; seed < seeds; ++seed) {
      runs.push_back(replay(space, strategy, static_cast<uint64_t>(seed), histories));
      by_seed[static_cast<size_t>(seed)] += score_of(space, {&runs.back()});
      asks += runs.back().asks;
      time += runs.back().search_seconds;
    }
    std::vector<const Run*> all;
    for (const Run& run : runs) all.push_back(&run);
    const double score = score_of(space, all);
    per_space += fmt::format("  {} {:.2f}", space.name, score);
    out.row.score += score;
    out.by_space[space.name].score = score;
    out.row.spaces.push_back(space.name);
    for (const int k : budgets) {
      double mean = 0, within = 0;
      for (const Run& run : runs)
        mean += run.at(k) / seeds, within += (run.at(k) <= 1.05) / static_cast<double>(seeds);
      log_best[k] += std::log(mean);
      out.row.p5[k] += within;
      if (k <= 200) out.by_space[space.name].p5 += within / 4;
    }
    out.ask_us = std::max(out.ask_us, time / asks * 1e6);
  }
  if (out.row.spaces.empty()) return out;
  const auto n = static_cast<double>(out.row.spaces.size());
  out.row.score /= n;
  for (const int k : budgets) out.row.best[k] = std::exp(log_best[k] / n), out.row.p5[k] /= n;
  double mean = 0, variance = 0;
  for (double& s : by_seed) mean += (s /= n) / seeds;
  for (const double s : by_seed) variance += (s - mean) * (s - mean) / std::max(1, seeds - 1);
  out.row.half_width = 2.26 * std::sqrt(variance / seeds);  // Student's t for 10 seeds
  print(out.row);
  fmt::print(" {}\n", per_space);
  return out;
}

std::vector<Row> read_peers(const fs::path& path, const std::vector<Space>& spaces) {
  std::vector<Row> rows;
  std::ifstream file(path);
  if (!file) return rows;
  std::stringstream text;
  text << file.rdbuf();
  const ejk::Value peers = ejk::parse_json(text.str());
  for (const auto& [name, per_space] : peers.find("strategies")->as_object().members) {
    Row row;
    row.name = "peer: " + name;
    for (const auto& [space, figures] : per_space.as_object().members) {
      if (std::ranges::find(spaces, space, &Space::name) == spaces.end()) continue;
      row.spaces.push_back(space);
      row.score += std::clamp(figures.find("score95")->as_double(), -1.0, 1.0);
      for (const int k : budgets) {
        const ejk::Value& at = *figures.find("at")->find(std::to_string(k));
        row.best[k] += std::log(at.find("mean")->as_double());
        row.p5[k] += at.find("p_within5pct")->as_double();
      }
    }
    if (row.spaces.empty()) continue;
    const auto n = static_cast<double>(row.spaces.size());
    row.score /= n;
    for (const int k : budgets) row.best[k] = std::exp(row.best[k] / n), row.p5[k] /= n;
    rows.push_back(row);
  }
  std::ranges::sort(rows, std::greater(), &Row::score);
  return rows;
}

}  // namespace

int main() try {
  const char* given = std::getenv("SPACES");
  const fs::path folder = given && *given ? given : "../shared/spaces";
  const char* given_seeds = std::getenv("SEEDS");
  const int seeds = std::max(1, given_seeds ? std::atoi(given_seeds) : 10);

  const std::vector<fs::path> files = bench::recorded_files(folder);
  if (files.empty()) {
    fmt::print(
        stderr,
        "no recorded spaces in {}: pass the folder that holds them, make bench-search SPACES=DIR\n",
        folder.string());
    return 1;
  }
  std::vector<Space> spaces;
  for (const fs::path& file : files) spaces.push_back(read_space(file));

  fmt::print("{} spaces, {} seeds; score: 0 is random search, 1 the optimum at once\n\n",
             spaces.size(), seeds);
  fmt::print("{:32} {:>6} {:>6} {:7}", "strategy", "spaces", "score", "");
  for (const int k : budgets) fmt::print(" {:>6}", fmt::format("@{}", k));
  for (const int k : budgets) fmt::print(" {:>6}", fmt::format("P5@{}", k));
  fmt::print(" {:>6}\n", "P5");

  const Measured with_transfer = measure(spaces, "auto", true, seeds);
  const Measured alone = measure(spaces, "auto", false, seeds);
  measure(spaces, "random", false, seeds);
  const std::vector<Row> peers = read_peers(folder / "peers.json", spaces);
  ejk::Value best_peer, best_peer_p5;  // null if there are none
  if (!peers.empty()) {
    best_peer = peers.front().score;
    best_peer_p5 = std::ranges::max(peers, {}, &Row::mean_p5).mean_p5();
    for (const Row& row : peers) print(row);
    Measured::Figures same;
    const std::vector<std::string>& names = peers.front().spaces;
    for (const std::string& name : names) {
      same.score += alone.by_space.at(name).score / static_cast<double>(names.size());
      same.p5 += alone.by_space.at(name).p5 / static_cast<double>(names.size());
    }
    fmt::print("auto on the {} spaces of the best peer: score {:.3f}, P5 {:.3f}\n", names.size(),
               same.score, same.p5);
  }
  ejk::Value score_transfer;  // null if no kernel is there with two devices
  if (!with_transfer.row.spaces.empty()) score_transfer = with_transfer.row.score;
  bench::print_json({{"score", alone.row.score},
                     {"score_interval", alone.row.half_width},
                     {"score_best_peer", best_peer},
                     {"p5", alone.row.mean_p5()},
                     {"p5_best_peer", best_peer_p5},
                     {"score_transfer", score_transfer},
                     {"ask_us", std::max(alone.ask_us, with_transfer.ask_us)}});
} catch (const std::exception& e) {
  fmt::print(stderr, "{}\n", e.what());
  return 1;
}
