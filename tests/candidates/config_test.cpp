// SPDX-License-Identifier: Apache-2.0
// Plain structs as configurations: their fields and their JSON.
#include <ejk/config.h>

#include <fstream>
#include <iterator>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paths.h"

namespace ejk {
namespace {

using testing::HasSubstr;

// The message of the Error(parse) that `f` must throw.
template <class F>
std::string refusal(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::parse);
    return e.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

enum class Order { row, column, tiled = 7 };
enum class Small : uint8_t { off, on, far = 200 };
enum class Letter : char { a, b };
enum class Switch : bool { no, yes };
enum Plain { plain_zero, plain_one };
enum class Part : uint32_t { left = 1, right = 2, far = 1u << 30 };
constexpr Part operator|(Part a, Part b) {
  return static_cast<Part>(static_cast<uint32_t>(a) | static_cast<uint32_t>(b));
}
enum class Code { ok = 200, gone = 410 };
constexpr auto ejk_enumerators(Code) { return std::array{Code::ok, Code::gone}; }

struct Tile {
  int rows = 4;
  int columns = 8;
  bool operator==(const Tile&) const = default;
};

struct Everything {
  bool flag = true;
  int8_t tiny = -1;
  uint64_t huge = 18446744073709551615u;
  float ratio = 0.5f;
  double scale = 1e-6;
  Order order = Order::column;
  Small level = Small::on;
  Plain plain = plain_one;
  std::string name = "λ \"x\"";
  std::optional<int> empty;
  std::optional<Tile> tile = Tile{};
  std::vector<int> list{3, 1, 2};
  std::vector<bool> bits{true, false};
  std::vector<Tile> tiles{Tile{}};
  std::array<int, 3> triple{1, 2, 3};
  std::map<std::string, double> by_name{{"z", 1}, {"a", 2}};
  std::map<int, std::string> by_number{{10, "ten"}, {-1, "minus"}, {9, "nine"}};
  std::tuple<int, std::string> both{1, "one"};
  std::pair<bool, Tile> couple{true, {}};
  Tile nested{};
  bool operator==(const Everything&) const = default;
};

constexpr std::string_view everything_text =
    R"({"bits":[true,false],"both":[1,"one"],"by_name":{"a":2.0,"z":1.0},)"
    R"("by_number":{"-1":"minus","9":"nine","10":"ten"},"couple":[true,{"columns":8,"rows":4}],)"
    R"("empty":null,"flag":true,"huge":18446744073709551615,"level":"on","list":[3,1,2],)"
    R"("name":"\u03bb \"x\"","nested":{"columns":8,"rows":4},"order":"column","plain":"plain_one",)"
    R"("ratio":0.5,"scale":1e-06,"tile":{"columns":8,"rows":4},"tiles":[{"columns":8,"rows":4}],)"
    R"("tiny":-1,"triple":[1,2,3]})";

TEST(Config, FieldsOfEveryKindAreFoundByName) {
  EXPECT_EQ(stable_json(Everything{}), everything_text);
}

TEST(Config, EveryKindOfFieldComesBackFromItsText) {
  Everything changed;
  changed.flag = false;
  changed.order = Order::tiled;
  changed.level = Small::far;
  changed.plain = plain_zero;
  changed.empty = 5;
  changed.tile.reset();
  changed.tiles = {{1, 2}, {3, 4}};
  changed.by_number = {{-20, "a"}, {3, "b"}};
  changed.nested.rows = 99;
  EXPECT_EQ(from_json<Everything>(to_json(changed)), changed);
  EXPECT_EQ(from_json<Everything>(stable_json(changed)), changed);
  EXPECT_EQ(from_value<Everything>(to_value(changed)), changed);
  EXPECT_EQ(short_hash(changed), short_hash(std::string_view(stable_json(changed))));
  EXPECT_NE(short_hash(changed), short_hash(Everything{}));
}

struct Outer {
  struct Config {
    int block = 4096;
    Tile tile{};
  };
};

TEST(Config, StructsNestedInKernelsAndLocalOnesWork) {
  struct Local {
    int first = 1;
    Order second = Order::row;
  };
  EXPECT_EQ(stable_json(Outer::Config{}), R"({"block":4096,"tile":{"columns":8,"rows":4}})");
  EXPECT_EQ(stable_json(Local{}), R"({"first":1,"second":"row"})");
  EXPECT_EQ(from_json<Local>(R"({"second":"tiled"})").second, Order::tiled);
}

template <class T>
struct Templated {
  T value{};
  std::array<T, 2> pair{};
};

TEST(Config, TemplatesAndOneFieldStructsWork) {
  struct One {
    std::tuple<int> only{3};
  };
  struct Text {
    std::string text;
  };
  struct Empty {};
  EXPECT_EQ(stable_json(Templated<int>{}), R"({"pair":[0,0],"value":0})");
  EXPECT_EQ(stable_json(Templated<Tile>{}.pair),
            R"([{"columns":8,"rows":4},{"columns":8,"rows":4}])");
  EXPECT_EQ(stable_json(One{}), R"({"only":[3]})");
  EXPECT_EQ(stable_json(Text{"a"}), R"({"text":"a"})");
  EXPECT_EQ(stable_json(Empty{}), "{}");
  EXPECT_EQ(from_json<One>(R"({"only":[4]})").only, std::tuple(4));
  EXPECT_EQ(from_json<Text>(R"({"text":"b"})").text, "b");
}

struct Base {
  int inherited = 1;
};
struct WithBase : Base {
  int own = 2;
  EJK_CONFIG(WithBase, inherited, own)
};
struct WithCArray {
  int tiles[3] = {1, 2, 3};
  Tile grid[2] = {};
  EJK_CONFIG(WithCArray, tiles, grid);  // the semicolon is allowed
};
class Guarded {
 public:
  Guarded() = default;
  explicit Guarded(int block) : block_(block) {}
  int block() const { return block_; }
  EJK_CONFIG(Guarded, block_);

 private:
  int block_ = 16;
};

TEST(Config, NamedFieldsMayBeInheritedPrivateOrCArrays) {
  EXPECT_EQ(stable_json(WithBase{}), R"({"inherited":1,"own":2})");
  const auto back = from_json<WithBase>(R"({"inherited":5})");
  EXPECT_EQ(back.inherited, 5);
  EXPECT_EQ(back.own, 2);

  EXPECT_EQ(stable_json(WithCArray{}),
            R"({"grid":[{"columns":8,"rows":4},{"columns":8,"rows":4}],"tiles":[1,2,3]})");
  const auto array = from_json<WithCArray>(R"({"tiles":[7,8,9]})");
  EXPECT_EQ(array.tiles[2], 9);
  EXPECT_THAT(refusal([] { from_json<WithCArray>(R"({"tiles":[7,8]})"); }), HasSubstr("tiles: "));

  EXPECT_EQ(stable_json(Guarded(8)), R"({"block_":8})");
  EXPECT_EQ(from_json<Guarded>(R"({"block_":32})").block(), 32);
}

// A derived struct that adds fields must not pass for its base.
struct ForgotsItsOwn : WithBase {
  int more = 3;
};
struct PlainWithBase : Base {
  int more = 3;
};
struct HasCArray {
  int rows[2] = {};
  int columns = 0;
};

TEST(Config, StructsWhoseFieldsCannotBeFoundAreNotTakenForOthers) {
  EXPECT_FALSE(detail::Reflected<ForgotsItsOwn>);
  EXPECT_FALSE(detail::Reflected<PlainWithBase>);
  EXPECT_FALSE(detail::Reflected<HasCArray>);
  EXPECT_TRUE(detail::Reflected<WithBase>);
  EXPECT_TRUE(detail::Reflected<WithCArray>);
}

struct TwentyFour {
  int a0 = 0, a1 = 1, a2 = 2, a3 = 3, a4 = 4, a5 = 5, a6 = 6, a7 = 7, a8 = 8, a9 = 9, a10 = 10,
      a11 = 11, a12 = 12, a13 = 13, a14 = 14, a15 = 15, a16 = 16, a17 = 17, a18 = 18, a19 = 19,
      a20 = 20, a21 = 21, a22 = 22, a23 = 23;
};
struct TwentyFive {
  int a0 = 0, a1 = 1, a2 = 2, a3 = 3, a4 = 4, a5 = 5, a6 = 6, a7 = 7, a8 = 8, a9 = 9, a10 = 10,
      a11 = 11, a12 = 12, a13 = 13, a14 = 14, a15 = 15, a16 = 16, a17 = 17, a18 = 18, a19 = 19,
      a20 = 20, a21 = 21, a22 = 22, a23 = 23, a24 = 24;
  EJK_CONFIG(TwentyFive, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15, a16,
             a17, a18, a19, a20, a21, a22, a23, a24)
};

TEST(Config, TwentyFourFieldsAreFoundAndMoreCanBeNamed) {
  const Value found = to_value(TwentyFour{});
  const Value named = to_value(TwentyFive{});
  ASSERT_EQ(found.as_object().members.size(), 24u);
  ASSERT_EQ(named.as_object().members.size(), 25u);
  for (int64_t i = 0; i < 24; ++i) EXPECT_EQ(found.find("a" + std::to_string(i))->as_int(), i);
  for (int64_t i = 0; i < 25; ++i) EXPECT_EQ(named.find("a" + std::to_string(i))->as_int(), i);
}

TEST(Config, FieldsTheTextDoesNotNameKeepTheirDefaults) {
  EXPECT_EQ(from_json<Everything>("{}"), Everything{});
  const auto some =
      from_json<Everything>(R"({"nested":{"rows":1},"tile":{"columns":2},"tiles":[{"rows":3}]})");
  EXPECT_EQ(some.nested, (Tile{1, 8}));
  EXPECT_EQ(some.tile, (Tile{4, 2}));
  EXPECT_EQ(some.tiles, std::vector{(Tile{3, 8})});
}

TEST(Config, AValueThatDoesNotFitIsRefusedWithTheFieldsPath) {
  auto why = [](const char* text) { return refusal([&] { from_json<Everything>(text); }); };
  EXPECT_THAT(why(R"({"flags":true})"), AllOf(HasSubstr("\"flags\""), HasSubstr("Everything")));
  EXPECT_THAT(why(R"({"nested":{"row":1}})"), AllOf(HasSubstr("nested: "), HasSubstr("\"row\"")));
  EXPECT_THAT(why(R"({"tiles":[{"rows":1},{"rows":"x"}]})"),
              HasSubstr("tiles[1].rows: expected an integer"));
  EXPECT_THAT(why(R"({"flag":1})"), HasSubstr("flag: expected a bool"));
  EXPECT_THAT(why(R"({"tiny":1.0})"), HasSubstr("tiny: expected an integer"));
  EXPECT_THAT(why(R"({"tiny":true})"), HasSubstr("tiny: expected an integer"));
  EXPECT_THAT(why(R"({"tiny":null})"), HasSubstr("tiny: expected an integer"));
  EXPECT_THAT(why(R"({"tiny":128})"), HasSubstr("tiny: 128 does not fit"));
  EXPECT_THAT(why(R"({"huge":-1})"), HasSubstr("huge: -1 does not fit"));
  EXPECT_THAT(why(R"({"huge":18446744073709551616})"),
              HasSubstr("huge: 18446744073709551616 does not fit"));
  EXPECT_THAT(why(R"({"ratio":1e300})"), HasSubstr("ratio: 1e+300 does not fit"));
  EXPECT_THAT(why(R"({"ratio":"1"})"), HasSubstr("ratio: expected a number"));
  EXPECT_THAT(why(R"({"order":"diagonal"})"), HasSubstr("order: unknown enumerator \"diagonal\""));
  EXPECT_THAT(why(R"({"order":1.5})"), HasSubstr("order: expected an enumerator"));
  EXPECT_THAT(why(R"({"level":256})"), HasSubstr("level: 256 does not fit"));
  EXPECT_THAT(why(R"({"level":18446744073709551615})"),
              HasSubstr("level: 18446744073709551615 does not fit"));
  EXPECT_THAT(why(R"({"name":3})"), HasSubstr("name: expected a string"));
  EXPECT_THAT(why(R"({"list":{}})"), HasSubstr("list: expected an array"));
  EXPECT_THAT(why(R"({"triple":[1,2]})"), HasSubstr("triple: expected an array of that length"));
  EXPECT_THAT(why(R"({"both":[1]})"), HasSubstr("both: expected an array of that length"));
  EXPECT_THAT(why(R"({"both":["1","one"]})"), HasSubstr("both[0]: "));
  EXPECT_THAT(why(R"({"by_number":{"1x":"a"}})"),
              HasSubstr("by_number: \"1x\" is not an integer key"));
  EXPECT_THAT(why(R"({"by_name":{"a":"b"}})"), HasSubstr("by_name.a: expected a number"));
  EXPECT_THAT(why("[]"), HasSubstr("expected an object"));
  EXPECT_THAT(why("{"), HasSubstr("JSON"));
}

TEST(Config, WholeNumbersAreTakenForFloatsAndFloatsKeepInfinities) {
  EXPECT_EQ(from_json<Everything>(R"({"scale":2})").scale, 2.0);
  EXPECT_EQ(from_json<Everything>(R"({"scale":1000000000000000000000000})").scale, 1e24);
  EXPECT_EQ(from_json<Everything>(R"({"ratio":Infinity})").ratio,
            std::numeric_limits<float>::infinity());
  EXPECT_TRUE(from_json<Everything>(R"({"ratio":NaN})").ratio != 0);
}

TEST(Config, EnumeratorsOfEveryUnderlyingTypeHaveTheirNames) {
  struct Enums {
    Letter letter = Letter::b;
    Switch light = Switch::yes;
    Small far = Small::far;
    bool operator==(const Enums&) const = default;
  };
  // Beyond 63 names are not looked for: the number stands for itself.
  EXPECT_EQ(stable_json(Enums{}), R"({"far":200,"letter":"b","light":"yes"})");
  EXPECT_EQ(from_json<Enums>(stable_json(Enums{})), Enums{});
  EXPECT_EQ(from_json<Enums>(R"({"light":"no"})").light, Switch::no);
}

struct Enums {
  Order order = Order::row;
  Small level = Small::off;
  Plain plain = plain_zero;
  Switch light = Switch::no;
  Part part = Part::left;
  Code code = Code::ok;
};

TEST(Config, NumbersOfEnumeratorsAreRead) {
  EXPECT_EQ(from_json<Enums>(R"({"order":7})").order, Order::tiled);
  EXPECT_EQ(from_json<Enums>(R"({"level":200})").level, Small::far);
  EXPECT_EQ(from_json<Enums>(R"({"plain":1})").plain, plain_one);
  EXPECT_EQ(from_json<Enums>(R"({"light":1})").light, Switch::yes);
  EXPECT_EQ(from_json<Enums>(R"({"part":1073741824})").part, Part::far);
  EXPECT_EQ(from_json<Enums>(R"({"code":410})").code, Code::gone);
  EXPECT_EQ(from_json<std::byte>("77"), std::byte{77});
}

TEST(Config, NumbersThatNoEnumeratorHasAreRefused) {
  auto why = [](const char* text) { return refusal([&] { from_json<Enums>(text); }); };
  EXPECT_THAT(why(R"({"order":3})"),
              AllOf(HasSubstr("order: 3 is not an enumerator of"), HasSubstr("Order")));
  EXPECT_THAT(why(R"({"order":-1})"), HasSubstr("order: -1 is not an enumerator"));
  EXPECT_THAT(why(R"({"order":2147483647})"), HasSubstr("order: 2147483647 is not an enumerator"));
  EXPECT_THAT(why(R"({"order":64})"), HasSubstr("ejk_enumerators"));
  EXPECT_THAT(why(R"({"level":199})"), HasSubstr("level: 199 is not an enumerator"));
  EXPECT_THAT(why(R"({"plain":2})"), HasSubstr("plain: 2 is not an enumerator"));
  EXPECT_THAT(why(R"({"code":0})"), HasSubstr("code: 0 is not an enumerator"));
}

TEST(Config, EnumsWithAnOperatorOrTakeCombinationsOfTheirEnumerators) {
  auto why = [](const char* text) { return refusal([&] { from_json<Enums>(text); }); };
  EXPECT_EQ(from_json<Enums>(R"({"part":3})").part, Part::left | Part::right);
  EXPECT_EQ(from_json<Enums>(R"({"part":1073741825})").part, Part::left | Part::far);
  EXPECT_EQ(from_json<Enums>(R"({"part":0})").part, Part{});
  EXPECT_THAT(why(R"({"part":4})"), HasSubstr("part: 4 is not an enumerator"));
  EXPECT_THAT(why(R"({"part":7})"), HasSubstr("part: 7 is not an enumerator"));
  const Part both = Part::right | Part::far;
  EXPECT_EQ(from_value<Part>(to_value(both)), both);
}

TEST(Config, StoredConfigsMustNameEveryField) {
  const ConfigType& type = config_type<Outer::Config>();
  std::string why;
  EXPECT_EQ(type.from_value(parse_json(R"({"block":1})"), why), nullptr);
  EXPECT_THAT(why, HasSubstr("tile: is missing"));
  EXPECT_EQ(type.from_value(parse_json(R"({"block":1,"tile":{"rows":2}})"), why), nullptr);
  EXPECT_THAT(why, HasSubstr("tile.columns: is missing"));
  EXPECT_EQ(type.from_value(parse_json(R"({"block":1,"tile":{"rows":2,"columns":3},"x":1})"), why),
            nullptr);
  EXPECT_THAT(why, HasSubstr("\"x\""));
  const auto config =
      type.from_value(parse_json(R"({"block":1,"tile":{"rows":2,"columns":3}})"), why);
  ASSERT_NE(config, nullptr);
  EXPECT_EQ(static_cast<const Outer::Config*>(config.get())->tile, (Tile{2, 3}));
  EXPECT_THAT(type.name, HasSubstr("Outer::Config"));
}

TEST(Config, ErasedConfigsCompareByContent) {
  const AnyConfig one = make_config(Tile{1, 2}), same = make_config(Tile{1, 2}),
                  other = make_config(Tile{2, 1});
  EXPECT_EQ(one, same);
  EXPECT_FALSE(one == other);
  EXPECT_EQ(one.as<Tile>(), (Tile{1, 2}));
  EXPECT_EQ(stable_json(one.to_value()), R"({"columns":2,"rows":1})");
  EXPECT_FALSE(AnyConfig());
}

TEST(Config, NumbersAsMapKeysSortAsNumbers) {
  const std::map<int, bool, std::greater<int>> downwards{{100, true}, {9, false}, {-3, true}};
  EXPECT_EQ(stable_json(std::map<int, bool>{{100, true}, {9, false}, {-3, true}}),
            R"({"-3":true,"9":false,"100":true})");
  EXPECT_EQ(stable_json(downwards), R"({"-3":true,"9":false,"100":true})");
}

TEST(Config, AttentionParametersReadAsTheOriginalWritesThem) {
  std::ifstream file(test::data("keys.json"));
  const Value vectors = parse_json(std::string(std::istreambuf_iterator<char>(file), {}));
  int checked = 0;
  for (const Value& bare : vectors.find("bare")->as_array()) {
    const Value& value = *bare.find("value");
    const Value* name = value.find("name");
    if (value.find("t")->as_string() != "dataclass" || name == nullptr) continue;
    const std::string& text = bare.find("stable_json")->as_string();
    auto same = [&]<class T>(std::type_identity<T>) {
      EXPECT_EQ(stable_json(from_json<T>(text)), text);
      EXPECT_EQ(short_hash(from_json<T>(text)), bare.find("short_hash")->as_string());
      ++checked;
    };
    if (name->as_string() == "FwdParams") same(std::type_identity<FwdParams>{});
    if (name->as_string() == "BwdParams") same(std::type_identity<BwdParams>{});
  }
  EXPECT_GE(checked, 2);
  EXPECT_EQ(
      stable_json(FwdParams{.q_blocksize = 128, .num_warps = 4}),
      R"({"blocksize_heads":null,"blocksize_k":null,"blocksize_keys":null,"blocksize_m":null,)"
      R"("blocksize_n":null,"kv_blocksize":null,"num_key_splits":null,"num_stages":null,"num_warps":4,)"
      R"("q_blocksize":128})");
}

}  // namespace
}  // namespace ejk
