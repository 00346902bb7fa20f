// SPDX-License-Identifier: Apache-2.0
// What the elements of arrays are like, and arrays filled with such elements.
#include <ejk/detail/sketch.h>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <complex>
#include <limits>
#include <random>
#include <vector>

#include <ejk/error.h>

#include "record/groups.h"

namespace ejk::detail {

namespace {

// Enough to see what floating-point numbers are like; integers are all looked at, because one that
// is out of range can be an address out of range.
constexpr int64_t max_sampled = 1 << 16;
// Floating-point elements repeat after so many (a prime): making each one would take longer than
// the kernels that read them.
constexpr size_t period = 65'521;

template <class T>
double to_double(T v) {
  if constexpr (std::same_as<T, Half> || std::same_as<T, BFloat16>)
    return static_cast<double>(static_cast<float>(v));
  else return static_cast<double>(v);
}
template <class T>
T from_double(double v) {
  if constexpr (std::same_as<T, Half> || std::same_as<T, BFloat16>) return T(static_cast<float>(v));
  else return static_cast<T>(v);
}

template <class T>
Value sketch_numbers(const T* data, int64_t size) {
  double low = std::numeric_limits<double>::infinity(), high = -low, sum = 0, squares = 0;
  int64_t finite = 0, zeros = 0, seen = 0;
  // An odd step does not always meet the same column.
  const int64_t step = size <= max_sampled ? 1 : (size / max_sampled) | 1;
  for (int64_t i = 0; i < size; i += step, ++seen) {
    const double v = to_double(data[i]);
    if (!std::isfinite(v)) continue;
    ++finite, zeros += v == 0;
    low = std::min(low, v), high = std::max(high, v);
    sum += v, squares += v * v;
  }
  if (finite == 0) return Value::object({{"finite", 0.}});
  const double n = static_cast<double>(finite), mean = sum / n;
  const double variance = std::max(0., squares / n - mean * mean);
  return Value::object({{"min", low},
                        {"max", high},
                        {"mean", mean},
                        {"deviation", std::sqrt(variance)},
                        {"zeros", static_cast<double>(zeros) / n},
                        {"finite", n / static_cast<double>(seen)}});
}

// How far `a` is above `b`, which is not larger.
template <std::integral T>
uint64_t above(T a, T b) {
  return static_cast<uint64_t>(a) - static_cast<uint64_t>(b);
}
template <std::integral T>
T raised(T a, uint64_t by) {
  return static_cast<T>(static_cast<uint64_t>(a) + by);
}

// Offsets into something else must stay in their order, and the lengths between them, as lengths by
// themselves, are what the work depends on.
template <class T>
Value sketch_integers(const T* data, int64_t size) {
  T low = data[0], high = data[0];
  bool rising = size > 1, never_falling = size > 1;
  for (int64_t i = 1; i < size; ++i) {
    low = std::min(low, data[i]), high = std::max(high, data[i]);
    rising = rising && data[i - 1] < data[i];
    never_falling = never_falling && data[i - 1] <= data[i];
  }
  Value out = Value::object({{"min", low}, {"max", high}});
  if (rising) out["order"] = "rising";
  else if (never_falling) out["order"] = "not falling";
  const uint64_t range = above(high, low), count = static_cast<uint64_t>(size);
  int64_t largest_sum = 0;
  if (range == 0 || __builtin_mul_overflow(range, never_falling ? 1 : count, &largest_sum))
    return out;
  if (never_falling)
    out["steps"] = groups_to_value(
        grouped(count - 1, [&](uint64_t i) { return above(data[i + 1], data[i]); }));
  else
    out["values"] =
        groups_to_value(grouped(count, [&](uint64_t i) { return above(data[i], low); }));
  return out;
}

// f(first element) if the elements are of one of these types.
template <class... T>
bool as_one_of(const AnyView& array, auto f) {
  return ((array.dtype == dtype_of<T> && (f(static_cast<T*>(array.data)), true)) || ...);
}

// integers(first, count) or numbers(first, count), where a complex number is two; false if the
// elements are neither.
bool as_elements(const AnyView& array, auto integers, auto numbers) {
  const int64_t size = array.size();
  return as_one_of<int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t>(
             array, [&](auto* first) { integers(first, size); }) ||
         as_one_of<Half, BFloat16, float, double>(array,
                                                  [&](auto* first) { numbers(first, size); }) ||
         as_one_of<std::complex<float>, std::complex<double>>(
             array, [&]<class T>(std::complex<T>* first) {
               numbers(reinterpret_cast<T*>(first), 2 * size);
             });
}

Value sketch_elements(const AnyView& array) {
  const int64_t size = array.size();
  if (size == 0) return {};
  if (array.dtype == DType::boolean) {
    const auto* bytes = static_cast<const uint8_t*>(array.data);
    const auto set = size - std::count(bytes, bytes + size, 0);
    return Value::object({{"mean", static_cast<double>(set) / static_cast<double>(size)}});
  }
  Value out = Value::object();
  as_elements(
      array, [&](auto* data, int64_t count) { out = sketch_integers(data, count); },
      [&](auto* data, int64_t count) { out = sketch_numbers(data, count); });
  return out;
}

double number(const Value& sketch, std::string_view name, double otherwise) {
  const Value* v = sketch.find(name);
  const double found = v != nullptr && v->is_number() ? v->as_double() : otherwise;
  return std::isfinite(found) ? found : otherwise;
}

uint64_t seed_of(const Value& sketch) {
  const Value* v = sketch.find("seed");
  return v != nullptr && v->kind() == Value::Kind::integer ? static_cast<uint64_t>(v->as_int()) : 0;
}

template <class T>
void fill_numbers(T* to, size_t size, const Value& sketch, std::mt19937_64& random) {
  const double low = number(sketch, "min", -1e30), high = number(sketch, "max", 1e30);
  const double deviation = std::max(0., number(sketch, "deviation", 1));
  const double zeros = number(sketch, "zeros", 0);
  std::normal_distribution<double> normal(number(sketch, "mean", 0), std::max(deviation, 1e-300));
  std::uniform_real_distribution<double> share(0, 1);
  const size_t made = std::min(size, period);
  for (size_t i = 0; i < made; ++i) {
    double v = deviation > 0 ? normal(random) : normal.mean();
    if (low <= high) v = std::clamp(v, low, high);
    if (zeros > 0 && share(random) < zeros) v = 0;
    to[i] = from_double<T>(v);
  }
  for (size_t i = made; i < size; ++i) to[i] = to[i - made];
}

template <class T>
T bound(const Value& sketch, std::string_view name) {
  const Value* v = sketch.find(name);
  if (v == nullptr || !v->is_int()) return 0;
  if constexpr (std::same_as<T, uint64_t>) return v->as_uint();
  else {
    const int64_t n = v->as_int();
    if (!std::in_range<T>(n)) throw Error(ErrorKind::parse, "a bound of integers is out of range");
    return static_cast<T>(n);
  }
}

bool is_rising(const Value& sketch) {
  const Value* order = sketch.find("order");
  return order != nullptr && order->is_string() && order->as_string() == "rising";
}

// Uniform ones between the bounds, in order if they were: of a call that was not recorded, or by an
// earlier version.
template <class T>
void fill_between(T low, T high, T* to, size_t size, const Value& sketch, std::mt19937_64& random) {
  using Wide = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
  std::uniform_int_distribution<Wide> any(low, high);
  for (size_t i = 0; i < size; ++i) to[i] = static_cast<T>(any(random));
  if (sketch.find("order") == nullptr) return;
  std::sort(to, to + size);
  to[0] = low, to[size - 1] = high;
  if (!is_rising(sketch) || above(high, low) < size - 1) return;  // no room
  for (size_t i = 1; i < size; ++i)
    if (to[i] <= to[i - 1]) to[i] = to[i - 1] < high ? static_cast<T>(to[i - 1] + 1) : high;
  to[size - 1] = high;
  for (size_t i = size - 1; i-- > 0;)
    if (to[i] >= to[i + 1]) to[i] = static_cast<T>(to[i + 1] - 1);
}

template <class T>
void fill_integers(T* to, size_t size, const Value& sketch, std::mt19937_64& random) {
  if (size == 0) return;
  const T low = bound<T>(sketch, "min"), high = std::max(low, bound<T>(sketch, "max"));
  const uint64_t range = above(high, low);
  if (const Value* steps = sketch.find("steps")) {
    const Groups groups = groups_from_value(*steps, {size - 1, is_rising(sketch), range, range});
    T* next = to + 1;
    for (const Group& g : groups)
      deal(g, random, [&](uint64_t step) { *next++ = static_cast<T>(step); });
    std::shuffle(to + 1, to + size, random);
    to[0] = low;
    for (size_t i = 1; i < size; ++i) to[i] = raised(to[i - 1], static_cast<uint64_t>(to[i]));
  } else if (const Value* values = sketch.find("values")) {
    const Groups groups = groups_from_value(*values, {size, 0, range});
    T* next = to;
    for (const Group& g : groups)
      deal(g, random, [&](uint64_t value) { *next++ = raised(low, value); });
    std::shuffle(to, to + size, random);
  } else fill_between(low, high, to, size, sketch, random);
}

int64_t integer(const Value& v) {
  if (!v.is_int())
    throw Error(ErrorKind::parse, "a size in the sketch of an array is not an integer");
  return v.as_int();
}

std::vector<int64_t> integers(const Value* list) {
  std::vector<int64_t> out;
  if (list != nullptr)
    for (const Value& v : list->as_array()) out.push_back(integer(v));
  return out;
}

// Elements between the first and the last one, and of the first one's place among them.
struct Extent {
  int64_t elements = 1, first = 0;
};
Extent extent_of(const std::vector<int64_t>& shape, const std::vector<int64_t>& strides) {
  Extent out;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] == 0) return {0, 0};
    int64_t span = 0;
    if (__builtin_mul_overflow(shape[d] - 1, strides[d], &span) ||
        span == std::numeric_limits<int64_t>::min() ||
        __builtin_add_overflow(out.elements, std::abs(span), &out.elements))
      throw Error(ErrorKind::parse, "the strides of a sketched array reach too far");
    if (span < 0) out.first -= span;
  }
  return out;
}

bool share_memory(const AnyView& array, const AnyView& block) {
  int64_t elements = 1;
  for (const int64_t d : array.shape)
    if (__builtin_mul_overflow(elements, d, &elements) || elements > block.size()) return true;
  return false;
}

// Fills an array that lies in a block of memory. If its elements share memory, all of the block is
// filled, within the same bounds: they cannot differ as their sketch says.
void fill_view(const AnyView& array, const AnyView& block, const Value& data) {
  if (array.packed()) return fill_array(block, data);
  if (share_memory(array, block)) {
    Value bounds = data;
    bounds.erase("steps"), bounds.erase("values");
    return fill_array(block, bounds);
  }
  const Tensor packed(array.dtype, {array.shape.begin(), array.shape.end()});
  fill_array(packed.any(), data);
  copy_elements(packed.any(), array);
}

// What a sketch needs of an array on a device. Of many floating-point numbers that is some, in
// pieces from all over it: each piece is a copy that waits.
Tensor read_back(const AnyView& array) {
  constexpr int64_t pieces = 16, of_each = max_sampled / pieces;
  const bool in_pieces = array.size() > max_sampled && array.packed() &&
                         array.dtype >= DType::float16 && array.dtype <= DType::complex128;
  if (!in_pieces) return Tensor::around(array).to(cpu_device());
  Tensor out(array.dtype, {max_sampled});
  const size_t element = dtype_bits(array.dtype) / 8;
  const std::array<int64_t, 1> shape{of_each};
  for (int64_t i = 0; i < pieces; ++i) {
    const int64_t begin = i * (array.size() - of_each) / (pieces - 1);
    AnyView from = array, to = out.any();
    from.shape = to.shape = shape;
    from.strides = to.strides = {};
    from.offset += static_cast<size_t>(begin) * element;
    to.data = static_cast<std::byte*>(to.data) + static_cast<size_t>(i * of_each) * element;
    copy_elements(from, to);
  }
  return out;
}

size_t memory_of_this_machine() {
  return static_cast<size_t>(::sysconf(_SC_PHYS_PAGES)) *
         static_cast<size_t>(::sysconf(_SC_PAGE_SIZE));
}

}  // namespace

void cannot_rebuild(std::string_view what) {
  throw Error(ErrorKind::invalid_argument,
              "an argument cannot be made again from its record: " + std::string(what));
}

Value sketch_array(const AnyView& array, Role role) {
  Value out = Value::object({{"dtype", dtype_name(array.dtype)},
                             {"shape", Value::Array(array.shape.begin(), array.shape.end())}});
  if (!array.packed()) out["strides"] = Value::Array(array.strides.begin(), array.strides.end());
  // Without data a call can be asked about, though not made.
  if (role == Role::output || array.data == nullptr) return out;
  Value data;
  if (array.platform != Platform::cpu) data = sketch_elements(read_back(array).any());
  else if (array.packed()) data = sketch_elements(array);
  else {
    const OutputBytes packed = packed_bytes(array);
    data = sketch_elements({const_cast<std::byte*>(packed.bytes.data()),
                            array.dtype,
                            Platform::cpu,
                            array.shape,
                            {},
                            false});
  }
  if (data.is_null()) return out;
  // The same for the same array, another one for another.
  data["seed"] = static_cast<int64_t>(std::stoull(short_hash(stable_json(out)), nullptr, 16) >> 12);
  out["data"] = std::move(data);
  return out;
}

void fill_array(const AnyView& array, const Value& sketch) {
  std::mt19937_64 random(seed_of(sketch));
  auto* const bytes = static_cast<uint8_t*>(array.data);
  if (array.dtype == DType::boolean) {
    std::bernoulli_distribution set(std::clamp(number(sketch, "mean", 0.5), 0., 1.));
    std::generate_n(bytes, array.size(), [&] { return set(random); });
    return;
  }
  const bool filled = as_elements(
      array,
      [&](auto* to, int64_t count) {
        fill_integers(to, static_cast<size_t>(count), sketch, random);
      },
      [&](auto* to, int64_t count) {
        fill_numbers(to, static_cast<size_t>(count), sketch, random);
      });
  // Small numbers in every format of 8 bits and less, and never a NaN.
  for (size_t i = 0; !filled && i < array.bytes(); ++i)
    bytes[i] = static_cast<uint8_t>(random() & 0x33);
}

namespace {
template <class T>
const T& own(T value, std::vector<std::shared_ptr<const void>>& owned) {
  auto kept = std::make_shared<const T>(std::move(value));
  const T& there = *kept;
  owned.push_back(std::move(kept));
  return there;
}
}  // namespace

const Tensor* RebuiltData::given(const Value& sketch) const {
  const Value* index = sketch.find("given");
  if (index == nullptr) return nullptr;
  const int64_t i = index->as_int();
  if (i < 0 || i >= std::ssize(given_))
    throw Error(ErrorKind::parse, "there is no given array " + std::to_string(i));
  return &given_[static_cast<size_t>(i)];
}

Tensor RebuiltData::tensor_at_home(const Value& sketch) {
  if (const Tensor* tensor = given(sketch))
    return home_ == nullptr || !tensor->on_cpu() ? *tensor : tensor->to(*home_);
  const ArrayRef& array = this->array(sketch);
  if (!array.any().packed())
    cannot_rebuild(home_ == nullptr ? "a Tensor that is not packed"
                                    : "an array on a device that is not packed");
  Tensor out(array.dtype, array.shape, home_ == nullptr ? cpu_device() : *home_);
  copy_elements(array.any(), out.any());
  return out;
}

const ArrayRef& RebuiltData::array_at_home(const Value& sketch) {
  if (home_ == nullptr) return array(sketch);
  ArrayRef array(own(tensor_at_home(sketch), owned_).any());
  array.writable = true;
  return own(std::move(array), owned_);
}

const ArrayRef& RebuiltData::array(const Value& sketch) {
  if (const Tensor* tensor = given(sketch)) {
    ArrayRef array(tensor->any());
    array.writable = true;
    return own(std::move(array), owned_);
  }
  const Value *dtype = sketch.find("dtype"), *shape = sketch.find("shape");
  if (dtype == nullptr || !dtype->is_string() || shape == nullptr)
    throw Error(ErrorKind::parse, "the sketch of an array has no dtype or no shape: " +
                                      stable_json(sketch).substr(0, 200));
  ArrayRef ref;
  ref.dtype = dtype_from_name(dtype->as_string());
  ref.shape = integers(shape);
  ref.strides = integers(sketch.find("strides"));
  ref.writable = true;
  for (const int64_t d : ref.shape)
    if (d < 0) throw Error(ErrorKind::parse, "a sketched array has a negative size");
  if (!ref.strides.empty() && ref.strides.size() != ref.shape.size())
    throw Error(ErrorKind::parse, "a sketched array has another number of strides than of sizes");
  if (!ref.strides.empty() && dtype_bits(ref.dtype) < 8)
    cannot_rebuild("a strided array of elements smaller than a byte");

  const Extent extent = ref.strides.empty() ? Extent{} : extent_of(ref.shape, ref.strides);
  const std::vector<int64_t> block = ref.strides.empty() ? ref.shape : std::vector{extent.elements};
  const size_t limit = memory_of_this_machine() / 4;  // tuning makes copies
  double wanted = static_cast<double>(dtype_bits(ref.dtype)) / 8;
  for (const int64_t d : block) wanted *= static_cast<double>(d);
  if (wanted + static_cast<double>(bytes_) > static_cast<double>(limit))
    throw Error(ErrorKind::invalid_argument,
                "its arrays do not fit: one of shape " + shape_text(ref.shape) +
                    " is needed, and " + std::to_string(limit >> 20) + " MiB may be used here");
  const Tensor& storage = own(Tensor(ref.dtype, block), owned_);
  bytes_ += storage.any().bytes();
  ref.data = static_cast<std::byte*>(storage.any().data) +
             static_cast<size_t>(extent.first) * (dtype_bits(ref.dtype) / 8);
  if (const Value* data = sketch.find("data")) fill_view(ref.any(), storage.any(), *data);
  return own(std::move(ref), owned_);
}

const std::string& RebuiltData::text(std::string text) { return own(std::move(text), owned_); }

}  // namespace ejk::detail
