// SPDX-License-Identifier: Apache-2.0
#include <ejk/search.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <ctime>
#include <functional>
#include <set>

#include <ejk/error.h>

namespace ejk {
namespace {

using testing::HasSubstr;

// The full product of `counts` values per parameter: powers of two, numbers in a row, names.
SearchSpace product(const std::vector<size_t>& counts) {
  SearchSpace space;
  for (size_t p = 0; p < counts.size(); ++p) {
    SearchParameter& parameter = space.parameters.emplace_back();
    parameter.name = "p" + std::to_string(p);
    for (size_t v = 0; v < counts[p]; ++v) {
      if (p % 3 == 0) parameter.values.emplace_back(int64_t{1} << (v % 60));
      else if (p % 3 == 1) parameter.values.emplace_back(16 * (v + 1));
      else parameter.values.emplace_back("name" + std::to_string(v));
    }
  }
  std::vector<uint32_t> point(counts.size());
  auto visit = [&](auto&& self, size_t depth) -> void {
    if (depth == counts.size()) {
      space.points.insert(space.points.end(), point.begin(), point.end());
      return;
    }
    for (point[depth] = 0; point[depth] < counts[depth]; ++point[depth]) self(self, depth + 1);
  };
  visit(visit, 0);
  return space;
}

// A valley with its floor at two thirds of every parameter, from 1 up.
double valley(const SearchSpace& space, size_t point) {
  double log_time = 0;
  for (size_t p = 0; p < space.parameters.size(); ++p) {
    const auto count = static_cast<double>(space.parameters[p].values.size());
    const double off = (space.point(point)[p] - std::floor(count * 2 / 3)) / count;
    log_time += 3 * off * off;
  }
  return std::exp(log_time);
}

SearchHistory history_of(const SearchSpace& space, double power, size_t every = 1) {
  SearchHistory history;
  for (size_t i = 0; i < space.size(); i += every)
    history.push_back({i, 1e-3 * std::pow(valley(space, i), power)});
  return history;
}

// Asks and tells up to `evaluations` times; the points asked for.
template <class Measure>
std::vector<size_t> run(SearchStrategy& search, size_t evaluations, Measure measure) {
  std::vector<size_t> asked;
  while (asked.size() < evaluations) {
    const auto point = search.ask();
    if (!point) break;
    asked.push_back(*point);
    search.tell(*point, measure(*point));
  }
  return asked;
}

std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::invalid_argument);
    return e.what();
  }
  return "no error";
}

class EveryStrategy : public testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<SearchStrategy> make(SearchSpace space, uint64_t seed = 1) {
    return make_search(GetParam(), std::move(space), seed);
  }
};
INSTANTIATE_TEST_SUITE_P(Search, EveryStrategy, testing::Values("exhaustive", "random", "auto"),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(EveryStrategy, AsksEveryPointOnceAndThenNothing) {
  const SearchSpace space = product({6, 9, 4});
  const auto search = make(space);
  const auto asked = run(*search, 10000, [&](size_t i) { return std::optional(valley(space, i)); });
  EXPECT_EQ(asked.size(), space.size());
  EXPECT_EQ(std::set(asked.begin(), asked.end()).size(), space.size());
  EXPECT_FALSE(search->ask());
  EXPECT_EQ(search->best()->seconds, 1.0);
}

TEST_P(EveryStrategy, AsksTheSameForTheSameSeed) {
  const SearchSpace space = product({5, 40, 3, 6});
  auto points = [&](uint64_t seed) {
    return run(*make(space, seed), 60, [&](size_t i) { return std::optional(valley(space, i)); });
  };
  EXPECT_EQ(points(7), points(7));
  EXPECT_EQ(points(7) == points(8), std::string_view(GetParam()) == "exhaustive");
}

TEST_P(EveryStrategy, HasNothingToAskOfAnEmptySpace) {
  EXPECT_FALSE(make({})->ask());
  EXPECT_FALSE(make(SearchSpace{{{"a", {1, 2}}}, {}})->ask());
}

TEST_P(EveryStrategy, AsksTheOnlyPoint) {
  const auto search = make(SearchSpace{{{"a", {"only"}}}, {0}});
  EXPECT_EQ(search->ask(), 0u);
  EXPECT_FALSE(search->ask());
  EXPECT_FALSE(search->best());
  search->tell(0, 2.0);
  EXPECT_EQ(search->best()->point, 0u);
}

TEST_P(EveryStrategy, GoesOnWhenPointsFail) {
  const SearchSpace space = product({6, 9, 4});
  const auto search = make(space);
  auto measure = [&](size_t i) { return i % 3 ? std::nullopt : std::optional(valley(space, i)); };
  EXPECT_EQ(run(*search, 10000, measure).size(), space.size());
  EXPECT_EQ(search->best()->point % 3, 0u);
}

TEST_P(EveryStrategy, GoesOnWhenEveryPointFails) {
  const SearchSpace space = product({6, 9, 4});
  const auto search = make(space);
  EXPECT_EQ(run(*search, 10000, [](size_t) { return std::optional<double>(); }).size(),
            space.size());
  EXPECT_FALSE(search->best());
}

TEST_P(EveryStrategy, CanBeAskedForManyPointsBeforeItIsTold) {
  const SearchSpace space = product({6, 9, 4});
  const auto search = make(space);
  std::set<size_t> asked;
  for (int batch = 0; batch < 5; ++batch) {
    std::vector<size_t> points;
    for (int i = 0; i < 12; ++i) points.push_back(*search->ask());
    asked.insert(points.begin(), points.end());
    for (const size_t i : points) search->tell(i, valley(space, i));
  }
  EXPECT_EQ(asked.size(), 60u);
}

TEST_P(EveryStrategy, DoesNotAskForWhatItWasToldBefore) {
  const SearchSpace space = product({6, 9, 4});
  const auto search = make(space);
  for (size_t i = 0; i < space.size(); ++i)
    if (i % 2) search->tell(i, valley(space, i));
  for (const size_t i :
       run(*search, 10000, [&](size_t p) { return std::optional(valley(space, p)); }))
    EXPECT_EQ(i % 2, 0u);
}

TEST_P(EveryStrategy, TakesPointsThatAreAllAlike) {
  const auto search = make(SearchSpace{{{"a", {3}}}, std::vector<uint32_t>(50)});
  EXPECT_EQ(run(*search, 100, [](size_t) { return std::optional(1.0); }).size(), 50u);
}

TEST_P(EveryStrategy, RefusesWhatIsNotAMeasurement) {
  const auto search = make(product({4, 4}));
  EXPECT_THAT(error_of([&] { search->tell(16, 1.0); }),
              HasSubstr("there is no point 16; the space has 16"));
  EXPECT_THAT(error_of([&] { search->tell(3, NAN); }), HasSubstr("nan is not a time for point 3"));
  EXPECT_THAT(error_of([&] { search->tell(3, INFINITY); }), HasSubstr("inf is not a time"));
  EXPECT_THAT(error_of([&] { search->tell(3, 0.0); }),
              HasSubstr("above 0, or nullopt if it failed"));
  EXPECT_THAT(error_of([&] { search->tell(3, -1.0); }), HasSubstr("-1 is not a time"));
  search->tell(3, 1.0);
  EXPECT_THAT(error_of([&] { search->tell(3, 1.0); }), HasSubstr("point 3 was told before"));
  EXPECT_EQ(run(*search, 100, [](size_t) { return std::optional(1.0); }).size(), 15u);
}

TEST(Search, NamesTheStrategiesThereAre) {
  EXPECT_THAT(error_of([] { make_search("best", {}); }),
              HasSubstr("no strategy is named \"best\"; there are auto, random and exhaustive"));
}

TEST(Search, RefusesPointsThatDoNotFitTheParameters) {
  EXPECT_THAT(error_of([] {
                make_search("auto", {{{"a", {1}}, {"b", {1}}}, {0, 0, 0}});
              }),
              HasSubstr("3 value indices do not make whole points of 2 parameters"));
  EXPECT_THAT(error_of([] {
                make_search("auto", {{{"a", {1}}, {"b", {1}}}, {0, 0, 0, 4}});
              }),
              HasSubstr("point 1 has value 4 of parameter \"b\", which has 1"));
  EXPECT_THAT(error_of([] { make_search("auto", {{}, {0}}); }), HasSubstr("0 parameters"));
}

TEST(Search, RefusesAHistoryThatDoesNotFitTheSpace) {
  EXPECT_THAT(error_of([] {
                make_search("auto", product({2, 2}), 0, {{{4, 1.0}}});
              }),
              HasSubstr("no point 4"));
  EXPECT_THAT(error_of([] {
                make_search("auto", product({2, 2}), 0, {{{1, -1.0}}});
              }),
              HasSubstr("not a time"));
}

TEST(ExhaustiveSearch, KeepsTheOrderOfTheList) {
  const auto search = make_search("exhaustive", product({2, 2}));
  EXPECT_EQ(run(*search, 10, [](size_t) { return std::optional(1.0); }),
            (std::vector<size_t>{0, 1, 2, 3}));
}

TEST(AutoSearch, FindsTheFloorOfAValleyWithFewEvaluations) {
  const SearchSpace space = product({10, 20, 3, 8});  // 4800 points
  for (uint64_t seed = 0; seed < 5; ++seed) {
    const auto search = make_search("auto", space, seed);
    run(*search, 60, [&](size_t i) { return std::optional(valley(space, i)); });
    EXPECT_LT(*search->best()->seconds, 1.05) << "seed " << seed;
  }
}

TEST(AutoSearch, FindsTheFloorAmongFailures) {
  const SearchSpace space = product({10, 20, 3, 8});
  for (uint64_t seed = 0; seed < 5; ++seed) {
    const auto search = make_search("auto", space, seed);
    run(*search, 100, [&](size_t i) {
      return space.point(i)[1] < 9 ? std::nullopt : std::optional(valley(space, i));
    });
    EXPECT_LT(*search->best()->seconds, 1.05) << "seed " << seed;
  }
}

TEST(AutoSearch, BeginsWithWhatHistoriesLikeBest) {
  const SearchSpace space = product({10, 20, 3, 8});
  const auto search = make_search("auto", space, 0, {history_of(space, 0.5), history_of(space, 2)});
  EXPECT_EQ(valley(space, *search->ask()), 1.0);
}

TEST(AutoSearch, FillsInWhatHistoriesLack) {
  const SearchSpace space = product({10, 20, 3, 8});
  const auto search = make_search("auto", space, 0, {history_of(space, 1, 37)});
  run(*search, 20, [&](size_t i) { return std::optional(valley(space, i)); });
  EXPECT_LT(*search->best()->seconds, 1.05);
}

TEST(AutoSearch, OverrulesAHistoryThatIsWrong) {
  const SearchSpace space = product({10, 20, 3, 8});
  const auto search = make_search("auto", space, 0, {history_of(space, -1)});
  run(*search, 100, [&](size_t i) { return std::optional(valley(space, i)); });
  EXPECT_LT(*search->best()->seconds, 1.1);
}

TEST(AutoSearch, IgnoresHistoriesThatTellNothing) {
  const SearchSpace space = product({10, 20});
  SearchHistory failed, alike;
  for (size_t i = 0; i < space.size(); ++i) failed.push_back({i, {}}), alike.push_back({i, 1.0});
  auto points = [&](std::vector<SearchHistory> histories) {
    const auto search = make_search("auto", space, 3, std::move(histories));
    return run(*search, 40, [&](size_t i) { return std::optional(valley(space, i)); });
  };
  EXPECT_EQ(points({{}, {{5, 1.0}}, failed, alike}), points({}));
}

TEST(AutoSearch, TakesTimesOfAnyUnit) {
  const SearchSpace space = product({5, 40, 3, 6});
  auto best = [&](double unit) {
    const auto search = make_search("auto", space, 2);
    run(*search, 60, [&](size_t i) { return std::optional(unit * valley(space, i)); });
    return *search->best()->seconds / unit;
  };
  EXPECT_LT(best(1e-9), 1.05);
  EXPECT_LT(best(1e9), 1.05);
}

TEST(AutoSearch, TakesTimeInProportionToTheSpace) {
  const auto seconds_in = [](const std::vector<size_t>& counts) {
    const SearchSpace space = product(counts);
    const std::clock_t start = std::clock();
    const auto search = make_search("auto", space, 0);
    run(*search, 200, [&](size_t i) { return std::optional(valley(space, i)); });
    EXPECT_LT(*search->best()->seconds, 1.1);
    return static_cast<double>(std::clock() - start);
  };
  const double small = seconds_in({10, 50, 4, 5}), large = seconds_in({10, 50, 4, 10, 5});
  EXPECT_LT(large, 40 * small);  // 10^4 and 10^5 points
}

}  // namespace
}  // namespace ejk
