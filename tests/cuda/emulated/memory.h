// SPDX-License-Identifier: Apache-2.0
// Memory of an emulated device: begins undefined, a closed page lies behind it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

namespace emulated {

class Memory {
 public:
  explicit Memory(size_t total) : total_(total) {}
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  // Aligned as CUDA aligns; nullopt if there is not as much left.
  std::optional<uintptr_t> allocate(size_t bytes);
  bool release(uintptr_t begin);

  // Whether all of it lies within one allocation.
  bool holds(uintptr_t begin, size_t bytes) const;

 private:
  struct Allocation {
    size_t bytes;
    void* mapping;
    size_t mapped;
  };
  std::map<uintptr_t, Allocation> allocations_;  // by where they begin
  size_t total_, used_ = 0;
};

}  // namespace emulated
