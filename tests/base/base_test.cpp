// SPDX-License-Identifier: Apache-2.0
// Hashes, values and their texts, against published vectors and those of Python's json module.
#include <bit>
#include <charconv>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ejk/error.h>
#include <ejk/value.h>

#include "base/sha256.h"
#include "paths.h"

namespace ejk {
namespace {

Value vectors() {
  std::ifstream file(test::data("keys.json"));
  return parse_json(std::string(std::istreambuf_iterator<char>(file), {}));
}

double from_bits(const std::string& hex) {
  uint64_t bits = 0;
  std::from_chars(hex.data(), hex.data() + hex.size(), bits, 16);
  return std::bit_cast<double>(bits);
}

// ---- SHA-256

TEST(Sha256, MatchesThePublishedVectors) {
  EXPECT_EQ(base::sha256_hex(""),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(base::sha256_hex("abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(base::sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(base::sha256_hex("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmn"
                             "hijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu"),
            "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
  EXPECT_EQ(base::sha256_hex(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, PadsEveryLengthAroundABlock) {
  // Made with Python's hashlib.
  EXPECT_EQ(base::sha256_hex(std::string(55, 'x'), 16), "d5e285683cd4efc0");
  EXPECT_EQ(base::sha256_hex(std::string(56, 'x'), 16), "04c26261370ee754");
  EXPECT_EQ(base::sha256_hex(std::string(63, 'x'), 16), "75220b47218278e6");
  EXPECT_EQ(base::sha256_hex(std::string(64, 'x'), 16), "7ce100971f64e700");
  EXPECT_EQ(base::sha256_hex(std::string(65, 'x'), 16), "9537c5fdf120482f");
}

TEST(Sha256, ShortHashIsItsFirst16Digits) {
  EXPECT_EQ(short_hash("abc"), "ba7816bf8f01cfea");
  EXPECT_EQ(short_hash(Value("abc")), short_hash("\"abc\""));
}

// ---- values

TEST(Value, EqualNumbersCompareEqualWhateverTheirCppType) {
  EXPECT_EQ(Value(7), Value(7u));
  EXPECT_EQ(Value(7), Value(uint64_t{7}));
  EXPECT_NE(Value(7), Value(7.0));
  EXPECT_NE(Value(true), Value(1));
  EXPECT_EQ(Value(UINT64_MAX).as_uint(), UINT64_MAX);
}

TEST(Value, FloatsCompareByBits) {
  EXPECT_EQ(Value(std::nan("")), Value(std::nan("")));
  EXPECT_NE(Value(0.0), Value(-0.0));
}

TEST(Value, MembersCompareInAnyOrder) {
  const Value a = Value::object({{"x", 1}, {"y", 2}}), b = Value::object({{"y", 2}, {"x", 1}});
  EXPECT_EQ(a, b);
  EXPECT_NE(a, Value::object({{"x", 1}, {"z", 2}}));
  EXPECT_NE(a, Value::object({{"x", 1}}));
}

TEST(Value, AskingForAnotherKindNamesBoth) {
  try {
    (void)Value("text").as_int();
    FAIL() << "no exception";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::parse);
    EXPECT_STREQ(error.what(), "expected a value of kind integer, found string");
  }
  EXPECT_THROW((void)Value(-1).as_uint(), Error);
  EXPECT_THROW((void)Value(UINT64_MAX).as_int(), Error);
  EXPECT_THROW((void)Value(1.0).as_int(), Error);
  EXPECT_EQ(Value(3).as_double(), 3.0);
}

TEST(Value, NullBecomesAnObjectOrAnArrayWhenFilled) {
  Value object, array;
  object["a"]["b"] = 1;
  array.push_back(1);
  EXPECT_EQ(stable_json(object), R"({"a":{"b":1}})");
  EXPECT_EQ(stable_json(array), "[1]");
  object.erase("a");
  EXPECT_EQ(object.find("a"), nullptr);
}

// ---- canonical text

// A bare vector's value as Value, or nothing if it cannot be expressed as one.
std::optional<Value> express(const Value& notation);

std::optional<Value> express_all(const Value& notations) {
  Value out = Value::array();
  for (const Value& element : notations.as_array()) {
    auto value = express(element);
    if (!value) return std::nullopt;
    out.push_back(std::move(*value));
  }
  return out;
}

std::optional<Value> express_members(const Value& pairs, bool names_are_notations) {
  Value out = Value::object();
  for (const Value& pair : pairs.as_array()) {
    const Value& name = pair.as_array()[0];
    auto value = express(pair.as_array()[1]);
    if (!value) return std::nullopt;
    if (!names_are_notations) {
      out[name.as_string()] = std::move(*value);
      continue;
    }
    const std::string& kind = name.find("t")->as_string();
    if (kind != "str" && kind != "none") return std::nullopt;
    out[kind == "none" ? "null" : name.find("v")->as_string()] = std::move(*value);
  }
  return out;
}

std::optional<Value> express(const Value& notation) {
  const std::string& kind = notation.find("t")->as_string();
  const Value* v = notation.find("v");
  if (kind == "none") return Value();
  if (kind == "int") return parse_json(v->as_string());
  if (kind == "float") return Value(from_bits(notation.find("bits")->as_string()));
  if (kind == "bool" || kind == "str") return *v;
  if (kind == "list" || kind == "tuple" || kind == "namedtuple") return express_all(*v);
  if (kind == "dict") return express_members(*v, true);
  if (kind == "dataclass") return express_members(*v, false);
  if (kind == "np_dtype") return *notation.find("name");
  if (kind == "jax_array" || kind == "np_array" || kind == "shape_dtype_struct") {
    return Value::object({{"shape", *notation.find("shape")}, {"dtype", *notation.find("dtype")}});
  }
  return std::nullopt;
}

TEST(StableJson, EqualsTheOriginalsForEveryBareValueThatCanBeExpressed) {
  const Value all = vectors();
  size_t checked = 0;
  for (const Value& vector : all.find("bare")->as_array()) {
    const auto value = express(*vector.find("value"));
    if (!value) continue;
    ++checked;
    const std::string& name = vector.find("name")->as_string();
    EXPECT_EQ(stable_json(*value), vector.find("stable_json")->as_string()) << name;
    EXPECT_EQ(short_hash(*value), vector.find("short_hash")->as_string()) << name;
  }
  EXPECT_GE(checked, 65u);
}

TEST(StableJson, ReadsBackAsTheTextItCameFrom) {
  const Value all = vectors();
  for (const char* list : {"bare", "invocations"}) {
    for (const Value& vector : all.find(list)->as_array()) {
      const std::string& text = vector.find("stable_json")->as_string();
      EXPECT_EQ(stable_json(parse_json(text)), text);
    }
  }
}

TEST(StableJson, KeysOfTheOriginalsCallsAreTheHashOfTheirText) {
  const Value all = vectors();
  for (const Value& vector : all.find("invocations")->as_array()) {
    EXPECT_EQ(short_hash(vector.find("stable_json")->as_string()),
              vector.find("call_key")->as_string());
  }
}

TEST(StableJson, KeepsTheOrderOfOrderedObjectsOnly) {
  Value::Object object{{{"10", 1}, {"9", 2}}, true};
  EXPECT_EQ(stable_json(Value(object)), R"({"10":1,"9":2})");
  object.members = {{"9", 2}, {"10", 1}};
  EXPECT_EQ(stable_json(Value(object)), R"({"9":2,"10":1})");
  object.ordered = false;
  EXPECT_EQ(stable_json(Value(object)), R"({"10":1,"9":2})");
}

TEST(StableJson, WritesBytesThatAreNotUtf8AsEscapesThatReadBack) {
  for (const std::string text : {"\x80", "a\xff", "\xc3", "\xed\xa0\x80", "\xc0\xaf",
                                 "\xf4\x90\x80\x80", "\xf0\x9f\x98", "\xe2\x82"}) {
    const std::string json = stable_json(Value(text));
    EXPECT_NE(json.find("\\udc"), std::string::npos) << json;
    EXPECT_EQ(parse_json(json).as_string(), text);
    EXPECT_EQ(parse_json(to_json(Value(text))).as_string(), text);
  }
  EXPECT_EQ(stable_json(Value("\xf0\x9f\x92\x80")), R"("\ud83d\udc80")");
  EXPECT_EQ(parse_json(R"("\ud83d\udc80\udc80")").as_string(), "\xf0\x9f\x92\x80\x80");
}

TEST(StableJson, SortsNamesByCodePointAsPythonDoes) {
  // U+DC80 for the stray byte, between U+00E9 and U+FFFD.
  const Value value = Value::object({{"\xef\xbf\xbd", 1}, {"\x80", 2}, {"\xc3\xa9", 3}});
  EXPECT_EQ(stable_json(value), R"({"\u00e9":3,"\udc80":2,"\ufffd":1})");
}

// ---- floats

TEST(FloatText, EqualsPythonsRepr) {
  const Value all = vectors();
  for (const Value& pair : all.find("float_text")->as_array()) {
    EXPECT_EQ(float_text(from_bits(pair.as_array()[0].as_string())),
              pair.as_array()[1].as_string());
  }
}

TEST(FloatText, SwitchesToAnExponentWherePythonDoes) {
  EXPECT_EQ(float_text(1e-4), "0.0001");
  EXPECT_EQ(float_text(1e-5), "1e-05");
  EXPECT_EQ(float_text(1.5e-7), "1.5e-07");
  EXPECT_EQ(float_text(1e15), "1000000000000000.0");
  EXPECT_EQ(float_text(1e16), "1e+16");
  EXPECT_EQ(float_text(123456789012345680.0), "1.2345678901234568e+17");
  EXPECT_EQ(float_text(-0.0), "-0.0");
  EXPECT_EQ(float_text(std::nan("")), "nan");
  EXPECT_EQ(float_text(-HUGE_VAL), "-inf");
}

TEST(FloatText, ReadsBackExactly) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 20000; ++i) {
    const double value = std::bit_cast<double>(random());
    if (!std::isfinite(value)) continue;
    EXPECT_EQ(parse_json(to_json(Value(value), 1)), Value(value));
  }
  const double tiny = std::numeric_limits<double>::denorm_min();
  EXPECT_EQ(parse_json(stable_json(Value(tiny))), Value(tiny));
}

// ---- reading

TEST(ParseJson, KeepsIntegersOfAnyLength) {
  for (const char* text : {"0", "-1", "9223372036854775807", "-9223372036854775808",
                           "9223372036854775808", "18446744073709551615", "18446744073709551616",
                           "-9223372036854775809", "123456789012345678901234567890"}) {
    EXPECT_EQ(stable_json(parse_json(text)), text);
  }
  EXPECT_EQ(parse_json("18446744073709551615").as_uint(), UINT64_MAX);
  EXPECT_EQ(parse_json("18446744073709551616").kind(), Value::Kind::big_integer);
}

TEST(ParseJson, ReadsNanAndInfinityAsPythonWritesThem) {
  EXPECT_EQ(stable_json(parse_json("[NaN, Infinity, -Infinity]")), "[NaN,Infinity,-Infinity]");
}

TEST(ParseJson, KeepsTheOrderOfMembersForPeople) {
  const std::string text = "{\n  \"b\": 1,\n  \"a\": [1, 2.5, \"é\"],\n  \"c\": [\n    {}\n  ]\n}";
  EXPECT_EQ(to_json(parse_json(text), 2), text);
  EXPECT_EQ(to_json(parse_json(text)), R"({"b": 1, "a": [1, 2.5, "é"], "c": [{}]})");
}

TEST(ParseJson, RefusesWhatIsNotOneJsonValue) {
  const std::vector<std::string> structures = {"", " ", "{", "[1", "[1,]", "[,1]", "1 2", "[1] x"};
  const std::vector<std::string> members = {R"({"a"})", R"({"a":})", R"({"a":1,})", "{a:1}"};
  const std::vector<std::string> words = {"'a'",  "nul", "tru",           "nan",
                                          "-Inf", "//",  "\xef\xbb\xbf{}"};
  const std::vector<std::string> numbers = {"+1", "-",  "--1", "01",  "-01",  "1.",
                                            ".5", "1e", "1e+", "0x1", "1e400"};
  const std::vector<std::string> strings = {"\"a", "\"\\", R"("\x")", "\"a\nb\"", "\"\x80\""};
  const std::vector<std::string> escapes = {R"("\u12")",   R"("\u12g4")", R"("\u-123")",
                                            R"("\ud800")", R"("\udc00")", R"("\ud800\u0041")"};
  for (const auto& texts : {structures, members, words, numbers, strings, escapes}) {
    for (const std::string& text : texts) EXPECT_THROW((void)parse_json(text), Error) << text;
  }
  EXPECT_THROW((void)parse_json(std::string_view("1\0", 2)), Error);
  EXPECT_THROW((void)parse_json(std::string_view("\"\0\"", 3)), Error);
}

TEST(ParseJson, RefusesARepeatedMemberHoweverItIsSpelt) {
  EXPECT_THROW((void)parse_json(R"({"a":1,"b":2,"a":3})"), Error);
  EXPECT_THROW((void)parse_json(R"({"a":1,"\u0061":3})"), Error);
  EXPECT_NO_THROW((void)parse_json(R"({"a":{"a":1},"b":{"a":1}})"));
}

TEST(ParseJson, SaysWhereTheMistakeIs) {
  try {
    (void)parse_json("{\n \"a\": 1,\n \"b\": oops\n}");
    FAIL() << "no exception";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::parse);
    EXPECT_STREQ(error.what(), "not JSON: expected a value at line 3, column 7");
  }
}

TEST(ParseJson, SurvivesNestingBombs) {
  const auto nested = [](size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_NO_THROW((void)parse_json(nested(100)));
  EXPECT_THROW((void)parse_json(nested(101)), Error);
  EXPECT_THROW((void)parse_json(nested(1'000'000)), Error);
  EXPECT_THROW((void)parse_json(std::string(1'000'000, '[')), Error);
  std::string objects;
  for (int i = 0; i < 200'000; ++i) objects += "{\"a\":";
  EXPECT_THROW((void)parse_json(objects), Error);
  EXPECT_THROW((void)parse_json("[[[1]]]", 2), Error);
}

TEST(ParseJson, TakesNoQuadraticTimeOnManyMembers) {
  std::string text = "{\"x0\":0";
  for (int i = 1; i < 100'000; ++i) text += ",\"x" + std::to_string(i) + "\":0";
  const Value value = parse_json(text + "}");
  EXPECT_EQ(value, parse_json(stable_json(value)));
}

TEST(ParseJson, SurvivesRandomDamage) {
  const std::string text =
      R"({"a": [1, 2.5e-7, "\u00e9\ud83d\ude00", null, true], "b": {"c": -1}})";
  std::mt19937 random(7);
  for (int i = 0; i < 20000; ++i) {
    std::string damaged = text;
    for (int k = 0; k < 3; ++k) damaged[random() % damaged.size()] = static_cast<char>(random());
    damaged.resize(random() % (damaged.size() + 1));
    try {
      const Value value = parse_json(damaged);
      EXPECT_EQ(parse_json(stable_json(value)), value) << damaged;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::parse);
    }
  }
}

}  // namespace
}  // namespace ejk
