// SPDX-License-Identifier: Apache-2.0
// Private copies of arrays, on which candidates are tried.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <ejk/detail/export.h>
#include <ejk/detail/guard_pages.h>
#include <ejk/invocation.h>
#include <ejk/tensor.h>
#include <ejk/tuner.h>

namespace EJK_EXPORT ejk {
namespace detail {

// An array argument with its data, whatever type it came as.
struct ArrayRef {
  ArrayRef();
  explicit ArrayRef(const AnyView& view);
  ArrayRef(const ArrayRef& other);
  ArrayRef(ArrayRef&& other) noexcept;
  ArrayRef& operator=(const ArrayRef& other);
  ArrayRef& operator=(ArrayRef&& other) noexcept;
  ~ArrayRef();

  void* data = nullptr;
  DType dtype = DType::float32;
  Platform platform = Platform::cpu;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;  // empty: packed
  bool writable = false;
  const Device* device = nullptr;  // null: on the CPU
  size_t offset = 0;

  AnyView any() const { return {data, dtype, platform, shape, strides, writable, device, offset}; }
};

class DeviceBlock;

// A copy of an array with the same strides, in guarded memory of its own, where the original lives.
// That must outlive it and keep its content, from which a packed in-out array is reset.
class PrivateArray {
 public:
  // Whether an input can be written in a child.
  enum class Inputs : uint8_t { closed, open };
  PrivateArray(ArrayRef original, Role role, Inputs inputs = Inputs::closed);
  ~PrivateArray();
  const ArrayRef& array() const { return copy_; }
  // In-out arrays: the original content again. Outputs: poison.
  void reset();
  // Appends the content if the kernel may have written it.
  void append_output(std::vector<OutputBytes>& outputs) const;

 private:
  void copy_here(const AnyView& from, Inputs inputs);
  void copy_on_device(const AnyView& from);

  ArrayRef copy_;
  Role role_;
  std::shared_ptr<const GuardedMemory> storage_;
  std::shared_ptr<const DeviceBlock> block_;  // instead of it
  const void* original_ = nullptr;
  size_t original_offset_ = 0;
  // The content of an in-out array; none: its original is packed and large.
  std::vector<std::byte> pristine_;
  std::shared_ptr<const DeviceBlock> pristine_block_;
};

OutputBytes packed_bytes(const AnyView& array);
void append_output(const AnyView& array, std::vector<OutputBytes>& outputs);

// Fills a packed array with what no kernel leaves by rest.
void poison(const AnyView& array);
void poison(DType dtype, void* data, size_t bytes);

}  // namespace detail
}  // namespace ejk
