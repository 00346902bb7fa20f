// SPDX-License-Identifier: Apache-2.0
// Values as text and back: canonical JSON, JSON for people, and a strict reader.
//
// Written by hand because the texts must be those of Python's json module: it writes NaN,
// Infinity, integers of any length and "\udc80" for a byte that is not UTF-8, none of which a
// conforming JSON library reads back.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include <ejk/error.h>
#include <ejk/value.h>

#include "base/text.h"

namespace ejk {
namespace {

using base::code_point_at;
using base::CodePoint;

void append_utf8(std::string& out, uint32_t code) {
  const auto put = [&](uint32_t byte) { out += static_cast<char>(byte); };
  if (code < 0x80) return put(code);
  if (code < 0x800) {
    put(0xc0 | code >> 6);
  } else {
    if (code < 0x10000) {
      put(0xe0 | code >> 12);
    } else {
      put(0xf0 | code >> 18);
      put(0x80 | (code >> 12 & 0x3f));
    }
    put(0x80 | (code >> 6 & 0x3f));
  }
  put(0x80 | (code & 0x3f));
}

// A backslash and one of these letters stand for the character below it.
constexpr std::string_view escape_letters = "\"\\bfnrt";
constexpr std::string_view escaped_by_them = "\"\\\b\f\n\r\t";

// ---- writing

void append_escape(std::string& out, uint32_t unit) {
  out += "\\u";
  for (int shift = 12; shift >= 0; shift -= 4) out += "0123456789abcdef"[unit >> shift & 15];
}

void append_code_point(std::string& out, std::string_view text, size_t at, CodePoint point,
                       bool ascii_only) {
  const uint32_t code = point.code;
  const bool may_have_a_letter = code < 0x20 || code == '"' || code == '\\';
  const size_t which =
      may_have_a_letter ? escaped_by_them.find(static_cast<char>(code)) : text.npos;
  if (which != text.npos) {
    out += {'\\', escape_letters[which]};
  } else if (code < 0x20 || code == 0x7f || point.is_stray_byte()) {
    append_escape(out, code);
  } else if (code < 0x80 || !ascii_only) {
    out += text.substr(at, point.bytes);
  } else if (code < 0x10000) {
    append_escape(out, code);
  } else {
    append_escape(out, 0xd800 + ((code - 0x10000) >> 10));
    append_escape(out, 0xdc00 + ((code - 0x10000) & 0x3ff));
  }
}

void append_string(std::string& out, std::string_view text, bool ascii_only) {
  out += '"';
  for (size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    append_code_point(out, text, at, point, ascii_only);
    at += point.bytes;
  }
  out += '"';
}

void append_float(std::string& out, double value) {
  if (std::isnan(value)) out += "NaN";
  else if (std::isinf(value)) out += value < 0 ? "-Infinity" : "Infinity";
  else out += float_text(value);
}

void append_scalar(std::string& out, const Value& value, bool ascii_only) {
  using Kind = Value::Kind;
  const Kind kind = value.kind();
  if (kind == Kind::boolean) out += value.as_bool() ? "true" : "false";
  else if (kind == Kind::integer) out += std::to_string(value.as_int());
  else if (kind == Kind::unsigned_integer) out += std::to_string(value.as_uint());
  else if (kind == Kind::big_integer) out += value.as_big_int().digits;
  else if (kind == Kind::floating) append_float(out, value.as_double());
  else if (kind == Kind::string) append_string(out, value.as_string(), ascii_only);
  else out += "null";
}

// Python sorts by code point. That is the order of UTF-8 bytes except where there are stray ones.
bool name_less(std::string_view a, std::string_view b) {
  for (size_t i = 0, j = 0;;) {
    if (j == b.size()) return false;
    if (i == a.size()) return true;
    const CodePoint x = code_point_at(a, i), y = code_point_at(b, j);
    if (x.code != y.code) return x.code < y.code;
    i += x.bytes, j += y.bytes;
  }
}

bool is_container(const Value& value) { return value.is_array() || value.is_object(); }

// How a text looks: canonical, or for people, where an array of plain values (a shape, a list of
// sizes) stays on one line.
struct Style {
  bool canonical = false;
  int indent = -1;  // negative: one line
};

class Writer {
 public:
  explicit Writer(Style style) : style_(style) {}

  void write(const Value& value, int depth) {
    if (value.is_array()) write_array(value.as_array(), depth);
    else if (value.is_object()) write_object(value.as_object(), depth);
    else append_scalar(out_, value, style_.canonical);
  }
  std::string take() { return std::move(out_); }

 private:
  void write_array(const Value::Array& array, int depth) {
    const bool one_line =
        style_.indent < 0 || std::none_of(array.begin(), array.end(), is_container);
    out_ += '[';
    for (size_t i = 0; i < array.size(); ++i) {
      separate(i, one_line, depth + 1);
      write(array[i], depth + 1);
    }
    if (!one_line) new_line(depth);
    out_ += ']';
  }

  void write_object(const Value::Object& object, int depth) {
    const bool one_line = style_.indent < 0 || object.members.empty();
    out_ += '{';
    const auto members = in_order(object);
    for (size_t i = 0; i < members.size(); ++i) {
      separate(i, one_line, depth + 1);
      append_string(out_, members[i]->first, style_.canonical);
      out_ += style_.canonical ? ":" : ": ";
      write(members[i]->second, depth + 1);
    }
    if (!one_line) new_line(depth);
    out_ += '}';
  }

  std::vector<const Value::Member*> in_order(const Value::Object& object) const {
    std::vector<const Value::Member*> order;
    order.reserve(object.members.size());
    for (const auto& member : object.members) order.push_back(&member);
    if (!style_.canonical || object.ordered) return order;
    std::stable_sort(order.begin(), order.end(),
                     [](const auto* a, const auto* b) { return name_less(a->first, b->first); });
    return order;
  }

  void separate(size_t index, bool one_line, int depth) {
    if (index != 0) out_ += one_line && !style_.canonical ? ", " : ",";
    if (!one_line) new_line(depth);
  }

  void new_line(int depth) {
    out_ += '\n';
    out_.append(static_cast<size_t>(depth) * static_cast<size_t>(style_.indent), ' ');
  }

  std::string out_;
  Style style_;
};

std::string written(const Value& value, Style style) {
  Writer writer(style);
  writer.write(value, 0);
  return writer.take();
}

// ---- reading

class Reader {
 public:
  Reader(std::string_view text, int max_depth) : text_(text), max_depth_(max_depth) {}

  Value document() {
    Value value = read(0);
    skip_space();
    if (at_ != text_.size()) fail("expected the end of the text");
    return value;
  }

 private:
  // Recursion is bounded by max_depth_, so a nesting bomb cannot exhaust the stack.
  Value read(int depth) {
    skip_space();
    const char first = peek();
    if (first == '{') return read_object(depth);
    if (first == '[') return read_array(depth);
    if (first == '"') return Value(read_string());
    if (first == 'n') return read_word("null", Value());
    if (first == 't') return read_word("true", Value(true));
    if (first == 'f') return read_word("false", Value(false));
    if (first == 'N') return read_word("NaN", Value(std::nan("")));
    if (first == 'I') return read_word("Infinity", Value(HUGE_VAL));
    return read_number();
  }

  Value read_array(int depth) {
    enter(depth);
    Value::Array array;
    if (take_if(']')) return Value(std::move(array));
    do array.push_back(read(depth + 1));
    while (take_if(','));
    expect(']', "expected ',' or ']'");
    return Value(std::move(array));
  }

  Value read_object(int depth) {
    enter(depth);
    Value::Object object;
    if (take_if('}')) return Value(std::move(object));
    do {
      skip_space();
      if (peek() != '"') fail("expected a member name in quotes");
      std::string name = read_string();
      expect(':', "expected ':'");
      object.members.emplace_back(std::move(name), read(depth + 1));
    } while (take_if(','));
    expect('}', "expected ',' or '}'");
    refuse_repeated_names(object.members);
    return Value(std::move(object));
  }

  void enter(int depth) {
    if (depth >= max_depth_) fail("nested deeper than " + std::to_string(max_depth_));
    ++at_;
  }

  // By sorting, so that a file with a million members takes no quadratic time.
  void refuse_repeated_names(const std::vector<Value::Member>& members) {
    std::vector<std::string_view> names;
    names.reserve(members.size());
    for (const auto& member : members) names.push_back(member.first);
    std::sort(names.begin(), names.end());
    const auto twice = std::adjacent_find(names.begin(), names.end());
    if (twice == names.end()) return;
    std::string shown;
    append_string(shown, twice->substr(0, 40), true);
    fail("the member " + shown + " stands twice in the object that ends");
  }

  Value read_word(std::string_view word, Value value) {
    if (text_.substr(at_, word.size()) != word) fail("expected a value");
    at_ += word.size();
    return value;
  }

  Value read_number() {
    const size_t begin = at_;
    if (peek() == '-') ++at_;
    if (peek() == 'I') return read_word("Infinity", Value(-HUGE_VAL));
    const size_t first_digit = at_;
    if (skip_digits() == 0) at_ = begin, fail("expected a value");
    if (text_[first_digit] == '0' && at_ - first_digit > 1) fail("a number starts with zero");
    bool integral = true;
    if (peek() == '.') {
      ++at_, integral = false;
      if (skip_digits() == 0) fail("expected digits after '.'");
    }
    if (peek() == 'e' || peek() == 'E') {
      ++at_, integral = false;
      if (peek() == '+' || peek() == '-') ++at_;
      if (skip_digits() == 0) fail("expected digits of an exponent");
    }
    const std::string_view number = text_.substr(begin, at_ - begin);
    return integral ? integer(number) : floating(number);
  }

  static Value integer(std::string_view digits) {
    const char *first = digits.data(), *last = first + digits.size();
    int64_t small = 0;
    if (std::from_chars(first, last, small).ec == std::errc()) return Value(small);
    uint64_t large = 0;
    if (std::from_chars(first, last, large).ec == std::errc()) return Value(large);
    return Value(Value::BigInt{std::string(digits)});
  }

  // Too large or too small a number would come back as another one.
  Value floating(std::string_view number) {
    double value = 0;
    const auto result = std::from_chars(number.data(), number.data() + number.size(), value);
    if (result.ec != std::errc() || std::isinf(value)) fail("the number does not fit a double");
    return Value(value);
  }

  std::string read_string() {
    std::string out;
    ++at_;
    while (peek() != '"') {
      if (at_ == text_.size()) fail("the text ends inside a string");
      if (peek() == '\\') {
        read_escape(out);
        continue;
      }
      const CodePoint point = code_point_at(text_, at_);
      if (point.code < 0x20) fail("a control character inside a string");
      if (point.is_stray_byte()) fail("a string is not UTF-8");
      out += text_.substr(at_, point.bytes);
      at_ += point.bytes;
    }
    ++at_;
    return out;
  }

  void read_escape(std::string& out) {
    ++at_;
    const char letter = peek();
    if (letter == 'u') return read_unicode_escape(out);
    const size_t which = escape_letters.find(letter);
    if (which == escape_letters.npos && letter != '/') fail("an unknown escape");
    out += letter == '/' ? letter : escaped_by_them[which];
    ++at_;
  }

  void read_unicode_escape(std::string& out) {
    const uint32_t unit = read_hex4();
    if (unit < 0xd800 || unit > 0xdfff) return append_utf8(out, unit);
    if (unit >= 0xdc80 && unit <= 0xdcff) {
      out += static_cast<char>(unit - 0xdc00);
      return;
    }
    if (unit >= 0xdc00 || text_.substr(at_, 2) != "\\u") fail("half of a surrogate pair");
    ++at_;
    const uint32_t low = read_hex4();
    if (low < 0xdc00 || low > 0xdfff) fail("half of a surrogate pair");
    append_utf8(out, 0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00));
  }

  uint32_t read_hex4() {
    ++at_;
    uint32_t unit = 0;
    const std::string_view digits = text_.substr(at_, 4);
    const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), unit, 16);
    if (digits.size() != 4 || result.ptr != digits.data() + 4) fail("expected four hex digits");
    at_ += 4;
    return unit;
  }

  size_t skip_digits() {
    const size_t begin = at_;
    while (peek() >= '0' && peek() <= '9') ++at_;
    return at_ - begin;
  }

  void skip_space() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != text_.npos) ++at_;
  }

  bool take_if(char c) {
    skip_space();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  void expect(char c, const char* complaint) {
    if (!take_if(c)) fail(complaint);
  }

  // 0 at the end, which no token starts with.
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  [[noreturn]] void fail(const std::string& what) const {
    const std::string_view before = text_.substr(0, at_);
    const auto line = 1 + std::count(before.begin(), before.end(), '\n');
    const size_t line_begin = before.rfind('\n') + 1;  // npos + 1 is 0
    throw Error(ErrorKind::parse, "not JSON: " + what + " at line " + std::to_string(line) +
                                      ", column " + std::to_string(at_ - line_begin + 1));
  }

  std::string_view text_;
  size_t at_ = 0;
  int max_depth_;
};

}  // namespace

std::string stable_json(const Value& value) { return written(value, {.canonical = true}); }
std::string to_json(const Value& value, int indent) { return written(value, {.indent = indent}); }

Value parse_json(std::string_view text, int max_depth) {
  return Reader(text, max_depth).document();
}

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::array<char, 32> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                 std::chars_format::scientific);
  const std::string_view shortest(buffer.data(), static_cast<size_t>(end.ptr - buffer.data()));
  const size_t e = shortest.find('e');
  const int exponent = std::atoi(shortest.data() + e + 1);
  // Python's rule; with an exponent both write at least two digits of it.
  if (exponent < -4 || exponent >= 16) return std::string(shortest);

  std::string sign, digits;
  for (const char c : shortest.substr(0, e)) {
    if (c == '-') sign = "-";
    else if (c != '.') digits += c;
  }
  if (exponent < 0)
    return sign + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  const size_t whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= whole) return sign + digits + std::string(whole - digits.size(), '0') + ".0";
  return sign + digits.substr(0, whole) + "." + digits.substr(whole);
}

}  // namespace ejk
