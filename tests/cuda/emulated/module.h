// SPDX-License-Identifier: Apache-2.0
// A loaded "cubin", and one launch of a kernel of it from the first block to the last.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "block.h"
#include "memory.h"
#include "seam.h"

namespace emulated {

class LoadedModule {
 public:
  // nullptr if these bytes are no module.
  static std::unique_ptr<LoadedModule> load(const void* image);
  ~LoadedModule();

  const ModuleTable& table() const { return *table_; }
  const Kernel* kernel(const std::string& name) const;
  std::string file() const;

 private:
  LoadedModule(int file, void* library, const ModuleTable* table)
      : file_(file), library_(library), table_(table) {}
  int file_;
  void* library_;
  const ModuleTable* table_;
};

struct Launch {
  const LoadedModule* module;
  const Kernel* kernel;
  Extent grid, block;
  std::vector<std::byte> parameters;
};

Fault run(const Launch& launch, const Memory& memory);

}  // namespace emulated
