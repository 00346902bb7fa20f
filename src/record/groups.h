// SPDX-License-Identifier: Apache-2.0
// How many numbers there are of which size: enough to make others with the same distribution.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <iterator>
#include <optional>
#include <random>
#include <vector>

#include <ejk/value.h>

namespace ejk::detail {

// Numbers of about the same size. `least` and `most` are two of them, or the only one.
struct Group {
  uint64_t least, most, count, sum;
};
using Groups = std::vector<Group>;

// Numbers below 8 each have a class of their own; above, there are four from each power of two to
// the next.
inline uint64_t size_class(uint64_t number) {
  if (number < 4) return number;
  const auto shift = static_cast<uint64_t>(std::bit_width(number)) - 3;
  return 4 * shift + (number >> shift);
}

// A place for each group, found without a search: programs wait while a call is looked at.
using GroupTable = std::array<Group, 256>;

inline void count_in(Group& g, uint64_t number) {
  if (g.count++ == 0) g.least = g.most = number;
  g.least = std::min(g.least, number), g.most = std::max(g.most, number);
  g.sum += number;
}

// The place of a number's own group, or the empty one where it belongs.
inline Group& group_of(GroupTable& table, uint64_t number) {
  uint64_t place = (number * 0x9E3779B97F4A7C15) >> 56;
  while (table[place].count > 0 && table[place].least != number) place = (place + 1) % table.size();
  return table[place];
}

inline Groups in_order(const GroupTable& table) {
  Groups out;
  std::ranges::copy_if(table, std::back_inserter(out), [](const Group& g) { return g.count > 0; });
  std::ranges::sort(out, {}, &Group::least);
  return out;
}

// Of the numbers at(0) to at(count - 1): one group for each different number if there are few of
// them, else one for each size class. Their sum must be less than 2^63.
template <class NumberAt>
Groups grouped(uint64_t count, NumberAt at) {
  constexpr int max_exact = 64;
  GroupTable exact{};
  int different = 0;
  for (uint64_t i = 0; i < count && different <= max_exact; ++i) {
    Group& g = group_of(exact, at(i));
    different += g.count == 0;
    count_in(g, at(i));
  }
  if (different <= max_exact) return in_order(exact);
  GroupTable classes{};
  for (uint64_t i = 0; i < count; ++i) count_in(classes[size_class(at(i))], at(i));
  return in_order(classes);
}

// Calls put(number) for the extremes of the group, and for pairs of others: one as far below their
// mean as the other is above.
template <class Put>
void deal(const Group& g, std::mt19937_64& random, Put put) {
  put(g.least);
  if (g.count == 1) return;
  put(g.most);
  if (g.count == 2) return;
  const uint64_t others = g.count - 2, rest = g.sum - g.least - g.most;
  const uint64_t mean = rest / others, larger = rest % others;  // so many are mean + 1
  for (uint64_t i = 0; i + 1 < others; i += 2) {
    const uint64_t a = mean + (i < larger), b = mean + (i + 1 < larger);
    const uint64_t room = std::min(a - g.least, g.most - b);
    const uint64_t apart = std::uniform_int_distribution<uint64_t>(0, room)(random);
    put(a - apart), put(b + apart);
  }
  if (others % 2 == 1) put(mean);
}

Value groups_to_value(const Groups& groups);

// What the numbers of groups that were read must be.
struct Bounds {
  uint64_t count, least, most;
  std::optional<uint64_t> sum = {};
};
// Throws Error(parse) for groups of other numbers, and for a value that is not a list of groups.
Groups groups_from_value(const Value& list, const Bounds& bounds);

}  // namespace ejk::detail
