// SPDX-License-Identifier: Apache-2.0
// Element types, copies between views of any layout, and the owning tensor.
#include <ejk/tensor.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>

#include <ejk/error.h>

#include "base/format.h"
#include "base/pages.h"
#include "platform/backend.h"
#include "platform/place.h"
#include "tensor/device_copy.h"

namespace ejk {
namespace {

struct DTypeFacts {
  std::string_view name;
  size_t bits;
};

// In the order of the enumeration.
constexpr DTypeFacts dtype_facts[] = {
    {"bool", 8},
    {"int8", 8},
    {"int16", 16},
    {"int32", 32},
    {"int64", 64},
    {"uint8", 8},
    {"uint16", 16},
    {"uint32", 32},
    {"uint64", 64},
    {"float16", 16},
    {"bfloat16", 16},
    {"float32", 32},
    {"float64", 64},
    {"complex64", 64},
    {"complex128", 128},
    {"float8_e4m3fn", 8},
    {"float8_e5m2", 8},
    {"float8_e4m3", 8},
    {"float8_e3m4", 8},
    {"float8_e8m0fnu", 8},
    {"float8_e4m3fnuz", 8},
    {"float8_e5m2fnuz", 8},
    {"float8_e4m3b11fnuz", 8},
    {"int4", 4},
    {"uint4", 4},
    {"int2", 2},
    {"uint2", 2},
};
static_assert(std::size(dtype_facts) == static_cast<size_t>(DType::uint2) + 1);

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorKind::invalid_argument, message);
}

// ---- conversions -------------------------------------------------------------------------------

// Drops the low `shift` bits, rounding to nearest and ties to even. A carry out of the fraction
// moves into the exponent, which is just what rounding up to the next power of two means.
uint32_t round_away_bits(uint32_t value, uint32_t shift) {
  const uint32_t half_minus_one = (1u << (shift - 1)) - 1;
  return (value + half_minus_one + ((value >> shift) & 1u)) >> shift;
}

// Half's subnormals are multiples of 2^-24; `magnitude` holds a float below 2^-14.
uint32_t half_subnormal(uint32_t magnitude) {
  const uint32_t shift = 126 - (magnitude >> 23);
  if (shift > 24) return 0;  // below half of the smallest subnormal
  return round_away_bits((magnitude & 0x7fffffu) | 0x800000u, shift);
}

uint32_t half_magnitude(uint32_t magnitude) {
  constexpr uint32_t infinity = 0x7f800000, overflow = 0x477ff000 /* 65520 */,
                     min_normal = 0x38800000 /* 2^-14 */, rebias = 112u << 23;
  if (magnitude > infinity) return 0x7e00u | ((magnitude >> 13) & 0x3ffu);  // stays a quiet NaN
  if (magnitude >= overflow) return 0x7c00u;
  if (magnitude >= min_normal) return round_away_bits(magnitude - rebias, 13);
  return half_subnormal(magnitude);
}

// ---- copying -----------------------------------------------------------------------------------

struct CopyAxis {
  int64_t size, from_stride, to_stride;  // strides in elements
};

int64_t stride_of(const AnyView& view, size_t axis) {
  if (!view.strides.empty()) return view.strides[axis];
  int64_t stride = 1;
  for (size_t d = axis + 1; d < view.shape.size(); ++d) stride *= view.shape[d];
  return stride;
}

// The axes that matter, outermost first: those of size 1 are left out, neighbours that can be
// walked as one are merged. Never empty.
std::vector<CopyAxis> copy_axes(const AnyView& from, const AnyView& to) {
  std::vector<CopyAxis> axes;
  for (size_t d = 0; d < from.shape.size(); ++d) {
    const CopyAxis axis{from.shape[d], stride_of(from, d), stride_of(to, d)};
    if (axis.size == 1) continue;
    const bool merges = !axes.empty() && axes.back().from_stride == axis.from_stride * axis.size &&
                        axes.back().to_stride == axis.to_stride * axis.size;
    if (merges) axes.back() = {axes.back().size * axis.size, axis.from_stride, axis.to_stride};
    else axes.push_back(axis);
  }
  if (axes.empty()) axes.push_back({1, 1, 1});
  return axes;
}

template <size_t Bytes>
void copy_row(const std::byte* from, std::byte* to, const CopyAxis& axis) {
  constexpr auto width = static_cast<int64_t>(Bytes);
  if (axis.from_stride == 1 && axis.to_stride == 1) {
    std::memmove(to, from, static_cast<size_t>(axis.size) * Bytes);
    return;
  }
  for (int64_t i = 0; i < axis.size; ++i)
    std::memcpy(to + i * axis.to_stride * width, from + i * axis.from_stride * width, Bytes);
}

template <size_t Bytes>
void copy_strided(const std::byte* from, std::byte* to, std::span<const CopyAxis> axes) {
  constexpr auto width = static_cast<int64_t>(Bytes);
  const CopyAxis& axis = axes.front();
  if (axes.size() == 1) return copy_row<Bytes>(from, to, axis);
  for (int64_t i = 0; i < axis.size; ++i)
    copy_strided<Bytes>(from + i * axis.from_stride * width, to + i * axis.to_stride * width,
                        axes.subspan(1));
}

// Elements smaller than a byte, the first one in the lowest bits. Their neighbours in the same
// byte belong to another array and stay as they are.
void copy_small(const AnyView& from, const AnyView& to, int64_t from_at, int64_t to_at,
                std::span<const CopyAxis> axes) {
  const auto bits = static_cast<int64_t>(dtype_bits(from.dtype));
  const CopyAxis& axis = axes.front();
  for (int64_t i = 0; i < axis.size; ++i) {
    const int64_t source = from_at + i * axis.from_stride, target = to_at + i * axis.to_stride;
    if (axes.size() > 1) {
      copy_small(from, to, source, target, axes.subspan(1));
      continue;
    }
    const int shift = static_cast<int>(target * bits % 8);
    const int mask = ((1 << bits) - 1) << shift;
    auto& byte = static_cast<uint8_t*>(to.data)[target * bits / 8];
    const int value = static_cast<const uint8_t*>(from.data)[source * bits / 8] >>
                      static_cast<int>(source * bits % 8);
    byte = static_cast<uint8_t>((byte & ~mask) | ((value << shift) & mask));
  }
}

void check_copy(const AnyView& from, const AnyView& to) {
  if (from.dtype != to.dtype)
    refuse(
        fmt::format("[copy_elements] elements of {} were given for a target of {}: convert them "
                    "first, copies never change the type",
                    dtype_name(from.dtype), dtype_name(to.dtype)));
  if (!std::ranges::equal(from.shape, to.shape))
    refuse(
        fmt::format("[copy_elements] got shape {} for a target of shape {}; expected equal "
                    "shapes; reshape or slice one of them",
                    shape_text(from.shape), shape_text(to.shape)));
  for (const AnyView* view : {&from, &to})
    if (view->platform != Platform::cpu && view->device == nullptr)
      refuse(
          fmt::format("[copy_elements] elements on {} were given without their device: set "
                      "AnyView::device",
                      platform_name(view->platform)));
  if (!to.writable) refuse("[copy_elements] the target is read-only: give one that can be written");
}

// ---- tensors -----------------------------------------------------------------------------------

constexpr size_t alignment = 64;  // bytes: a cache line and the widest vector register

// Where in a page a large tensor begins: another place for each. CPUs take a load for one of what
// was just stored if the last 12 bits of the addresses agree, and then wait.
size_t place_in_page(size_t bytes) {
  static std::atomic<size_t> made{0};
  if (bytes < size_t{1} << 16) return 0;
  return made.fetch_add(1, std::memory_order_relaxed) * 25 % 64 * alignment;
}

// Zeroed and aligned. What is large comes from the system: memory that malloc has used before stays
// on the pages it has.
std::shared_ptr<std::byte> make_storage(size_t bytes) {
  const size_t place = place_in_page(bytes);
  if (bytes >= 2 * base::huge_page) {
    const std::shared_ptr<std::byte> pages = base::huge_pages(bytes + place);
    return {pages, pages.get() + place};
  }
  void* block = std::calloc(bytes + alignment + place, 1);
  if (block == nullptr) throw std::bad_alloc();
  std::shared_ptr<void> owner(block, [](void* p) { std::free(p); });
  void* at = static_cast<std::byte*>(block) + place;
  size_t space = bytes + alignment;
  std::align(alignment, bytes, at, space);
  return {std::move(owner), static_cast<std::byte*>(at)};
}

std::shared_ptr<std::byte> make_storage_on(const Device& device, size_t bytes) {
  detail::Backend& backend = detail::backend_of(device);
  auto* const handle = static_cast<std::byte*>(backend.allocate(bytes));
  return {handle, [&backend](std::byte* memory) { backend.release(memory); }};
}

[[noreturn]] void refuse_size(DType dtype, const std::vector<int64_t>& shape) {
  refuse(
      fmt::format("[tensor] {} of shape {} was asked for: more bytes than can exist, give "
                  "smaller sizes",
                  dtype_name(dtype), shape_text(shape)));
}

// Strides of a packed array. Sizes of 0 count as 1, so that strides stay meaningful and an absurd
// shape is refused even if it holds nothing.
std::vector<int64_t> packed_strides(DType dtype, const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size());
  int64_t step = 1, bits = 0;
  for (size_t d = shape.size(); d-- > 0;) {
    if (shape[d] < 0)
      refuse(fmt::format("[tensor] got shape {}; expected sizes of 0 or more", shape_text(shape)));
    strides[d] = step;
    if (__builtin_mul_overflow(step, std::max<int64_t>(shape[d], 1), &step))
      refuse_size(dtype, shape);
  }
  const bool too_large =
      __builtin_mul_overflow(step, static_cast<int64_t>(dtype_bits(dtype)), &bits) ||
      bits > std::numeric_limits<int64_t>::max() - static_cast<int64_t>(8 * alignment);
  if (too_large) refuse_size(dtype, shape);
  return strides;
}

void check_axis(std::string_view what, int axis, const std::vector<int64_t>& shape) {
  if (axis >= 0 && static_cast<size_t>(axis) < shape.size()) return;
  refuse(fmt::format("[tensor.{}] got axis {} for shape {}; expected 0 to {}", what, axis,
                     shape_text(shape), static_cast<int64_t>(shape.size()) - 1));
}

// How many bytes before element `index`, which must begin one.
int64_t bytes_before(DType dtype, int64_t index) {
  const int64_t bits = index * static_cast<int64_t>(dtype_bits(dtype));
  if (bits % 8 != 0)
    refuse(
        fmt::format("[tensor] {} elements from number {} on were asked for, which begins inside "
                    "a byte: start at a whole byte or clone a wider type",
                    dtype_name(dtype), index));
  return bits / 8;
}

}  // namespace

std::string_view dtype_name(DType dtype) { return dtype_facts[static_cast<size_t>(dtype)].name; }

DType dtype_from_name(std::string_view name) {
  for (size_t i = 0; i < std::size(dtype_facts); ++i)
    if (dtype_facts[i].name == name) return static_cast<DType>(i);
  std::vector<std::string_view> known;
  for (const DTypeFacts& facts : dtype_facts) known.push_back(facts.name);
  refuse(fmt::format("[dtype] got \"{}\"; expected one of {}", name, fmt::join(known, ", ")));
}

size_t dtype_bits(DType dtype) { return dtype_facts[static_cast<size_t>(dtype)].bits; }

Half::Half(float value) {
  const auto word = std::bit_cast<uint32_t>(value);
  bits = static_cast<uint16_t>(((word >> 16) & 0x8000u) | half_magnitude(word & 0x7fffffffu));
}

Half::operator float() const {
  const uint32_t sign = (bits & 0x8000u) << 16, exponent = (bits >> 10) & 31u,
                 fraction = bits & 0x3ffu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (fraction << 13));
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
  const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
  return sign != 0 ? -magnitude : magnitude;
}

BFloat16::BFloat16(float value) {
  const auto word = std::bit_cast<uint32_t>(value);
  const bool nan = (word & 0x7fffffffu) > 0x7f800000u;
  bits = static_cast<uint16_t>(nan ? (word >> 16) | 0x40u : round_away_bits(word, 16));
}

BFloat16::operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

int64_t AnyView::size() const {
  int64_t n = 1;
  for (int64_t d : shape) n *= d;
  return n;
}

bool AnyView::packed() const {
  if (strides.empty()) return true;
  int64_t step = 1;
  for (size_t d = shape.size(); d-- > 0; step *= shape[d]) {
    if (shape[d] == 0) return true;
    if (shape[d] != 1 && strides[d] != step) return false;
  }
  return true;
}

void copy_elements(const AnyView& from, const AnyView& to) {
  check_copy(from, to);
  if (from.size() <= 0) return;
  if (from.device != nullptr || to.device != nullptr) return detail::copy_by_device(from, to);
  const size_t bits = dtype_bits(from.dtype);
  const bool whole_bytes = static_cast<size_t>(from.size()) * bits % 8 == 0;
  if (from.packed() && to.packed() && whole_bytes) {
    std::memmove(to.data, from.data, from.bytes());
    return;
  }
  const std::vector<CopyAxis> axes = copy_axes(from, to);
  const auto* source = static_cast<const std::byte*>(from.data);
  auto* target = static_cast<std::byte*>(to.data);
  switch (bits) {
    case 8:
      return copy_strided<1>(source, target, axes);
    case 16:
      return copy_strided<2>(source, target, axes);
    case 32:
      return copy_strided<4>(source, target, axes);
    case 64:
      return copy_strided<8>(source, target, axes);
    case 128:
      return copy_strided<16>(source, target, axes);
    default:
      return copy_small(from, to, 0, 0, axes);
  }
}

std::string shape_text(std::span<const int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

Tensor::Tensor(DType dtype, std::vector<int64_t> shape)
    : dtype_(dtype), shape_(std::move(shape)), strides_(packed_strides(dtype, shape_)) {
  storage_ = make_storage(any().bytes());
}

Tensor::Tensor(DType dtype, std::vector<int64_t> shape, const Device& device)
    : Tensor(dtype, std::move(shape), Zeroed::yes, device) {}

Tensor::Tensor(DType dtype, std::vector<int64_t> shape, Zeroed zeroed, const Device& device)
    : dtype_(dtype), shape_(std::move(shape)), strides_(packed_strides(dtype, shape_)) {
  const size_t bytes = any().bytes();
  if (device.platform == Platform::cpu) {
    storage_ = make_storage(bytes);
    return;
  }
  storage_ = make_storage_on(device, bytes);
  device_ = &device;
  if (zeroed == Zeroed::yes && bytes > 0)
    detail::backend_of(device).fill(storage_.get(), 0, bytes, 0);
}

Tensor Tensor::around(const AnyView& elements, std::shared_ptr<void> owner) {
  if (elements.platform != Platform::cpu && elements.device == nullptr)
    refuse("[tensor] elements on a device were given without it: set AnyView::device");
  Tensor t;
  t.device_ = elements.device;
  t.offset_ = elements.offset;
  t.dtype_ = elements.dtype;
  t.shape_.assign(elements.shape.begin(), elements.shape.end());
  t.strides_ = packed_strides(t.dtype_, t.shape_);
  if (!elements.strides.empty())
    t.strides_.assign(elements.strides.begin(), elements.strides.end());
  t.storage_ = std::shared_ptr<std::byte>(std::move(owner), static_cast<std::byte*>(elements.data));
  return t;
}

AnyView Tensor::any() const {
  const Platform platform = device_ == nullptr ? Platform::cpu : device_->platform;
  return {storage_.get(), dtype_, platform, shape_, strides_, true, device_, offset_};
}

const Device& Tensor::device() const { return device_ == nullptr ? cpu_device() : *device_; }

void Tensor::assign(const void* values, size_t count, DType dtype) {
  if (dtype != dtype_ || count != static_cast<size_t>(size()))
    refuse(fmt::format("[tensor] {} values of {} were given for shape {}: expected {} of {}", count,
                       dtype_name(dtype), shape_text(shape_), size(), dtype_name(dtype_)));
  if (count != 0) std::memcpy(storage_.get(), values, any().bytes());
}

void* Tensor::checked_data(DType dtype, int rank, bool must_be_packed) const {
  if (device_ != nullptr)
    refuse(
        fmt::format("[tensor] elements in CPU memory were asked for, these live on {}: copy them "
                    "with to(ejk::cpu_device()) first",
                    detail::place_text(device_)));
  if (dtype != dtype_)
    refuse(fmt::format("[tensor] {} elements were asked for, this tensor holds {}: use that type",
                       dtype_name(dtype), dtype_name(dtype_)));
  if (rank >= 0 && rank != this->rank())
    refuse(fmt::format("[tensor] a view of rank {} was asked for, the shape is {}: use rank {}",
                       rank, shape_text(shape_), this->rank()));
  if (must_be_packed && !packed())
    refuse(
        fmt::format("[tensor] a packed view was asked for, shape {} has strides {}: use "
                    "strided() or clone() first",
                    shape_text(shape_), shape_text(strides_)));
  return storage_.get();
}

Tensor Tensor::transposed(std::vector<int> order) const {
  std::vector<bool> seen(shape_.size(), false);
  bool permutation = order.size() == shape_.size();
  for (size_t i = 0; permutation && i < order.size(); ++i) {
    const auto axis = static_cast<size_t>(order[i]);  // a negative one becomes too large
    permutation = axis < seen.size() && !seen[axis];
    if (permutation) seen[axis] = true;
  }
  if (!permutation)
    refuse(
        fmt::format("[tensor.transposed] got order [{}] for shape {}; expected each of "
                    "its {} axes once",
                    fmt::join(order, ", "), shape_text(shape_), rank()));
  Tensor result = *this;
  for (size_t i = 0; i < order.size(); ++i) {
    result.shape_[i] = shape_[static_cast<size_t>(order[i])];
    result.strides_[i] = strides_[static_cast<size_t>(order[i])];
  }
  return result;
}

Tensor Tensor::sliced(int axis, int64_t begin, int64_t end, int64_t step) const {
  check_axis("sliced", axis, shape_);
  const auto d = static_cast<size_t>(axis);
  if (begin < 0 || begin > end || end > shape_[d] || step < 1)
    refuse(
        fmt::format("[tensor.sliced] begin {}, end {}, step {} were given for an axis of size "
                    "{}: expected 0 <= begin <= end <= size and step >= 1",
                    begin, end, step, shape_[d]));
  Tensor result = *this;
  result.shape_[d] = begin == end ? 0 : (end - begin - 1) / step + 1;
  // A step beyond the end leaves one element, whose stride is never used.
  if (result.shape_[d] > 1) result.strides_[d] = strides_[d] * step;
  if (result.size() > 0) result.move_to_element(begin * strides_[d]);
  return result;
}

void Tensor::move_to_element(int64_t index) {
  const int64_t bytes = bytes_before(dtype_, index);
  if (device_ != nullptr) offset_ += static_cast<size_t>(bytes);
  else storage_ = {storage_, storage_.get() + bytes};
}

Tensor Tensor::selected(int axis, int64_t index) const {
  check_axis("selected", axis, shape_);
  const auto d = static_cast<size_t>(axis);
  if (index < 0 || index >= shape_[d])
    refuse(
        fmt::format("[tensor.selected] got index {} for an axis of size {}; expected 0 to "
                    "{}",
                    index, shape_[d], shape_[d] - 1));
  Tensor result = *this;
  if (size() > 0) result.move_to_element(index * strides_[d]);
  result.shape_.erase(result.shape_.begin() + axis);
  result.strides_.erase(result.strides_.begin() + axis);
  return result;
}

Tensor Tensor::reshaped(std::vector<int64_t> shape) const {
  std::vector<int64_t> strides = packed_strides(dtype_, shape);
  const AnyView target{nullptr, dtype_, Platform::cpu, shape, strides, false};
  if (target.size() != size())
    refuse(
        fmt::format("[tensor.reshaped] got shape {} for {} elements of shape {}; expected "
                    "one of the same size",
                    shape_text(shape), size(), shape_text(shape_)));
  if (!packed())
    refuse(
        fmt::format("[tensor.reshaped] shape {} has strides {}: only packed tensors can be "
                    "reshaped, clone() first",
                    shape_text(shape_), shape_text(strides_)));
  Tensor result = *this;
  result.shape_ = std::move(shape);
  result.strides_ = std::move(strides);
  return result;
}

Tensor Tensor::clone() const { return copy_on(device_); }

Tensor Tensor::to(const Device& device) const {
  const Device* const there = device.platform == Platform::cpu ? nullptr : &device;
  return there == device_ && packed() ? *this : copy_on(there);
}

Tensor Tensor::copy_on(const Device* device) const {
  Tensor result =
      device == nullptr ? Tensor(dtype_, shape_) : Tensor(dtype_, shape_, Zeroed::no, *device);
  copy_elements(any(), result.any());
  return result;
}

}  // namespace ejk
