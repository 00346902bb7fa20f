// SPDX-License-Identifier: Apache-2.0
#include "memory.h"

#include <sys/mman.h>

#include <cstring>

#include "seam.h"

namespace emulated {
namespace {
constexpr size_t page = 4096, alignment = 256;
size_t rounded_up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }
}  // namespace

Memory::~Memory() {
  for (const auto& [begin, allocation] : allocations_)
    munmap(allocation.mapping, allocation.mapped);
}

std::optional<uintptr_t> Memory::allocate(size_t bytes) {
  if (bytes > total_ - used_) return std::nullopt;
  const size_t open = rounded_up(bytes, page), mapped = open + page;
  void* mapping = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) return std::nullopt;
  std::memset(mapping, undefined_byte, open);
  mprotect(static_cast<char*>(mapping) + open, page, PROT_NONE);
  const uintptr_t begin =
      reinterpret_cast<uintptr_t>(mapping) + open - rounded_up(bytes, alignment);
  allocations_[begin] = {bytes, mapping, mapped};
  used_ += bytes;
  return begin;
}

bool Memory::release(uintptr_t begin) {
  const auto found = allocations_.find(begin);
  if (found == allocations_.end()) return false;
  munmap(found->second.mapping, found->second.mapped);
  used_ -= found->second.bytes;
  allocations_.erase(found);
  return true;
}

bool Memory::holds(uintptr_t begin, size_t bytes) const {
  auto after = allocations_.upper_bound(begin);
  if (after == allocations_.begin()) return false;
  const auto& [first, allocation] = *--after;
  const size_t offset = begin - first;
  return offset <= allocation.bytes && bytes <= allocation.bytes - offset;
}

}  // namespace emulated
