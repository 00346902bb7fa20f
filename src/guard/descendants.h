// SPDX-License-Identifier: Apache-2.0
// The processes below a process, and their end.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace ejk::detail {

// The children of all its threads, ended ones that were not reaped included.
std::vector<pid_t> children_of(pid_t process);

// Of a thread or process by its directory in /proc: whether it computes no more. Threads that were
// joined, and processes that were killed, are listed until the system has put them away.
bool is_ending(const std::string& directory);

// Ends all processes below a child of this process that adopts those whose parents ended. It is
// stopped, and stays so.
void end_descendants(pid_t adopter);

}  // namespace ejk::detail
