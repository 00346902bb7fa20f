// SPDX-License-Identifier: Apache-2.0
// Rounds in shuffled order until the winner is clear, or no difference is left that matters.
#include <algorithm>
#include <cmath>

#include "base/format.h"
#include "base/shuffle.h"
#include "tune/tuning.h"

namespace ejk::detail {
namespace {

// ---- samples ------------------------------------------------------------------------------------

// All run as often per sample as the fastest one needs. One that took far longer in its warm-up
// would make rounds long: it runs less often, which is good enough to see that it is hopeless.
void choose_repeats(const Entrants& entrants, const Sampler& sampler, Samples& samples) {
  double fastest = INFINITY;
  Sampling& sampling = samples.sampling;
  const auto seconds = [&](const Times& times) {
    return times.warm.seconds_per_execution(sampling.clock);
  };
  for (const EntrantId i : entrants.ids()) {
    if (!entrants[i].racing() || seconds(samples[i]) >= fastest) continue;
    fastest = seconds(samples[i]);
    sampling.repeats = sampler.repeats(samples[i].warm, sampling);
  }
  for (const EntrantId i : entrants.ids()) {
    Times& own = samples[i];
    own.slow_in_warm_up =
        entrants[i].racing() && seconds(own) > static_cast<double>(far_slower) * fastest;
    own.repeats = sampling.repeats;
    if (own.slow_in_warm_up)
      own.repeats = std::min(own.repeats, sampler.repeats(own.warm, sampling));
  }
}

// It is not hopeless after all: from now on it is measured as the others are.
void measure_alike(const Sampling& sampling, Times& own) {
  if (own.repeats == sampling.repeats) return;
  own.repeats = sampling.repeats;
  own.starved = false;
  std::ranges::fill(own.seconds, std::numeric_limits<double>::quiet_NaN());
}

// A sample far below the warm-up shows that the warm-up was disturbed, or made something that stays
// (a table, a pool): then it says nothing about the candidate.
void forget_wrong_warm_up(const Sampling& sampling, Times& own) {
  const double warm = own.warm.seconds_per_execution(sampling.clock);
  if (!own.slow_in_warm_up || static_cast<double>(far_slower) * own.seconds.back() > warm) return;
  own.slow_in_warm_up = false;
  measure_alike(sampling, own);
}

// Samples that were taken in another way are worth nothing.
void start_again(Tuning& t) {
  t.samples.rounds = 0;
  for (const EntrantId i : t.entrants.ids())
    t.samples[i].seconds.clear(), t.samples[i].starved = false;
  choose_repeats(t.entrants, t.sampler, t.samples);
}

// After the last one left threw: those that had dropped out were right, only slower than it.
void readmit(Entrants& entrants) {
  for (Entrant& e : entrants)
    if (e.status == Status::slower) e.status = Status::racing;
}

std::vector<EntrantId> order_of_round(const Entrants& entrants, std::mt19937_64& random) {
  std::vector<EntrantId> racing, order;
  for (const EntrantId i : entrants.ids())
    if (entrants[i].racing()) racing.push_back(i);
  for (size_t i : base::shuffled(racing.size(), random)) order.push_back(racing[i]);
  return order;
}

// Samples that misled. By the thread's clock one may have been an accident; a device's clock that
// has lied once is not asked again.
constexpr int max_misled(Clock clock) { return clock == Clock::thread_cpu ? 1 : 0; }

// A round counts only as a whole: false if the budget ran out or a candidate threw.
bool run_round(Tuning& t) {
  t.rest();
  Samples& samples = t.samples;
  std::vector<double> seconds(t.entrants.ids().size(), std::numeric_limits<double>::quiet_NaN());
  const HostWatch watch(t, HostWatch::Of::thread);
  for (const EntrantId i : order_of_round(t.entrants, t.random)) {
    if (t.spent()) return false;
    Entrant& e = t.entrants[i];
    Times& own = samples[i];
    Sampling sampling = samples.sampling;
    sampling.repeats = own.repeats;
    Sample sample;
    const auto failure = failure_of([&] { sample = t.sampler.take(e.config, sampling); });
    e.reject_if(failure, watch.put_back_after(e.config));
    if (!e.racing()) return false;
    seconds[at(i)] = sample.seconds;
    own.misled += sample.misled;
    own.starved = own.starved || sample.starved;
    if (sample.misled && own.misled > max_misled(sampling.clock)) {
      samples.sampling.clock = Clock::wall;  // its warm-up did not show that
      readmit(t.entrants);
      start_again(t);
      return false;
    }
  }
  for (const EntrantId i : t.entrants.ids()) {
    samples[i].seconds.push_back(seconds[at(i)]);
    if (t.entrants[i].racing()) forget_wrong_warm_up(samples.sampling, samples[i]);
  }
  ++samples.rounds;
  return true;
}

// ---- verdicts -----------------------------------------------------------------------------------

void look(const Entrants& entrants, Samples& samples) {
  RaceSamples all;
  for (const EntrantId i : entrants.ids()) all.emplace_back(samples[i].seconds);
  samples.standings = Standings(all);
}

// The earlier winner, else the heuristic, else the first candidate; another one only if that was
// rejected.
void seat_incumbent(Contest& c) {
  const auto fit = [&](std::optional<EntrantId> who) {
    return who && c.entrants[*who].status != Status::rejected &&
           c.entrants[*who].status != Status::untried;
  };
  if (fit(c.roles.incumbent)) return;
  const auto ids = c.entrants.ids();
  const auto earlier = c.earlier_winner();
  if (earlier && c.entrants[*earlier].can_win()) c.roles.incumbent = earlier;
  else if (fit(c.roles.heuristic)) c.roles.incumbent = c.roles.heuristic;
  else
    c.roles.incumbent = *std::ranges::find_if(ids, [&](auto i) { return c.entrants[i].can_win(); });
}

void drop(Tuning& t, EntrantId who, EntrantId best) {
  t.entrants[who].status = Status::slower;
  t.tell(TuneProgress::Kind::eliminated, who,
         fmt::format("takes {:.3g} ms, the best {:.3g} ms", 1e3 * t.samples[who].median(),
                     1e3 * t.samples[best].median()));
}

void drop_slower(Tuning& t, EntrantId best) {
  for (const EntrantId i : t.entrants.ids())
    if (i != best && t.entrants[i].racing() && clearly_slower(t, i, best)) drop(t, i, best);
  for (const EntrantId i : t.entrants.ids())
    if (t.entrants[i].racing()) measure_alike(t.samples.sampling, t.samples[i]);
}

void tell_times(Tuning& t) {
  for (const EntrantId i : t.entrants.ids())
    if (t.entrants[i].racing() && t.seconds_of(i) > 0) t.tell(TuneProgress::Kind::measured, i);
}

void race(Tuning& t) {
  const int min = std::max(1, t.options.iters), max = std::max(max_rounds, min);
  const int& rounds = t.samples.rounds;
  int next = look_after(rounds);
  while (t.entrants.any_can_win() && rounds < max) {
    seat_incumbent(t);
    if (!run_round(t)) {
      if (!t.entrants.any_can_win()) readmit(t.entrants);
      if (rounds == 0) next = look_after(0);
      if (!t.spent()) continue;
      t.complete = false;
      return look(t.entrants, t.samples);
    }
    t.tell(TuneProgress::Kind::round);
    if (rounds < next && rounds != max) continue;
    look(t.entrants, t.samples);
    const EntrantId best = leader(t);
    if (best != t.roles.leading) t.roles.leading = best, t.tell(TuneProgress::Kind::best, best);
    tell_times(t);
    drop_slower(t, best);
    if (rounds >= min && (settled(t, best) || fast_enough(t, best))) return;
    next = look_after(rounds);
  }
  if (!t.entrants.any_can_win()) return;
  const EntrantId best = leader(t), incumbent = *t.roles.incumbent;
  if (best != incumbent && incumbent_can_win(t) &&
      t.samples.standings.probably_beaten(at(incumbent), at(best)))
    drop(t, incumbent, best);
}

// Runs each candidate of the race once more to find the one that changes the host. False if none
// did it again.
bool reject_who_changes_the_host(Tuning& t) {
  bool found = false;
  for (Entrant& e : t.entrants) {
    if (t.stopped()) break;
    if (e.status != Status::racing && e.status != Status::slower) continue;
    const HostWatch watch(t);
    static_cast<void>(failure_of([&] { static_cast<void>(outputs_of_run(t, e.config)); }));
    e.reject_if(std::nullopt, watch.put_back());
    found = found || e.rejection;
  }
  return found;
}

// True if a candidate changed something in this process, is rejected for it, and others are left.
bool must_race_on(Tuning& t, const HostWatch& since) {
  const HostWatch after(t);
  if (since.put_back().empty()) return false;
  if (reject_who_changes_the_host(t)) {
    if (!t.entrants.any_can_win()) readmit(t.entrants);
    return t.entrants.any_can_win();
  }
  after.put_back();  // the program did it: when it was told something, or had a signal
  return false;
}

}  // namespace

bool warm_up_all(Tuning& t) {
  t.samples.sampling.clock = first_clock(*t.task.trial);
  for (const EntrantId i : t.entrants.ids()) {
    Entrant& e = t.entrants[i];
    if (!e.racing()) continue;
    t.rest();
    if (t.spent()) {
      t.complete = false;
      return false;
    }
    const HostWatch watch(t);
    const auto failure = failure_of([&] {
      const Intent intent(t.task.journal, e.config);
      t.samples[i].warm = t.sampler.warm_up(e.config, t.options.warmup);
    });
    acquit(t, e);
    e.reject_if(failure, watch.put_back_after(e.config));
    Clock& clock = t.samples.sampling.clock;
    if (e.racing()) clock = t.sampler.clock_after(t.samples[i].warm.elapsed, clock);
  }
  start_again(t);
  return true;
}

void run_rounds(Tuning& t) {
  for (;;) {
    const HostWatch watch(t);
    race(t);
    if (!must_race_on(t, watch)) return;
  }
}

void count_first_runs(Tuning& t) {
  seat_incumbent(t);
  t.samples.single_run = true, t.samples.sampling.clock = Clock::wall;
  t.samples.rounds = 1;
  // What a search or an earlier tuning measured says more than a first run, which may be cold.
  double unit = INFINITY;  // seconds of the ratio 1
  for (const Entrant& e : t.entrants)
    if (e.racing() && e.ran && e.known.ratio > 0)
      unit = std::min(unit, e.first_run / e.known.ratio);
  for (const EntrantId i : t.entrants.ids()) {
    const Entrant& e = t.entrants[i];
    const bool known = e.known.ratio > 0 && unit < INFINITY;
    if (e.racing()) t.samples[i].seconds = {known ? unit * e.known.ratio : e.first_run};
  }
  look(t.entrants, t.samples);
  tell_times(t);
}

}  // namespace ejk::detail
