// SPDX-License-Identifier: Apache-2.0
// Access to JSON-like values; their texts are in json.cpp.
#include <ejk/value.h>

#include <algorithm>
#include <array>
#include <bit>
#include <string>

#include <ejk/error.h>

#include "base/sha256.h"

namespace ejk {
namespace {

[[noreturn]] void wrong_kind(std::string_view wanted, Value::Kind found) {
  throw Error(ErrorKind::parse, "expected a value of kind " + std::string(wanted) + ", found " +
                                    std::string(kind_name(found)));
}

// Data: the variant, whose index is the kind.
template <class T, class Data>
auto& content(Data& data, std::string_view wanted) {
  if (auto* found = std::get_if<T>(&data)) return *found;
  wrong_kind(wanted, static_cast<Value::Kind>(data.index()));
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

Value::Value() noexcept = default;
Value::Value(const Value&) = default;
Value::Value(Value&&) noexcept = default;
Value& Value::operator=(const Value&) = default;
Value& Value::operator=(Value&&) noexcept = default;
Value::~Value() = default;

Value::Value(Truth v) noexcept : data_(v.value) {}
Value::Value(Signed v) noexcept : data_(v.value) {}
Value::Value(Unsigned v) noexcept : data_(v.value) {
  if (std::in_range<int64_t>(v.value)) data_ = static_cast<int64_t>(v.value);
}
Value::Value(Floating v) noexcept : data_(v.value) {}
Value::Value(const char* v) : data_(std::string(v)) {}
Value::Value(std::string_view v) : data_(std::string(v)) {}
Value::Value(std::string v) : data_(std::move(v)) {}
Value::Value(BigInt v) : data_(std::move(v)) {}
Value::Value(Array v) : data_(std::move(v)) {}
Value::Value(Object v) : data_(std::move(v)) {}

Value Value::array() { return Value(Array{}); }
Value Value::object() { return Value(Object{}); }
Value Value::object(std::vector<Member> members) { return Value(Object{std::move(members)}); }

std::string_view kind_name(Value::Kind kind) {
  constexpr std::array<std::string_view, 9> names = {
      "null",   "bool",  "integer", "unsigned integer", "big integer", "float",
      "string", "array", "object"};
  return names[static_cast<size_t>(kind)];
}

bool Value::as_bool() const { return content<bool>(data_, "bool"); }
int64_t Value::as_int() const { return content<int64_t>(data_, "integer"); }
uint64_t Value::as_uint() const {
  if (const auto* v = std::get_if<uint64_t>(&data_)) return *v;
  if (const auto* v = std::get_if<int64_t>(&data_); v && *v >= 0) return static_cast<uint64_t>(*v);
  wrong_kind("unsigned integer", kind());
}

double Value::as_double() const {
  if (const auto* v = std::get_if<int64_t>(&data_)) return static_cast<double>(*v);
  if (const auto* v = std::get_if<uint64_t>(&data_)) return static_cast<double>(*v);
  return content<double>(data_, "float");
}

const Value::BigInt& Value::as_big_int() const { return content<BigInt>(data_, "big integer"); }
const std::string& Value::as_string() const { return content<std::string>(data_, "string"); }
const Value::Array& Value::as_array() const { return content<Array>(data_, "array"); }
Value::Array& Value::as_array() { return content<Array>(data_, "array"); }
const Value::Object& Value::as_object() const { return content<Object>(data_, "object"); }
Value::Object& Value::as_object() { return content<Object>(data_, "object"); }

const Value* Value::find(std::string_view name) const noexcept {
  const auto* object = std::get_if<Object>(&data_);
  if (object == nullptr) return nullptr;
  const auto it = find_member(object->members, name);
  return it == object->members.end() ? nullptr : &it->second;
}

Value* Value::find(std::string_view name) noexcept {
  return const_cast<Value*>(static_cast<const Value&>(*this).find(name));
}

Value& Value::operator[](std::string_view name) {
  if (is_null()) data_ = Object{};
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
  if (is_null()) data_ = Array{};
  as_array().push_back(std::move(v));
}

bool Value::operator==(const Value& other) const {
  if (kind() != other.kind()) return false;
  return std::visit(
      [&]<class T>(const T& own) {
        const T& others = *std::get_if<T>(&other.data_);
        if constexpr (std::same_as<T, double>)
          return std::bit_cast<uint64_t>(own) == std::bit_cast<uint64_t>(others);
        else if constexpr (std::same_as<T, Object>) return same_members(own, others);
        else return own == others;
      },
      data_);
}

std::string short_hash(std::string_view text) { return base::sha256_hex(text, 16); }

}  // namespace ejk
