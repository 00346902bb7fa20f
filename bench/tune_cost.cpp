// SPDX-License-Identifier: Apache-2.0
// What a tuning of the example kernels costs and loses beside a race that drops no candidate, and
// whether a tuning on a loaded machine ever does harm. Options: --repeats N of the comparison with
// the full race (3), --under-load N tunings (50).
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "../examples/kernels.h"
#include "harness.h"
#include "load.h"
#include "tune/output_check.h"

namespace {

using ejk::AnyConfig;
using ejk::TuneResult;
using ejk::TuneTask;
using namespace ejk::detail;

// ---- the full race -----------------------------------------------------------------------------

// How often the tuner calls equals different: under one in a thousand. Here that is the confidence
// of the paired medians' intervals.
constexpr double confidence = 0.999;

// When it looks, how long it goes on and what it calls a tie: fixed, so that figures of different
// versions of the tuner can be compared.
constexpr int first_look = 15, max_turns = 444;
constexpr double tie_band = 0.02;
int look_after(int rounds) { return rounds + std::max(2, rounds / 5); }

// Where code and data happen to lie makes this much; it is counted apart.
constexpr double min_harm = 0.005;

struct Entrant {
  AnyConfig config;
  int64_t repeats = 1;
  std::vector<double> seconds;  // one per round
};

struct FullRace {
  std::vector<Entrant> entrants;
  Sampling sampling;
};

// Those whose outputs are right, as the tuner checks them.
std::vector<AnyConfig> verified(const TuneTask& task) {
  task.trial->reset();
  std::vector<ejk::OutputBytes> untouched = task.trial->outputs();
  task.trial->run_reference();  // the example kernels have one
  const Expected expected(std::move(untouched), task.trial->outputs());
  std::vector<AnyConfig> right;
  for (uint64_t i = 0; i < task.candidates->size(); ++i) {
    const AnyConfig c = task.candidates->config(i);
    task.trial->reset(), task.trial->run(c);
    if (!expected.difference(task.trial->outputs())) right.push_back(c);
  }
  return right;
}

void enter(FullRace& race, const TuneTask& task) {
  Sampler sampler = bench::sampler_of(*task.trial);
  std::vector<Footprint> warm;
  race.sampling.clock = ejk::Clock::thread_cpu;
  for (const AnyConfig& c : verified(task)) {
    race.entrants.emplace_back().config = c;
    warm.push_back(sampler.warm_up(c, 1));
    if (needs_wall(warm.back().elapsed)) race.sampling.clock = ejk::Clock::wall;
  }
  for (size_t i = 0; i < warm.size(); ++i)
    race.entrants[i].repeats = sampler.repeats(warm[i], race.sampling);
}

void run_round(FullRace& race, ejk::Trial& trial, std::mt19937_64& random) {
  Sampler sampler = bench::sampler_of(trial);
  for (size_t i : ejk::base::shuffled(race.entrants.size(), random)) {
    Entrant& e = race.entrants[i];
    race.sampling.repeats = e.repeats;
    e.seconds.push_back(sampler.take(e.config, race.sampling).seconds);
  }
}

size_t leader(const FullRace& race) {
  size_t best = 0;
  double least = 1;
  for (size_t i = 1; i < race.entrants.size(); ++i) {
    const auto to_first = paired_ratios(race.entrants[i].seconds, race.entrants[0].seconds);
    const double ratio = median_interval(to_first, confidence).median;
    if (ratio < least) best = i, least = ratio;
  }
  return best;
}

// Every other one is slower beyond doubt, or not by as much as the tuner's tie band.
bool settled(const FullRace& race, size_t best) {
  for (size_t i = 0; i < race.entrants.size(); ++i) {
    if (i == best) continue;
    const auto to_best = paired_ratios(race.entrants[i].seconds, race.entrants[best].seconds);
    const Interval ratio = median_interval(to_best, confidence);
    if (!(ratio.low > 1) && !(ratio.high <= 1 + tie_band)) return false;
  }
  return true;
}

struct FullRaceResult {
  AnyConfig winner;
  double entry_seconds = 0, seconds = 0;  // until the first round, and all of it
};

FullRaceResult race_all(const TuneTask& task) {
  const double begin = bench::seconds();
  FullRace race;
  std::mt19937_64 random(1);
  enter(race, task);
  const double entered = bench::seconds();
  size_t best = 0;
  for (int rounds = 0, look = first_look; rounds < max_turns;) {
    run_round(race, *task.trial, random);
    if (++rounds < look && rounds < max_turns) continue;
    look = look_after(rounds);
    best = leader(race);
    if (settled(race, best)) break;
  }
  return {race.entrants[best].config, entered - begin, bench::seconds() - begin};
}

// ---- beside it, the tuner ----------------------------------------------------------------------

struct Cost {
  size_t candidates = 0;
  double seconds = 0, full_seconds = 0;  // medians of the repetitions
  double time_ratio = 0;                 // of the two, the same
  double entry_share = 0;                // of checks and warm-ups in the full race, the same
  double regret = 0;                     // the largest of them
  std::string picks = {};                // of that repetition: ours, the full race's
  int differed = 0;                      // repetitions in which the two picked different configs
};

TuneResult tune(TuneTask task) {
  task.budget.seconds = 1e6;
  return ejk::Tuner().tune(task);
}

// Loss by the tuner's pick against the full race's, beyond what the comparison can tell.
double regret(const TuneTask& task, const AnyConfig& ours, const AnyConfig& full) {
  return ours == full ? 0 : bench::compare(*task.trial, ours, full).beyond_band();
}

std::string texts(const AnyConfig& ours, const AnyConfig& full) {
  const std::string text = stable_json(ours.to_value());
  return ours == full ? text : text + " " + stable_json(full.to_value());
}

Cost cost_of(const TuneTask& task, int repeats) {
  Cost cost;
  cost.candidates = task.candidates->size();
  std::vector<double> seconds, full_seconds, entry_shares, ratios;
  for (int r = 0; r < repeats; ++r) {
    const double begin = bench::seconds();
    const TuneResult result = tune(task);
    seconds.push_back(bench::seconds() - begin);
    const FullRaceResult full = race_all(task);
    full_seconds.push_back(full.seconds);
    entry_shares.push_back(full.entry_seconds / full.seconds);
    ratios.push_back(seconds.back() / full.seconds);
    const AnyConfig& ours = result.config;
    const double loss = regret(task, ours, full.winner);
    if (r == 0 || loss > cost.regret) cost.regret = loss, cost.picks = texts(ours, full.winner);
    cost.differed += ours == full.winner ? 0 : 1;
  }
  cost.seconds = bench::median(seconds), cost.full_seconds = bench::median(full_seconds);
  cost.time_ratio = bench::median(ratios), cost.entry_share = bench::median(entry_shares);
  return cost;
}

// ---- the calls ---------------------------------------------------------------------------------

ejk::Tensor matrix(int64_t rows, int64_t columns) {
  std::mt19937 generator(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(rows * columns));
  for (float& v : values) v = normal(generator);
  return ejk::Tensor::of<float>({rows, columns}, std::span<const float>(values));
}

// A tuner is what gets to see a call's trial and candidates.
class Visitor final : public ejk::Tuner {
 public:
  using Visit = std::function<TuneResult(const TuneTask&)>;
  explicit Visitor(Visit visit) : visit_(std::move(visit)) {}
  TuneResult tune(const TuneTask& task) override { return visit_(task); }

 private:
  Visit visit_;
};

// visit(name, task) for every call.
void for_each_call(const std::function<void(const std::string&, const TuneTask&)>& visit) {
  using namespace examples;
  std::string name;
  const ejk::Executor executor(
      ejk::SelectorOptions{.tuner = std::make_shared<Visitor>([&](const TuneTask& task) {
                             visit(name, task);
                             TuneResult any;
                             any.outcome = ejk::Outcome::tuned, any.winner = 0;
                             any.config = task.candidates->config(0);
                             any.candidates.resize(task.candidates->size());
                             return any;
                           })});
  const auto tune = [&](std::string as, const auto& kernel, auto&&... args) {
    name = std::move(as);
    static_cast<void>(executor.tune(kernel, args...));
  };
  for (size_t size : {4096, 500'000}) {
    const std::vector<float> x(size, 1.f);
    std::vector<float> y = x;
    tune("saxpy " + std::to_string(size), Saxpy{}, 0.5f, x, y);
  }
  for (int64_t n : {64, 160})
    tune("matmul " + std::to_string(n), Matmul{}, matrix(n, n), matrix(n, n),
         ejk::Tensor::of<float>({n, n}));
  for (int64_t rows : {1, 256}) {
    const std::vector<float> weight(1024, 1.f);
    tune("rms_norm " + std::to_string(rows) + "x1024", RmsNorm{}, matrix(rows, 1024), weight,
         ejk::Tensor::of<float>({rows, 1024}), 1e-5f);
  }
  for (int64_t n : {200, 512})
    tune("transpose " + std::to_string(n), Transpose{}, matrix(n, n),
         ejk::Tensor::of<float>({n, n}));
}

// ---- what is printed ---------------------------------------------------------------------------

struct Costs {
  double total = 0;  // seconds of all tunings over seconds of all full races
  double geomean = 0, worst = 0, regret = 0;
};

Costs compare_with_full_races(int repeats) {
  std::printf("%-18s %10s %8s %8s %8s %8s %8s %s\n", "beside a full race", "candidates", "ours s",
              "full s", "ratio", "entry", "regret", "differed, picks");
  double log_sum = 0, seconds = 0, full_seconds = 0;
  int calls = 0;
  Costs all;
  for_each_call([&](const std::string& name, const TuneTask& task) {
    const Cost cost = cost_of(task, repeats);
    std::printf("%-18s %10zu %8.3f %8.3f %8.2f %8.2f %8.4f %3d of %d  %s\n", name.c_str(),
                cost.candidates, cost.seconds, cost.full_seconds, cost.time_ratio, cost.entry_share,
                cost.regret, cost.differed, repeats, cost.picks.c_str());
    std::fflush(stdout);
    log_sum += std::log(cost.time_ratio), ++calls;
    seconds += cost.seconds, full_seconds += cost.full_seconds;
    all.worst = std::max(all.worst, cost.time_ratio);
    all.regret = calls == 1 ? cost.regret : std::max(all.regret, cost.regret);
  });
  all.geomean = std::exp(log_sum / calls), all.total = seconds / full_seconds;
  return all;
}

struct Harm {
  int changed = 0;                  // tunings that chose something else than the heuristic
  int worse = 0, worse_at_all = 0;  // than the heuristic, beyond the A/A band
  double worst = 0;                 // the largest loss beyond that band, 0 if there is none
};

// One tuning of the call; what it chose against the heuristic, in the same load.
void add_harm(const std::string& name, const TuneTask& task, Harm& harm) {
  const TuneResult result = tune(task);
  const AnyConfig& chosen = result.config;
  if (chosen == *task.heuristic) return;
  ++harm.changed;
  const bench::Comparison c = bench::compare(*task.trial, chosen, *task.heuristic);
  if (!c.worse_by(0)) return;
  ++harm.worse_at_all;
  harm.worse += c.worse_by(min_harm);
  harm.worst = std::max(harm.worst, c.beyond_band());
  std::printf("%-18s chose %s: %.4f [%.4f, %.4f] of the heuristic, band %.4f\n", name.c_str(),
              stable_json(chosen.to_value()).c_str(), c.ratio.median, c.ratio.low, c.ratio.high,
              c.band);
}

Harm harm_under_load(int tunings) {
  const bench::BusyProcesses others;
  Harm harm;
  for (int done = 0; done < tunings;)
    for_each_call([&](const std::string& name, const TuneTask& task) {
      if (done == tunings) return;
      add_harm(name, task, harm);
      std::fprintf(stderr, "\runder load: %d of %d ", ++done, tunings);
    });
  std::fprintf(stderr, "\r%40s\r", "");
  return harm;
}

}  // namespace

int main(int argc, char** argv) {
  const int repeats = static_cast<int>(bench::option(argc, argv, "--repeats", 3));
  const int tunings = static_cast<int>(bench::option(argc, argv, "--under-load", 50));
  const Costs costs = repeats > 0 ? compare_with_full_races(repeats) : Costs{};
  const Harm harm = harm_under_load(tunings);
  std::printf(
      "tuned under load: %d of %d are not the heuristic; worse than it: %d, and %d by under %.1f "
      "%%\n",
      harm.changed, tunings, harm.worse, harm.worse_at_all - harm.worse, 100 * min_harm);
  bench::print_json({{"time_over_full_race", costs.total},
                     {"time_over_full_race_geomean", costs.geomean},
                     {"time_over_full_race_worst", costs.worst},
                     {"regret", costs.regret},
                     {"regret_beyond_tie", costs.regret - tie_band},
                     {"worse_than_heuristic", harm.worse},
                     {"worse_than_heuristic_at_all", harm.worse_at_all},
                     {"worst_over_heuristic", harm.worst},
                     {"changed_under_load", harm.changed},
                     {"tunings_under_load", tunings}});
}
