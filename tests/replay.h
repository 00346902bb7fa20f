// SPDX-License-Identifier: Apache-2.0
// Tunings on times that were recorded or made up: the stopwatch shows what the script says, so the
// same tuning gives the same answer on every machine.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ejk/config.h>
#include <ejk/tuner.h>

namespace replay {

// Stands still unless something moves it.
class ScriptedStopwatch final : public ejk::Stopwatch {
 public:
  double now() override { return total_.wall; }
  ejk::Elapsed time(const std::function<void()>& work, ejk::Clock) override {
    const ejk::Elapsed begin = total_;
    work();
    pass(per_sample);
    return {total_.wall - begin.wall, total_.thread_cpu - begin.thread_cpu,
            total_.process_cpu - begin.process_cpu, total_.waits - begin.waits,
            total_.preemptions - begin.preemptions};
  }
  bool beside_other_threads() override { return other_threads; }

  // The thread computes for so long, alone.
  void pass(double seconds) { pass({seconds, seconds, seconds}); }
  void pass(const ejk::Elapsed& e) {
    total_.wall += e.wall;
    total_.thread_cpu += e.thread_cpu;
    total_.process_cpu += e.process_cpu;
    total_.waits += e.waits;
    total_.preemptions += e.preemptions;
  }

  double per_sample = 0;  // seconds; what reading the clocks costs
  bool other_threads = false;

 private:
  ejk::Elapsed total_;
};

// One execution of candidate i in round r; warm-ups and first runs belong to round 0.
using Script = std::function<ejk::Elapsed(size_t candidate, int round)>;

// A call without arrays whose candidates take the time that a script says.
class ScriptedTrial final : public ejk::Trial {
 public:
  ScriptedTrial(ScriptedStopwatch& stopwatch, Script script)
      : stopwatch_(stopwatch), script_(std::move(script)) {}
  void reset() override { fresh_ = true; }
  void run(const ejk::AnyConfig& config) override {
    stopwatch_.pass(script_(static_cast<size_t>(config.as<int>()), round));
    if (std::exchange(fresh_, false)) stopwatch_.pass(after_reset);
  }
  bool run_reference() override { return false; }
  std::vector<ejk::OutputBytes> outputs() override { return {}; }

  int round = 0;
  double after_reset = 0;  // seconds; how much longer the first run after a reset takes

 private:
  ScriptedStopwatch& stopwatch_;
  Script script_;
  bool fresh_ = false;
};

struct Race {
  size_t candidates = 2;
  Script script;
  double per_sample = 0, after_reset = 0;
  std::optional<int> heuristic = {};
  uint64_t seed = 0;
};

// The winner of a tuning of 0, 1, ... by the script.
inline ejk::TuneResult tune(const Race& race) {
  const auto stopwatch = std::make_shared<ScriptedStopwatch>();
  stopwatch->per_sample = race.per_sample;
  ScriptedTrial trial(*stopwatch, race.script);
  trial.after_reset = race.after_reset;
  std::vector<ejk::AnyConfig> configs;
  for (size_t i = 0; i < race.candidates; ++i)
    configs.push_back(ejk::make_config(static_cast<int>(i)));
  ejk::TuneTask task;
  task.op = "scripted";
  task.trial = &trial;
  task.candidates = ejk::candidate_list(std::move(configs));
  if (race.heuristic) task.heuristic = ejk::make_config(*race.heuristic);
  task.budget.seconds = 1e9;
  task.guard = false;  // a child's clock would stand still
  task.on_progress = [&](const ejk::TuneProgress& p) { trial.round = p.round; };
  ejk::TunerOptions options;
  options.seed = race.seed;
  options.stopwatch = stopwatch;
  return ejk::Tuner(options).tune(task);
}

// ---- recorded noise ----------------------------------------------------------------------------

// Times of equal work: rows are rounds, column i is always the same candidate.
struct Trace {
  std::string name;
  std::vector<std::vector<double>> wall, cpu;  // seconds

  size_t rounds() const { return wall.size(); }
  size_t columns() const { return wall.empty() ? 0 : wall.front().size(); }
};

inline Trace read_trace(std::string name, const std::string& json) {
  const ejk::Value document = ejk::parse_json(json);
  const auto table = [&](const char* member) {
    std::vector<std::vector<double>> rows;
    const ejk::Value* found = document.find(member);
    if (!found) throw std::runtime_error(name + ": there is no " + member);
    for (const ejk::Value& row : found->as_array()) {
      rows.emplace_back();
      for (const ejk::Value& ns : row.as_array()) rows.back().push_back(1e-9 * ns.as_double());
      if (rows.back().size() != rows.front().size())
        throw std::runtime_error(name + ": rows of different lengths");
    }
    return rows;
  };
  Trace trace{std::move(name), table("wall_ns"), table("cpu_ns")};
  if (trace.wall.size() != trace.cpu.size())
    throw std::runtime_error(trace.name + ": wall_ns and cpu_ns differ in length");
  return trace;
}

// Candidate i takes what columns[i] took from row `first` on, times factors[i].
inline Script script_of(const Trace& trace, size_t first, std::vector<size_t> columns,
                        std::vector<double> factors) {
  return [&trace, first, columns = std::move(columns), factors = std::move(factors)](
             size_t candidate, int round) {
    const size_t row = std::min(first + static_cast<size_t>(round), trace.rounds() - 1);
    const double wall = factors[candidate] * trace.wall[row][columns[candidate]],
                 cpu = factors[candidate] * trace.cpu[row][columns[candidate]];
    return ejk::Elapsed{wall, cpu, cpu, 0};
  };
}

}  // namespace replay
