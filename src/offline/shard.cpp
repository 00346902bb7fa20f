// SPDX-License-Identifier: Apache-2.0
#include "offline/shard.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <random>
#include <string>

#include "base/env.h"
#include "store/keep.h"

namespace ejk::detail {
namespace {

std::optional<size_t> number_in(std::string_view text) {
  size_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole ? std::optional(number) : std::nullopt;
}

std::optional<size_t> number_of(const char* variable) {
  return number_in(base::env_or_empty(variable));
}

}  // namespace

std::optional<Shard> read_shard(std::string_view text) {
  const size_t slash = text.find('/');
  if (slash == text.npos) return std::nullopt;
  const auto index = number_in(text.substr(0, slash)), count = number_in(text.substr(slash + 1));
  if (!index || !count || *index >= *count) return std::nullopt;
  return Shard{*index, *count};
}

std::optional<Shard> shard_of_launch() {
  if (const auto task = number_of("SLURM_ARRAY_TASK_ID")) {
    const size_t first = number_of("SLURM_ARRAY_TASK_MIN").value_or(0);
    const size_t step = std::max<size_t>(number_of("SLURM_ARRAY_TASK_STEP").value_or(1), 1);
    const size_t count = number_of("SLURM_ARRAY_TASK_COUNT").value_or(0);
    const size_t index = *task < first ? *task : (*task - first) / step;
    return Shard{count == 0 ? index : index % count, count};  // an array may be any list of numbers
  }
  if (const auto index = number_of("JOB_COMPLETION_INDEX")) return Shard{*index, 0};
  return std::nullopt;
}

bool is_in_shard(const EntryId& id, const Shard& shard) {
  const std::string digits = call_id(id).substr(0, 16);
  uint64_t number = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), number, 16);
  return number % shard.count == shard.index;
}

std::vector<size_t> order_in_plan(size_t calls, const Shard& shard) {
  std::vector<size_t> out;
  out.reserve(calls);
  if (shard.count == 0)
    for (size_t i = 0; i < calls; ++i) out.push_back((shard.index % calls + i) % calls);
  for (size_t other = 0; other < shard.count && out.size() < calls; ++other)
    for (size_t i = (shard.index + other) % shard.count; i < calls; i += shard.count)
      out.push_back(i);
  return out;
}

Shard random_shard() { return {std::random_device()(), 0}; }

}  // namespace ejk::detail
