// SPDX-License-Identifier: Apache-2.0
// One call, abstractly: what heuristics look at and what keys are made of.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ejk/any_config.h>
#include <ejk/detail/export.h>
#include <ejk/device.h>
#include <ejk/tensor.h>
#include <ejk/value.h>

namespace EJK_EXPORT ejk {

// Whether `run` reads an argument, changes it in place, or only writes it.
enum class Role : uint8_t { input, in_out, output };

// An argument without its data: a tensor's type, shape and strides, a scalar's value or type, or a
// nest of those.
struct Arg {
  // Which of the fields below count.
  enum class Kind : uint8_t { value, tensor, list, dict };

  // Not inline, here and below: each program would compile them again.
  Arg();
  Arg(const Arg& other);
  Arg(Arg&& other) noexcept;
  Arg& operator=(const Arg& other);
  Arg& operator=(Arg&& other) noexcept;
  ~Arg();

  // What the argument is and what `run` does with it.
  Kind kind = Kind::value;
  Role role = Role::input;
  DType dtype = DType::float32;    // tensors, and scalars that count by type only (rank 0)
  std::vector<int64_t> shape;      // tensors: elements along each axis
  std::vector<int64_t> strides;    // in elements; empty: packed
  Value value;                     // scalars that count by value
  bool unkeyed = false;            // not part of the key
  bool place_of_outputs = false;   // outputs may stand here, and may be left out
  std::vector<Arg> items;          // list and dict
  std::vector<std::string> names;  // dict: of the items
  bool ordered = false;            // dict: keep the order of the names in the key text

  int64_t size() const;                     // number of elements of a tensor
  bool counts() const { return !unkeyed; }  // is part of the key
  Value to_value() const;                   // as it stands in the key text, without its outputs
};

// The context a kernel is called in; selects the `_shard_map` and `_batch` hooks.
enum class Context : uint8_t { plain, shard_map, batch };
std::string_view context_name(Context context);  // "", "shard_map", "batch"

// What is known of a call when a configuration must be found for it.
struct Invocation {
  Invocation();
  Invocation(const Invocation& other);
  Invocation(Invocation&& other) noexcept;
  Invocation& operator=(const Invocation& other);
  Invocation& operator=(Invocation&& other) noexcept;
  ~Invocation();

  std::string op_id, version;  // the kernel's
  // Where the call runs: the device (never null in a call), its platform, and the context that
  // selects hooks.
  const Device* device = nullptr;
  Platform platform = Platform::cpu;
  Context context = Context::plain;
  std::vector<Arg> args;  // run's parameters in order, named ones left out
  std::vector<std::pair<std::string, Arg>> kwargs;  // the named ones
  std::optional<std::vector<Arg>> key_args;         // what the `key` hook returned, if there is one
  std::string own_key;                              // the key itself, made by the kernel; "": none
  Value members;                                    // the kernel's own data members; null: none
  Value batch_axes;                                 // of a batched call: argument index -> axis
  bool backward = false;                            // forward plus backward is what counts
  Value numerics;                                   // the class a config must have; null: any
  AnyConfig override_cfg;                           // given with the call
  std::vector<uint64_t> words;                      // the warm key; empty: not to be kept warm
  uint32_t record = 0;                              // in a recording; 0: is not recorded
  std::string data;                                 // where the data come from; "": the caller

  // The named argument, nullptr if the kernel has none of that name.
  const Arg* kw(std::string_view name) const;

  std::string op() const { return op_id + "@v" + version; }  // as in entries and labels
  // The canonical text of the abstract arguments. Outputs stand in a member of their own, which a
  // call without outputs does not have. With a key of the kernel's own it holds that key alone, so
  // that calls which share the key share their entry.
  std::string spec() const;
  // Whether that is the text of this call, with or without its outputs (spec_without_outputs).
  bool is_known_by(const std::string& text) const;
  // The first 16 hex digits of its SHA-256, or the kernel's own key.
  std::string call_key() const;
};

// The same text without the outputs: what the call was stored and recorded under before outputs
// counted. "" if there are none in it.
std::string spec_without_outputs(const std::string& spec);

// "PREFIX#OP:KEY", with OP = "name@vVERSION".
std::string make_label(std::string_view op, std::string_view key,
                       std::string_view prefix = "ejkernel_ops");

}  // namespace ejk
