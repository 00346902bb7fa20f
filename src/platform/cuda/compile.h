// SPDX-License-Identifier: Apache-2.0
// From a source to a cubin, and what the compiler says of it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "platform/backend.h"

namespace ejk::detail::cuda {

struct Cubin {
  std::string bytes, log;
  std::vector<KernelFacts> facts;
};

// For the compute capability 10 * major + minor. Throws DeviceError: Kind::build with the log.
Cubin compile(const std::string& name, const std::string& source, int arch);

// All options that it compiles with, for the key of a cubin.
std::string options_text(int arch);

// What ptxas says in a log: registers, spills and shared memory of each kernel.
std::vector<KernelFacts> facts_of(std::string_view log);

}  // namespace ejk::detail::cuda
