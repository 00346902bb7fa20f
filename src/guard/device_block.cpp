// SPDX-License-Identifier: Apache-2.0
// Patterns around an array on a device: nothing there can be closed, so they are read back.
#include "guard/device_block.h"

#include <algorithm>
#include <vector>

#include "platform/backend.h"
#include "platform/place.h"

namespace ejk::detail {
namespace {

bool overwritten(std::byte b) { return b != GuardedBlock::pattern; }

}  // namespace

DeviceBlock::DeviceBlock(const Device& device, size_t bytes)
    : backend_(backend_of(device)), size_(bytes), memory_(backend_.allocate(bytes + 2 * zone)) {
  try {
    repair();
  } catch (...) {
    backend_.release(memory_);
    throw;
  }
}

DeviceBlock::~DeviceBlock() { backend_.release(memory_); }

void DeviceBlock::fill(uint8_t value) const {
  if (size_ > 0) backend_.fill(memory_, zone, size_, value);
}

void DeviceBlock::copy_from(const void* memory, size_t offset) const {
  if (size_ > 0) backend_.copy(memory_, zone, const_cast<void*>(memory), offset, size_);
}

std::optional<std::ptrdiff_t> DeviceBlock::overrun() const {
  std::vector<std::byte> found(zone);
  backend_.read(found.data(), memory_, zone + size_, zone);
  const auto last = std::find_if(found.rbegin(), found.rend(), overwritten);
  if (last != found.rend()) return found.rend() - last;
  backend_.read(found.data(), memory_, 0, zone);
  const auto first = std::ranges::find_if(found, overwritten);
  if (first != found.end()) return first - found.end();
  return std::nullopt;
}

void DeviceBlock::repair() const {
  backend_.fill(memory_, 0, zone, std::to_integer<uint8_t>(pattern));
  backend_.fill(memory_, zone + size_, zone, std::to_integer<uint8_t>(pattern));
}

}  // namespace ejk::detail
