// SPDX-License-Identifier: Apache-2.0
// Notices a scalar or a size that makes a new key with every value.
#include "choose/key_watch.h"

#include <utility>

#include "base/format.h"

namespace ejk {

namespace {

constexpr int many_values = 16;  // of a scalar or a size
constexpr int many_shapes = 64;  // a program may have some without making new ones all the time
constexpr size_t max_watched = 4096;  // bounds the memory; what is beyond is not watched
constexpr int64_t any_size = -1;

// What is described by an object or an array may be the shape of something.
bool is_scalar(const Arg& arg) {
  const Value& value = arg.value;
  return arg.kind == Arg::Kind::value && !arg.unkeyed && !value.is_null() && !value.is_object() &&
         !value.is_array();
}

// Calls f(argument, its name) for those of the call, not for what is inside them.
template <class Inv, class F>
void for_each_argument(Inv& inv, F&& f) {
  for (size_t i = 0; i < inv.args.size(); ++i) f(inv.args[i], "argument " + std::to_string(i));
  for (auto& [name, arg] : inv.kwargs) f(arg, "argument \"" + name + "\"");
}

// The sizes in the arrays of a call, each with the first place where it is found.
using Sizes = std::map<int64_t, std::string>;
void find_sizes(const Arg& arg, const std::string& name, Sizes& sizes) {
  if (arg.unkeyed) return;
  for (size_t d = 0; d < arg.shape.size(); ++d)
    sizes.try_emplace(arg.shape[d], fmt::format("dimension {} of {}", d, name));
  for (const Arg& item : arg.items) find_sizes(item, name, sizes);
}

// Strides follow from sizes.
template <class Blanked>
void blank(Arg& arg, const Blanked& is_blanked) {
  for (int64_t& size : arg.shape)
    if (is_blanked(size)) size = any_size;
  arg.strides.clear();
  for (Arg& item : arg.items) blank(item, is_blanked);
}
template <class Blanked>
std::string without_sizes(Invocation inv, const Blanked& is_blanked) {
  for_each_argument(inv, [&](Arg& arg, const std::string&) { blank(arg, is_blanked); });
  return inv.spec();
}

std::string scalar_complaint(const Invocation& inv, const std::string& name) {
  return fmt::format(
      "[{}] {} has made {} keys that differ in nothing else, and each is tuned on its own; if "
      "its value does not change which config is best, keep it out of the key (C++: "
      "ejk::Unkeyed<...>, a `key` hook; Python: an array, a key_builder)",
      inv.op(), name, many_values);
}
std::string shape_complaint(const Invocation& inv, const std::string& what, int keys) {
  return fmt::format(
      "[{}] {} made {} keys that differ in nothing else, and each is tuned on its own; if calls of "
      "nearby sizes can share a config, round the sizes in the key (C++: ejk::bucketed in a `key` "
      "hook; Python: a key_builder)",
      inv.op(), what, keys);
}

}  // namespace

// Whether the keys that differ from `rest` in this place only have just become that many.
bool KeyWatch::are_many(const std::string& place, const std::string& rest, int many) {
  const std::string group = place + " " + rest;
  if (keys_.size() >= max_watched && !keys_.contains(group)) return false;
  return ++keys_[group] == many && said_.insert(place).second;
}

std::optional<std::string> KeyWatch::saw(const Invocation& inv) {
  if (inv.key_args || !inv.own_key.empty()) return std::nullopt;  // the kernel decided itself
  const std::lock_guard lock(mutex_);
  auto complaint = saw_scalars(inv);
  auto of_shapes = saw_shapes(inv);
  return complaint ? complaint : of_shapes;
}

std::optional<std::string> KeyWatch::saw_scalars(const Invocation& inv) {
  std::optional<std::string> complaint;
  Invocation blanked = inv;
  for_each_argument(blanked, [&](Arg& arg, const std::string& name) {
    if (!is_scalar(arg)) return;
    const Value value = std::exchange(arg.value, Value());
    if (are_many(inv.op() + " " + name, blanked.spec(), many_values))
      complaint = scalar_complaint(inv, name);
    arg.value = value;
  });
  return complaint;
}

// A size is looked for in all places at once: arrays share their number of rows.
std::optional<std::string> KeyWatch::saw_shapes(const Invocation& inv) {
  std::optional<std::string> complaint;
  Sizes sizes;
  for_each_argument(inv,
                    [&](const Arg& arg, const std::string& name) { find_sizes(arg, name, sizes); });
  const std::string shapes = inv.op() + " shapes";
  for (const auto& [size, place] : sizes) {
    const std::string rest =
        without_sizes(inv, [size = size](int64_t other) { return other == size; });
    if (!are_many(inv.op() + " " + place, rest, many_values)) continue;
    complaint = shape_complaint(inv, place + " has", many_values);
    said_.insert(shapes);
  }
  if (!sizes.empty() &&
      are_many(shapes, without_sizes(inv, [](int64_t) { return true; }), many_shapes))
    complaint = shape_complaint(inv, "shapes have", many_shapes);
  return complaint;
}

}  // namespace ejk
