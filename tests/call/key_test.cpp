// SPDX-License-Identifier: Apache-2.0
// What counts in a key: the original's vectors, and the rules for every kind of argument.
#include <ejk/executor.h>

#include <bit>
#include <fstream>
#include <iterator>
#include <map>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paths.h"

namespace ejk {
namespace {

using testing::HasSubstr;
using testing::Not;

const Value& vectors() {
  static const Value v = [] {
    std::ifstream file(test::data("keys.json"));
    return parse_json(std::string(std::istreambuf_iterator<char>(file), {}));
  }();
  return v;
}

const std::string& text_of(const Value& object, std::string_view name) {
  return object.find(name)->as_string();
}

double from_bits(const std::string& hex) {
  return std::bit_cast<double>(uint64_t(std::stoull(hex, nullptr, 16)));
}

// ---- the original's vectors, rebuilt as abstract arguments -------------------------------------

Arg by_value(Value v) {
  Arg arg;
  arg.value = std::move(v);
  return arg;
}

// Empty if an Arg cannot say it: element types that are no numbers.
std::optional<Arg> arg_of(const Value& v);

std::optional<Arg> array_of(const Value& v) {
  Arg arg;
  arg.kind = Arg::Kind::tensor;
  try {
    arg.dtype = dtype_from_name(text_of(v, "dtype"));
  } catch (const Error&) {
    return std::nullopt;
  }
  for (const Value& d : v.find("shape")->as_array()) arg.shape.push_back(d.as_int());
  return arg;
}

std::optional<Arg> list_of(const Value& v) {
  Arg arg;
  arg.kind = Arg::Kind::list;
  for (const Value& item : v.find("v")->as_array()) {
    auto made = arg_of(item);
    if (!made) return std::nullopt;
    arg.items.push_back(std::move(*made));
  }
  return arg;
}

std::optional<Arg> dict_of(const Value& v) {
  Arg arg;
  arg.kind = Arg::Kind::dict;
  for (const Value& pair : v.find("v")->as_array()) {
    const Value& name = pair.as_array()[0];
    auto made = arg_of(pair.as_array()[1]);
    if (!made) return std::nullopt;
    arg.names.push_back(name.is_string() ? name.as_string()
                        : name.find("v") ? text_of(name, "v")
                                         : "null");
    arg.items.push_back(std::move(*made));
  }
  return arg;
}

// From "np.float32(0.1)", "np.uint8(200)", "np.True_".
Value numpy_scalar(const Value& v) {
  const std::string& repr = text_of(v, "repr");
  if (text_of(v, "dtype") == "bool") return repr == "np.True_";
  const Value number =
      parse_json(repr.substr(repr.find('(') + 1, repr.find(')') - repr.find('(') - 1));
  return text_of(v, "dtype") == "float32" ? Value(static_cast<float>(number.as_double())) : number;
}

std::optional<Arg> arg_of(const Value& v) {
  const std::string& kind = text_of(v, "t");
  if (kind == "jax_array" || kind == "np_array" || kind == "shape_dtype_struct") return array_of(v);
  if (kind == "none") return by_value({});
  if (kind == "bool" || kind == "str") return by_value(*v.find("v"));
  if (kind == "int") return by_value(parse_json(text_of(v, "v")));
  if (kind == "float") return by_value(from_bits(text_of(v, "bits")));
  if (kind == "np_scalar") return by_value(numpy_scalar(v));
  if (kind == "np_dtype") return by_value(*v.find("name"));
  if (kind == "list" || kind == "tuple" || kind == "namedtuple") return list_of(v);
  if (kind == "dict" || kind == "dataclass") return dict_of(v);
  ADD_FAILURE() << "unknown kind " << kind;
  return std::nullopt;
}

std::optional<Invocation> invocation_of(const Value& vector) {
  Invocation inv;
  for (const Value& v : vector.find("args")->as_array()) {
    auto arg = arg_of(v);
    if (!arg) return std::nullopt;
    inv.args.push_back(std::move(*arg));
  }
  for (const Value& pair : vector.find("kwargs")->as_array()) {
    auto arg = arg_of(pair.as_array()[1]);
    if (!arg) return std::nullopt;
    inv.kwargs.emplace_back(pair.as_array()[0].as_string(), std::move(*arg));
  }
  inv.batch_axes = *vector.find("batch_axes");
  if (!vector.find("method")->is_null()) inv.context = Context::shard_map;
  const std::string& label = text_of(vector, "label");
  const size_t hash = label.find('#'), at = label.rfind("@v");
  inv.op_id = label.substr(hash + 1, at - hash - 1);
  inv.version = label.substr(at + 2, label.rfind(':') - at - 2);
  return inv;
}

TEST(KeyVectors, EveryCallThatCanBeSaidHasTheOriginalsTextKeyAndLabel) {
  int checked = 0;
  std::set<std::string> left_out;
  for (const Value& vector : vectors().find("invocations")->as_array()) {
    const std::string& name = text_of(vector, "name");
    const auto inv = invocation_of(vector);
    if (!inv) {
      left_out.insert(name);
      continue;
    }
    EXPECT_EQ(inv->spec(), text_of(vector, "stable_json")) << name;
    EXPECT_EQ(inv->call_key(), text_of(vector, "call_key")) << name;
    EXPECT_EQ(make_label(inv->op(), inv->call_key()), text_of(vector, "label")) << name;
    ++checked;
  }
  EXPECT_EQ(checked, 76);
  // Arrays of strings, of Python objects and of JAX's random keys hold no numbers.
  EXPECT_EQ(left_out,
            (std::set<std::string>{"np_str_array", "np_object_array", "prng_keys_batch"}));
}

TEST(KeyVectors, SingleValuesHaveTheOriginalsTextAndHash) {
  int checked = 0;
  for (const Value& vector : vectors().find("bare")->as_array()) {
    const auto arg = arg_of(*vector.find("value"));
    if (!arg) continue;
    EXPECT_EQ(stable_json(arg->to_value()), text_of(vector, "stable_json"))
        << text_of(vector, "name");
    EXPECT_EQ(short_hash(arg->to_value()), text_of(vector, "short_hash"))
        << text_of(vector, "name");
    ++checked;
  }
  EXPECT_GE(checked, 60);
}

TEST(KeyVectors, LabelsAreTheOriginals) {
  for (const Value& v : vectors().find("labels")->as_array()) {
    const Value& prefix = *v.find("prefix");
    const std::string label =
        prefix.is_null() ? make_label(text_of(v, "op_id"), text_of(v, "hash"))
                         : make_label(text_of(v, "op_id"), text_of(v, "hash"), prefix.as_string());
    EXPECT_EQ(label, text_of(v, "label"));
  }
}

TEST(KeyVectors, FloatsHaveTheOriginalsText) {
  for (const Value& v : vectors().find("float_text")->as_array())
    EXPECT_EQ(float_text(from_bits(v.as_array()[0].as_string())), v.as_array()[1].as_string());
}

// ---- the same calls through real kernels --------------------------------------------------------

template <class... P>
struct Op {
  static constexpr std::string_view op_id = "my.op-1";
  struct Config {};
  void run(const Config&, P...) const {}
};

const Executor& executor() {
  static const Executor e{SelectorOptions{}};
  return e;
}

// The abstract call of a kernel with exactly these parameters.
template <class... P, class... A>
Invocation call(A&&... args) {
  return executor().describe(Op<P...>{}, std::forward<A>(args)...);
}

void expect_vector(std::string_view name, const Invocation& inv) {
  for (const Value& v : vectors().find("invocations")->as_array())
    if (text_of(v, "name") == name) {
      EXPECT_EQ(inv.spec(), text_of(v, "stable_json")) << name;
      EXPECT_EQ(inv.call_key(), text_of(v, "call_key")) << name;
      EXPECT_EQ(make_label(inv.op(), inv.call_key()), text_of(v, "label")) << name;
      return;
    }
  ADD_FAILURE() << "no vector named " << name;
}

struct Leaf {
  View<const float, 1> x;
};
struct Tree {
  Leaf a;
};
[[maybe_unused]] void ejk_key(KeySink& key, const Leaf& leaf) { key("y", nullptr)("x", leaf.x); }
[[maybe_unused]] void ejk_key(KeySink& key, const Tree& tree) {
  key("b", std::tuple(1, std::tuple(2, 3)))("a", tree.a);
}

TEST(KeyVectors, ArraysThroughRealKernels) {
  std::vector<int64_t> longs(4);
  std::vector<double> doubles(4);
  std::vector<float> floats(3);
  const uint16_t shorts[6] = {};
  expect_vector("jax_uint16",
                call<View<const uint16_t, 2>>(View<const uint16_t, 2>{shorts, {2, 3}}));
  expect_vector("jax_float32", call<View<const float, 2>>(Tensor(DType::float32, {2, 3})));
  expect_vector("jax_float32", call<Tensor>(Tensor(DType::float32, {2, 3})));
  expect_vector("jax_float32", call<StridedView<float, 2>>(Tensor(DType::float32, {2, 3})));
  for (const char* dtype :
       {"complex64", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "int4",
        "uint4", "int2", "uint2", "float8_e8m0fnu", "float8_e3m4", "float8_e4m3"}) {
    const int64_t shape[] = {2, 3};
    expect_vector(
        "jax_" + std::string(dtype),
        call<AnyView>(AnyView{nullptr, dtype_from_name(dtype), Platform::cpu, shape, {}, false}));
  }
  expect_vector("np_int64", call<std::span<const int64_t>>(longs));
  expect_vector("np_int64", call<std::vector<int64_t>>(longs));
  expect_vector("np_float64", call<const std::vector<double>&>(doubles));
  expect_vector("np_big_endian", call<std::span<float>>(floats));
  expect_vector("shape_()", call<View<float, 0>>(Tensor(DType::float32, {})));
  expect_vector("shape_()", call<AnyView>(Tensor(DType::float32, {})));
  expect_vector("shape_()", call<float>(0.5f));
  expect_vector("shape_(1,)", call<View<float, 1>>(Tensor(DType::float32, {1})));
  expect_vector("shape_(1048576, 2)",
                call<View<const float, 2>>(View<const float, 2>{nullptr, {1048576, 2}}));
  expect_vector("plain_ref", call<View<const float, 2>>(Tensor(DType::float32, {4, 8})));
}

TEST(KeyVectors, AttentionThroughARealKernel) {
  const Tensor x(DType::bfloat16, {2, 128, 8, 64});
  using X = View<const BFloat16, 4>;
  expect_vector("qkv", call<X, X, X, Named<"causal", bool>, Named<"softmax_scale", Keyed<double>>>(
                           x, x, x, kw("softmax_scale", 0.125), kw("causal", true)));
  expect_vector("qkv", call<X, X, X, Named<"softmax_scale", Keyed<double>>, Named<"causal", bool>>(
                           x, x, x, kw("causal", true), kw("softmax_scale", 0.125)));
}

TEST(KeyVectors, ScalarsAndTextThroughRealKernels) {
  expect_vector("no_args", call<>());
  expect_vector("int_0", call<int>(0));
  expect_vector("int_1", call<int8_t>(int8_t{1}));
  expect_vector("int_1", call<uint64_t>(1u));
  expect_vector("int_2", call<long>(-1));
  expect_vector("int_4", call<int>(std::numeric_limits<int>::min()));
  expect_vector("int_5", call<int64_t>(9007199254740992));
  expect_vector("int_9", call<int64_t>(std::numeric_limits<int64_t>::min()));
  expect_vector("true", call<bool>(true));
  expect_vector("none", call<std::nullptr_t>(nullptr));
  expect_vector("none", call<std::optional<int>>(std::nullopt));
  expect_vector("np_f32_scalar", call<Keyed<float>>(0.1f));
  expect_vector("np_dtype", call<DType>(DType::float32));
  for (const Value& v : vectors().find("invocations")->as_array()) {
    if (!text_of(v, "name").starts_with("float_")) continue;
    const double number = from_bits(text_of(v.find("args")->as_array()[0], "bits"));
    expect_vector(text_of(v, "name"), call<Keyed<double>>(number));
    expect_vector(text_of(v, "name"), call<Keyed<std::optional<double>>>(number));
  }
  expect_vector("str_4", call<std::string>("slash/"));
  expect_vector("str_5", call<std::string_view>("tab\tnl\ncr\r"));
  expect_vector("str_6", call<const std::string&>(std::string("\0\x01\x1f", 3)));
  expect_vector("str_7", call<std::string>("\x7f"));
  expect_vector("str_9", call<std::string>("λ"));
  expect_vector("str_10", call<Keyed<std::string>>("日本"));
  expect_vector("str_14", call<std::string>("\u2028"));
  expect_vector("str_15", call<std::string>("it's"));
  expect_vector("precision_str", call<Named<"precision", std::string>>(kw("precision", "highest")));
  const Tensor two(DType::float32, {2});
  expect_vector("kwargs_named_method",
                call<View<float, 1>, Named<"method", std::string_view>, Named<"batch_axes", int>>(
                    two, kw("batch_axes", 1), kw("method", "x")));
}

TEST(KeyVectors, StructuresThroughRealKernels) {
  const Tensor two(DType::float32, {2});
  using Two = View<const float, 1>;
  expect_vector("mixed_none", call<Two, std::optional<Two>, Two>(two, std::nullopt, two));
  expect_vector("mixed_none", call<std::optional<Two>, std::nullptr_t, Two>(two, nullptr, two));
  expect_vector("empty_tuple", call<std::tuple<>>(std::tuple<>()));
  expect_vector("empty_list", call<std::vector<std::string>>(std::vector<std::string>()));
  expect_vector("empty_list", call<Keyed<std::vector<int>>>(std::vector<int>()));
  expect_vector("nested", call<std::tuple<Tree>>(std::tuple(Tree{{two.view<float, 1>()}})));
  expect_vector("ordered_dict",
                call<std::map<std::string, int>>(std::map<std::string, int>{{"z", 1}, {"a", 2}}));
  expect_vector("fwdparams", call<FwdParams>(FwdParams{.q_blocksize = 128, .num_warps = 4}));
  expect_vector("bwdparams", call<const BwdParams&>(BwdParams{.blocksize_m = 64}));
}

struct Seen {
  static constexpr std::string_view op_id = "my.op-1";
  struct Config {};
  static inline std::vector<Invocation> calls;
  void run(const Config&, View<const float, 2>) const {}
  Config heuristic_cfg(const Invocation& inv) const {
    calls.push_back(inv);
    return {};
  }
};

SelectorOptions heuristics_only() {
  SelectorOptions options;
  options.policy = AutotunePolicy{};
  options.policy->allow_autotune = false;
  return options;
}

TEST(KeyVectors, ShardMapCountsAsTheMethod) {
  Seen::calls.clear();
  const Executor e(heuristics_only());
  e.call<Context::shard_map>(Seen{}, Tensor(DType::float32, {4, 8}));
  e(Seen{}, Tensor(DType::float32, {4, 8}));
  ASSERT_EQ(Seen::calls.size(), 2u);
  expect_vector("method_shard_map", Seen::calls[0]);
  expect_vector("plain_ref", Seen::calls[1]);
}

// ---- rules
// -----------------------------------------------------------------------------------------

// Whether two calls share a key. The text and the words of the warm table must agree about it.
bool same(const Invocation& a, const Invocation& b) {
  auto unsalted = [](const Invocation& inv) {
    return std::vector(inv.words.begin() + 1, inv.words.end());
  };
  EXPECT_EQ(a.spec() == b.spec(), unsalted(a) == unsalted(b)) << a.spec() << "\n" << b.spec();
  EXPECT_EQ(a.spec() == b.spec(), a.call_key() == b.call_key());
  return a.spec() == b.spec();
}

TEST(Keys, BareFloatsCountByType) {
  EXPECT_TRUE(same(call<float>(1.f), call<float>(2.f)));
  EXPECT_NE(call<float>(1.f).spec(), call<double>(1.0).spec());
  EXPECT_NE(call<Half>(Half(1.f)).spec(), call<BFloat16>(BFloat16(1.f)).spec());
  EXPECT_TRUE(same(call<std::optional<float>>(1.f), call<std::optional<float>>(2.f)));
  EXPECT_FALSE(same(call<std::optional<float>>(1.f), call<std::optional<float>>(std::nullopt)));
  EXPECT_TRUE(same(call<std::tuple<float, int>>(std::tuple(1.f, 2)),
                   call<std::tuple<float, int>>(std::tuple(3.f, 2))));
}

TEST(Keys, KeyedFloatsCountByValueAndBits) {
  EXPECT_FALSE(same(call<Keyed<float>>(1.f), call<Keyed<float>>(2.f)));
  EXPECT_TRUE(same(call<Keyed<float>>(1.f), call<Keyed<float>>(1.f)));
  EXPECT_FALSE(same(call<Keyed<double>>(0.0), call<Keyed<double>>(-0.0)));
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(same(call<Keyed<double>>(nan), call<Keyed<double>>(nan)));
  EXPECT_FALSE(same(call<Keyed<std::vector<float>>>(std::vector{1.f, 2.f}),
                    call<Keyed<std::vector<float>>>(std::vector{1.f, 3.f})));
  EXPECT_FALSE(same(call<Keyed<std::array<float, 2>>>(std::array{1.f, 2.f}),
                    call<Keyed<std::array<float, 2>>>(std::array{2.f, 1.f})));
}

enum class Mode { fast, exact };
enum class Wide : int64_t { least = std::numeric_limits<int64_t>::min(), zero = 0 };

TEST(Keys, IntegersBoolsEnumsAndStringsCountByValue) {
  EXPECT_FALSE(same(call<int>(1), call<int>(2)));
  EXPECT_FALSE(same(call<bool>(false), call<bool>(true)));
  EXPECT_FALSE(same(call<Mode>(Mode::fast), call<Mode>(Mode::exact)));
  EXPECT_THAT(call<Mode>(Mode::exact).spec(), HasSubstr("[\"exact\"]"));
  EXPECT_FALSE(same(call<Wide>(Wide::least), call<Wide>(Wide::zero)));
  EXPECT_FALSE(same(call<std::string>(""), call<std::string>(std::string("\0", 1))));
  EXPECT_FALSE(
      same(call<std::string>("12345678"), call<std::string>(std::string("12345678\0", 9))));
  EXPECT_FALSE(
      same(call<std::string, std::string>("ab", "c"), call<std::string, std::string>("a", "bc")));
  EXPECT_FALSE(same(call<std::string>("1"), call<std::string>("2")));
}

TEST(Keys, StringsThatAreNotUtf8StayDistinct) {
  EXPECT_FALSE(same(call<std::string>("\xff"), call<std::string>("\xfe")));
  EXPECT_FALSE(same(call<std::string>("\xff"), call<std::string>("\xc3\xbf")));
  EXPECT_FALSE(same(call<std::string>("\xed\xb3\xbf"), call<std::string>("\xff")));
}

TEST(Keys, UnkeyedArgumentsDoNotCount) {
  const Tensor small(DType::float32, {2}), large(DType::float32, {3});
  EXPECT_TRUE(same(call<Unkeyed<int>, int>(1, 5), call<Unkeyed<int>, int>(2, 5)));
  EXPECT_THAT((call<Unkeyed<int>, int>(1, 5).spec()), HasSubstr("\"args_spec\":[5]"));
  EXPECT_TRUE(same(call<Unkeyed<View<float, 1>>>(small), call<Unkeyed<View<float, 1>>>(large)));
  EXPECT_TRUE(
      same(call<Named<"n", Unkeyed<int>>>(kw("n", 1)), call<Named<"n", Unkeyed<int>>>(kw("n", 2))));
  EXPECT_TRUE(same(call<Named<"y", Unkeyed<Out<View<float, 1>>>>>(kw("y", small)),
                   call<Named<"y", Unkeyed<Out<View<float, 1>>>>>(kw("y", large))));
  EXPECT_TRUE(same(call<std::tuple<Unkeyed<int>, int>>(std::tuple(Unkeyed<int>(1), 5)),
                   call<std::tuple<Unkeyed<int>, int>>(std::tuple(Unkeyed<int>(2), 5))));
  using Map = std::map<std::string, Unkeyed<int>>;
  EXPECT_TRUE(same(call<Map>(Map{{"a", 1}}), call<Map>(Map{{"a", 2}})));
}

TEST(Keys, OutputsCountAsArraysDo) {
  const Tensor small(DType::float32, {2}), large(DType::float32, {3});
  using Y = Out<View<float, 1>>;
  using Any = Out<AnyView>;
  EXPECT_EQ(call<Y>(small).args.at(0).role, Role::output);
  EXPECT_FALSE(same(call<Y>(small), call<Y>(large)));
  EXPECT_TRUE(same(call<Y>(small), call<Y>(small.clone())));
  EXPECT_FALSE(same(call<Any>(small), call<Any>(Tensor(DType::float64, {2}))));
  EXPECT_FALSE(same(call<Any>(Tensor(DType::float32, {4, 6})),
                    call<Any>(Tensor(DType::float32, {6, 4}).transposed({1, 0}))));
  EXPECT_FALSE(same(call<Named<"y", Y>>(kw("y", small)), call<Named<"y", Y>>(kw("y", large))));
  EXPECT_FALSE(same(call<Y, Y>(small, large), call<Y, Y>(large, small)));
  EXPECT_FALSE(same(call<std::optional<Y>>(small), call<std::optional<Y>>(large)));
  EXPECT_FALSE(same(call<std::optional<Y>>(small), call<std::optional<Y>>(std::nullopt)));
  const Y y(small.view<float, 1>());
  using List = std::vector<Y>;
  EXPECT_FALSE(same(call<List, List>(List{y, y}, List{y}), call<List, List>(List{y}, List{y, y})));
}

TEST(Keys, OutputsStandBehindTheTextOfACallWithoutThem) {
  const Tensor x(DType::float32, {2, 3}), y(DType::float32, {4});
  using X = View<const float, 2>;
  using Y = Out<View<float, 1>>;
  const std::string plain = call<X>(x).spec();
  const Invocation inv = call<X, Y>(x, y);
  EXPECT_EQ(inv.spec(), plain.substr(0, plain.size() - 1) +
                            R"(,"outputs_spec":[{"dtype":"float32","shape":[4]}]})");
  EXPECT_EQ(spec_without_outputs(inv.spec()), plain);
  EXPECT_EQ(spec_without_outputs(plain), "");
  EXPECT_THAT((call<Named<"y", Y>, Y>(y, y).spec()),
              HasSubstr(R"("outputs_spec":[{"dtype":"float32","shape":[4]},)"
                        R"({"y":{"dtype":"float32","shape":[4]}}]})"));
  using Numbers = std::map<int, bool>;
  const Numbers numbers{{10, true}, {9, false}};
  EXPECT_EQ(spec_without_outputs(call<Numbers, Y>(numbers, y).spec()),
            call<Numbers>(numbers).spec());
  EXPECT_EQ(spec_without_outputs("no JSON"), "");
}

TEST(Keys, OutputsThatAreLeftOutKeepTheirPlaces) {
  const Tensor y(DType::float32, {4});
  using Y = Out<View<float, 1>>;
  using Maybe = std::optional<Y>;
  const std::string text = R"({"dtype":"float32","shape":[4]})";
  EXPECT_THAT((call<Maybe, Maybe>(y, std::nullopt).spec()),
              HasSubstr("\"outputs_spec\":[" + text + "]"));
  EXPECT_THAT((call<Maybe, Maybe>(std::nullopt, y).spec()),
              HasSubstr("\"outputs_spec\":[null," + text + "]"));
  EXPECT_FALSE(same(call<Maybe, Maybe>(y, std::nullopt), call<Maybe, Maybe>(std::nullopt, y)));
  const Y view(y.view<float, 1>());
  using Pair = std::pair<Maybe, Maybe>;
  EXPECT_NE(call<Pair>(Pair{view, std::nullopt}).spec(),
            call<Pair>(Pair{std::nullopt, view}).spec());
  using List = std::vector<Y>;
  EXPECT_NE((call<List, List>(List{view}, List{}).spec()),
            (call<List, List>(List{}, List{view}).spec()));
  using Map = std::map<std::string, Y>;
  EXPECT_NE((call<Map, Map>(Map{{"a", view}}, Map{}).spec()),
            (call<Map, Map>(Map{}, Map{{"a", view}}).spec()));
}

TEST(Keys, InputsAreNoPlacesOfOutputs) {
  const Tensor y(DType::float32, {4});
  using Y = Out<View<float, 1>>;
  using MaybeInput = std::optional<View<const float, 1>>;
  using Texts = std::vector<std::string>;
  EXPECT_THAT((call<int, MaybeInput, Texts, Y>(1, std::nullopt, Texts{}, y).spec()),
              HasSubstr(R"("outputs_spec":[{"dtype":"float32","shape":[4]}]})"));
}

TEST(Keys, UnkeyedArgumentsMayBeOfTypesTheLibraryDoesNotKnow) {
  int a = 1, b = 2;
  EXPECT_TRUE(same(call<Unkeyed<int*>>(&a), call<Unkeyed<int*>>(&b)));
}

TEST(Keys, InvocationsShowTheValuesOfWhatDoesNotCount) {
  const Invocation inv = call<Unkeyed<int>, Named<"scale", double>>(7, kw("scale", 2.0));
  EXPECT_EQ(inv.args.at(0).value, Value(7));
  ASSERT_NE(inv.kw("scale"), nullptr);
  EXPECT_EQ(inv.kw("scale")->dtype, DType::float64);
  EXPECT_EQ(inv.kw("other"), nullptr);
}

TEST(Keys, ArraysCountByElementTypeShapeAndStrides) {
  const Tensor a(DType::float32, {4, 6}), b(DType::float64, {4, 6}), c(DType::float32, {6, 4});
  const Tensor transposed = c.transposed({1, 0}),
               sliced = Tensor(DType::float32, {8, 6}).sliced(0, 0, 8, 2);
  using S = StridedView<const float, 2>;
  EXPECT_FALSE(same(call<AnyView>(a), call<AnyView>(b)));
  EXPECT_FALSE(same(call<AnyView>(a), call<AnyView>(c)));
  EXPECT_FALSE(same(call<AnyView>(a), call<AnyView>(transposed)));
  EXPECT_FALSE(same(call<S>(a), call<S>(transposed)));
  EXPECT_FALSE(same(call<S>(sliced), call<S>(transposed)));
  EXPECT_FALSE(same(call<Tensor>(a), call<Tensor>(transposed)));
  EXPECT_TRUE(same(call<S>(a), call<S>(a.clone())));
  EXPECT_THAT(call<S>(transposed).spec(),
              HasSubstr(R"({"dtype":"float32","shape":[4,6],"strides":[1,4]})"));
  EXPECT_THAT(call<S>(a).spec(), Not(HasSubstr("strides")));
  EXPECT_EQ(call<AnyView>(transposed).spec(), call<S>(transposed).spec());
  // Where packed rows are all there is, strides say nothing.
  EXPECT_EQ((call<View<const float, 2>>(a).spec()), call<S>(a).spec());
}

TEST(Keys, ArraysOfAnyRank) {
  const Tensor zero(DType::float32, {}), twelve(DType::float32, std::vector<int64_t>(12, 2));
  EXPECT_THAT(call<AnyView>(zero).spec(), HasSubstr("\"shape\":[]"));
  EXPECT_THAT(call<AnyView>(twelve).spec(), HasSubstr("\"shape\":[2,2,2,2,2,2,2,2,2,2,2,2]"));
  EXPECT_FALSE(same(call<AnyView>(zero), call<AnyView>(twelve)));
  EXPECT_FALSE(same(call<AnyView, AnyView>(zero, twelve), call<AnyView, AnyView>(twelve, zero)));
  EXPECT_FALSE(same(call<AnyView>(Tensor(DType::float32, {1})), call<AnyView>(zero)));
}

TEST(Keys, SpansOfFixedSizeAreArrays) {
  std::array<float, 4> four{};
  EXPECT_THAT((call<std::span<float, 4>>(std::span<float, 4>(four)).spec()),
              HasSubstr("\"shape\":[4]"));
  EXPECT_THAT(call<std::span<const float>>(four).spec(), HasSubstr("\"shape\":[4]"));
}

// As dlpack.h declares it.
struct DLDevice {
  enum Type { cpu = 1, cuda = 2 } device_type;
  int32_t device_id;
};
struct DLDataType {
  uint8_t code, bits;
  uint16_t lanes;
};
struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};

TEST(Keys, DlpackTensorsAreArrays) {
  float data[24] = {};
  int64_t shape[] = {2, 3}, packed[] = {3, 1}, wide[] = {12, 1};
  const DLTensor plain{data, {DLDevice::cpu, 0}, 2, {2, 32, 1}, shape, nullptr, 0};
  DLTensor same_strides = plain, strided = plain, moved = plain, complex = plain, away = plain,
           odd = plain;
  same_strides.strides = packed;
  strided.strides = wide;
  moved.byte_offset = 8;
  complex.dtype = {5, 64, 1};
  away.device.device_type = DLDevice::cuda;
  odd.dtype.lanes = 4;
  expect_vector("jax_float32", call<DLTensor>(plain));
  EXPECT_TRUE(same(call<DLTensor>(plain), call<DLTensor>(same_strides)));
  EXPECT_FALSE(same(call<DLTensor>(plain), call<DLTensor>(strided)));
  EXPECT_FALSE(same(call<DLTensor>(plain), call<DLTensor>(complex)));
  EXPECT_TRUE(same(call<AnyView>(plain), call<AnyView>(moved)));
  EXPECT_EQ(call<AnyView>(plain).spec(), (call<View<float, 2>>(plain).spec()));
  EXPECT_THROW(call<AnyView>(away), Error);
  EXPECT_THROW(call<DLTensor>(away), Error);
  EXPECT_THROW(call<AnyView>(odd), Error);
}

// Types of the user's.
struct Matrix {
  std::vector<float> data;
  int64_t rows, columns;
  std::array<int64_t, 2> shape() const { return {rows, columns}; }
  int64_t sizes[2] = {rows, columns};
};
[[maybe_unused]] AnyView ejk_view(const Matrix& m) {
  return {const_cast<float*>(m.data.data()), DType::float32, Platform::cpu, m.sizes, {}, true};
}
struct Sparse {
  std::vector<int> indices;
  Mode mode = Mode::fast;
  bool by_columns = false;
};
[[maybe_unused]] void ejk_key(KeySink& key, const Sparse& s) {
  if (s.by_columns) key("columns", s.indices.size());
  else key("rows", s.indices.size());
  if (s.mode == Mode::exact) key("mode", s.mode);
}

TEST(Keys, TypesOfTheUserCountByWhatTheySay) {
  const Matrix m{std::vector<float>(6), 2, 3};
  expect_vector("jax_float32", call<View<const float, 2>>(m));
  expect_vector("jax_float32", call<AnyView>(m));
  EXPECT_THAT(call<Sparse>(Sparse{{1, 2}}).spec(), HasSubstr(R"([{"rows":2}])"));
  EXPECT_TRUE(same(call<Sparse>(Sparse{{1, 2}}), call<Sparse>(Sparse{{3, 4}})));
  EXPECT_FALSE(same(call<Sparse>(Sparse{{1, 2}}), call<Sparse>(Sparse{{1}})));
}

TEST(Keys, TypesOfTheUserThatNameDifferentPartsDoNotCollide) {
  EXPECT_FALSE(same(call<Sparse>(Sparse{{1}, Mode::fast, true}),
                    call<Sparse>(Sparse{{1}, Mode::fast, false})));
  const Sparse plain{{1}}, exact{{1}, Mode::exact};
  EXPECT_FALSE(same(call<Sparse, Sparse>(plain, exact), call<Sparse, Sparse>(exact, plain)));
}

TEST(Keys, ContainersCountByStructureAndContent) {
  using Names = std::vector<std::string>;
  using Map = std::map<std::string, int>;
  using Numbers = std::map<int, bool>;
  using Nested = std::vector<std::vector<std::string>>;
  EXPECT_FALSE(same(call<Names>(Names{"a", "b"}), call<Names>(Names{"ab"})));
  EXPECT_FALSE(same(call<Nested>(Nested{{"a"}, {"b"}}), call<Nested>(Nested{{"a", "b"}})));
  EXPECT_FALSE(same(call<Nested>(Nested{{}, {"b"}}), call<Nested>(Nested{{"b"}, {}})));
  EXPECT_FALSE(same(call<Map>(Map{{"a", 1}}), call<Map>(Map{{"b", 1}})));
  EXPECT_THAT(call<Numbers>(Numbers{{10, true}, {9, false}}).spec(),
              HasSubstr(R"({"9":false,"10":true})"));
  EXPECT_FALSE(same(call<std::optional<int>, std::optional<int>>(1, std::nullopt),
                    call<std::optional<int>, std::optional<int>>(std::nullopt, 1)));
  EXPECT_FALSE(same(call<std::vector<bool>>(std::vector{true, false}),
                    call<std::vector<bool>>(std::vector{false, true})));
  EXPECT_TRUE(
      same(call<std::vector<int>>(std::vector{1, 2}), call<std::vector<int>>(std::vector{3, 4})));
  EXPECT_FALSE(same(call<std::pair<int, std::string>>(std::pair(1, "a")),
                    call<std::pair<int, std::string>>(std::pair(1, "b"))));
  const Tensor t(DType::float32, {3});
  using Views = std::vector<View<const float, 1>>;
  EXPECT_FALSE(same(call<Views>(Views{t.view<float, 1>()}),
                    call<Views>(Views{t.view<float, 1>(), t.view<float, 1>()})));
}

struct Settings {
  double scale = 1;
  std::optional<int> window = {};
};

TEST(Keys, FieldsOfPlainStructsCountByValue) {
  EXPECT_FALSE(same(call<Settings>(Settings{1}), call<Settings>(Settings{2})));
  EXPECT_FALSE(same(call<Settings>(Settings{1, 3}), call<Settings>(Settings{1})));
  EXPECT_TRUE(same(call<Settings>(Settings{1, 3}), call<Settings>(Settings{1, 3})));
}

struct Scaled {
  static constexpr std::string_view op_id = "scaled";
  struct Config {};
  float scale = 1;
  std::string name = {};
  void run(const Config&, int) const {}
};

TEST(Keys, DataMembersOfTheKernelCountByValue) {
  const Invocation one = executor().describe(Scaled{1, "a"}, 5),
                   two = executor().describe(Scaled{2, "a"}, 5);
  EXPECT_FALSE(same(one, two));
  EXPECT_TRUE(same(one, executor().describe(Scaled{1, "a"}, 5)));
  EXPECT_FALSE(same(one, executor().describe(Scaled{1, "b"}, 5)));
  EXPECT_THAT(one.spec(), HasSubstr(R"("kernel":{"name":"a","scale":1.0})"));
}

// ---- the key hook
// --------------------------------------------------------------------------------

struct Bucketed {
  static constexpr std::string_view op_id = "bucketed";
  struct Config {
    int block = 8;
  };
  static inline int heuristics = 0;
  static inline std::vector<int64_t> asked;
  static inline std::vector<size_t> ran;
  void run(const Config&, std::span<const float> x, float) const { ran.push_back(x.size()); }
  auto key(std::span<const float> x, float scale) const {
    return std::tuple(std::bit_ceil(x.size()), scale > 0);
  }
  bool is_valid(const Config&, const Invocation& inv) const {
    asked.push_back(inv.args.at(0).shape.at(0));
    return true;
  }
  Config heuristic_cfg(const Invocation&) const {
    ++heuristics;
    return {};
  }
};

TEST(Keys, TheKeyHookDecidesAllAndIsValidIsAskedForEveryShape) {
  Bucketed::heuristics = 0;
  const Executor e(heuristics_only());
  std::vector<float> five(5), six(6), nine(9);
  EXPECT_EQ(e.describe(Bucketed{}, five, 1.f).spec(), e.describe(Bucketed{}, six, 2.f).spec());
  EXPECT_NE(e.describe(Bucketed{}, five, 1.f).spec(), e.describe(Bucketed{}, nine, 1.f).spec());
  EXPECT_NE(e.describe(Bucketed{}, five, 1.f).spec(), e.describe(Bucketed{}, five, -1.f).spec());
  EXPECT_THAT(e.describe(Bucketed{}, five, 1.f).spec(), HasSubstr("\"args_spec\":[8,true]"));

  e(Bucketed{}, five, 1.f);
  e(Bucketed{}, six, 1.f);
  e(Bucketed{}, six, 2.f);
  e(Bucketed{}, five, 1.f);
  EXPECT_EQ(Bucketed::heuristics, 1) << "one key, one choice";
  EXPECT_EQ(Bucketed::ran, (std::vector<size_t>{5, 6, 6, 5})) << "execution sees the exact shape";
  EXPECT_THAT(Bucketed::asked, testing::IsSupersetOf({5, 6}));
}

// Records what is_valid was asked about: the sizes of all arrays of the call.
struct Watched {
  struct Config {};
  static inline std::vector<std::vector<int64_t>> asked;
  bool is_valid(const Config&, const Invocation& inv) const {
    auto& sizes = asked.emplace_back();
    for (const Arg& arg : inv.args)
      if (arg.kind == Arg::Kind::tensor && !arg.shape.empty()) sizes.push_back(arg.shape[0]);
    return true;
  }
  Config heuristic_cfg(const Invocation&) const { return {}; }
};
template <class... P>
struct WatchedOp : Watched {
  static constexpr std::string_view op_id = "watched";
  void run(const Config&, P...) const {}
};
template <class... P>
struct WatchedWithKey : Watched {
  static constexpr std::string_view op_id = "watched_with_key";
  void run(const Config&, P...) const {}
  int key(const P&...) const { return 0; }
};
// How often is_valid was asked about each of these two calls, which come twice.
template <class K>
std::array<int64_t, 2> times_asked(auto&& first, auto&& second) {
  const Executor e(heuristics_only());
  Watched::asked.clear();
  for (int i = 0; i < 2; ++i) first(e, K{}), second(e, K{});
  const auto& asked = Watched::asked;
  if (asked.empty()) return {0, 0};
  const auto of_first = std::ranges::count(asked, asked.front());
  return {of_first, std::ssize(asked) - of_first};
}

TEST(Keys, IsValidIsAskedAtTheFirstUseOfEveryShapeWhateverTheKeySays) {
  std::vector<float> x(5), small(2), large(3);
  auto with = [&](auto& y) { return [&](const Executor& e, const auto& k) { e(k, x, y, 1); }; };
  using In = std::span<const float>;
  using Y = std::span<float>;
  const std::array<int64_t, 2> once{1, 1};
  auto asked = [&]<class Last>(std::type_identity<Last>) {
    EXPECT_EQ((times_asked<WatchedOp<In, Last, int>>(with(small), with(large))), once);
    EXPECT_EQ((times_asked<WatchedWithKey<In, Last, int>>(with(small), with(large))), once);
  };
  asked(std::type_identity<Y>{});
  asked(std::type_identity<Out<Y>>{});
  asked(std::type_identity<Unkeyed<Y>>{});
  asked(std::type_identity<Unkeyed<Out<Y>>>{});
  asked(std::type_identity<Unkeyed<std::vector<float>>>{});
}

TEST(Keys, IsValidIsAskedForShapesInNamedAndNestedArguments) {
  const Tensor small(DType::float32, {2}), large(DType::float32, {3});
  using Y = View<float, 1>;
  auto words = []<class K, class... A>(const K& kernel, const A&... args) {
    const auto inv = executor().describe(kernel, args...);
    return std::vector(inv.words.begin() + 1, inv.words.end());
  };
  auto differ = [&]<class P>(std::type_identity<P>, const auto& a, const auto& b) {
    EXPECT_NE(words(WatchedOp<P>{}, a), words(WatchedOp<P>{}, b));
    EXPECT_NE(words(WatchedWithKey<P>{}, a), words(WatchedWithKey<P>{}, b));
    EXPECT_EQ(words(WatchedWithKey<P>{}, a), words(WatchedWithKey<P>{}, a));
  };
  differ(std::type_identity<Named<"y", Unkeyed<Y>>>{}, kw("y", small), kw("y", large));
  differ(std::type_identity<Named<"y", Out<Y>>>{}, kw("y", small), kw("y", large));
  differ(std::type_identity<std::optional<Out<Y>>>{}, small, large);
  differ(std::type_identity<Unkeyed<std::optional<Y>>>{}, std::optional(small.view<float, 1>()),
         std::optional<Y>());
  using Pair = std::tuple<int, Unkeyed<Y>>;
  differ(std::type_identity<Pair>{}, Pair(1, small.view<float, 1>()),
         Pair(1, large.view<float, 1>()));
  using List = std::vector<Y>;
  differ(std::type_identity<Unkeyed<List>>{}, List{small.view<float, 1>()}, List{});
  using Map = std::map<std::string, Y>;
  differ(std::type_identity<Unkeyed<Map>>{}, Map{{"a", small.view<float, 1>()}},
         Map{{"a", large.view<float, 1>()}});
}

TEST(Keys, ValuesThatTheKeyLeavesOutStayWarm) {
  auto words = [](const auto& kernel, const auto&... args) {
    return executor().describe(kernel, args...).words;
  };
  EXPECT_EQ(words(WatchedOp<Unkeyed<int>>{}, 1), words(WatchedOp<Unkeyed<int>>{}, 2));
  EXPECT_EQ(words(WatchedWithKey<int>{}, 1), words(WatchedWithKey<int>{}, 2));
  EXPECT_EQ(words(WatchedWithKey<Named<"n", int>>{}, kw("n", 1)),
            words(WatchedWithKey<Named<"n", int>>{}, kw("n", 2)));
}

struct ByWhole {
  static constexpr std::string_view op_id = "by_whole";
  struct Config {};
  void run(const Config&, View<const float, 2>, int) const {}
  auto key(View<const float, 2> x, int n) const { return std::tuple(x, n / 10); }
};
struct ByOne {
  static constexpr std::string_view op_id = "by_one";
  struct Config {};
  float* unkeyable = nullptr;  // the hook says what counts, so this may be anything
  void run(const Config&, int) const {}
  std::string key(int n) const { return n > 10 ? "many" : "few"; }
};

TEST(Keys, TheKeyHookMayReturnViewsAndSingleValues) {
  const Tensor a(DType::float32, {2, 3}), b(DType::float32, {3, 2});
  EXPECT_TRUE(same(executor().describe(ByWhole{}, a, 11), executor().describe(ByWhole{}, a, 12)));
  EXPECT_FALSE(same(executor().describe(ByWhole{}, a, 11), executor().describe(ByWhole{}, b, 11)));
  EXPECT_THAT(executor().describe(ByWhole{}, a, 11).spec(),
              HasSubstr(R"([{"dtype":"float32","shape":[2,3]},1])"));
  EXPECT_TRUE(same(executor().describe(ByOne{}, 11), executor().describe(ByOne{}, 12)));
  EXPECT_FALSE(same(executor().describe(ByOne{}, 11), executor().describe(ByOne{}, 2)));
  EXPECT_THAT(executor().describe(ByOne{}, 11).spec(), HasSubstr(R"(["many"])"));
}

// ---- the warm table
// ------------------------------------------------------------------------------

// Asks for its config and tells how often.
template <class... P>
struct Counted {
  static constexpr std::string_view op_id = "counted";
  struct Config {
    int number = 0;
  };
  static inline int asked = 0;
  int run(const Config& c, P...) const { return c.number; }
  Config heuristic_cfg(const Invocation&) const { return {++asked}; }
};

using Many = std::array<std::array<int, 8>, 8>;  // 64 words

TEST(WarmKeys, KeysOfManyWordsHitAndDoNotCollide) {
  const Executor e(heuristics_only());
  const Counted<Many, std::string> kernel;
  Counted<Many, std::string>::asked = 0;
  Many a{}, b{}, c{};
  b[7][7] = 1;
  c[0][0] = 1;
  const std::string text(1000, 'x');
  const int first = e(kernel, a, text), second = e(kernel, b, text), third = e(kernel, c, text);
  EXPECT_EQ(std::set({first, second, third}), std::set({1, 2, 3}));
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(e(kernel, a, text), first);
    EXPECT_EQ(e(kernel, b, text), second);
    EXPECT_EQ(e(kernel, c, text), third);
  }
  EXPECT_EQ((Counted<Many, std::string>::asked), 3);
  EXPECT_EQ(e(kernel, a, text + "y"), 4);
  EXPECT_EQ(e(kernel, a, text), first);
}

TEST(WarmKeys, FixedKeysOfManyWordsHitToo) {
  const Executor e(heuristics_only());
  const Counted<Many> kernel;
  Many a{}, b{};
  b[7][7] = 1;
  const int first = e(kernel, a), second = e(kernel, b);
  EXPECT_NE(first, second);
  EXPECT_EQ(e(kernel, a), first);
  EXPECT_EQ(e(kernel, b), second);
  EXPECT_EQ(Counted<Many>::asked, 2);
}

TEST(WarmKeys, ThousandsOfKeysKeepTheirOwnConfigs) {
  const Executor e(heuristics_only());
  const Counted<int, std::optional<int>> kernel;
  std::map<int, int> chosen;
  for (int i = 0; i < 3000; ++i) chosen[i] = e(kernel, i, i % 2 ? std::optional(i) : std::nullopt);
  for (int i = 0; i < 3000; ++i)
    EXPECT_EQ(e(kernel, i, i % 2 ? std::optional(i) : std::nullopt), chosen[i]);
  EXPECT_EQ((Counted<int, std::optional<int>>::asked), 3000);
}

TEST(WarmKeys, AbsentAndPresentArgumentsOfTheSameWordsDiffer) {
  const Executor e(heuristics_only());
  const Counted<std::vector<std::optional<int>>> kernel;
  using List = std::vector<std::optional<int>>;
  const int a = e(kernel, List{1, std::nullopt}), b = e(kernel, List{std::nullopt, 1}),
            c = e(kernel, List{0, 1});
  EXPECT_EQ(std::set({a, b, c}).size(), 3u);
}

struct InABatch {
  static constexpr std::string_view op_id = "in_a_batch";
  struct Config {
    int block = 1;
  };
  int run(const Config& c, int) const { return c.block; }
  int run_batch(const Config& c, int) const { return c.block; }
  Config heuristic_cfg(const Invocation&) const { return {1}; }
  Config heuristic_cfg_batch(const Invocation&) const { return {2}; }
};

TEST(Key, ACallInTheBatchContextHasItsOwnKey) {
  SelectorOptions options;
  options.policy = AutotunePolicy{.allow_autotune = false};
  const Executor executor(options);
  EXPECT_EQ(executor(InABatch{}, 5), 1);
  EXPECT_EQ(executor.call<Context::batch>(InABatch{}, 5), 2);
}

TEST(Key, AKernelsOwnKeyIsTheKeyAndOtherObjectivesLiveBesideIt) {
  Invocation inv;
  inv.op_id = "bucketed", inv.version = "1";
  inv.own_key = "rows64";
  Invocation other = inv;
  other.args.push_back(by_value(3));
  EXPECT_EQ(inv.call_key(), "rows64");
  EXPECT_EQ(inv.spec(), R"({"key":"rows64"})");
  EXPECT_EQ(other.spec(), inv.spec());  // the key alone says which calls share an entry
  other.backward = true;
  EXPECT_NE(other.call_key(), inv.call_key());
  EXPECT_EQ(make_label(inv.op(), inv.call_key()), "ejkernel_ops#bucketed@v1:rows64");
}

TEST(Cache, TellsWhatItHolds) {
  ConfigCache cache;
  cache.put("cpu|a 1", "op|x@v1", "k 1", 3);
  cache.put("", "", "", 4);
  std::vector<std::string> held;
  for (const EntryId& id : cache.keys()) held.push_back(id.device + "/" + id.op + "/" + id.key);
  EXPECT_THAT(held, testing::UnorderedElementsAre("cpu|a 1/op|x@v1/k 1", "//"));
}

}  // namespace
}  // namespace ejk
