// SPDX-License-Identifier: Apache-2.0
#include "arguments.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <ejk/error.h>
#include <ejk/tensor.h>

#include "output.h"

namespace ejk::cli {
namespace {

[[noreturn]] void refuse(const std::string& text, const std::string& why) {
  throw Failure(exit_usage, "--arg " + text + ": " + why +
                                " (an array is f32[512,512], i32[64]:0..1023 or "
                                "i32[101]:0..800:rising, anything else JSON)");
}

DType dtype_named(const std::string& name) {
  static const std::map<std::string, std::string> short_names = {
      {"f16", "float16"},   {"bf16", "bfloat16"},  {"f32", "float32"}, {"f64", "float64"},
      {"i8", "int8"},       {"i16", "int16"},      {"i32", "int32"},   {"i64", "int64"},
      {"u8", "uint8"},      {"u16", "uint16"},     {"u32", "uint32"},  {"u64", "uint64"},
      {"c64", "complex64"}, {"c128", "complex128"}};
  const auto found = short_names.find(name);
  return dtype_from_name(found == short_names.end() ? name : found->second);
}

bool is_dtype(const std::string& name) {
  try {
    return static_cast<void>(dtype_named(name)), true;
  } catch (const Error&) {
    return false;
  }
}

// What comes before the separator; it and the separator are taken off `rest`.
std::string_view take_until(std::string_view separator, std::string_view& rest) {
  const size_t end = std::min(rest.find(separator), rest.size());
  const std::string_view out = rest.substr(0, end);
  rest.remove_prefix(std::min(end + separator.size(), rest.size()));
  return out;
}

// An array on the line: DTYPE[SHAPE], DTYPE[SHAPE]:LOW..HIGH or DTYPE[SHAPE]:LOW..HIGH:rising.
class ArrayText {
 public:
  ArrayText(const std::string& text, size_t open, size_t close) : text_(text) {
    try {
      dtype_ = dtype_named(text.substr(0, open));
    } catch (const Error& error) {
      refuse(text, error.what());
    }
    shape_ = shape_from(std::string_view(text).substr(open + 1, close - open - 1));
    behind_ = std::string_view(text).substr(close + 1);
  }

  Value sketch(int64_t seed) {
    Value data = data_like_that();
    data["seed"] = seed;
    return Value::object(
        {{"dtype", dtype_name(dtype_)}, {"shape", shape_}, {"data", std::move(data)}});
  }

 private:
  template <class T>
  T number_from(std::string_view text) const {
    T out{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
    if (error == std::errc::result_out_of_range)
      refuse(text_, fmt::format("{} is out of range", text));
    if (error != std::errc() || end != text.data() + text.size())
      refuse(text_, fmt::format("\"{}\" is not a number", text));
    return out;
  }

  Value shape_from(std::string_view text) const {
    Value out = Value::array();
    while (!text.empty()) {
      const auto size = number_from<int64_t>(take_until(",", text));
      if (size < 0) refuse(text_, "a size is negative");
      out.push_back(size);
    }
    return out;
  }

  Value data_like_that() {
    if (behind_.empty()) return Value::object();
    if (!behind_.starts_with(':')) refuse(text_, fmt::format("\"{}\" behind the shape", behind_));
    behind_.remove_prefix(1);
    const std::string_view range = take_until(":", behind_);
    if (range == "rising") refuse(text_, "rising needs a range before it, LOW..HIGH");
    Value data = between(range);
    if (behind_.empty() && !text_.ends_with(':')) return data;
    if (behind_ != "rising")
      refuse(text_, fmt::format("\"{}\" behind the range, where only rising can be", behind_));
    return rising(std::move(data));
  }

  Value between(std::string_view range) const {
    if (range.find("..") == range.npos) refuse(text_, "a range is LOW..HIGH");
    const std::string_view low = take_until("..", range), high = range;
    switch (dtype_) {
      case DType::int8:
        return integers<int8_t>(low, high);
      case DType::int16:
        return integers<int16_t>(low, high);
      case DType::int32:
        return integers<int32_t>(low, high);
      case DType::int64:
        return integers<int64_t>(low, high);
      case DType::uint8:
        return integers<uint8_t>(low, high);
      case DType::uint16:
        return integers<uint16_t>(low, high);
      case DType::uint32:
        return integers<uint32_t>(low, high);
      case DType::uint64:
        return integers<uint64_t>(low, high);
      default:
        return numbers(low, high);
    }
  }

  template <class T>
  Value integers(std::string_view low_text, std::string_view high_text) const {
    using Limits = std::numeric_limits<T>;
    using Wide = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
    if (std::is_unsigned_v<T> && (low_text.starts_with('-') || high_text.starts_with('-')))
      refuse(text_, fmt::format("{} cannot hold negative numbers", dtype_name(dtype_)));
    const auto low = number_from<Wide>(low_text), high = number_from<Wide>(high_text);
    if (low > high) refuse(text_, "the range is empty");
    if (low < Wide{Limits::min()} || high > Wide{Limits::max()})
      refuse(text_, fmt::format("{} goes from {} to {}", dtype_name(dtype_), Limits::min(),
                                Limits::max()));
    return Value::object({{"min", low}, {"max", high}});
  }

  // Around the middle of the range.
  Value numbers(std::string_view low_text, std::string_view high_text) const {
    if (dtype_bits(dtype_) <= 8 && dtype_ != DType::boolean)
      refuse(text_, fmt::format("elements of {} take no range", dtype_name(dtype_)));
    const auto low = number_from<double>(low_text), high = number_from<double>(high_text);
    if (!std::isfinite(low) || !std::isfinite(high)) refuse(text_, "a bound is not finite");
    if (low > high) refuse(text_, "the range is empty");
    return Value::object({{"min", low},
                          {"max", high},
                          {"mean", low / 2 + high / 2},
                          {"deviation", high / 4 - low / 4}});
  }

  Value rising(Value data) const {
    const Value &low = *data.find("min"), &high = *data.find("max");
    if (!low.is_int()) refuse(text_, "only integers can rise");
    int64_t size = 1;
    for (const Value& d : shape_.as_array())
      if (__builtin_mul_overflow(size, d.as_int(), &size)) break;  // too large for memory anyway
    if (size == 1 && low != high)
      refuse(text_,
             "one element cannot rise from " + stable_json(low) + " to " + stable_json(high));
    data["order"] = "not falling";
    return data;
  }

  const std::string& text_;
  DType dtype_{};
  Value shape_;
  std::string_view behind_;  // the shape
};

}  // namespace

Value sketch_from_line(const std::string& text, int64_t seed) {
  if (text.starts_with("some(") && text.ends_with(')'))
    return Value::object({{"some", sketch_from_line(text.substr(5, text.size() - 6), seed)}});
  const size_t open = text.find('['), close = text.find(']');
  if (open != 0 && open != std::string::npos && close != std::string::npos && close > open &&
      text.find_first_of("\"{ ") == std::string::npos)
    return ArrayText(text, open, close).sketch(seed);
  try {
    return parse_json(text);
  } catch (const Error&) {
    if (open != std::string::npos && close == std::string::npos && is_dtype(text.substr(0, open)))
      refuse(text, "its shape has no ']'");
    return Value(text);
  }
}

}  // namespace ejk::cli
