// SPDX-License-Identifier: Apache-2.0
// Which calls each of several processes tunes, and where it begins.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include <ejk/offline.h>

namespace ejk::detail {

// "I/N" with I below N; nullopt for anything else.
std::optional<Shard> read_shard(std::string_view text);

// What Slurm says to a job of an array, or Kubernetes to a pod of an indexed Job; nullopt: neither
// of them does.
std::optional<Shard> shard_of_launch();

// By the hash of the call's name: every call is in one shard of `count`, on every machine alike.
bool is_in_shard(const EntryId& id, const Shard& shard);

// In which order the process goes through a plan of so many calls. If the number of processes is
// known, each takes every so many-th call before it looks after the others', so that together they
// follow the plan; else it goes on from its own call to the end, and then from the beginning.
std::vector<size_t> order_in_plan(size_t calls, const Shard& shard);

// For a process of which nothing is known.
Shard random_shard();

}  // namespace ejk::detail
