// SPDX-License-Identifier: Apache-2.0
// The copy of an array in a device's memory, between two patterns that show what runs past its
// ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include <ejk/detail/guard_pages.h>
#include <ejk/tensor.h>

#include "base/hidden.h"

namespace ejk::detail {

class Backend;

class EJK_HIDDEN DeviceBlock final : public GuardedBlock {
 public:
  // A row or a block too far must still land in it.
  static constexpr size_t zone = size_t{64} << 10;

  // Throws what the device's backend throws, also later.
  DeviceBlock(const Device& device, size_t bytes);
  ~DeviceBlock() override;

  void* memory() const { return memory_; }
  size_t offset() const { return zone; }  // of the first byte in it
  size_t size() const { return size_; }
  void fill(uint8_t value) const;
  void copy_from(const void* memory, size_t offset) const;  // on the same device

  std::optional<std::ptrdiff_t> overrun() const override;
  void repair() const override;

 private:
  Backend& backend_;
  size_t size_;
  void* memory_;
};

}  // namespace ejk::detail
