// SPDX-License-Identifier: Apache-2.0
// How often a tuning picks the truly best of 8 candidates: on recorded noise, then really measured
// beside simpler ways.
// Options: --traces DIR (only the replay, of DIR/*.json.gz; default ../shared/noise), --tunings N,
// --quick (10 of them), and to select cells, without the replay: --gap PERCENT, --us MICROSECONDS
// or
// --ms MILLISECONDS, --load idle|loaded, --kernel arithmetic|stream.
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string>

#include <ejk/ejk.h>

#include "harness.h"
#include "load.h"
#include "replayed_races.h"

namespace {

constexpr size_t candidates = 8;
constexpr int max_samples_allowed = 80;
constexpr size_t largest_tie = 3;  // members of a declared tie that still says something

// ---- kernels of known work ---------------------------------------------------------------------

// Units of work: dependent steps within the first cache, or cache lines of a buffer of 256 KiB.
using Kernel = uint64_t (*)(int64_t units);

[[gnu::noinline]] uint64_t arithmetic(int64_t units) {
  static std::array<uint64_t, 2048> table{};
  uint64_t x = 1;
  for (int64_t i = 0; i < units; ++i) x = x * 6364136223846793005U + table[x >> 53] + 1;
  return x;
}

[[gnu::noinline]] uint64_t stream(int64_t units) {
  constexpr size_t line = 8, lines = 256 * 1024 / 64;
  static std::vector<uint64_t> buffer(line * lines, 1);
  std::array<uint64_t, line> sums{};
  for (int64_t done = 0; done < units; done += lines) {
    const auto end = static_cast<size_t>(std::min<int64_t>(lines, units - done));
    for (size_t at = 0; at < end * line; at += line)
      for (size_t i = 0; i < line; ++i) sums[i] += buffer[at + i];
    bench::clobber(buffer.data());
  }
  return std::accumulate(sums.begin(), sums.end(), uint64_t{0});
}

const std::map<std::string, Kernel> kernels = {{"arithmetic", arithmetic}, {"stream", stream}};

double cpu_seconds_of(Kernel kernel, int64_t units) {
  const auto work = [&] {
    uint64_t result = kernel(units);
    bench::clobber(&result);
  };
  return ejk::system_stopwatch()->time(work, ejk::Clock::thread_cpu).thread_cpu;
}

// How many units take that long here, by the median of many runs.
int64_t calibrated_units(Kernel kernel, double wanted_seconds) {
  constexpr int64_t probe = 50000;
  std::vector<double> taken;
  for (int i = 0; i < 101; ++i) taken.push_back(cpu_seconds_of(kernel, probe));
  return std::llround(probe * wanted_seconds / bench::median(taken));
}

// ---- a call whose best candidate is known ------------------------------------------------------

struct Config {
  int candidate = 0;
};

class KnownWork final : public ejk::Trial {
 public:
  KnownWork(Kernel kernel, std::vector<int64_t> units) : kernel_(kernel), units_(std::move(units)) {
    for (size_t i = 0; i < units_.size(); ++i)
      configs_.push_back(ejk::make_config(Config{static_cast<int>(i)}));
  }
  const std::vector<ejk::AnyConfig>& configs() const { return configs_; }

  void reset() override { output_ = std::byte{0}; }
  void run(const ejk::AnyConfig& config) override { run(config.as<Config>().candidate); }
  void run(int candidate) {
    uint64_t result = kernel_(units_[static_cast<size_t>(candidate)]);
    bench::clobber(&result);
    output_ = std::byte{1};
  }
  bool run_reference() override { return false; }
  std::vector<ejk::OutputBytes> outputs() override { return {{ejk::DType::uint8, {output_}}}; }

  double wall_seconds(size_t candidate) {
    const double begin = bench::seconds();
    run(static_cast<int>(candidate));
    return bench::seconds() - begin;
  }

 private:
  Kernel kernel_;
  std::vector<int64_t> units_;
  std::vector<ejk::AnyConfig> configs_;
  std::byte output_{0};
};

// ---- ways to choose ----------------------------------------------------------------------------

ejk::TuneResult tune(KnownWork& work) {
  ejk::TuneTask task;
  task.op = "bench.winner";
  task.trial = &work;
  task.candidates = ejk::candidate_list(work.configs());
  task.budget.seconds = 1e6;
  return ejk::Tuner().tune(task);
}

// The candidate whose runs, `runs` of each one after the other, have the smallest score.
template <class Score>
size_t smallest(KnownWork& work, int runs, const Score& score) {
  std::array<double, candidates> scores{};
  for (size_t i = 0; i < candidates; ++i) {
    work.wall_seconds(i);  // warm-up
    std::vector<double> taken;
    for (int r = 0; r < runs; ++r) taken.push_back(work.wall_seconds(i));
    scores[i] = score(taken);
  }
  return static_cast<size_t>(std::min_element(scores.begin(), scores.end()) - scores.begin());
}

// As the Python package measures: three runs of each, the smallest mean.
size_t mean_of_3(KnownWork& work) {
  return smallest(work, 3, [](const auto& v) { return std::accumulate(v.begin(), v.end(), 0.); });
}

// In the time that our samples took.
size_t best_of_n(KnownWork& work, int n) {
  return smallest(work, n, [](const auto& v) { return *std::min_element(v.begin(), v.end()); });
}

// Runs of each candidate that take as long as the samples of this tuning, its control included.
int runs_in_the_time_of(const ejk::TuneResult& result) {
  double total = 0, once = 0;
  for (const ejk::Measurement& m : result.candidates)
    total += m.samples * m.seconds, once += m.seconds;
  total += result.evidence.samples * result.evidence.seconds;
  return std::max(1, static_cast<int>(std::lround(total / once)));
}

// ---- cells -------------------------------------------------------------------------------------

struct Options {
  int tunings = 60;
  std::optional<double> gap, us;
  std::optional<std::string> load, kernel, traces;

  bool selects_cells() const { return gap || us || load || kernel; }
};

struct Cell {
  std::string kernel;
  double us;
  int gap;  // percent; 0: all candidates are the same
  bool loaded;

  std::string text() const {
    char buffer[80];
    std::snprintf(buffer, sizeof buffer, "%-10s %6.1f us  %2d %%  %-6s", kernel.c_str(), us, gap,
                  loaded ? "loaded" : "idle");
    return buffer;
  }
};

struct Score {
  int tunings = 0, right = 0, tie = 0, mean3 = 0, bestof = 0, most_samples = 0;
  double seconds = 0, runs = 0;
  std::set<size_t> winners;

  double share(int count) const { return static_cast<double>(count) / std::max(1, tunings); }
};

// Only at 3 % a tie that was declared counts too: a small one with the best in it.
bool tie_with(const ejk::TuneResult& result, size_t best) {
  size_t members = 0;
  bool has_best = false;
  for (size_t i = 0; i < result.candidates.size(); ++i) {
    const std::string& status = result.candidates[i].status;
    if (i != result.winner && status != "ok" && status != "tied") continue;
    ++members;
    has_best = has_best || i == best;
  }
  return has_best && members <= largest_tie;
}

void run_tuning(const Cell& cell, KnownWork& work, size_t best, Score& score) {
  const double begin = bench::seconds();
  const ejk::TuneResult result = tune(work);
  score.seconds += bench::seconds() - begin;
  ++score.tunings;
  for (const ejk::Measurement& m : result.candidates)
    score.most_samples = std::max(score.most_samples, m.samples);
  if (result.winner) score.winners.insert(*result.winner);
  if (cell.gap == 0) return;
  const bool tie = cell.gap == 3 && result.winner != best && tie_with(result, best);
  score.tie += tie;
  score.right += tie || result.winner == best;
  const int runs = runs_in_the_time_of(result);
  score.runs += runs;
  score.mean3 += mean_of_3(work) == best;
  score.bestof += best_of_n(work, runs) == best;
}

Score run_cell(const Cell& cell, int64_t units, int tunings) {
  const bench::BusyProcesses others(cell.loaded);
  std::mt19937_64 random(1);
  Score score;
  for (int t = 0; t < tunings; ++t) {
    const size_t best = random() % candidates;
    std::vector<int64_t> all(candidates, units + units * cell.gap / 100);
    all[best] = units;
    KnownWork work(kernels.at(cell.kernel), all);
    run_tuning(cell, work, best, score);
    std::fprintf(stderr, "\r%s  %d of %d ", cell.text().c_str(), t + 1, tunings);
  }
  std::fprintf(stderr, "\r%60s\r", "");
  return score;
}

const std::vector<double> usual_us = {2, 13.3, 50, 200, 2000};

std::vector<Cell> selected_cells(const Options& options) {
  std::vector<Cell> cells;
  for (bool loaded : {false, true})
    for (int gap : {0, 3, 5, 10})
      for (const auto& [name, kernel] : kernels)
        for (double us : options.us ? std::vector{*options.us} : usual_us)
          if (options.load.value_or(loaded ? "loaded" : "idle") == (loaded ? "loaded" : "idle") &&
              options.gap.value_or(gap) == gap && options.kernel.value_or(name) == name)
            cells.push_back({name, us, gap, loaded});
  return cells;
}

// ---- what is printed ---------------------------------------------------------------------------

void print_cell(const Cell& cell, const Score& s) {
  std::printf("%s  ", cell.text().c_str());
  if (cell.gap == 0) std::printf("%zu different winners %23s", s.winners.size(), "");
  else
    std::printf("%5.0f %% %3d %7.0f %% %7.0f %% %4.0f ", 100 * s.share(s.right), s.tie,
                100 * s.share(s.mean3), 100 * s.share(s.bestof), s.runs / s.tunings);
  std::printf("%8.3f %8d%s\n", s.seconds / s.tunings, s.most_samples,
              s.most_samples > max_samples_allowed ? "  FAIL: too many samples" : "");
  std::fflush(stdout);
}

// Means and worst cells of the shares over kernels and sizes.
class Figures {
 public:
  void add(const Cell& cell, const Score& s) {
    const std::string suffix = cell.loaded ? "_loaded" : "";
    max_samples_ = std::max(max_samples_, s.most_samples);
    if (cell.gap == 0) {
      int64_t& most = identical_["identical_winners" + suffix];
      most = std::max(most, static_cast<int64_t>(s.winners.size()));
      return;
    }
    const std::string where = "_" + std::to_string(cell.gap) + suffix;
    shares_["right" + where].push_back(s.share(s.right));
    shares_["mean3" + where].push_back(s.share(s.mean3));
    shares_["bestof" + where].push_back(s.share(s.bestof));
    shares_["seconds" + where].push_back(s.seconds / s.tunings);
  }

  std::vector<ejk::Value::Member> members() const {
    std::vector<ejk::Value::Member> all = {{"most_samples", max_samples_}};
    for (const auto& [name, value] : identical_) all.push_back({name, value});
    for (const auto& [name, values] : shares_) {
      const double sum = std::accumulate(values.begin(), values.end(), 0.);
      all.push_back({name, sum / static_cast<double>(values.size())});
      if (name.starts_with("right"))
        all.push_back({name + "_worst", *std::min_element(values.begin(), values.end())});
    }
    return all;
  }

 private:
  std::map<std::string, std::vector<double>> shares_;
  std::map<std::string, int64_t> identical_;
  int max_samples_ = 0;
};

Options parse(const std::vector<std::string>& arguments) {
  Options options;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& name = arguments[i];
    if (name == "--quick") {
      options.tunings = 10;
      continue;
    }
    const std::string value = i + 1 < arguments.size() ? arguments[++i] : "";
    if (name == "--tunings") options.tunings = std::atoi(value.c_str());
    else if (name == "--gap") options.gap = std::atof(value.c_str());
    else if (name == "--us") options.us = std::atof(value.c_str());
    else if (name == "--ms") options.us = 1000 * std::atof(value.c_str());
    else if (name == "--traces") options.traces = value;
    else if (name == "--load") options.load = value;
    else if (name == "--kernel") options.kernel = value;
    else throw std::runtime_error("unknown option " + name);
  }
  return options;
}

std::vector<ejk::Value::Member> replay(const Options& options) {
  const std::string folder = options.traces.value_or("../shared/noise");
  const auto files = bench::recorded_files(folder);
  if (files.empty()) {
    if (options.traces) throw std::runtime_error("no *.json.gz in " + folder);
    std::printf("no traces in %s: the replay is left out (--traces DIR)\n", folder.c_str());
    return {};
  }
  bench::ReplayedRaces races;
  races.run(files);
  return races.figures();
}

std::vector<ejk::Value::Member> measure(const Options& options) {
  const std::vector<Cell> cells = selected_cells(options);
  if (cells.empty() || options.tunings < 1) throw std::runtime_error("no cell was selected");
  std::map<std::pair<std::string, double>, int64_t> units;
  for (const Cell& c : cells)
    units.try_emplace({c.kernel, c.us}, calibrated_units(kernels.at(c.kernel), 1e-6 * c.us));
  double others[1] = {};  // a machine that is shared is never quite idle
  if (getloadavg(others, 1) != 1) others[0] = -1;
  std::printf("share of %d tunings that picked the best of %zu candidates; load average %.1f\n",
              options.tunings, candidates, others[0]);
  std::printf("%-35s  %7s %3s %9s %9s %4s %8s %8s\n", "kernel, best, gap, machine", "ours", "tie",
              "mean of 3", "best of N", "N", "s each", "samples");
  Figures figures;
  for (const Cell& c : cells) {
    const Score score = run_cell(c, units.at({c.kernel, c.us}), options.tunings);
    print_cell(c, score);
    figures.add(c, score);
  }
  std::vector<ejk::Value::Member> members = figures.members();
  members.push_back({"load_average", others[0]});
  return members;
}

void run(const Options& options) {
  std::vector<ejk::Value::Member> figures;
  if (!options.selects_cells()) figures = replay(options);
  if (!options.traces)
    for (auto& figure : measure(options)) figures.push_back(std::move(figure));
  bench::print_json(std::move(figures));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(parse({argv + 1, argv + argc}));
  } catch (const std::exception& e) {
    std::fprintf(stderr, "winner: %s\n", e.what());
    return 2;
  }
}
