// SPDX-License-Identifier: Apache-2.0
// Compares outputs element by element, by the rules of their type.
#include "tune/output_check.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <utility>

#include "base/format.h"

namespace ejk::detail {
namespace {

// How the bits of a small floating type are to be read.
struct SmallFloat {
  int exponent_bits, fraction_bits, bias;
  enum class Specials { ieee, all_ones_nan, minus_zero_nan } specials;
};

SmallFloat small_float(DType dtype) {
  using enum SmallFloat::Specials;
  if (dtype == DType::float8_e4m3fn) return {4, 3, 7, all_ones_nan};
  if (dtype == DType::float8_e5m2) return {5, 2, 15, ieee};
  if (dtype == DType::float8_e4m3) return {4, 3, 7, ieee};
  if (dtype == DType::float8_e3m4) return {3, 4, 3, ieee};
  if (dtype == DType::float8_e4m3fnuz) return {4, 3, 8, minus_zero_nan};
  if (dtype == DType::float8_e5m2fnuz) return {5, 2, 16, minus_zero_nan};
  return {4, 3, 11, minus_zero_nan};  // float8_e4m3b11fnuz
}

double read_small(uint8_t bits, const SmallFloat& type) {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  constexpr double infinity = std::numeric_limits<double>::infinity();
  using enum SmallFloat::Specials;
  const int magnitude = bits & 0x7f, fraction_size = 1 << type.fraction_bits;
  const int exponent = magnitude >> type.fraction_bits, fraction = magnitude % fraction_size;
  const double sign = bits & 0x80 ? -1 : 1;
  if (type.specials == minus_zero_nan && bits == 0x80) return nan;
  if (type.specials == all_ones_nan && magnitude == 0x7f) return nan;
  if (type.specials == ieee && exponent == (1 << type.exponent_bits) - 1)
    return fraction != 0 ? nan : sign * infinity;
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - type.bias - type.fraction_bits);
  return sign * std::ldexp(fraction_size + fraction, exponent - type.bias - type.fraction_bits);
}

// Powers of two without sign; 0xff is NaN.
double read_e8m0(uint8_t bits) {
  return bits == 0xff ? std::numeric_limits<double>::quiet_NaN() : std::ldexp(1., bits - 127);
}

template <class T>
double read_as(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return static_cast<double>(static_cast<std::conditional_t<sizeof(T) == 2, float, T>>(value));
}

// Calls f(bytes per number, read) for a floating type; complex numbers are two numbers each. `read`
// has a type of its own, so that it becomes part of the loop: outputs can be large.
// Returns false for all other types, which are compared as bits.
template <class F>
bool as_numbers(DType dtype, F&& f) {
  const auto as = [&]<class T>(T, bool is_it) {
    if (is_it) f(sizeof(T), [](const std::byte* at) { return read_as<T>(at); });
    return is_it;
  };
  if (as(Half{}, dtype == DType::float16) || as(BFloat16{}, dtype == DType::bfloat16) ||
      as(float{}, dtype == DType::float32 || dtype == DType::complex64) ||
      as(double{}, dtype == DType::float64 || dtype == DType::complex128))
    return true;
  if (dtype == DType::float8_e8m0fnu) {
    f(size_t{1}, [](const std::byte* at) { return read_e8m0(static_cast<uint8_t>(*at)); });
    return true;
  }
  if (dtype < DType::float8_e4m3fn || dtype > DType::float8_e4m3b11fnuz) return false;
  const SmallFloat type = small_float(dtype);
  f(size_t{1}, [type](const std::byte* at) { return read_small(static_cast<uint8_t>(*at), type); });
  return true;
}

// Wide enough for another order of summation over some thousand terms or a fused multiply, far
// too narrow for a forgotten term. The short types round every intermediate result that a kernel
// keeps in them, hence some ten units in the last place; of the eight-bit ones about two.
Tolerance usual_tolerance(DType dtype) {
  constexpr double min_float = std::numeric_limits<float>::min();
  if (dtype == DType::float64 || dtype == DType::complex128)
    return {1e-9, std::numeric_limits<double>::min()};
  if (dtype == DType::float32 || dtype == DType::complex64) return {1e-4, min_float};
  if (dtype == DType::float16) return {2e-2, 0x1p-14};
  if (dtype == DType::bfloat16) return {8e-2, min_float};
  if (dtype == DType::float8_e8m0fnu) return {1, 0};
  const SmallFloat type = small_float(dtype);
  return {std::ldexp(2., -type.fraction_bits), std::ldexp(1., 1 - type.bias)};
}

// The usual magnitude of the elements: errors come from sums of terms of about that size, so an
// element that happens to be near zero may be off by as much as its neighbours. The root mean
// square, without the huge numbers that only mark something (a masked -1e30), else they would
// excuse every error beside them.
double usual_magnitude(const OutputBytes& output) {
  constexpr double marker = 1e6;     // times the median: beyond what sums of normal data reach
  constexpr size_t enough = 10'000;  // to know about where the median lies
  double limit = 0, sum = 0, count = 0;
  as_numbers(output.dtype, [&](size_t width, auto read) {
    const size_t total = output.bytes.size() / width;
    const auto size_of = [&](size_t i) { return std::abs(read(&output.bytes[i * width])); };
    const auto counts = [](double size) { return size > 0 && std::isfinite(size); };
    // At random, because what is masked may come at regular distances.
    std::mt19937_64 random(1);
    std::vector<double> some;
    for (size_t i = 0; i < std::min(total, enough); ++i)
      if (const double size = size_of(total > enough ? random() % total : i); counts(size))
        some.push_back(size);
    if (some.empty()) return;
    const auto middle = some.begin() + static_cast<std::ptrdiff_t>(some.size() / 2);
    std::ranges::nth_element(some, middle);
    limit = *middle * marker;
    for (size_t i = 0; i < total; ++i)
      if (const double size = size_of(i); counts(size) && size <= limit)
        sum += size / limit * (size / limit), ++count;
  });
  return count == 0 ? 0 : limit * std::sqrt(sum / count);
}

// Counts what differs and remembers the first place. Millions of elements may differ: `describe`
// gives the texts of both sides only there.
struct Mismatch {
  size_t count = 0, first = 0, last = 0, total = 0;
  std::pair<std::string, std::string> got_and_expected;
  // Both parts of a complex number have the index of the number.
  template <class Describe>
  void add(size_t index, const Describe& describe) {
    if (count > 0 && index == std::exchange(last, index)) return;
    if (count++ == 0) first = last = index, got_and_expected = describe();
  }
};

std::optional<std::string> text_of(const Mismatch& m, size_t output, DType dtype) {
  if (m.count == 0) return std::nullopt;
  return fmt::format(
      "output {}: {} of {} elements ({}) differ, the first at {}: got {}, expected {}", output,
      m.count, m.total, dtype_name(dtype), m.first, m.got_and_expected.first,
      m.got_and_expected.second);
}

bool close(double got, double expected, double scale, const Tolerance& allowed) {
  if (std::isnan(got) || std::isnan(expected)) return std::isnan(got) && std::isnan(expected);
  if (std::isinf(got) || std::isinf(expected)) return got == expected;
  return std::abs(got - expected) <=
         allowed.absolute + allowed.relative * std::max(std::abs(expected), scale);
}

// True if a NaN is only the poison that stood there before, where the reference wrote its own.
bool left_unwritten(const std::byte* got, const std::byte* expected, const std::byte* untouched,
                    size_t width) {
  return untouched != nullptr && std::memcmp(got, untouched, width) == 0 &&
         std::memcmp(expected, untouched, width) != 0;
}

// Calls f(index) for all elements in stretches that are not the same byte by byte: most of what
// candidates compute is.
template <class F>
void for_each_different(const OutputBytes& got, const OutputBytes& expected, size_t width, F&& f) {
  constexpr size_t stretch = 256;  // elements
  const size_t total = got.bytes.size() / width;
  for (size_t begin = 0; begin < total; begin += stretch) {
    const size_t end = std::min(total, begin + stretch), at = begin * width;
    if (std::memcmp(&got.bytes[at], &expected.bytes[at], (end - begin) * width) == 0) continue;
    for (size_t i = begin; i < end; ++i) f(i);
  }
}

Mismatch compare(const OutputBytes& got, const OutputBytes& expected, const OutputBytes* untouched,
                 double scale, const Tolerance& allowed) {
  Mismatch m;
  const bool numbers = as_numbers(got.dtype, [&](size_t width, auto read) {
    const size_t parts = dtype_bits(got.dtype) / 8 / width;
    m.total = got.bytes.size() / width / parts;
    for_each_different(got, expected, width, [&](size_t i) {
      const std::byte *a = &got.bytes[i * width], *b = &expected.bytes[i * width];
      const double left = read(a), right = read(b);
      const std::byte* before = untouched == nullptr ? nullptr : &untouched->bytes[i * width];
      if (!close(left, right, scale, allowed))
        m.add(i / parts,
              [&] { return std::pair(fmt::format("{:.9g}", left), fmt::format("{:.9g}", right)); });
      else if (std::isnan(left) && left_unwritten(a, b, before, width))
        m.add(i / parts, [] { return std::pair("nothing written", "nan"); });
    });
  });
  if (numbers) return m;
  const size_t width = std::max<size_t>(1, dtype_bits(got.dtype) / 8);
  m.total = got.bytes.size() / width;
  for_each_different(got, expected, width, [&](size_t i) {
    const std::byte *a = &got.bytes[i * width], *b = &expected.bytes[i * width];
    if (std::memcmp(a, b, width) == 0) return;
    int64_t left = 0, right = 0;  // little endian; signs are not restored, the bits are the news
    std::memcpy(&left, a, width), std::memcpy(&right, b, width);
    m.add(i, [&] { return std::pair(fmt::format("{:#x}", left), fmt::format("{:#x}", right)); });
  });
  return m;
}

}  // namespace

Expected::Expected(std::vector<OutputBytes> untouched, std::vector<OutputBytes> outputs,
                   const Tolerances& tolerance)
    : untouched_(std::make_shared<const std::vector<OutputBytes>>(std::move(untouched))),
      outputs_(std::move(outputs)) {
  for (const OutputBytes& output : outputs_) {
    scales_.push_back(usual_magnitude(output));
    const auto own = tolerance ? tolerance(output.dtype) : std::nullopt;
    tolerances_.push_back(own.value_or(usual_tolerance(output.dtype)));
  }
}

Expected Expected::sharing(SharedOutputs untouched, std::vector<OutputBytes> outputs,
                           const Tolerances& tolerance) {
  Expected expected({}, std::move(outputs), tolerance);
  expected.untouched_ = std::move(untouched);
  return expected;
}

std::optional<std::string> Expected::difference(const std::vector<OutputBytes>& got) const {
  if (got.size() != outputs_.size())
    return fmt::format("{} outputs, expected {}", got.size(), outputs_.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const OutputBytes& want = outputs_[i];
    if (got[i].dtype != want.dtype || got[i].bytes.size() != want.bytes.size())
      return fmt::format("output {}: {} bytes of {}, expected {} of {}", i, got[i].bytes.size(),
                         dtype_name(got[i].dtype), want.bytes.size(), dtype_name(want.dtype));
    // A returned array is not there before the run, or of another size.
    const std::vector<OutputBytes>& before = *untouched_;
    const bool has_before = i < before.size() && before[i].bytes.size() == want.bytes.size();
    const Mismatch m =
        compare(got[i], want, has_before ? &before[i] : nullptr, scales_[i], tolerances_[i]);
    if (auto text = text_of(m, i, want.dtype)) return text;
  }
  return std::nullopt;
}

bool same_bytes(const std::vector<OutputBytes>& a, const std::vector<OutputBytes>& b) {
  return std::ranges::equal(a, b, [](const OutputBytes& x, const OutputBytes& y) {
    return x.dtype == y.dtype && x.bytes == y.bytes;
  });
}

}  // namespace ejk::detail
