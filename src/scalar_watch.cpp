// SPDX-License-Identifier: Apache-2.0
// Notices a scalar that makes a new key with every value.
#include "scalar_watch.h"

#include <fmt/format.h>

namespace ejk {

namespace {

constexpr int many_keys = 16;
constexpr size_t most_watched = 4096;  // bounds the memory; what is beyond is not watched

// What is described by an object or an array may be the shape of something.
bool is_scalar(const Arg& arg) {
  const Value& value = arg.value;
  return arg.kind == Arg::Kind::value && !arg.unkeyed && !value.is_null() && !value.is_object() &&
         !value.is_array();
}

}  // namespace

std::optional<std::string> ScalarWatch::saw(const Invocation& inv) {
  if (inv.key_args) return std::nullopt;  // the kernel decided itself
  std::optional<std::string> complaint;
  Invocation blanked = inv;
  auto watch = [&](Arg& arg, const std::string& name) {
    if (!is_scalar(arg)) return;
    const Value value = std::exchange(arg.value, Value());
    const std::string scalar = inv.op() + " " + name;
    const std::string rest = scalar + " " + blanked.spec();
    arg.value = value;
    std::lock_guard lock(mutex_);
    if (keys_.size() >= most_watched && !keys_.contains(rest)) return;
    if (++keys_[rest] != many_keys || !said_.insert(scalar).second) return;
    complaint = fmt::format(
        "[{}] {} has made {} keys that differ in nothing else, and each is tuned on its own; if "
        "its value does not change which config is best, keep it out of the key (C++: "
        "ejk::Unkeyed<...>, a `key` hook; Python: an array, a key_builder)",
        inv.op(), name, many_keys);
  };
  for (size_t i = 0; i < blanked.args.size(); ++i)
    watch(blanked.args[i], "argument " + std::to_string(i));
  for (auto& [name, arg] : blanked.kwargs) watch(arg, "argument \"" + name + "\"");
  return complaint;
}

}  // namespace ejk
