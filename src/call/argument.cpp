// SPDX-License-Identifier: Apache-2.0
// Arrays as arguments: DLPack codes, their key words, their private copies.
#include <ejk/argument.h>
#include <ejk/detail/bind.h>
#include <ejk/detail/bound_kernel.h>
#include <ejk/device_view.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include <ejk/error.h>

#include "base/format.h"
#include "guard/device_block.h"
#include "platform/place.h"
#include "tensor/device_copy.h"

namespace ejk::detail {

void WordSink::spill(uint64_t word) {
  thread_local std::vector<uint64_t> buffer;
  if (count_ == inline_words) {
    buffer.assign(inline_, inline_ + inline_words);
    spilled_ = &buffer;
  }
  buffer.push_back(word);
}

DType dlpack_dtype(int code, int bits, int lanes) {
  enum { kInt = 0, kUInt = 1, kFloat = 2, kBfloat = 4, kComplex = 5, kBool = 6 };
  if (lanes == 1) {
    if (code == kInt || code == kUInt) switch (bits) {
        case 8:
          return code == kInt ? DType::int8 : DType::uint8;
        case 16:
          return code == kInt ? DType::int16 : DType::uint16;
        case 32:
          return code == kInt ? DType::int32 : DType::uint32;
        case 64:
          return code == kInt ? DType::int64 : DType::uint64;
        case 4:
          return code == kInt ? DType::int4 : DType::uint4;
      }
    if (code == kFloat && bits == 16) return DType::float16;
    if (code == kFloat && bits == 32) return DType::float32;
    if (code == kFloat && bits == 64) return DType::float64;
    if (code == kBfloat && bits == 16) return DType::bfloat16;
    if (code == kComplex && bits == 64) return DType::complex64;
    if (code == kComplex && bits == 128) return DType::complex128;
    if (code == kBool && bits == 8) return DType::boolean;
  }
  throw Error(ErrorKind::invalid_argument,
              "DLPack type code " + std::to_string(code) + " with " + std::to_string(bits) +
                  " bits and " + std::to_string(lanes) +
                  " lanes is not supported; convert the array to a plain number type first");
}

Platform dlpack_platform(int device_type) {
  enum { kCPU = 1, kCUDA = 2, kCUDAHost = 3, kOpenCL = 4 };
  switch (device_type) {
    case kCPU:
    case kCUDAHost:
      return Platform::cpu;
    case kCUDA:
      return Platform::cuda;
    case kOpenCL:
      return Platform::opencl;
  }
  throw Error(ErrorKind::invalid_argument,
              "DLPack device type " + std::to_string(device_type) +
                  " is not supported; copy the array to the CPU first");
}

const Device* dlpack_device(Platform platform, int device_id) {
  for (const Device& device : devices(platform))
    if (device.index == device_id) return &device;
  throw Error(ErrorKind::invalid_argument,
              fmt::format("got a DLPack array on {} {}, which is not listed here; `ejk devices` "
                          "lists what is",
                          platform_name(platform), device_id));
}

void emit_any(const AnyView& v, WordSink& sink) {
  const bool strided = !v.packed();
  sink.push(static_cast<uint64_t>(v.dtype) | static_cast<uint64_t>(v.platform) << 8 |
            static_cast<uint64_t>(strided) << 16 | static_cast<uint64_t>(v.shape.size()) << 32);
  for (int64_t d : v.shape) sink.push(static_cast<uint64_t>(d));
  if (strided)
    for (int64_t s : v.strides) sink.push(static_cast<uint64_t>(s));
}

OutputBytes packed_bytes(const AnyView& array) {
  OutputBytes out{array.dtype, std::vector<std::byte>(array.bytes())};
  if (array.packed() && array.device == nullptr) {
    if (!out.bytes.empty()) std::memcpy(out.bytes.data(), array.data, out.bytes.size());
  } else {
    AnyView to{out.bytes.data(), array.dtype, Platform::cpu, array.shape, {}, true};
    copy_elements(array, to);
  }
  return out;
}
void append_output(const AnyView& array, std::vector<OutputBytes>& outputs) {
  outputs.push_back(packed_bytes(array));
}

namespace {

std::string array_text(const ArrayRef& array) {
  return std::string(dtype_name(array.dtype)) + shape_text(array.shape);
}

bool is_floating(DType d) { return d >= DType::float16 && d <= DType::complex128; }

// All ones are NaN in every floating type; for integers a pattern no kernel produces by rest.
uint8_t poison_of(DType dtype) { return is_floating(dtype) ? 0xFF : 0xA5; }

}  // namespace

void poison(DType dtype, void* data, size_t bytes) {
  if (bytes > 0) std::memset(data, poison_of(dtype), bytes);
}

void poison(const AnyView& array) { poison(array.dtype, array.data, array.bytes()); }

ArrayRef::ArrayRef() = default;
ArrayRef::ArrayRef(const AnyView& v)
    : data(v.data),
      dtype(v.dtype),
      platform(v.platform),
      shape(v.shape.begin(), v.shape.end()),
      strides(v.strides.begin(), v.strides.end()),
      writable(v.writable),
      device(v.device),
      offset(v.offset) {}
ArrayRef::ArrayRef(const ArrayRef&) = default;
ArrayRef::ArrayRef(ArrayRef&&) noexcept = default;
ArrayRef& ArrayRef::operator=(const ArrayRef&) = default;
ArrayRef& ArrayRef::operator=(ArrayRef&&) noexcept = default;
ArrayRef::~ArrayRef() = default;

Arg describe_array(const ArrayRef& a) {
  Arg arg;
  arg.kind = Arg::Kind::tensor;
  arg.role = a.writable ? Role::in_out : Role::input;
  arg.dtype = a.dtype;
  arg.shape = a.shape;
  if (!a.any().packed()) arg.strides = a.strides;
  return arg;
}

namespace {

// Broadcast and strided arrays take what they span.
size_t bytes_of(const Arg& arg) {
  size_t bytes = 0;
  for (const Arg& item : arg.items) bytes += bytes_of(item);
  if (arg.kind != Arg::Kind::tensor || arg.size() == 0) return bytes;
  int64_t spanned = arg.size();
  if (!arg.strides.empty()) {
    spanned = 1;
    for (size_t d = 0; d < arg.shape.size(); ++d)
      spanned += (arg.shape[d] - 1) * std::abs(arg.strides[d]);
  }
  return bytes + (static_cast<size_t>(spanned) * dtype_bits(arg.dtype) + 7) / 8;
}

}  // namespace

size_t array_bytes(const Invocation& inv) {
  size_t bytes = 0;
  for (const Arg& arg : inv.args) bytes += bytes_of(arg);
  for (const auto& [name, arg] : inv.kwargs) bytes += bytes_of(arg);
  return bytes;
}

PrivateArray::~PrivateArray() = default;

namespace {

// The caller's own may change meanwhile, as a cache does whose parts belong to several threads. Of
// a large one a third copy would take too much memory.
bool is_kept(const AnyView& original, size_t bytes) {
  constexpr size_t max_kept = size_t{16} << 20;
  return !original.packed() || bytes <= max_kept;
}

}  // namespace

PrivateArray::PrivateArray(ArrayRef original, Role role, Inputs inputs)
    : copy_(std::move(original)), role_(role) {
  if (role == Role::in_out && !copy_.writable) role_ = Role::input;
  if (role == Role::input && copy_.writable) role_ = Role::in_out;
  const AnyView from = copy_.any();
  if (from.device != nullptr) copy_on_device(from);
  else copy_here(from, inputs);
}

void PrivateArray::copy_here(const AnyView& from, Inputs inputs) {
  const auto [first, bytes] = byte_extent(from);
  storage_ = std::make_shared<const GuardedMemory>(bytes, from.data);
  const bool closed = inputs == Inputs::closed && role_ == Role::input;
  ArrayGuards::add(storage_, role_, closed, array_text(copy_));
  AnyView to = from;
  to.data = storage_->data() - first;
  to.writable = true;
  if (role_ != Role::output) copy_elements(from, to);
  copy_.data = to.data;
  original_ = from.data;
  if (role_ == Role::in_out && is_kept(from, bytes))
    pristine_.assign(storage_->data(), storage_->data() + storage_->size());
}

void PrivateArray::copy_on_device(const AnyView& from) {
  const auto [first, bytes] = byte_extent(from);
  block_ = std::make_shared<const DeviceBlock>(*from.device, bytes);
  ArrayGuards::add(block_, role_, false, array_text(copy_));
  AnyView to = from;
  to.data = block_->memory();
  to.offset = static_cast<size_t>(static_cast<int64_t>(block_->offset()) - first);
  to.writable = true;
  if (role_ != Role::output) copy_elements(from, to);
  copy_.data = to.data, copy_.offset = to.offset;
  original_ = from.data, original_offset_ = from.offset;
  if (role_ != Role::in_out || !is_kept(from, bytes)) return;
  const auto kept = std::make_shared<const DeviceBlock>(*from.device, bytes);
  kept->copy_from(block_->memory(), block_->offset());
  pristine_block_ = kept;
}

void PrivateArray::reset() {
  if (block_) {
    if (role_ == Role::output) block_->fill(poison_of(copy_.dtype));
    if (role_ != Role::in_out) return;
    if (pristine_block_) block_->copy_from(pristine_block_->memory(), pristine_block_->offset());
    else block_->copy_from(original_, original_offset_);
    return;
  }
  if (storage_->size() == 0) return;
  if (role_ == Role::in_out)
    std::memcpy(storage_->data(), pristine_.empty() ? original_ : pristine_.data(),
                storage_->size());
  else if (role_ == Role::output) poison(copy_.dtype, storage_->data(), storage_->size());
}

void PrivateArray::append_output(std::vector<OutputBytes>& outputs) const {
  if (role_ != Role::input) detail::append_output(copy_.any(), outputs);
}

}  // namespace ejk::detail

namespace ejk::detail {

namespace {

std::string argument_text(const Place& place) {
  return "argument " + (place.name.empty() ? std::to_string(place.argument)
                                           : "\"" + std::string(place.name) + "\"");
}

}  // namespace

std::string text_of(const Place& place) {
  return "[" + std::string(place.op) + "] " + argument_text(place);
}

void wrong_array(const Place& place, const AnyView& given, DType dtype, int rank,
                 std::string_view problem, std::string_view needed_on) {
  // Who makes a recorded call again says itself which argument it is.
  throw Error(ErrorKind::invalid_argument,
              (place.argument < 0 && place.name.empty() ? "" : text_of(place) + ": ") + "given " +
                  std::string(dtype_name(given.dtype)) + shape_text(given.shape) + " on " +
                  std::string(platform_name(given.platform)) + ", needed " +
                  std::string(dtype_name(dtype)) + " of rank " + std::to_string(rank) + " on " +
                  std::string(needed_on) + ": " + std::string(problem));
}

void check_device_array(const Place& place, const AnyView& v, DType dtype, int rank, bool writes) {
  const auto wrong = [&](std::string_view problem) {
    wrong_array(place, v, dtype, rank, problem, "a device");
  };
  if (device_of(place, v) == nullptr) wrong("it lives in CPU memory (copy it with to(device))");
  if (v.dtype != dtype) wrong("its element type differs");
  if (static_cast<int>(v.shape.size()) != rank) wrong("its rank differs");
  if (!v.packed()) wrong("it is not packed (clone() it)");
  if (writes && !v.writable) wrong("it is read-only and the kernel writes it");
}

void unknown_device(const Place& place, const AnyView& array) {
  throw Error(
      ErrorKind::invalid_argument,
      fmt::format("{}: given {}{} on {} without its device; set AnyView::device", text_of(place),
                  dtype_name(array.dtype), shape_text(array.shape), platform_name(array.platform)));
}

void wrong_device(const Place& place, const Device* device, const Home& home, Platform platform) {
  const std::string other = device == home.device
                                ? fmt::format("this call is for {}", platform_name(platform))
                                : argument_text(home.first) + " on " + place_text(home.device);
  throw Error(ErrorKind::invalid_argument,
              fmt::format("{} lives on {} and {}; copy one of them with to(device)", text_of(place),
                          place_text(device), other));
}

void wrong_keyword(std::string_view op, std::string_view name, std::string_view known) {
  throw Error(ErrorKind::invalid_argument, "[" + std::string(op) + "] no argument is named \"" +
                                               std::string(name) +
                                               "\"; known names: " + std::string(known));
}

void repeated_keyword(std::string_view op, std::string_view name) {
  throw Error(ErrorKind::invalid_argument,
              text_of({op, 0, name}) + " is given twice; pass it once, by name or by place");
}

void wrong_type(const Place& place, std::string_view given, std::string_view needed) {
  throw Error(ErrorKind::invalid_argument, text_of(place) + ": given " + std::string(given) +
                                               ", needed " + std::string(needed) +
                                               ": it does not convert; convert it yourself");
}

void missing_keyword(std::string_view op, std::string_view name) {
  throw Error(ErrorKind::invalid_argument,
              "[" + std::string(op) + "] the named argument \"" + std::string(name) +
                  "\" is missing; pass ejk::kw(\"" + std::string(name) + "\", ...)");
}

}  // namespace ejk::detail
