// SPDX-License-Identifier: Apache-2.0
// The canonical text of a call and the key and label made from it.
#include <ejk/invocation.h>

#include <algorithm>

#include <ejk/error.h>
#include <ejk/names.h>

namespace ejk {

std::string_view context_name(Context context) { return name_of(context); }

int64_t Arg::size() const {
  int64_t n = 1;
  for (int64_t d : shape) n *= d;
  return n;
}

namespace {

bool is_input(const Arg& arg) { return arg.counts() && arg.role != Role::output; }

Value items_of(const std::vector<Arg>& args) {
  Value out = Value::array();
  for (const Arg& a : args)
    if (is_input(a)) out.push_back(a.to_value());
  return out;
}

constexpr std::string_view outputs_member = "outputs_spec";

bool has_place_of_outputs(const Arg& arg) {
  return arg.counts() && (arg.role == Role::output || arg.place_of_outputs ||
                          std::ranges::any_of(arg.items, has_place_of_outputs));
}

Value outputs_of(const Arg& arg);

// In order, with null for a place that is left out before another one; null if all are.
Value outputs_of(const std::vector<Arg>& args) {
  Value out;
  size_t left_out = 0;
  for (const Arg& arg : args) {
    if (!has_place_of_outputs(arg)) continue;
    Value outputs = outputs_of(arg);
    if (outputs.is_null()) {
      ++left_out;
      continue;
    }
    for (; left_out > 0; --left_out) out.push_back(Value());
    out.push_back(std::move(outputs));
  }
  return out;
}

// What an argument adds to the outputs; null if it holds none.
Value outputs_of(const Arg& arg) {
  if (!arg.counts()) return {};
  if (arg.role == Role::output) return arg.to_value();
  if (arg.kind != Arg::Kind::dict) return outputs_of(arg.items);
  Value out;
  for (size_t i = 0; i < arg.items.size(); ++i)
    if (Value item = outputs_of(arg.items[i]); !item.is_null()) out[arg.names[i]] = std::move(item);
  return out;
}

// Those with a place in order, then the named ones as one object; null if there are none.
Value outputs_of(const Invocation& inv) {
  Value out = outputs_of(inv.args), named;
  for (const auto& [name, arg] : inv.kwargs)
    if (Value outputs = outputs_of(arg); !outputs.is_null()) named[name] = std::move(outputs);
  if (!named.is_null()) out.push_back(std::move(named));
  return out;
}

// A text that was canonical once stays as it is: maps with integer keys are not sorted by name.
void keep_order(Value& value) {
  if (value.is_array())
    for (Value& item : value.as_array()) keep_order(item);
  if (!value.is_object()) return;
  value.as_object().ordered = true;
  for (auto& [name, member] : value.as_object().members) keep_order(member);
}

}  // namespace

Arg::Arg() = default;
Arg::Arg(const Arg&) = default;
Arg::Arg(Arg&&) noexcept = default;
Arg& Arg::operator=(const Arg&) = default;
Arg& Arg::operator=(Arg&&) noexcept = default;
Arg::~Arg() = default;

Invocation::Invocation() = default;
Invocation::Invocation(const Invocation&) = default;
Invocation::Invocation(Invocation&&) noexcept = default;
Invocation& Invocation::operator=(const Invocation&) = default;
Invocation& Invocation::operator=(Invocation&&) noexcept = default;
Invocation::~Invocation() = default;

Value Arg::to_value() const {
  switch (kind) {
    case Kind::value:
      return value;
    case Kind::tensor: {
      Value out = Value::object(
          {{"dtype", dtype_name(dtype)}, {"shape", Value::Array(shape.begin(), shape.end())}});
      if (!strides.empty()) out["strides"] = Value::Array(strides.begin(), strides.end());
      return out;
    }
    case Kind::list:
      return items_of(items);
    case Kind::dict: {
      Value::Object out;
      out.ordered = ordered;
      for (size_t i = 0; i < items.size(); ++i)
        if (is_input(items[i])) out.members.emplace_back(names[i], items[i].to_value());
      return out;
    }
  }
  return {};
}

const Arg* Invocation::kw(std::string_view name) const {
  for (const auto& [known, arg] : kwargs)
    if (known == name) return &arg;
  return nullptr;
}

std::string Invocation::spec() const {
  if (!own_key.empty()) {
    Value spec = Value::object({{"key", own_key}});
    if (!numerics.is_null()) spec["numerics"] = numerics;
    if (backward) spec["objective"] = "forward+backward";
    return stable_json(spec);
  }
  Value kwargs_spec = Value::object();
  if (!key_args)
    for (const auto& [name, arg] : kwargs)
      if (is_input(arg)) kwargs_spec[name] = arg.to_value();
  // A batched call is known by its axes; one that only takes the batch hooks, by their name.
  const bool named =
      context == Context::shard_map || (context == Context::batch && batch_axes.is_null());
  Value spec = Value::object({{"args_spec", items_of(key_args ? *key_args : args)},
                              {"batch_axes", batch_axes},
                              {"kwargs_spec", std::move(kwargs_spec)},
                              {"method", named ? Value(context_name(context)) : Value()}});
  // Members the original does not know are there only when they differ from its world.
  if (!members.is_null()) spec["kernel"] = members;
  if (!numerics.is_null()) spec["numerics"] = numerics;
  if (backward) spec["objective"] = "forward+backward";
  if (!key_args)
    if (Value outputs = outputs_of(*this); !outputs.is_null())
      spec[outputs_member] = std::move(outputs);
  return stable_json(spec);
}

std::string spec_without_outputs(const std::string& spec) {
  if (spec.find(outputs_member) == std::string::npos) return {};
  try {
    Value value = parse_json(spec);
    if (value.find(outputs_member) == nullptr) return {};
    value.erase(outputs_member);
    keep_order(value);
    return stable_json(value);
  } catch (const Error&) {
    return {};
  }
}

bool Invocation::is_known_by(const std::string& text) const {
  const std::string own = spec();
  return text == own || (!text.empty() && text == spec_without_outputs(own));
}

std::string Invocation::call_key() const {
  // Results for another objective, or of one class, live beside the others, under a key of their
  // own.
  if (!own_key.empty() && !backward && numerics.is_null()) return own_key;
  return short_hash(std::string_view(spec()));
}

std::string make_label(std::string_view op, std::string_view key, std::string_view prefix) {
  // A prefix that ends in '#' is taken as it is; an empty one means the default.
  std::string label(prefix.empty() ? std::string_view("ejkernel_ops") : prefix);
  if (!label.ends_with('#')) label += '#';
  label += op;
  label += ':';
  label += key;
  return label;
}

}  // namespace ejk
