// SPDX-License-Identifier: Apache-2.0
// Access to JSON-like values; their texts are in json.cpp.
#include <ejk/value.h>

#include <algorithm>
#include <array>
#include <bit>
#include <new>
#include <string>
#include <variant>

#include <ejk/error.h>

#include "base/sha256.h"

namespace ejk {

struct Value::Data {
  std::variant<std::monostate, bool, int64_t, uint64_t, BigInt, double, std::string, Array, Object>
      content;  // whose index is the kind
};

namespace {

[[noreturn]] void wrong_kind(std::string_view wanted, Value::Kind found) {
  throw Error(ErrorKind::parse, "expected a value of kind " + std::string(wanted) + ", found " +
                                    std::string(kind_name(found)));
}

template <class T, class Data>
auto& content(Data& data, std::string_view wanted) {
  if (auto* found = std::get_if<T>(&data.content)) return *found;
  wrong_kind(wanted, static_cast<Value::Kind>(data.content.index()));
}

template <typename Members>
auto find_member(Members& members, std::string_view name) {
  return std::find_if(members.begin(), members.end(),
                      [&](const Value::Member& member) { return member.first == name; });
}

std::vector<const Value::Member*> by_name(const std::vector<Value::Member>& members) {
  std::vector<const Value::Member*> sorted;
  sorted.reserve(members.size());
  for (const auto& member : members) sorted.push_back(&member);
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto* a, const auto* b) { return a->first < b->first; });
  return sorted;
}

// Sorted first: comparing each with each would take minutes on a file with a million members.
bool same_members(const Value::Object& a, const Value::Object& b) {
  if (a.members.size() != b.members.size()) return false;
  const auto left = by_name(a.members), right = by_name(b.members);
  return std::equal(left.begin(), left.end(), right.begin(), [](const auto* x, const auto* y) {
    return x->first == y->first && x->second == y->second;
  });
}

}  // namespace

Value::Value(Data&& data) noexcept {
  static_assert(sizeof(Data) <= sizeof data_ && alignof(Data) <= 8);
  new (data_) Data(std::move(data));
}
Value::Data& Value::data() noexcept { return *std::launder(reinterpret_cast<Data*>(data_)); }
const Value::Data& Value::data() const noexcept {
  return *std::launder(reinterpret_cast<const Data*>(data_));
}

Value::Value() noexcept : Value(Data{}) {}
Value::Value(const Value& other) : Value(Data(other.data())) {}
Value::Value(Value&& other) noexcept : Value(std::move(other.data())) {}
Value& Value::operator=(const Value& other) {
  if (this != &other) data() = other.data();
  return *this;
}
Value& Value::operator=(Value&& other) noexcept {
  data() = std::move(other.data());
  return *this;
}
Value::~Value() { data().~Data(); }

Value::Value(Truth v) noexcept : Value(Data{v.value}) {}
Value::Value(Signed v) noexcept : Value(Data{v.value}) {}
Value::Value(Unsigned v) noexcept : Value(Data{v.value}) {
  if (std::in_range<int64_t>(v.value)) data().content = static_cast<int64_t>(v.value);
}
Value::Value(Floating v) noexcept : Value(Data{v.value}) {}
Value::Value(const char* v) : Value(std::string(v)) {}
Value::Value(std::string_view v) : Value(std::string(v)) {}
Value::Value(std::string v) : Value(Data{std::move(v)}) {}
Value::Value(BigInt v) : Value(Data{std::move(v)}) {}
Value::Value(Array v) : Value(Data{std::move(v)}) {}
Value::Value(Object v) : Value(Data{std::move(v)}) {}

Value::Kind Value::kind() const noexcept { return static_cast<Kind>(data().content.index()); }

Value Value::array() { return Value(Array{}); }
Value Value::object() { return Value(Object{}); }
Value Value::object(std::vector<Member> members) { return Value(Object{std::move(members)}); }

std::string_view kind_name(Value::Kind kind) {
  constexpr std::array<std::string_view, 9> names = {
      "null",   "bool",  "integer", "unsigned integer", "big integer", "float",
      "string", "array", "object"};
  return names[static_cast<size_t>(kind)];
}

bool Value::as_bool() const { return content<bool>(data(), "bool"); }
int64_t Value::as_int() const { return content<int64_t>(data(), "integer"); }
uint64_t Value::as_uint() const {
  if (const auto* v = std::get_if<uint64_t>(&data().content)) return *v;
  if (const auto* v = std::get_if<int64_t>(&data().content); v && *v >= 0)
    return static_cast<uint64_t>(*v);
  wrong_kind("unsigned integer", kind());
}

double Value::as_double() const {
  if (const auto* v = std::get_if<int64_t>(&data().content)) return static_cast<double>(*v);
  if (const auto* v = std::get_if<uint64_t>(&data().content)) return static_cast<double>(*v);
  return content<double>(data(), "float");
}

const Value::BigInt& Value::as_big_int() const { return content<BigInt>(data(), "big integer"); }
const std::string& Value::as_string() const { return content<std::string>(data(), "string"); }
const Value::Array& Value::as_array() const { return content<Array>(data(), "array"); }
Value::Array& Value::as_array() { return content<Array>(data(), "array"); }
const Value::Object& Value::as_object() const { return content<Object>(data(), "object"); }
Value::Object& Value::as_object() { return content<Object>(data(), "object"); }

const Value* Value::find(std::string_view name) const noexcept {
  const auto* object = std::get_if<Object>(&data().content);
  if (object == nullptr) return nullptr;
  const auto it = find_member(object->members, name);
  return it == object->members.end() ? nullptr : &it->second;
}

Value* Value::find(std::string_view name) noexcept {
  return const_cast<Value*>(static_cast<const Value&>(*this).find(name));
}

Value& Value::operator[](std::string_view name) {
  if (is_null()) data().content = Object{};
  auto& members = as_object().members;
  const auto it = find_member(members, name);
  if (it != members.end()) return it->second;
  return members.emplace_back(std::string(name), Value()).second;
}

void Value::erase(std::string_view name) {
  auto& members = as_object().members;
  const auto it = find_member(members, name);
  if (it != members.end()) members.erase(it);
}

void Value::push_back(Value v) {
  if (is_null()) data().content = Array{};
  as_array().push_back(std::move(v));
}

bool Value::operator==(const Value& other) const {
  if (kind() != other.kind()) return false;
  return std::visit(
      [&]<class T>(const T& own) {
        const T& others = *std::get_if<T>(&other.data().content);
        if constexpr (std::same_as<T, double>)
          return std::bit_cast<uint64_t>(own) == std::bit_cast<uint64_t>(others);
        else if constexpr (std::same_as<T, Object>) return same_members(own, others);
        else return own == others;
      },
      data().content);
}

std::string short_hash(std::string_view text) { return base::sha256_hex(text, 16); }

}  // namespace ejk
