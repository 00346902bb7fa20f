// SPDX-License-Identifier: Apache-2.0
#include "groups.h"

#include <limits>

#include <ejk/error.h>

namespace ejk::detail {

namespace {

[[noreturn]] void refuse(const Value& list) {
  throw Error(ErrorKind::parse,
              "the groups of an array's integers do not fit its shape and bounds: " +
                  stable_json(list).substr(0, 200));
}

uint64_t product(uint64_t a, uint64_t b) {
  uint64_t out = 0;
  return __builtin_mul_overflow(a, b, &out) ? std::numeric_limits<uint64_t>::max() : out;
}

// One number is the least and one the most; the others lie between them.
bool can_exist(const Group& g) {
  if (g.count == 0 || g.least > g.most) return false;
  if (g.count == 1) return g.least == g.most && g.sum == g.least;
  uint64_t extremes = 0;
  if (__builtin_add_overflow(g.least, g.most, &extremes) || extremes > g.sum) return false;
  const uint64_t rest = g.sum - extremes, others = g.count - 2;
  return product(g.least, others) <= rest && rest <= product(g.most, others);
}

bool is_group(const Value& v) {
  return v.is_array() && v.as_array().size() == 4 &&
         std::ranges::all_of(v.as_array(),
                             [](const Value& n) { return n.is_int() && n.as_double() >= 0; });
}

}  // namespace

Value groups_to_value(const Groups& groups) {
  Value out = Value::array();
  for (const Group& g : groups) out.push_back(Value(Value::Array{g.least, g.most, g.count, g.sum}));
  return out;
}

Groups groups_from_value(const Value& list, const Bounds& bounds) {
  if (!list.is_array()) refuse(list);
  Groups out;
  uint64_t count = 0, sum = 0;
  for (const Value& v : list.as_array()) {
    if (!is_group(v)) refuse(list);
    const auto& n = v.as_array();
    const Group g{n[0].as_uint(), n[1].as_uint(), n[2].as_uint(), n[3].as_uint()};
    if (!can_exist(g) || g.least < bounds.least || g.most > bounds.most ||
        __builtin_add_overflow(count, g.count, &count) || __builtin_add_overflow(sum, g.sum, &sum))
      refuse(list);
    out.push_back(g);
  }
  if (count != bounds.count || sum != bounds.sum.value_or(sum)) refuse(list);
  return out;
}

}  // namespace ejk::detail
