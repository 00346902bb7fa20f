// SPDX-License-Identifier: Apache-2.0
// Spaces as trees of valid points, lists as spaces, and both as JSON.
#include <ejk/space.h>

#include <unistd.h>
#include <fstream>
#include <map>
#include <random>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ejk {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

template <class F>
std::string refusal(ErrorKind kind, F&& f) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), kind) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

struct Tile {
  int rows = 4;
  int columns = 8;
  bool operator==(const Tile&) const = default;
};

std::vector<std::pair<int, int>> points(const std::vector<Tile>& tiles) {
  std::vector<std::pair<int, int>> out;
  for (const Tile& t : tiles) out.emplace_back(t.rows, t.columns);
  return out;
}
using Points = std::vector<std::pair<int, int>>;

std::vector<uint32_t> indices(const CandidateSet& set, uint64_t point) {
  std::vector<uint32_t> out(set.parameters().size());
  set.indices(point, out);
  return out;
}

// Slow on purpose: every point is compared with every other.
std::vector<uint64_t> neighbours_by_definition(const CandidateSet& set, uint64_t point) {
  const auto self = indices(set, point);
  std::vector<uint64_t> out;
  for (uint64_t i = 0; i < set.size(); ++i) {
    const auto other = indices(set, i);
    size_t differences = 0;
    for (size_t k = 0; k < self.size(); ++k) differences += self[k] != other[k];
    if (differences == 1) out.push_back(i);
  }
  return out;
}

// ---- declaring ----------------------------------------------------------------------------------

TEST(Space, TheLastParameterVariesFastest) {
  const auto configs =
      space<Tile>().param(&Tile::rows, {2, 1}).param(&Tile::columns, {7, 8, 9}).configs();
  EXPECT_EQ(points(configs), (Points{{2, 7}, {2, 8}, {2, 9}, {1, 7}, {1, 8}, {1, 9}}));
}

TEST(Space, AllConstraintsMustAccept) {
  const auto configs = space<Tile>()
                           .param(&Tile::rows, {1, 2, 3})
                           .where([](const Tile& t) { return t.rows != 2; })
                           .param(&Tile::columns, std::vector{1, 2, 3})
                           .where([](const Tile& t) { return t.rows + t.columns < 5; })
                           .configs();
  EXPECT_EQ(points(configs), (Points{{1, 1}, {1, 2}, {1, 3}, {3, 1}}));
}

TEST(Space, FieldsThatAreNoParameterKeepTheirDefaults) {
  EXPECT_EQ(points(space<Tile>().param(&Tile::rows, {1, 2}).configs()), (Points{{1, 8}, {2, 8}}));
  EXPECT_EQ(points(space<Tile>().configs()), (Points{{4, 8}}));
}

TEST(Space, ContainsWhatItOffersAndNothingElse) {
  int asked = 0;
  const auto s = space<Tile>()
                     .param(&Tile::rows, {1, 2, 3})
                     .where([&](const Tile& t) { return ++asked, t.rows != 2; })
                     .param(&Tile::columns,
                            [](const Tile& t) {
                              return std::vector{t.rows, 7};
                            })
                     .where([](const Tile& t) { return t.rows + t.columns < 10; });
  const std::set<std::pair<int, int>> offered = {{1, 1}, {1, 7}, {3, 3}};
  for (int rows = 0; rows < 5; ++rows)
    for (int columns = 0; columns < 9; ++columns)
      EXPECT_EQ(s.contains({rows, columns}), offered.contains({rows, columns}));
  EXPECT_EQ(asked, 3 * 9) << "only where the value is offered, and without counting the points";
}

TEST(Space, CanBeBuiltStepByStep) {
  auto steps = space<Tile>();
  steps.param(&Tile::rows, {1, 2});
  EXPECT_EQ(steps.size(), 2u);
  const auto before = steps;
  steps.where([](const Tile& t) { return t.rows > 1; }).param(&Tile::columns, {5});
  EXPECT_EQ(points(steps.configs()), (Points{{2, 5}}));
  EXPECT_EQ(before.size(), 2u);
}

TEST(Space, ConstraintsSeeDefaultsWhereNothingIsSetYet) {
  std::set<int> seen;
  const auto s = space<Tile>()
                     .param(&Tile::rows, {1, 2})
                     .where([&](const Tile& t) { return seen.insert(t.columns).second || true; })
                     .param(&Tile::columns, {1, 2})
                     .where([](const Tile&) { return true; });
  EXPECT_EQ(s.size(), 4u);
  EXPECT_THAT(seen, ElementsAre(8));
}

TEST(Space, AConstraintBeforeAllParametersIsAskedOnce) {
  int asked = 0;
  auto with = [&](bool answer) {
    return space<Tile>()
        .where([&asked, answer](const Tile& t) { return ++asked, t == Tile{} && answer; })
        .param(&Tile::rows, {1, 2});
  };
  EXPECT_EQ(with(true).size(), 2u);
  EXPECT_EQ(with(false).size(), 0u);
  EXPECT_EQ(asked, 2);
}

TEST(Space, AParameterWithoutValuesLeavesNoPoint) {
  int asked = 0;
  const auto s = space<Tile>()
                     .param(&Tile::rows, {1, 2})
                     .where([&](const Tile&) { return ++asked > 0; })
                     .param(&Tile::columns, {});
  EXPECT_EQ(s.size(), 0u);
  EXPECT_TRUE(s.configs().empty());
  EXPECT_TRUE(s.sample(3, 1).empty());
  EXPECT_EQ(s.index_of(Tile{1, 8}), std::nullopt);
  EXPECT_EQ(asked, 0);
  EXPECT_EQ(space<Tile>().param(&Tile::rows, std::vector<int>{}).size(), 0u);
}

TEST(Space, AValueGivenTwiceCountsOnce) {
  EXPECT_EQ(points(space<Tile>().param(&Tile::rows, {2, 1, 2, 2, 1}).configs()),
            (Points{{2, 8}, {1, 8}}));
  const auto dependent = space<Tile>().param(&Tile::rows, [](const Tile&) {
    return std::vector<int>{3, 3, 1, 3};
  });
  EXPECT_EQ(points(dependent.configs()), (Points{{3, 8}, {1, 8}}));
}

struct Base {
  int inherited = 1;
};
struct WithBase : Base {
  int own = 2;
  int unnamed = 3;
  EJK_CONFIG(WithBase, inherited, own)
};
struct Kernel {
  FwdParams fwd = {};
  Tile tile = {};
};

TEST(Space, AFieldIsAParameterOnlyOnce) {
  EXPECT_THAT(refusal(ErrorKind::invalid_argument,
                      [] { space<Tile>().param(&Tile::rows, {1}).param(&Tile::rows, {2}); }),
              AllOf(HasSubstr("Tile"), HasSubstr("\"rows\""), HasSubstr("given before")));
  EXPECT_THAT(refusal(ErrorKind::invalid_argument,
                      [] {
                        space<Kernel>()
                            .param(&Kernel::tile, {Tile{}})
                            .param(&Kernel::tile, &Tile::columns, {2});
                      }),
              AllOf(HasSubstr("Kernel"), HasSubstr("\"tile.columns\""), HasSubstr("\"tile\"")));
}

TEST(Space, AFieldThatJsonDoesNotShowCannotBeAParameter) {
  EXPECT_THAT(refusal(ErrorKind::invalid_argument,
                      [] {
                        space<WithBase>().param(&WithBase::unnamed, {1, 2});
                      }),
              AllOf(HasSubstr("WithBase"), HasSubstr("EJK_CONFIG")));
}

enum class Order { row, column, tiled = 7 };
struct Everything {
  bool flag = true;
  float ratio = 0.5f;
  Order order = Order::column;
  std::string name = "x";
  std::optional<int> maybe;
  std::vector<int> list{1};
};

TEST(Space, ParametersMayBeOfAnyType) {
  const auto s = space<Everything>()
                     .param(&Everything::order, {Order::row, Order::tiled})
                     .param(&Everything::name, {"a", "b"})
                     .param(&Everything::maybe, {std::nullopt, 3})
                     .param(&Everything::flag, {false, true})
                     .param(&Everything::ratio, {0.25f, 0.5f, 0.25f})
                     .param(&Everything::list, {{1, 2}, {}})
                     .where([](const Everything& e) { return e.flag || e.maybe != 3; });
  const auto all = s.configs();
  ASSERT_EQ(all.size(), 48u);
  EXPECT_EQ(all[0].order, Order::row);
  EXPECT_EQ(all[47].order, Order::tiled);
  EXPECT_EQ(all[47].name, "b");
  EXPECT_EQ(all[47].maybe, 3);
  EXPECT_TRUE(all[47].list.empty());
  for (uint64_t i = 0; i < all.size(); ++i) EXPECT_EQ(s.index_of(all[i]), i);
  EXPECT_EQ(s.candidates()->parameters()[0].values, (std::vector<Value>{"row", "tiled"}));
  EXPECT_EQ(s.candidates()->parameters()[2].values, (std::vector<Value>{{}, 3}));
}

TEST(Space, FieldsMayBeInheritedOrNested) {
  const auto inherited =
      space<WithBase>().param(&WithBase::inherited, {3, 4}).param(&WithBase::own, {5});
  EXPECT_EQ(inherited[1].inherited, 4);
  EXPECT_EQ(inherited.candidates()->parameters()[0].name, "inherited");

  auto nested = space<Kernel>().param(&Kernel::fwd, &FwdParams::blocksize_m, {64, 128});
  nested.param(&Kernel::tile, &Tile::rows,
               [](const Kernel& so_far) { return std::vector<int>{*so_far.fwd.blocksize_m / 2}; });
  ASSERT_EQ(nested.size(), 2u);
  EXPECT_EQ(nested[1].fwd.blocksize_m, 128);
  EXPECT_EQ(nested[1].tile.rows, 64);
  EXPECT_EQ(nested.candidates()->parameters()[0].name, "fwd.blocksize_m");
  EXPECT_EQ(nested.candidates()->find(to_value(nested[1])), 1u);
}

TEST(Space, AConstraintsExceptionIsPassedOnEachTime) {
  const auto s = space<Tile>().param(&Tile::rows, {1}).where([](const Tile&) -> bool {
    throw std::runtime_error("no idea");
  });
  EXPECT_THROW(s.size(), std::runtime_error);
  EXPECT_THROW(s.configs(), std::runtime_error);
}

// ---- dependent parameters -----------------------------------------------------------------------

Space<Tile> multiples() {
  return space<Tile>().param(&Tile::rows, {3, 2}).param(&Tile::columns, [](const Tile& so_far) {
    return std::vector<int>{6 * so_far.rows, 12, so_far.rows};
  });
}

TEST(Space, DependentValuesComeInTheOrderOfTheirFunction) {
  EXPECT_EQ(points(multiples().configs()), (Points{{3, 18}, {3, 12}, {3, 3}, {2, 12}, {2, 2}}));
  const auto set = multiples().candidates();
  EXPECT_EQ(set->parameters()[1].values, (std::vector<Value>{18, 12, 3, 2}));
  EXPECT_THAT(indices(*set, 4), ElementsAre(1u, 3u));
}

TEST(Space, ANeighbourMustHaveTheSameLaterValues) {
  const auto s = multiples();
  EXPECT_THAT(s.neighbours(0), ElementsAre(1u, 2u));      // no 18 under 2
  EXPECT_THAT(s.neighbours(1), ElementsAre(0u, 2u, 3u));  // 12 is under both
  EXPECT_THAT(s.neighbours(4), ElementsAre(3u));
}

// ---- against brute force ------------------------------------------------------------------------

struct Five {
  int a = -1, b = -1, c = -1, d = -1, e = -1;
  bool operator==(const Five&) const = default;
};
constexpr int Five::*five[] = {&Five::a, &Five::b, &Five::c, &Five::d, &Five::e};

// A random number that depends on the first fields only.
uint64_t noise(uint64_t seed, const Five& config, size_t fields) {
  for (size_t i = 0; i < fields; ++i)
    seed = (seed ^ static_cast<uint64_t>(config.*five[i] + 7)) * 0x9E3779B97F4A7C15,
    seed ^= seed >> 31;
  return seed >> 7;
}

struct RandomSpace {
  explicit RandomSpace(uint64_t seed) {
    std::mt19937_64 random(seed);
    for (size_t i = 0; i < std::size(five); ++i) {
      std::vector<int> values(random() % 16 == 0 ? 0 : 1 + random() % 6);
      for (int& v : values) v = static_cast<int>(random() % 8);
      const uint64_t salt = random();
      if (random() % 3 == 0) {
        offers.push_back([=](const Five& f) {
          std::vector<int> some;
          for (const int v : values)
            if (noise(salt + static_cast<uint64_t>(v), f, i) % 3 != 0) some.insert(some.begin(), v);
          return some;
        });
        space.param(five[i], offers.back());
      } else {
        offers.push_back([=](const Five&) { return values; });
        space.param(five[i], values);
      }
      if (random() % 2 == 0) continue;
      accepts.push_back([=](const Five& f) { return noise(~salt, f, i + 1) % 4 != 0; });
      space.where(accepts.back());
    }
  }

  // Every constraint is asked at the end.
  void walk(Five& config, size_t depth, std::vector<Five>& out) const {
    if (depth == offers.size()) {
      if (std::ranges::all_of(accepts, [&](const auto& accept) { return accept(config); }))
        out.push_back(config);
      return;
    }
    std::set<int> done;
    for (const int v : offers[depth](config))
      if (done.insert(v).second) config.*five[depth] = v, walk(config, depth + 1, out);
  }

  Space<Five> space = ejk::space<Five>();
  std::vector<std::function<std::vector<int>(const Five&)>> offers;
  std::vector<std::function<bool(const Five&)>> accepts;
};

TEST(Space, RandomSpacesAreWhatAWalkOverTheProductFinds) {
  size_t most = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    const RandomSpace random(seed);
    std::vector<Five> expected;
    Five start;
    random.walk(start, 0, expected);
    ASSERT_EQ(random.space.configs(), expected);
    most = std::max(most, expected.size());
    const auto set = random.space.candidates();
    for (uint64_t i = 0; i < expected.size(); i += 7) {
      ASSERT_EQ(random.space[i], expected[i]);
      ASSERT_EQ(random.space.index_of(expected[i]), i);
      ASSERT_TRUE(random.space.contains(expected[i]));
      ASSERT_EQ(set->neighbours(i), neighbours_by_definition(*set, i));
    }
    ASSERT_EQ(random.space.index_of(Five{9, 9, 9, 9, 9}), std::nullopt);
    ASSERT_FALSE(random.space.contains(Five{9, 9, 9, 9, 9}));
    const auto read = candidates_from_value(parse_json(stable_json(set->to_value())));
    ASSERT_EQ(read->to_value(), set->to_value());
    for (uint64_t i = 0; i < expected.size(); i += 11) {
      ASSERT_EQ(read->config(i), set->config(i));
      ASSERT_EQ(read->find(set->config(i).to_value()), i);
      ASSERT_EQ(read->neighbours(i), set->neighbours(i));
    }
  }
  EXPECT_GT(most, 200u);
}

TEST(Space, BeingNeighboursIsMutual) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const Space<Five> s = RandomSpace(seed).space;
    for (uint64_t i = 0; i < s.size(); i += 3)
      for (const uint64_t other : s.neighbours(i))
        EXPECT_THAT(s.neighbours(other), testing::Contains(i));
  }
}

// ---- large spaces -------------------------------------------------------------------------------

struct Many {
  int a0 = 0, a1 = 0, a2 = 0, a3 = 0, a4 = 0, a5 = 0, a6 = 0, a7 = 0, a8 = 0, a9 = 0, a10 = 0,
      a11 = 0, a12 = 0, a13 = 0, a14 = 0, a15 = 0, a16 = 0, a17 = 0, a18 = 0, a19 = 0;
};
constexpr int Many::*many[] = {&Many::a0,  &Many::a1,  &Many::a2,  &Many::a3,  &Many::a4,
                               &Many::a5,  &Many::a6,  &Many::a7,  &Many::a8,  &Many::a9,
                               &Many::a10, &Many::a11, &Many::a12, &Many::a13, &Many::a14,
                               &Many::a15, &Many::a16, &Many::a17, &Many::a18, &Many::a19};

std::vector<int> up_to(int count) {
  std::vector<int> out;
  for (int i = 0; i < count; ++i) out.push_back(i);
  return out;
}

TEST(Space, ConstraintsCutTheProductWhereTheyStand) {
  size_t asked = 0;
  auto s = space<Many>();
  for (size_t i = 0; i < 12; ++i) {
    s.param(many[i], up_to(10));
    if (i > 0)
      s.where([&asked, i](const Many& m) { return ++asked, m.*many[i] == m.*many[i - 1]; });
  }
  EXPECT_EQ(s.size(), 10u);
  EXPECT_EQ(s[7].a11, 7);
  EXPECT_EQ(asked, 11 * 100u);
}

TEST(Space, ParametersAfterTheLastConstraintAreNotWalked) {
  size_t asked = 0;
  auto s = space<Many>().param(many[0], up_to(10)).where([&](const Many& m) {
    return ++asked, m.a0 % 2 == 1;
  });
  for (size_t i = 1; i < 19; ++i) s.param(many[i], up_to(10));
  EXPECT_EQ(s.size(), 5'000'000'000'000'000'000u);
  EXPECT_EQ(asked, 10u);
  const Many last = s[s.size() - 1];
  EXPECT_EQ(last.a0, 9);
  EXPECT_EQ(last.a18, 9);
  EXPECT_EQ(s.index_of(last), s.size() - 1);
  EXPECT_EQ(s.neighbours(s.size() - 1).size(), 4 + 18 * 9u);
  const auto some = s.sample(1000, 1);
  EXPECT_EQ(std::set(some.begin(), some.end()).size(), 1000u);
}

TEST(Space, MorePointsThanCanBeCountedAreRefused) {
  auto s = space<Many>();
  for (const auto field : many) s.param(field, up_to(10));
  EXPECT_THAT(refusal(ErrorKind::invalid_argument, [&] { s.size(); }),
              AllOf(HasSubstr("Many"), HasSubstr("2^64")));
  s.where([](const Many&) { return true; });
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int large = 40;
#else
constexpr int large = 200;
#endif

uint64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  uint64_t pages = 0, resident = 0;
  statm >> pages >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

TEST(Space, TenMillionPointsFitInTensOfMegabytes) {
  const uint64_t before = resident_bytes();
  const auto s = space<Five>()
                     .param(&Five::a, up_to(large))
                     .param(&Five::b, up_to(large))
                     .param(&Five::c, up_to(500))
                     .where([](const Five& f) { return noise(1, f, 3) % 2 == 0; });
  const double expected = large * large * 250.;
  EXPECT_NEAR(static_cast<double>(s.size()), expected, expected / 100);
  if (large == 200) {
    EXPECT_LT(resident_bytes() - before, 80'000'000u);
  }
  for (const uint64_t point : s.sample(100, 1)) {
    EXPECT_EQ(noise(1, s[point], 3) % 2, 0u);
    EXPECT_EQ(s.index_of(s[point]), point);
  }
}

TEST(Space, SubtreesThatAreEqualAreKeptOnce) {
  const uint64_t before = resident_bytes();
  auto s = space<Five>();
  for (size_t i = 0; i < 4; ++i) s.param(five[i], up_to(large / 4));
  s.where([](const Five& f) { return f.c != f.d; });
  const uint64_t n = large / 4;
  EXPECT_EQ(s.size(), n * n * n * (n - 1));
  EXPECT_LT(resident_bytes() - before, 4'000'000u);
}

// ---- samples ------------------------------------------------------------------------------------

Space<Tile> twenty_points() {
  return space<Tile>()
      .param(&Tile::rows, up_to(10))
      .param(&Tile::columns, up_to(10))
      .where([](const Tile& t) { return t.columns < t.rows && t.rows < 7 && t.columns != 3; })
      .where([](const Tile& t) { return t.rows + t.columns != 1; });
}

double chi_square(const std::vector<double>& counts, double expected) {
  double sum = 0;
  for (const double c : counts) sum += (c - expected) * (c - expected) / expected;
  return sum;
}

TEST(Space, EveryPointIsDrawnEquallyOften) {
  const auto s = twenty_points();
  const size_t size = s.size();
  ASSERT_EQ(size, 17u);
  constexpr uint64_t rounds = 17'000;
  for (const uint64_t count : {uint64_t{1}, uint64_t{2}, uint64_t{9}}) {
    std::vector<double> drawn(size), last(size);
    for (uint64_t seed = 0; seed < rounds; ++seed) {
      const auto points_drawn = s.sample(count, seed);
      for (const uint64_t p : points_drawn) ++drawn[p];
      ++last[points_drawn.back()];
    }
    // 39.25 is exceeded once in 1000 with 16 degrees of freedom.
    EXPECT_LT(chi_square(last, static_cast<double>(rounds) / 17), 39.25);
    EXPECT_LT(chi_square(drawn, static_cast<double>(rounds * count) / 17), 39.25);
  }
}

TEST(Space, SamplesHaveNoPointTwiceAndDependOnTheSeedOnly) {
  const auto s = twenty_points();
  EXPECT_EQ(s.sample(5, 1), s.sample(5, 1));
  EXPECT_NE(s.sample(5, 1), s.sample(5, 2));
  auto all = s.sample(1'000'000'000'000, 3);
  for (uint64_t count = 0; count <= s.size(); ++count) {
    const auto some = s.sample(count, 3);
    EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin(),
                           all.begin() + static_cast<std::ptrdiff_t>(count)));
  }
  std::ranges::sort(all);
  EXPECT_EQ(all.size(), s.size());
  EXPECT_EQ(all.back(), s.size() - 1);
  EXPECT_EQ(std::ranges::adjacent_find(all), all.end());
  EXPECT_TRUE(s.sample(0, 1).empty());
}

// ---- places that are not there ------------------------------------------------------------------

TEST(Space, PointsBeyondTheEndAreRefused) {
  const auto s = twenty_points();
  const auto set = s.candidates();
  for (const std::function<void()>& f : std::vector<std::function<void()>>{
           [&] { s[17]; }, [&] { set->config(17); }, [&] { set->neighbours(17); },
           [&] { indices(*set, ~uint64_t{0}); }})
    EXPECT_THAT(refusal(ErrorKind::invalid_argument, f), HasSubstr("the set has 17"));
  std::vector<uint32_t> room(3);
  EXPECT_THAT(refusal(ErrorKind::invalid_argument, [&] { set->indices(0, room); }),
              HasSubstr("2 parameters"));
}

TEST(Space, ConfigsOutsideTheSpaceAreNotFound) {
  const auto s = space<Kernel>().param(&Kernel::tile, &Tile::rows, {1, 2});
  const auto set = s.candidates();
  Kernel config = s[1];
  EXPECT_EQ(s.index_of(config), 1u);
  config.tile.columns = 9;  // no parameter, but not the default either
  EXPECT_EQ(s.index_of(config), std::nullopt);
  EXPECT_EQ(set->find(Value()), std::nullopt);
  EXPECT_EQ(set->find(Value(3)), std::nullopt);
  EXPECT_EQ(set->find(parse_json(R"({"tile":{"rows":1}})")), std::nullopt);
  EXPECT_EQ(set->find(parse_json(R"({"tile":{"rows":3,"columns":8}})")), std::nullopt);
}

// ---- lists --------------------------------------------------------------------------------------

TEST(CandidateList, HasTheFieldsOfItsConfigsAsParameters) {
  Kernel first, second;
  second.tile.rows = 1;
  second.fwd.num_warps = 4;
  const auto set = candidate_list({make_config(first), make_config(second), make_config(first)});
  ASSERT_EQ(set->size(), 3u);
  ASSERT_EQ(set->parameters().size(), 12u);
  EXPECT_EQ(set->parameters()[10].name, "tile.rows");
  EXPECT_EQ(set->parameters()[10].values, (std::vector<Value>{4, 1}));
  EXPECT_EQ(set->parameters()[11].values, (std::vector<Value>{8}));
  EXPECT_EQ(indices(*set, 1)[10], 1u);
  EXPECT_EQ(indices(*set, 2), indices(*set, 0));
  EXPECT_EQ(set->config(1).as<Kernel>().tile.rows, 1);
  EXPECT_EQ(set->find(to_value(second)), 1u);
  EXPECT_EQ(set->find(to_value(first)), 0u);
  EXPECT_EQ(set->find(to_value(Tile{})), std::nullopt);
}

TEST(CandidateList, NeighboursDifferInOneField) {
  std::vector<AnyConfig> list;
  for (const auto& [rows, columns] : Points{{1, 1}, {1, 2}, {2, 2}, {1, 1}, {3, 1}})
    list.push_back(make_config(Tile{rows, columns}));
  const auto set = candidate_list(list);
  EXPECT_THAT(set->neighbours(0), ElementsAre(1u, 4u));
  for (uint64_t i = 0; i < set->size(); ++i)
    EXPECT_EQ(set->neighbours(i), neighbours_by_definition(*set, i));
}

TEST(CandidateList, MayBeEmptyOrHoldAnything) {
  const auto none = candidate_list({});
  EXPECT_EQ(none->size(), 0u);
  EXPECT_TRUE(none->parameters().empty());
  EXPECT_EQ(none->find(Value()), std::nullopt);
  EXPECT_EQ(candidates_from_value(none->to_value())->size(), 0u);

  for (const char* text : {R"([1, "two", {"a": 1}])", R"([{"a": 1}, {"b": 1}])", R"([{}, {}])",
                           R"([{"a.b": 1}, {"a.b": 2}])", R"([{"m": {"x": 1}}, {"m": {"y": 2}}])",
                           R"([{"o": null}, {"o": {"x": [1, NaN]}}])", "[null]"}) {
    SCOPED_TRACE(text);
    std::vector<AnyConfig> list;
    const Value values = parse_json(text);
    for (const Value& v : values.as_array()) list.push_back(make_config(v));
    const auto set = candidate_list(list);
    const auto read = candidates_from_value(parse_json(stable_json(set->to_value())));
    ASSERT_EQ(read->size(), list.size());
    for (uint64_t i = 0; i < list.size(); ++i) {
      EXPECT_EQ(read->config(i), list[i]);
      EXPECT_EQ(set->config(*set->find(list[i].to_value())), list[i]);
      EXPECT_EQ(read->config(*read->find(list[i].to_value())), list[i]);
    }
  }
}

struct Mapped {
  std::map<int, int> by_number;
};

TEST(CandidateList, ConfigsReadFromAFileAreFoundWhateverTheOrderOfTheirMembers) {
  const Mapped config{{{9, 1}, {10, 2}}};
  const Value read = parse_json(stable_json(config));
  ASSERT_NE(stable_json(read), stable_json(config));
  EXPECT_EQ(candidate_list({make_config(Mapped{}), make_config(config)})->find(read), 1u);
  const auto s = space<Mapped>().param(&Mapped::by_number, {Mapped{}.by_number, config.by_number});
  EXPECT_EQ(s.candidates()->find(read), 1u);
}

// ---- JSON ---------------------------------------------------------------------------------------

TEST(CandidatesAsJson, ShowParametersAndPoints) {
  const auto s =
      space<Tile>().param(&Tile::rows, {1, 2}).where([](const Tile& t) { return t.rows == 2; });
  EXPECT_EQ(stable_json(s.candidates()->to_value()),
            R"({"defaults":{"columns":8,"rows":4},"parameters":[{"name":"rows","values":[1,2]}],)"
            R"("points":[[1]],"size":1})");
}

TEST(CandidatesAsJson, LargeSetsAreWrittenWithoutPointsAndReadIfTheyAreProducts) {
  auto s = space<Tile>().param(&Tile::rows, up_to(1000)).param(&Tile::columns, up_to(101));
  const Value written = s.candidates()->to_value();
  EXPECT_EQ(written.find("points"), nullptr);
  const auto read = candidates_from_value(written);
  EXPECT_EQ(read->size(), 101'000u);
  EXPECT_EQ(read->config(100'999), s.candidates()->config(100'999));
  s.where([](const Tile& t) { return t.rows > 0; });
  EXPECT_THAT(refusal(ErrorKind::parse, [&] { candidates_from_value(s.candidates()->to_value()); }),
              HasSubstr("points: is missing, and the 100899 points are not the whole product"));
}

TEST(CandidatesAsJson, AMalformedDocumentIsRefusedWithThePlace) {
  auto why = [](const std::string& text) {
    return refusal(ErrorKind::parse, [&] { candidates_from_value(parse_json(text)); });
  };
  auto set = [](std::string_view parameters, std::string_view rest) {
    return R"({"defaults":{"a":1},"parameters":)" + std::string(parameters) + "," +
           std::string(rest) + "}";
  };
  const std::string one = R"([{"name":"a","values":[1,2]}])";
  EXPECT_NO_THROW(candidates_from_value(parse_json(set(one, R"("size":1,"points":[[1]])"))));
  EXPECT_THAT(why("[]"), HasSubstr("expected an object, found array"));
  EXPECT_THAT(why("{}"), HasSubstr("\"defaults\" is missing"));
  EXPECT_THAT(why(R"({"defaults":{},"size":1})"), HasSubstr("\"parameters\" is missing"));
  EXPECT_THAT(why(set(one, R"("size":1,"points":[[1]],"more":1)")), HasSubstr("\"more\""));
  EXPECT_THAT(why(set(one, R"("size":-1,"points":[[1]])")), HasSubstr("size: expected a count"));
  EXPECT_THAT(why(set(one, R"("size":1.5,"points":[[1]])")), HasSubstr("size: expected a count"));
  EXPECT_THAT(why(set(one, R"("size":99999999999999999999,"points":[])")), HasSubstr("size: "));
  EXPECT_THAT(why(set(one, R"("size":18446744073709551615,"points":[[1]])")),
              HasSubstr("points: "));
  EXPECT_THAT(why(set(one, R"("size":18446744073709551615)")), HasSubstr("points: is missing"));
  EXPECT_THAT(why(set(one, R"("size":1,"points":{})")), HasSubstr("points: expected an array"));
  EXPECT_THAT(why(set(one, R"("size":1,"points":[1])")), HasSubstr("points[0]: expected an array"));
  EXPECT_THAT(why(set(one, R"("size":1,"points":[[]])")), HasSubstr("points[0]: has 0 indices"));
  EXPECT_THAT(why(set(one, R"("size":1,"points":[[2]])")), HasSubstr("points[0][0]: "));
  EXPECT_THAT(why(set(one, R"("size":1,"points":[[4294967296]])")), HasSubstr("points[0][0]: "));
  EXPECT_THAT(why(set("{}", R"("size":0)")), HasSubstr("parameters: expected an array"));
  EXPECT_THAT(why(set("[1]", R"("size":0)")), HasSubstr("parameters[0]: expected an object"));
  EXPECT_THAT(why(set(R"([{"name":"a"}])", R"("size":0)")), HasSubstr("parameters[0]: \"values\""));
  EXPECT_THAT(why(set(R"([{"name":1,"values":[]}])", R"("size":0)")), HasSubstr("[0].name: "));
  EXPECT_THAT(why(set(R"([{"name":"a","values":1}])", R"("size":0)")), HasSubstr("[0].values: "));
  EXPECT_THAT(why(set(R"([{"name":"a","values":[1,1]}])", R"("size":0)")),
              HasSubstr("parameters[0].values[1]: is there twice"));
  EXPECT_THAT(why(set(R"([{"name":"a","values":[]},{"name":"a","values":[]}])", R"("size":0)")),
              HasSubstr("parameters[1].name: \"a\" was given before"));
  EXPECT_THAT(why(set(R"([{"name":"b.c","values":[]},{"name":"b","values":[]}])", R"("size":0)")),
              HasSubstr("parameters[1].name: "));
  EXPECT_THAT(why(set(R"([{"name":"","values":[]},{"name":"b","values":[]}])", R"("size":0)")),
              HasSubstr("parameters[1].name: "));
  EXPECT_THAT(why(set(R"([{"name":"a.b","values":[1]}])", R"("size":1)")),
              HasSubstr("not an object"));
  for (const char* name : {".", "a.", ".a", "b..c"})
    EXPECT_THAT(why(set(R"([{"name":")" + std::string(name) + R"(","values":[]}])", R"("size":0)")),
                HasSubstr("parameters[0].name: "));
  std::string deep = "b";
  for (int i = 0; i < 100'000; ++i) deep += ".b";
  EXPECT_THAT(why(set(R"([{"name":")" + deep + R"(","values":[1]}])", R"("size":1)")),
              HasSubstr("more than 64 parts"));
  std::string wide;
  for (int i = 0; i < 2000; ++i)
    wide +=
        (i ? "," : "") + std::string(R"({"name":"p)") + std::to_string(i) + R"(","values":[1]})";
  EXPECT_THAT(why(set("[" + wide + "]", R"("size":1)")), HasSubstr("the most are 1000"));
}

TEST(CandidatesAsJson, DamagedTextIsRefusedOrGivesASetThatWorks) {
  const std::string text = stable_json(multiples().candidates()->to_value());
  const std::string_view characters = R"(0123456789-."[]{},:abcrows)";
  std::mt19937_64 random(1);
  size_t read = 0;
  for (int round = 0; round < 5000; ++round) {
    std::string damaged = text;
    for (uint64_t i = 0; i <= random() % 3; ++i)
      damaged[random() % damaged.size()] = characters[random() % characters.size()];
    try {
      const auto set = candidates_from_value(parse_json(damaged));
      ++read;
      for (uint64_t i = 0; i < std::min<uint64_t>(set->size(), 10); ++i) {
        ASSERT_TRUE(set->find(set->config(i).to_value())) << damaged;
        ASSERT_EQ(set->neighbours(i), neighbours_by_definition(*set, i));
      }
    } catch (const Error& e) {
      ASSERT_EQ(e.kind(), ErrorKind::parse) << damaged;
    }
  }
  EXPECT_GT(read, 100u);
}

}  // namespace
}  // namespace ejk
