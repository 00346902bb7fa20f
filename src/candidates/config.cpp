// SPDX-License-Identifier: Apache-2.0
// Configs from JSON: what does not fit, and where in the document it stands.
#include <algorithm>
#include <charconv>
#include <limits>
#include <utility>

#include <ejk/config.h>

#include "base/format.h"

namespace ejk::detail {

namespace {

// Guards the trick of reflect.h: a compiler that prints names differently fails here.
struct ReflectionSelfTest {
  int first_field;
  bool second_field;
};
enum class ReflectionSelfTestEnum { zero, one };
static_assert(field_name<ReflectionSelfTest, 1>() == "second_field",
              "ejk: this compiler prints field names in an unknown way; use EJK_CONFIG");
static_assert(enumerator_name<ReflectionSelfTestEnum::one>() == "one" &&
                  enumerator_name<static_cast<ReflectionSelfTestEnum>(7)>().empty(),
              "ejk: this compiler prints enumerator names in an unknown way");

std::string text_of(const Path& path) {
  if (path.outer == nullptr) return {};
  std::string text = text_of(*path.outer);
  if (path.name.empty()) return fmt::format("{}[{}]", text, path.index);
  if (!text.empty()) text += '.';
  return text.append(path.name);
}

[[noreturn]] void does_not_fit(const Path& path, const Value& v, std::string_view type) {
  mismatch(path, fmt::format("{} does not fit {}", stable_json(v), type));
}

}  // namespace

void mismatch(const Path& path, std::string_view problem) {
  const std::string place = text_of(path);
  throw Error(ErrorKind::parse, fmt::format("{}: {}", place.empty() ? "config" : place, problem));
}

void expect(bool is_right, const Path& path, const Value& v, std::string_view what) {
  if (!is_right) mismatch(path, fmt::format("expected {}, found {}", what, kind_name(v.kind())));
}

void expect_enumerator(bool is_one, const Path& path, const Value& v, std::string_view type) {
  if (!is_one)
    mismatch(path, fmt::format("{} is not an enumerator of {}; if it should be one, name it in "
                               "ejk_enumerators",
                               stable_json(v), type));
}

void expect_members(const Path& path, const Value& v, std::string_view type,
                    std::span<const std::string_view> names, Missing missing) {
  expect(v.is_object(), path, v, "an object");
  if (missing == Missing::error)
    for (const std::string_view name : names)
      if (v.find(name) == nullptr) mismatch({&path, name}, "is missing");
  for (const auto& member : v.as_object().members)
    if (std::ranges::find(names, member.first) == names.end())
      mismatch(path, fmt::format("unknown field \"{}\" for {}", member.first, type));
}

bool is_whole(const Value& v) { return v.is_int() || v.kind() == Value::Kind::big_integer; }

uint64_t read_whole(const Path& path, const Value& v, std::string_view type, int64_t min,
                    uint64_t max) {
  expect(is_whole(v), path, v, "an integer");
  if (v.kind() == Value::Kind::big_integer) does_not_fit(path, v, type);
  if (v.kind() == Value::Kind::unsigned_integer) {
    if (v.as_uint() > max) does_not_fit(path, v, type);
    return v.as_uint();
  }
  if (v.as_int() < min || std::cmp_greater(v.as_int(), max)) does_not_fit(path, v, type);
  return static_cast<uint64_t>(v.as_int());
}

double read_real(const Path& path, const Value& v, std::string_view type, double max) {
  expect(v.is_number() || is_whole(v), path, v, "a number");
  const double number = is_whole(v) ? parse_json(stable_json(v) + ".0").as_double() : v.as_double();
  constexpr double infinity = std::numeric_limits<double>::infinity();
  if ((number > max && number < infinity) || (number < -max && number > -infinity))
    does_not_fit(path, v, type);
  return number;
}

Value key_of(const Path& path, const std::string& name) {
  const bool negative = name.starts_with('-');
  int64_t below = 0;
  uint64_t above = 0;
  const char* const end = name.data() + name.size();
  const auto read = negative ? std::from_chars(name.data(), end, below)
                             : std::from_chars(name.data(), end, above);
  if (read.ec != std::errc() || read.ptr != end)
    mismatch(path, fmt::format("\"{}\" is not an integer key", name));
  return negative ? Value(below) : Value(above);
}

}  // namespace ejk::detail
