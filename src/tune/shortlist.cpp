// SPDX-License-Identifier: Apache-2.0
// Sets too large to race: a search tries some of their points, roughly measured; the best few race.
#include <algorithm>
#include <cmath>
#include <numeric>

#include <ejk/search.h>

#include "tune/tuning.h"

namespace ejk::detail {
namespace {

constexpr int usual_evaluations = 200;
constexpr uint64_t pool_limit = 16'384;  // points a strategy sees at a time
constexpr int passes_of_huge_sets = 4;   // each with a new pool around the best so far
constexpr size_t batch = 8;              // points asked for at a time: one child process for all
constexpr double share_of_budget = 0.7;  // seconds; the rest is for the race
constexpr int samples = 3;
constexpr double not_worth_more = 1.5;  // after a first sample that much slower than the control
constexpr size_t min_finalists = 5, max_finalists = 8;
constexpr double finalist_band = 1.15;  // of the best ratio

// One roughly measured point.
struct Screened {
  uint64_t point;
  std::optional<double> ratio;  // to the control; none: it failed
};

class Screening {
 public:
  explicit Screening(Tuning& tuning) : t_(tuning), set_(*tuning.task.candidates) {}

  void run() {
    first_runs(t_, {});
    recall();
    choose_control();
    begun_ = t_.elapsed();
    const int passes = set_.size() <= pool_limit ? 1 : passes_of_huge_sets;
    for (int pass = 1; pass <= passes && may_go_on(); ++pass)
      search(pass == passes ? evaluations() : evaluations() / passes * pass,
             static_cast<uint64_t>(pass));
    keep_finalists();
    if (t_.checks.doubt) {  // no other candidate decided whose fault it was: do not run it here
      t_.entrants[*t_.roles.heuristic].leave_out(t_.checks.doubt->sentence());
      t_.complete = false;
    }
    t_.search = named<Search>(t_.options.strategy);
  }

 private:
  int evaluations() const {
    return t_.task.budget.evaluations > 0 ? t_.task.budget.evaluations : usual_evaluations;
  }

  int evaluated() const { return static_cast<int>(screened_.size()) - invalid_; }

  bool fast_enough() const {
    return t_.roles.leading &&
           is_fast_enough(t_.entrants[*t_.roles.leading].known.seconds, t_.task.budget);
  }

  // False once the share of the budget is used; what is left undone makes the tuning incomplete.
  bool may_go_on() {
    if (t_.entrants.any_can_win() &&
        (t_.spent() || t_.elapsed() > share_of_budget * t_.task.budget.seconds))
      cut_ = true;
    if (!t_.entrants.any_can_win() && t_.spent() && !screened_.empty()) cut_ = true;
    if (cut_) t_.complete = false;
    return !cut_ && !fast_enough();
  }

  // What an earlier tuning measured counts as tried; its best come back as finalists.
  void recall() {
    for (const Measurement& m : t_.task.known) {
      const auto point = set_.find(m.config);
      if (!point || is(m.status, CandidateStatus::untried)) continue;
      const bool failed = is(m.status, CandidateStatus::rejected);
      if (failed ? !is_rejected_for_good(m) : !(m.ratio > 0)) continue;
      Entrant& e = t_.entrants[entrant_of(*point)];
      if (e.racing() && t_.reject_if_invalid(e)) continue;  // other calls may differ
      screened_.push_back({*point, failed ? std::nullopt : std::optional(m.ratio)});
      e.known = m;
      if (failed && e.racing() && !e.ran) e.status = Status::carried;
    }
  }

  // The earlier winner, whose ratio says what the unit of the others is; else the heuristic.
  void choose_control() {
    if (const auto winner = earlier_winner()) {
      const EntrantId who = entrant_of(*winner);
      const Entrant& e = t_.entrants[who];
      if (!e.ran) ++t_.again, first_runs(t_, {&who, 1});
      if (e.racing() && e.known.ratio > 0) control_ = who, unit_ = e.known.ratio;
    }
    if (control_) return;
    if (!best(1).empty()) {  // the recalled ratios have a unit already: one of them must be run
      for (const Screened& s : best(max_finalists)) {
        const EntrantId who = entrant_of(s.point);
        if (!t_.entrants[who].ran) ++t_.again, first_runs(t_, {&who, 1});
      }
      replace_control();
      if (control_) return;
      screened_.clear();  // the control that it was measured with is gone
    }
    if (t_.roles.heuristic && t_.entrants[*t_.roles.heuristic].racing() &&
        t_.entrants[*t_.roles.heuristic].ran)
      control_ = t_.roles.heuristic, t_.entrants[*control_].known.ratio = 1;
  }

  // One of the better ones takes its place, not the best, which may only have been lucky: its ratio
  // is the unit from now on.
  void replace_control() {
    std::vector<EntrantId> known;
    for (const EntrantId i : t_.entrants.ids())
      if (const Entrant& e = t_.entrants[i]; e.racing() && e.ran && e.known.ratio > 0)
        known.push_back(i);
    control_.reset(), unit_ = 1;
    if (known.empty()) return;
    const auto one = known.begin() + static_cast<std::ptrdiff_t>(known.size() / 4);
    std::ranges::nth_element(known, one, {},
                             [&](EntrantId i) { return t_.entrants[i].known.ratio; });
    control_ = *one, unit_ = t_.entrants[*one].known.ratio;
  }

  std::optional<uint64_t> earlier_winner() const {
    return t_.task.known.empty() ? std::nullopt : set_.find(t_.task.known_winner);
  }

  EntrantId entrant_of(uint64_t point) {
    const EntrantId who = t_.entrants.enter(set_.config(point));
    auto& places = t_.entrants[who].places;
    if (std::ranges::find(places, point) == places.end()) places.push_back(point);
    return who;
  }

  // ---- one strategy over one pool --------------------------------------------------------------

  // All points, or of a huge set a sample, what is known, and what is near the best.
  std::vector<uint64_t> pool(uint64_t pass) const {
    std::vector<uint64_t> points;
    if (set_.size() <= pool_limit) {
      for (uint64_t i = 0; i < set_.size(); ++i) points.push_back(i);
      return points;
    }
    points = sample_points(set_, pool_limit / 2, t_.options.seed + pass);
    for (const Screened& s : screened_) points.push_back(s.point);
    for (const auto& history : t_.task.histories)
      for (const Measurement& m : history)
        if (const auto point = set_.find(m.config)) points.push_back(*point);
    for (const Screened& s : best(max_finalists)) {
      const std::vector<uint64_t> near = set_.neighbours(s.point);
      points.insert(points.end(), near.begin(), near.end());
    }
    std::ranges::sort(points);
    points.erase(std::unique(points.begin(), points.end()), points.end());
    return points;
  }

  static std::optional<size_t> place_in(const std::vector<uint64_t>& points, uint64_t point) {
    const auto at = std::ranges::lower_bound(points, point);
    if (at == points.end() || *at != point) return std::nullopt;
    return static_cast<size_t>(at - points.begin());
  }

  SearchSpace space_of(const std::vector<uint64_t>& points) const {
    SearchSpace space{set_.parameters(), {}};
    const size_t width = space.parameters.size();
    space.points.resize(points.size() * width);
    for (size_t i = 0; i < points.size(); ++i)
      set_.indices(points[i], std::span(space.points).subspan(i * width, width));
    return space;
  }

  std::vector<SearchHistory> histories(const std::vector<uint64_t>& points) const {
    std::vector<SearchHistory> all;
    for (const auto& measurements : t_.task.histories) {
      SearchHistory history;
      for (const Measurement& m : measurements) {
        const auto point = set_.find(m.config);
        const auto place = point ? place_in(points, *point) : std::nullopt;
        if (!place || is(m.status, CandidateStatus::untried)) continue;
        if (is(m.status, CandidateStatus::rejected)) history.push_back({*place, std::nullopt});
        else if (m.ratio > 0) history.push_back({*place, m.ratio});
      }
      if (history.size() > 1) all.push_back(std::move(history));
    }
    return all;
  }

  void search(int max_evaluations, uint64_t pass) {
    const std::vector<uint64_t> points = pool(pass);
    const auto strategy =
        make_search(t_.options.strategy, space_of(points), t_.options.seed, histories(points));
    std::vector<uint8_t> told(points.size());
    for (const Screened& s : screened_)
      if (const auto place = place_in(points, s.point); place && !std::exchange(told[*place], 1))
        strategy->tell(*place, s.ratio);
    while (may_go_on() && evaluated() < max_evaluations && t_.may_try_more()) {
      size_t left = static_cast<size_t>(max_evaluations - evaluated());
      if (const int most = t_.task.budget.evaluations; most > 0)
        left = std::min(left, static_cast<size_t>(most - (t_.tried - t_.again)));
      left = std::min(left, affordable());
      std::vector<size_t> asked;
      while (asked.size() < left)
        if (const auto place = strategy->ask()) asked.push_back(*place);
        else break;
      if (asked.empty()) return;  // there are no more
      std::vector<uint64_t> wanted;
      for (size_t place : asked) wanted.push_back(points[place]);
      const std::vector<std::optional<double>> found = evaluate(wanted);
      for (size_t i = 0; i < asked.size(); ++i) strategy->tell(asked[i], found[i]);
    }
  }

  // Where programs are compiled, as many as the rest of the share has time for, at the pace of
  // those before them: a batch would take several times the budget.
  size_t affordable() const {
    const bool compiles =
        std::ranges::any_of(t_.entrants, [](const Entrant& e) { return e.compile_seconds > 0; });
    if (!compiles || evaluated() <= 0) return compiles ? 1 : batch;
    const double rest = share_of_budget * t_.task.budget.seconds - t_.elapsed();
    const double pace = (t_.elapsed() - begun_) / evaluated();
    return static_cast<size_t>(std::clamp(rest / pace, 1., static_cast<double>(batch)));
  }

  // ---- one batch of points ---------------------------------------------------------------------

  std::vector<std::optional<double>> evaluate(const std::vector<uint64_t>& points) {
    std::vector<EntrantId> who;
    for (uint64_t point : points) {
      who.push_back(entrant_of(point));
      Entrant& e = t_.entrants[who.back()];
      if (e.racing()) t_.reject_if_invalid(e);
    }
    first_runs(t_, who);
    std::vector<std::optional<double>> found(points.size());
    for (const size_t i : those_that_spill_last(who)) {
      found[i] = measure_roughly(who[i]);
      if (t_.entrants[who[i]].status == Status::untried) continue;
      screened_.push_back({points[i], found[i]});
      if (t_.entrants[who[i]].rejection == Rejection::invalid) ++invalid_;  // costs nothing
    }
    return found;
  }

  // Places, in the order of measuring: the time may end before all had their turn.
  std::vector<size_t> those_that_spill_last(const std::vector<EntrantId>& who) const {
    std::vector<size_t> order(who.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_partition(order.begin(), order.end(),
                          [&](size_t i) { return !t_.entrants[who[i]].spills; });
    return order;
  }

  // The ratio to the control, by turns with it, of the least each of them took: noise only adds
  // time, and one disturbed sample of the control would make any point look good. The first point
  // that works is the control if there is no other.
  std::optional<double> measure_roughly(EntrantId who) {
    Entrant& e = t_.entrants[who];
    if (!e.racing()) return std::nullopt;
    const auto too_late = [&] { return t_.spent() && t_.roles.leading; };
    t_.rest();
    if (too_late()) return put_off(e);
    if (!control_) control_ = who;
    if (who == control_)
      return remember(who, 1, 1, e.known.seconds > 0 ? e.known.seconds : e.first_run);
    if (!control_still_runs()) return measure_roughly(who);
    double least = INFINITY, min_of_control = INFINITY;
    int taken = 0;
    const HostWatch watch(t_);
    const auto failure = failure_of([&] {
      const Sampling sampling = sampling_for(who);
      while (taken < samples && !(least / min_of_control > not_worth_more) && !too_late()) {
        min_of_control = std::min(min_of_control, sample(*control_, sampling));
        least = std::min(least, sample(who, sampling));
        ++taken;
      }
      // The machine may have become faster after the control's last turn: it has the last word.
      if (least < min_of_control && !too_late())
        min_of_control = std::min(min_of_control, sample(*control_, sampling));
    });
    e.reject_if(failure, watch.put_back_after(e.config));
    if (!e.racing()) return std::nullopt;
    if (taken < samples && !(least / min_of_control > not_worth_more)) return put_off(e);
    Measurement& of_control = t_.entrants[*control_].known;
    of_control.seconds = min_of_control, of_control.samples = std::max(of_control.samples, taken);
    return remember(who, least / min_of_control, taken, least);
  }

  // A sample taken in haste may be luck, and would be the unit when the search goes on.
  static std::nullopt_t put_off(Entrant& e) {
    e.leave_out("the search ended before it was measured");
    return std::nullopt;
  }

  // One that passed in a child may throw here: that must not be held against the others.
  bool control_still_runs() {
    Entrant& e = t_.entrants[*control_];
    if (!e.racing()) return replace_control(), false;
    const HostWatch watch(t_);
    const auto failure = failure_of([&] {
      const Intent intent(t_.task.journal, e.config);
      t_.task.trial->reset(), t_.task.trial->run(e.config), t_.task.trial->wait();
    });
    e.reject_if(failure, watch.put_back_after(e.config));
    if (e.racing()) return true;
    replace_control();
    return false;
  }

  double sample(EntrantId who, const Sampling& sampling) {
    return t_.sampler.take(t_.entrants[who].config, sampling).seconds;
  }

  // Both are measured alike: by a clock that tells the whole cost of both, and as often as the
  // faster one needs unless the other would take too long.
  Sampling sampling_for(EntrantId who) {
    Sampling sampling{.clock = first_clock(*t_.task.trial), .cache = t_.samples.sampling.cache};
    for (const EntrantId i : {*control_, who}) {
      Entrant& e = t_.entrants[i];
      Footprint& warm = t_.samples[i].warm;
      if (warm.executions == 0) {
        const Intent intent(t_.task.journal, e.config);
        warm = t_.sampler.observe(e.config, 1);
        acquit(t_, e);
      }
      sampling.clock = t_.sampler.clock_after(warm.elapsed, sampling.clock);
    }
    const auto [few, many] = std::minmax({t_.sampler.repeats(t_.samples[*control_].warm, sampling),
                                          t_.sampler.repeats(t_.samples[who].warm, sampling)});
    sampling.repeats = std::min(many, far_slower * few);
    return sampling;
  }

  double remember(EntrantId who, double to_control, int taken, double seconds) {
    const double ratio = to_control * unit_;
    Entrant& e = t_.entrants[who];
    e.known.ratio = e.known.ratio_low = e.known.ratio_high = ratio;
    e.known.samples = taken;
    e.known.seconds = seconds;
    t_.tell(TuneProgress::Kind::measured, who);
    auto& leading = t_.roles.leading;
    if (!leading && unit_ < ratio && t_.entrants[*control_].candidate()) leading = control_;
    if (!leading || ratio < t_.entrants[*leading].known.ratio) {
      leading = who;
      t_.tell(TuneProgress::Kind::best, who);
    }
    return ratio;
  }

  // ---- who races -------------------------------------------------------------------------------

  std::vector<Screened> best(size_t count) const {
    std::vector<Screened> right;
    std::ranges::copy_if(screened_, std::back_inserter(right), [&](const Screened& s) {
      const auto who = t_.entrants.find(set_.config(s.point).to_value());
      return s.ratio && who && t_.entrants[*who].racing();
    });
    std::ranges::stable_sort(right, {}, [](const Screened& s) { return *s.ratio; });
    if (right.size() > count) right.resize(count);
    return right;
  }

  // The others are slower as far as one could see, and stay in the report as that.
  void keep_finalists() {
    std::vector<EntrantId> finalists;
    const std::vector<Screened> fastest = best(max_finalists);
    for (const Screened& s : fastest)  // the first may only have been lucky: some race in any case
      if (finalists.size() < min_finalists || *s.ratio <= finalist_band * *fastest.front().ratio)
        finalists.push_back(entrant_of(s.point));
    if (const auto winner = earlier_winner()) finalists.push_back(entrant_of(*winner));
    for (const EntrantId i : t_.entrants.ids()) {
      Entrant& e = t_.entrants[i];
      if (!e.racing() || i == t_.roles.heuristic ||
          std::ranges::find(finalists, i) != finalists.end())
        continue;
      e.known.config = e.config.to_value(), e.known.status = name_of(CandidateStatus::slower);
      e.status = Status::carried;
    }
    std::vector<EntrantId> recalled;
    for (const EntrantId i : finalists)
      if (t_.entrants[i].racing() && !t_.entrants[i].ran) recalled.push_back(i);
    t_.again += static_cast<int>(recalled.size());
    first_runs(t_, recalled);
    t_.roles.leading.reset();
  }

  Tuning& t_;
  const CandidateSet& set_;
  std::optional<EntrantId> control_;
  double unit_ = 1;  // ratio of the control in the unit of what is known
  std::vector<Screened> screened_;
  int invalid_ = 0;   // of them
  double begun_ = 0;  // seconds, when the search began to ask
  bool cut_ = false;  // the budget ended it; a candidate that was left out does not
};

}  // namespace

void screen(Tuning& t) { Screening(t).run(); }

}  // namespace ejk::detail
