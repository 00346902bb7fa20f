// SPDX-License-Identifier: Apache-2.0
// JSON-like values and their canonical text, from which keys and files are made.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ejk/detail/export.h>

namespace EJK_EXPORT ejk {

// A tree of null, bool, integers, floats, strings, arrays and objects. Value semantics; not
// synchronised. Integers beyond 64 bits are kept as their digits, so nothing read from a file is
// changed by writing it back.
class Value {
 public:
  // An integer beyond 64 bits, as its decimal digits with a sign if it is negative.
  struct BigInt {
    std::string digits;  // as they were read
    bool operator==(const BigInt&) const = default;
  };
  // Elements of an array; a member of an object, by name.
  using Array = std::vector<Value>;
  using Member = std::pair<std::string, Value>;
  // Members in insertion order. `ordered` objects keep that order in the canonical text (maps with
  // integer keys sort by number before the numbers become text); all others sort by name.
  struct Object {
    // See above.
    std::vector<Member> members;
    bool ordered = false;
  };
  // What a value can be. unsigned_integer: above the range of int64_t only.
  enum class Kind {
    null,
    boolean,
    integer,
    unsigned_integer,
    big_integer,
    floating,
    string,
    array,
    object
  };

  Value() noexcept;
  Value(std::nullptr_t) noexcept : Value() {}
  template <std::same_as<bool> T>
  Value(T v) : Value(Truth{v}) {}
  template <std::signed_integral T>
  Value(T v) : Value(Signed{v}) {}
  // An unsigned value that fits is kept as a signed one, so that equal numbers compare equal.
  template <std::unsigned_integral T>
  requires(!std::same_as<T, bool>) Value(T v) : Value(Unsigned{v}) {}
  template <std::floating_point T>
  Value(T v) : Value(Floating{static_cast<double>(v)}) {}
  Value(const char* v);
  Value(std::string_view v);
  Value(std::string v);
  Value(BigInt v);
  Value(Array v);
  Value(Object v);

  Value(const Value& other);
  Value(Value&& other) noexcept;
  Value& operator=(const Value& other);
  Value& operator=(Value&& other) noexcept;
  ~Value();

  // An empty array, an empty object, and an object with these members in this order, whose names
  // must differ (that is not checked).
  static Value array();
  static Value object();
  static Value object(std::vector<Member> members);

  // What the value is. is_int is true for unsigned integers and false for a BigInt; is_number is
  // true for what as_double takes.
  Kind kind() const noexcept;
  bool is_null() const noexcept { return kind() == Kind::null; }
  bool is_bool() const noexcept { return kind() == Kind::boolean; }
  bool is_int() const noexcept {
    return kind() == Kind::integer || kind() == Kind::unsigned_integer;
  }
  bool is_float() const noexcept { return kind() == Kind::floating; }
  bool is_number() const noexcept { return is_int() || is_float(); }
  bool is_string() const noexcept { return kind() == Kind::string; }
  bool is_array() const noexcept { return kind() == Kind::array; }
  bool is_object() const noexcept { return kind() == Kind::object; }

  // The content as that type. Throws Error(parse) that names both kinds if it is another one.
  // as_double also takes integers; as_int takes unsigned values that fit.
  bool as_bool() const;
  int64_t as_int() const;
  uint64_t as_uint() const;
  double as_double() const;
  const BigInt& as_big_int() const;
  const std::string& as_string() const;
  const Array& as_array() const;
  Array& as_array();
  const Object& as_object() const;
  Object& as_object();

  // Objects: the member of that name, nullptr if there is none or this is not an object.
  const Value* find(std::string_view name) const noexcept;
  Value* find(std::string_view name) noexcept;
  // Objects (null becomes one): the member of that name, added as null behind the others if
  // missing. The reference holds until a member is added or removed. Throws Error(parse) for other
  // kinds, as do the next two.
  Value& operator[](std::string_view name);
  // Objects: removes the member if it is there.
  void erase(std::string_view name);
  // Arrays (null becomes one): appends.
  void push_back(Value v);

  // Members of objects may stand in any order; floats compare by bits, so NaN equals itself.
  bool operator==(const Value& other) const;

 private:
  struct Truth {
    bool value;
  };
  struct Signed {
    int64_t value;
  };
  struct Unsigned {
    uint64_t value;
  };
  struct Floating {
    double value;
  };
  explicit Value(Truth v) noexcept;
  explicit Value(Signed v) noexcept;
  explicit Value(Unsigned v) noexcept;
  explicit Value(Floating v) noexcept;

  // A variant that value.cpp alone sees: each program would compile it again.
  struct Data;
  explicit Value(Data&& data) noexcept;
  Data& data() noexcept;
  const Data& data() const noexcept;

  alignas(8) std::byte data_[40];
};

// For messages: "string", "array", ...
std::string_view kind_name(Value::Kind kind);

// The canonical text: members sorted, no white space, ASCII only, floats as the shortest text that
// reads back (as Python's json.dumps(sort_keys=True, separators=(",", ":")) writes it, NaN and
// Infinity included). Bytes that are not UTF-8 become the escapes \udc80..\udcff, so that
// different strings stay different.
std::string stable_json(const Value& value);

// For people: members in their own order, indented by `indent` spaces; one line if negative.
std::string to_json(const Value& value, int indent = -1);

// Throws Error(parse) with the position for anything that is not one JSON value, is nested deeper
// than `max_depth`, or repeats a member name. Reads NaN and Infinity as stable_json writes them.
Value parse_json(std::string_view text, int max_depth = 100);

// A float as Python's repr writes it: 1e-06, 1e+16, -0.0, nan, inf (json: NaN, Infinity).
std::string float_text(double value);

// The first 16 hex digits of SHA-256 over the text.
std::string short_hash(std::string_view text);
// The same over stable_json(value). Takes Value itself only: a string is hashed as the text it is.
template <std::same_as<Value> T>
std::string short_hash(const T& value) {
  return short_hash(std::string_view(stable_json(value)));
}

}  // namespace ejk
