// SPDX-License-Identifier: Apache-2.0
// A tuning from top to bottom: reject what is wrong, warm up, race in rounds, decide.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <unordered_map>

#include <cxxabi.h>
#include <time.h>

#include <fmt/format.h>

#include <ejk/device.h>
#include <ejk/tuner.h>

#include "measure.h"
#include "verify.h"

namespace ejk {
namespace {

using namespace detail;

// ---- constants ---------------------------------------------------------------------------------

constexpr int most_rounds = 60;          // about 40 resolve 2 % on a noisy shared machine
constexpr double reported = 0.95;        // confidence of the intervals in the evidence
constexpr double decisive = 0.99;        // of decisions: many rivals are compared, every round
constexpr int rounds_for_interval = 6;   // the least number whose min..max is a 95 % interval
constexpr int rounds_for_dropping = 4;   // before that even the hopeless stay
constexpr double clear_in_few = 2;       // ratio that all of 4 or 5 rounds must exceed
constexpr double clear_in_one = 4;       // ratio that all of 1 to 3 rounds must exceed
constexpr double not_worth_more = 0.02;  // differences below this do not justify another round

// ---- the state of a race -----------------------------------------------------------------------

std::chrono::steady_clock::time_point deadline_after(double seconds) {
  constexpr double most = 1e9;  // seconds, some thirty years: longer ones would overflow the clock
  const double allowed = seconds < most ? std::max(0., seconds) : most;
  return std::chrono::steady_clock::now() +
         std::chrono::duration_cast<std::chrono::steady_clock::duration>(
             std::chrono::duration<double>(allowed));
}

constexpr size_t nobody = std::numeric_limits<size_t>::max();  // index of no entrant

enum class Status { racing, slower, rejected, untried };

struct Entrant {
  AnyConfig config;
  std::vector<size_t> places;  // among the candidates; none: a heuristic that is only the control
  Status status = Status::racing;
  std::string why;
  double first_run = 0;  // wall seconds of the verifying run
  Footprint warm;
  int64_t repeats = 1;
  std::vector<double> seconds;  // one per round, NaN if it was not in that round

  bool racing() const { return status == Status::racing; }
  bool candidate() const { return !places.empty(); }
  bool can_win() const { return racing() && candidate(); }
};

struct Race {
  Race(const TuneTask& what, uint64_t seed)
      : task(what), deadline(deadline_after(what.budget_seconds)), random(seed) {}

  const TuneTask& task;
  std::vector<Entrant> entrants;       // candidates in their order, the control last
  std::optional<size_t> heuristic;     // index of its entrant
  size_t incumbent = nobody;           // what the others are compared with in the report
  size_t control = nobody;             // runs twice in every round
  std::vector<double> control_ratios;  // second over first, one per round
  int rounds = 0;
  Clock clock = Clock::wall;
  bool complete = true;
  std::string strategy = "race", note;
  std::chrono::steady_clock::time_point deadline;
  std::mt19937_64 random;

  bool spent() const { return std::chrono::steady_clock::now() >= deadline; }
  void reject(Entrant& e, std::string why) { e.status = Status::rejected, e.why = std::move(why); }
  bool any_can_win() const {
    return std::ranges::any_of(entrants, [](const Entrant& e) { return e.can_win(); });
  }
};

// Runs f; what it threw as text, nullopt if nothing. Whatever a candidate throws is a finding
// about that candidate.
template <class F>
std::optional<std::string> failure_of(F&& f) {
  try {
    f();
    return std::nullopt;
  } catch (const std::exception& e) {
    return e.what();
  } catch (const std::string& text) {
    return text;
  } catch (const char* text) {
    return text == nullptr ? "threw a null pointer" : text;
  } catch (abi::__forced_unwind&) {
    throw;  // the thread is being cancelled
  } catch (...) {
    return "threw something that is not a std::exception";
  }
}

// ---- 1. who takes part -------------------------------------------------------------------------

// Equal configs become one entrant.
void enter_candidates(Race& race) {
  std::unordered_map<std::string, size_t> known;
  const auto enter = [&](const AnyConfig& config) {
    const auto [at, added] = known.try_emplace(stable_json(config.to_value()), known.size());
    if (added) race.entrants.emplace_back().config = config;
    return at->second;
  };
  for (size_t i = 0; i < race.task.candidates.size(); ++i)
    race.entrants[enter(race.task.candidates[i])].places.push_back(i);
  if (race.task.heuristic && *race.task.heuristic) race.heuristic = enter(*race.task.heuristic);
  for (Entrant& e : race.entrants)
    if (!e.config) race.reject(e, "an empty configuration was given");
}

// The heuristic first: it is the one the others are compared with.
std::vector<size_t> verifying_order(const Race& race) {
  std::vector<size_t> order;
  if (race.heuristic) order.push_back(*race.heuristic);
  for (size_t i = 0; i < race.entrants.size(); ++i)
    if (i != race.heuristic && race.entrants[i].racing()) order.push_back(i);
  return order;
}

// ---- 2. right results only ---------------------------------------------------------------------

bool ran_reference(Race& race) {
  bool has_one = false;
  const auto failure = failure_of([&] {
    race.task.trial->reset();
    has_one = race.task.trial->run_reference();
  });
  if (failure) race.note += fmt::format("the reference threw: {}; ", *failure);
  return has_one && !failure;
}

// The reference's outputs; else the heuristic's; else those of the first candidate that changes
// something, because one that does nothing must not set the measure for those that work.
Expected expected_outputs(Race& race) {
  Trial& trial = *race.task.trial;
  trial.reset();
  std::vector<OutputBytes> untouched = trial.outputs(), found = untouched;
  if (ran_reference(race)) return {std::move(untouched), trial.outputs()};
  bool any = false;
  for (size_t i : verifying_order(race)) {
    if (failure_of([&] { trial.reset(), trial.run(race.entrants[i].config); })) continue;
    std::vector<OutputBytes> outputs = trial.outputs();
    const bool changed = !same_bytes(outputs, untouched);
    if (!any || changed) found = std::move(outputs);
    any = true;
    if (changed || race.spent()) break;
  }
  return {std::move(untouched), std::move(found)};
}

void verify(Race& race, Entrant& e, const Expected& expected) {
  Trial& trial = *race.task.trial;
  std::optional<std::string> problem =
      failure_of([&] { e.first_run = sample_seconds(trial, e.config, 1, Clock::wall); });
  if (!problem) problem = expected.difference(trial.outputs());
  if (problem) race.reject(e, *problem);
}

// Within the budget, but until at least one candidate is known to be right.
void verify_all(Race& race) {
  const Expected expected = expected_outputs(race);
  bool any = false;
  for (size_t i : verifying_order(race)) {
    Entrant& e = race.entrants[i];
    if (any && race.spent()) {
      e.status = Status::untried, e.why = "the budget was spent before its turn";
      race.complete = false;
      continue;
    }
    verify(race, e, expected);
    any = any || e.can_win();
  }
}

// ---- 3. one clock for all ----------------------------------------------------------------------

// False if the budget was spent on the way.
bool warm_up_all(Race& race, int least_executions) {
  race.clock = Clock::thread_cpu;
  for (Entrant& e : race.entrants) {
    if (!e.racing()) continue;
    if (race.spent()) {
      race.complete = false;
      return false;
    }
    const auto failure =
        failure_of([&] { e.warm = warm_up(*race.task.trial, e.config, least_executions); });
    if (failure) race.reject(e, *failure);
    else if (e.warm.needs_wall()) race.clock = Clock::wall;
  }
  for (Entrant& e : race.entrants)
    e.repeats = repeats_for(e.warm.seconds_per_execution(race.clock));
  return true;
}

// ---- 4. rounds ---------------------------------------------------------------------------------

// The racing ones and the control's second turn (`entrants.size()`), in random order.
std::vector<size_t> order_of_round(Race& race) {
  std::vector<size_t> entered, order;
  for (size_t i = 0; i < race.entrants.size(); ++i)
    if (race.entrants[i].racing()) entered.push_back(i);
  entered.push_back(race.entrants.size());
  for (size_t i : shuffled(entered.size(), race.random)) order.push_back(entered[i]);
  return order;
}

// A round counts only as a whole: false if the budget ran out or a candidate threw.
bool run_round(Race& race) {
  const size_t twin = race.entrants.size();
  std::vector<double> seconds(twin + 1, std::numeric_limits<double>::quiet_NaN());
  for (size_t i : order_of_round(race)) {
    if (race.spent()) return false;
    Entrant& e = race.entrants[i == twin ? race.control : i];
    const auto failure = failure_of(
        [&] { seconds[i] = sample_seconds(*race.task.trial, e.config, e.repeats, race.clock); });
    if (!failure) continue;
    race.reject(e, *failure);
    return false;
  }
  for (size_t i = 0; i < twin; ++i) race.entrants[i].seconds.push_back(seconds[i]);
  race.control_ratios.push_back(seconds[twin] / seconds[race.control]);
  ++race.rounds;
  return true;
}

std::vector<double> ratios(const Race& race, size_t over, size_t under) {
  return paired_ratios(race.entrants[over].seconds, race.entrants[under].seconds);
}

// How far the control seems to be from itself: nothing closer than that is a difference.
double noise(const Race& race) {
  if (race.control_ratios.empty()) return 0;
  const Interval aa = median_interval(race.control_ratios, reported);
  return std::max({0., 1 - aa.low, aa.high - 1});
}

// True if `rival` is slower than `best` beyond the noise.
bool clearly_slower(const Race& race, size_t rival, size_t best) {
  const std::vector<double> r = ratios(race, rival, best);
  if (r.empty()) return false;
  const auto rounds = static_cast<int>(r.size());
  const double factor = rounds >= rounds_for_interval   ? 1
                        : rounds >= rounds_for_dropping ? clear_in_few
                                                        : clear_in_one;
  return median_interval(r, decisive).low > factor * (1 + noise(race));
}

// The candidate with the smallest median ratio to the control. At least one can win.
size_t leader(const Race& race) {
  size_t best = race.entrants.size();
  double least = 0;
  for (size_t i = 0; i < race.entrants.size(); ++i) {
    if (!race.entrants[i].can_win()) continue;
    const double ratio = median_interval(ratios(race, i, race.control), reported).median;
    if (best == race.entrants.size() || ratio < least) best = i, least = ratio;
  }
  return best;
}

// The heuristic, else the first candidate; another one only if that was rejected. The control is
// the incumbent until it is beaten or rejected: no round is spent on a loser, however slow it is.
void seat_incumbent(Race& race) {
  const auto fit = [&](size_t i) { return race.entrants[i].status != Status::rejected; };
  if (race.incumbent == nobody || !fit(race.incumbent)) {
    const auto first = std::ranges::find_if(race.entrants, &Entrant::can_win);
    race.incumbent = static_cast<size_t>(first - race.entrants.begin());
    if (race.heuristic && fit(*race.heuristic)) race.incumbent = *race.heuristic;
  }
  if (race.control == nobody) race.control = race.incumbent;
  if (!race.entrants[race.control].racing()) race.control = leader(race);
}

void drop_slower(Race& race) {
  const size_t best = leader(race);
  for (size_t i = 0; i < race.entrants.size(); ++i)
    if (i != best && race.entrants[i].racing() && clearly_slower(race, i, best))
      race.entrants[i].status = Status::slower;
}

// After the last one left threw: those that had dropped out were right, only slower than it.
void readmit(Race& race) {
  for (Entrant& e : race.entrants)
    if (e.status == Status::slower) e.status = Status::racing;
}

// True if another round could not change the choice, or not for a gain that is worth it.
bool settled(const Race& race) {
  const size_t best = leader(race);
  for (size_t i = 0; i < race.entrants.size(); ++i) {
    if (i == best || !race.entrants[i].can_win()) continue;
    const std::vector<double> r = ratios(race, i, best);
    const Interval slower = median_interval(r, reported);
    if (r.size() < rounds_for_interval || slower.high > 1 + not_worth_more) return false;
  }
  return true;
}

void run_rounds(Race& race, int least_rounds) {
  while (race.any_can_win() && race.rounds < std::max(most_rounds, least_rounds)) {
    seat_incumbent(race);
    if (!run_round(race)) {
      race.complete = !race.spent();
      if (!race.any_can_win()) readmit(race);
      if (!race.complete) return;
      continue;
    }
    if (race.rounds >= rounds_for_dropping) drop_slower(race);
    if (race.rounds >= least_rounds && settled(race)) return;
  }
}

// Where the budget did not allow one round, the verifying runs are all there is.
void count_first_runs(Race& race) {
  seat_incumbent(race);
  race.strategy = "single run", race.clock = Clock::wall;
  race.rounds = 1;
  for (Entrant& e : race.entrants)
    if (e.racing()) e.seconds = {e.first_run};
}

// ---- 5. the decision ---------------------------------------------------------------------------

// The incumbent stays unless it is clearly beaten. Else the earliest of those that are not clearly
// slower than the best: equal candidates give the same winner every time.
size_t pick(const Race& race) {
  const size_t best = leader(race), incumbent = race.incumbent;
  const bool defends = race.entrants[incumbent].can_win();
  if (defends && !clearly_slower(race, incumbent, best)) return incumbent;
  for (size_t i = 0; i < best; ++i)
    if (race.entrants[i].can_win() && !clearly_slower(race, i, best)) return i;
  return best;
}

// Unresolved: several could have won and not one of them could be told from the incumbent.
Outcome outcome_of(const Race& race, size_t winner) {
  if (winner != race.incumbent) return Outcome::tuned;
  bool rivals = false;
  for (size_t i = 0; i < race.entrants.size(); ++i) {
    const Entrant& e = race.entrants[i];
    if (i == winner || !e.candidate()) continue;
    if (e.status == Status::slower) return Outcome::tuned;
    if (!e.racing()) continue;
    if (clearly_slower(race, i, winner)) return Outcome::tuned;
    rivals = true;
  }
  return rivals ? Outcome::unresolved : Outcome::tuned;
}

std::string utc_now() {
  const time_t now = time(nullptr);
  tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  return {text, strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

// The rounds it took part in.
std::vector<double> samples(const Entrant& e) {
  std::vector<double> taken;
  std::ranges::copy_if(e.seconds, std::back_inserter(taken), [](double s) { return s == s; });
  return taken;
}

std::string_view status_text(Status status) {
  switch (status) {
    case Status::slower:
      return "slower";
    case Status::rejected:
      return "rejected";
    case Status::untried:
      return "untried";
    default:
      return "ok";
  }
}

Measurement measurement_of(const Race& race, size_t index) {
  const Entrant& e = race.entrants[index];
  const std::vector<double> taken = samples(e);
  Measurement m;
  m.config = e.config.to_value();
  m.status = status_text(e.status);
  m.why = e.why;
  m.samples = static_cast<int>(taken.size());
  m.seconds = median_interval(taken, reported).median;
  if (race.incumbent != nobody) {
    const Interval ratio = median_interval(ratios(race, index, race.incumbent), reported);
    m.ratio = ratio.median, m.ratio_low = ratio.low, m.ratio_high = ratio.high;
  }
  return m;
}

void add_winner(const Race& race, size_t winner, Evidence& evidence) {
  const std::vector<double> taken = samples(race.entrants[winner]);
  const Interval seconds = median_interval(taken, reported);
  evidence.seconds = seconds.median;
  evidence.seconds_low = seconds.low, evidence.seconds_high = seconds.high;
  evidence.samples = static_cast<int>(taken.size());
  if (!race.heuristic || race.entrants[*race.heuristic].status == Status::rejected) return;
  evidence.heuristic_seconds =
      median_interval(samples(race.entrants[*race.heuristic]), reported).median;
  const Interval speedup = median_interval(ratios(race, *race.heuristic, winner), reported);
  evidence.speedup = speedup.median;
  evidence.speedup_low = speedup.low, evidence.speedup_high = speedup.high;
}

TuneResult report(const Race& race, std::optional<size_t> winner) {
  TuneResult result;
  result.note = race.note;
  if (race.heuristic && race.entrants[*race.heuristic].status == Status::rejected)
    result.note +=
        fmt::format("the heuristic was rejected: {}; ", race.entrants[*race.heuristic].why);
  result.candidates.resize(race.task.candidates.size());
  for (size_t i = 0; i < race.entrants.size(); ++i)
    for (size_t place : race.entrants[i].places) result.candidates[place] = measurement_of(race, i);
  Evidence& evidence = result.evidence;
  evidence.noise = noise(race);
  evidence.complete = race.complete;
  evidence.strategy = race.strategy;
  evidence.clock = clock_name(race.clock);
  evidence.data = "call";
  evidence.library = library_version();
  evidence.time = utc_now();
  if (!winner) return result;
  result.winner = race.entrants[*winner].places.front();
  result.outcome = outcome_of(race, *winner);
  add_winner(race, *winner, evidence);
  return result;
}

// ---- races of plain functions ------------------------------------------------------------------

// The configurations are indices.
constexpr ConfigType index_type = {
    "index",
    [](const void* index) { return Value(*static_cast<const size_t*>(index)); },
    [](const Value& value, std::string&) -> std::shared_ptr<const void> {
      return std::make_shared<size_t>(static_cast<size_t>(value.as_uint()));
    },
};

class FunctionTrial final : public Trial {
 public:
  explicit FunctionTrial(std::span<const std::function<void()>> calls) : calls_(calls) {
    for (size_t i = 0; i < calls.size(); ++i)
      indices_.emplace_back(std::make_shared<const size_t>(i), &index_type);
  }
  std::span<const AnyConfig> indices() const { return indices_; }
  void reset() override {}
  void run(const AnyConfig& config) override { calls_[config.as<size_t>()](); }
  bool run_reference() override { return false; }
  std::vector<OutputBytes> outputs() override { return {}; }

 private:
  std::span<const std::function<void()>> calls_;
  std::vector<AnyConfig> indices_;
};

}  // namespace

Tuner::Tuner(int warmup, int iters, uint64_t seed) : warmup_(warmup), iters_(iters), seed_(seed) {
  if (warmup < 0 || iters < 0)
    throw Error(ErrorKind::invalid_argument,
                fmt::format("[Tuner] warmup {} and iters {} were given: both must be 0 or more",
                            warmup, iters));
}

TuneResult Tuner::tune(const TuneTask& task) {
  if (task.trial == nullptr)
    throw Error(
        ErrorKind::invalid_argument,
        fmt::format("[{}] a tuning task without a trial was given: set TuneTask::trial", task.op));
  Race race(task, seed_);
  enter_candidates(race);
  if (race.any_can_win()) verify_all(race);
  if (race.any_can_win() && warm_up_all(race, warmup_)) run_rounds(race, std::max(1, iters_));
  if (!race.any_can_win()) return report(race, std::nullopt);
  if (race.rounds == 0) count_first_runs(race);
  return report(race, pick(race));
}

size_t Tuner::fastest(std::span<const std::function<void()>> calls) {
  FunctionTrial trial(calls);
  TuneTask task;
  task.op = "Tuner::autotune";
  task.trial = &trial;
  task.candidates = trial.indices();
  const TuneResult result = tune(task);
  if (result.winner) return *result.winner;
  std::string reasons;
  for (size_t i = 0; i < result.candidates.size(); ++i)
    reasons += fmt::format("; candidate {}: {}", i, result.candidates[i].why);
  throw Error(ErrorKind::no_configuration,
              fmt::format("[Tuner::autotune] none of {} candidates could be run{}", calls.size(),
                          calls.empty() ? ": give at least one" : reasons));
}

double Tuner::seconds_of(const std::function<void()>& call) {
  call();  // what it throws is the caller's to see
  FunctionTrial trial(std::span(&call, 1));
  TuneTask task;
  task.op = "Tuner::measure";
  task.trial = &trial;
  task.candidates = trial.indices();
  const TuneResult result = tune(task);
  if (result.winner) return result.evidence.seconds;
  throw Error(ErrorKind::no_configuration,
              fmt::format("[Tuner::measure] the function failed: {}", result.candidates.at(0).why));
}

}  // namespace ejk
