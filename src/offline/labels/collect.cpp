// SPDX-License-Identifier: Apache-2.0
// Labels as they are found, each kept once.
#include <algorithm>

#include <ejk/error.h>

#include "offline/labels/labels.h"

namespace ejk::labels {

namespace {

// The spelling for scope names has no '@' at all: the version follows the last "%v".
std::string with_version(std::string_view op) {
  std::string out(op);
  if (op.find('@') != op.npos) return out;
  if (const size_t at = out.rfind("%v"); at != out.npos) out[at] = '@';
  return out;
}

// The op in what is left of a json stamp, whose members are sorted: op_id comes last.
std::string op_of_cut_stamp(std::string_view json) {
  constexpr std::string_view member = "\"op_id\":\"";
  const size_t at = json.rfind(member);
  return at == json.npos ? std::string() : std::string(json.substr(at + member.size()));
}

}  // namespace

bool is_key(std::string_view text) {
  return text.size() == key_digits && std::ranges::all_of(text, [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

Collector::Collector(const LabelOptions& options) : prefixes_{std::string(default_prefix)} {
  for (std::string prefix : options.prefixes) {
    if (prefix.ends_with('#')) prefix.pop_back();
    if (prefix.empty()) throw Error(ErrorKind::invalid_argument, "a label's prefix is empty");
    if (std::ranges::find(prefixes_, prefix) == prefixes_.end())
      prefixes_.push_back(std::move(prefix));
  }
}

void Collector::add(Carrier carrier, Label label) {
  const auto [it, is_new] = by_text_.try_emplace(label.text, found_.size());
  if (is_new) found_.push_back({std::move(label)});
  last_ = it->second;
  ++(carrier == Carrier::attribute ? found_[last_].attributes : found_[last_].names);
}

void Collector::attribute(std::string_view value) {
  last_ = none;
  if (auto parts = parse_label(value))
    return add(Carrier::attribute,
               {make_label(parts->op, parts->key, parts->prefix), std::move(parts->prefix),
                std::move(parts->op), std::move(parts->key), false, 0});
  const size_t hash = value.find('#');
  if (hash == value.npos || hash == 0 || hash + 1 == value.size()) return;
  add(Carrier::attribute, {std::string(value),
                           std::string(value.substr(0, hash)),
                           std::string(value.substr(hash + 1)),
                           {},
                           true,
                           0});
}

void Collector::name(std::string_view prefix, std::string_view op, std::string_view key) {
  last_ = none;
  if (op.empty()) return;
  std::string whole = with_version(op);
  std::string text = make_label(whole, key, prefix);
  add(Carrier::name,
      {std::move(text), std::string(prefix), std::move(whole), std::string(key), false, 0});
}

void Collector::cut(std::string_view prefix, std::string_view op) {
  last_ = none;
  if (op.empty()) return;
  add(Carrier::name, {std::string(prefix) + '#' + std::string(op),
                      std::string(prefix),
                      std::string(op),
                      {},
                      true,
                      0});
}

void Collector::stamp(std::string_view prefix, std::string_view json) {
  last_ = none;
  try {
    const Value call = parse_json(json);
    const Value *op = call.find("op_id"), *args = call.find("args"), *kwargs = call.find("kwargs");
    if (op == nullptr || !op->is_string() || args == nullptr || kwargs == nullptr) return;
    // The text that keys are made from; a stamp says nothing of batches and methods.
    const Value spec = Value::object(
        {{"args_spec", *args}, {"batch_axes", {}}, {"kwargs_spec", *kwargs}, {"method", {}}});
    name(prefix, op->as_string(), short_hash(spec));
  } catch (const Error&) {
    cut(prefix, op_of_cut_stamp(json));
  }
}

bool Collector::again(Carrier carrier, std::string_view text) {
  const Index& known = carrier == Carrier::attribute ? attributes_ : names_;
  const auto it = known.find(text);
  if (it == known.end()) return false;
  ++(carrier == Carrier::attribute ? found_[it->second].attributes : found_[it->second].names);
  return true;
}

void Collector::remember(Carrier carrier, std::string_view text) {
  if (last_ != none)
    (carrier == Carrier::attribute ? attributes_ : names_).try_emplace(std::string(text), last_);
}

std::vector<Label> Collector::take() {
  std::vector<Label> out;
  for (Found& f : found_) {
    f.label.count = f.attributes > 0 ? f.attributes : f.names;
    out.push_back(std::move(f.label));
  }
  return out;
}

}  // namespace ejk::labels

namespace ejk {

std::string scope_label(std::string_view label) {
  std::string out(label);
  std::ranges::replace(out, '@', '%');
  return out;
}

std::optional<LabelParts> parse_label(std::string_view label) {
  const size_t hash = label.find('#'), colon = label.rfind(':');
  if (hash == label.npos || hash == 0 || colon == label.npos || colon < hash) return std::nullopt;
  const std::string_view op = label.substr(hash + 1, colon - hash - 1);
  const std::string_view key = label.substr(colon + 1);
  if (op.empty() || !labels::is_key(key)) return std::nullopt;
  return LabelParts{std::string(label.substr(0, hash)), labels::with_version(op), std::string(key)};
}

}  // namespace ejk
