// SPDX-License-Identifier: Apache-2.0
// Looks at every access of a kernel: whether the memory is its own, and whether another thread uses
// the same shared memory without a barrier between the two.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "block.h"
#include "memory.h"
#include "seam.h"

namespace emulated {

class Accesses {
 public:
  // `parameters`: of the kernel, which it may read; `file`: of the module, for the lines of the
  // source.
  Accesses(Block& block, const Memory& memory, const ModuleTable& module,
           std::span<const std::byte> parameters, std::string file);

  // Ends the kernel if it may not make this access.
  void check(const void* at, size_t bytes, Access access, const void* code);

 private:
  // One access to one byte of shared memory; threads count from 1.
  struct Use {
    uint64_t barriers = 0, exchanges = 0;
    const void* code = nullptr;
    uint32_t thread = 0;
    bool atomic = false;
  };
  // Two readers are enough to know of one that is not the writer.
  struct Byte {
    Use writer, reader, other_reader;
  };

  void check_race(Byte& byte, const Use& use, Access access);
  bool in_order(const Use& before, const Use& now) const;
  Fault outside(size_t bytes, Access access, const void* code) const;
  Fault race(const Use& before, const char* did, const Use& now, const char* does) const;
  std::string line_of(const void* code) const;

  Block& block_;
  const Memory& memory_;
  const ModuleTable& module_;
  std::span<const std::byte> parameters_;
  std::string file_;
  std::vector<Byte> shared_;
};

}  // namespace emulated
