// SPDX-License-Identifier: Apache-2.0
// Binaries of device programs on disk, each with what is known of it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "platform/backend.h"

namespace ejk::detail {

struct StoredProgram {
  std::string binary;
  std::vector<KernelFacts> facts;
  std::vector<std::string> kernels;  // those that had been launched when the binary was taken
};

// In "programs/USER" beside the entries of the default store. Binaries are code: only a directory
// that no other user may write to is used, and a link is not followed. `key` is 64 hex
// digits. A miss or a failed write is not an error; the reason is said once.
std::optional<StoredProgram> read_program(const std::string& key);
// Whether there is a default store; where there is none, write_program does nothing.
bool programs_have_a_place();
void write_program(const std::string& key, const StoredProgram& program);

}  // namespace ejk::detail
