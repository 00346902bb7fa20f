// SPDX-License-Identifier: Apache-2.0
// Names and numbers of a description become sizes.
#include "op_arrays.h"

#include <charconv>

#include <ejk/error.h>

namespace ejk::python {

namespace {

std::string name_of(const ops::Description& op) { return "[" + std::string(op.name) + "] "; }

std::string type_text(DType dtype, const std::string& shape) {
  return std::string(dtype_name(dtype)) + shape;
}

std::vector<std::string_view> split(std::string_view sizes) {
  std::vector<std::string_view> out;
  for (size_t comma = 0; comma != sizes.npos;) {
    comma = sizes.find(", ");
    out.push_back(sizes.substr(0, comma));
    if (comma != sizes.npos) sizes.remove_prefix(comma + 2);
  }
  return out;
}

// A name without its *, which makes a 1 do as well.
bool drop_star(std::string_view& name) {
  const bool star = name.ends_with('*');
  if (star) name.remove_suffix(1);
  return star;
}

std::optional<int64_t> number(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

void refuse_arrays(const ops::Description& op, const std::string& given,
                   const std::string& needed) {
  throw Error(ErrorKind::invalid_argument, name_of(op) + "got " + given + "; expected " + needed);
}

const Value* option(const ops::Description& op, const Value& options, std::string_view name) {
  const Value* found = options.find(name);
  for (const ops::DescribedOption& known : op.options)
    if (known.name == name && (found == nullptr || found->is_null())) found = &known.otherwise;
  return found == nullptr || found->is_null() ? nullptr : found;
}

DType result_type(const ops::Description& op, const Value& options, DType first) {
  const Value* name = option(op, options, "result");
  return name == nullptr ? op.result.dtype.value_or(first) : dtype_from_name(name->as_string());
}

OpArrays arrays_of(const ops::Description& op, const OpCall& call) {
  OpArrays out;
  size_t at = 0;
  for (const ops::DescribedArray& array : op.arrays) {
    const Value* there = array.may_miss ? call.options.find(array.name) : nullptr;
    if (array.may_miss && (there == nullptr || there->is_null() || !there->as_bool())) {
      out.arrays.push_back(nullptr);
      continue;
    }
    if (at == call.inputs.size())
      throw Error(ErrorKind::invalid_argument,
                  name_of(op) + std::to_string(at) + " arrays were given: more are needed");
    out.arrays.push_back(&call.inputs[at++]);
  }
  out.behind = std::span(call.inputs).subspan(at);
  return out;
}

OpSizes::OpSizes(const ops::Description& op, const OpCall& call) : op_(op) {
  if (!call.inputs.empty()) first_ = call.inputs[0].dtype();
  result_ = result_type(op, call.options, first_);
}

DType OpSizes::dtype(const ops::DescribedArray& array) const {
  return array.dtype.value_or(&array == &op_.result ? result_ : first_);
}

ArrayType OpSizes::type(const ops::DescribedArray& array) const {
  std::vector<int64_t> shape;
  for (std::string_view size : split(array.sizes)) {
    drop_star(size);
    const std::optional<int64_t> fixed = number(size);
    shape.push_back(fixed ? *fixed : known_.at(size));
  }
  return {dtype(array), std::move(shape)};
}

void OpSizes::meet(const std::string& name, const ops::DescribedArray& needed,
                   const Tensor& given) {
  const std::vector<std::string_view> sizes = split(needed.sizes);
  bool fits = given.dtype() == dtype(needed) && std::ssize(sizes) == given.rank();
  std::string wanted;
  for (size_t d = 0; d < sizes.size(); ++d) {
    std::string_view size = sizes[d];
    const bool or_one = drop_star(size);
    std::optional<int64_t> known = number(size);
    if (const auto found = known_.find(size); !known && found != known_.end())
      known = found->second;
    if (fits) {
      const int64_t here = given.shape()[d];
      if (!known || (or_one && *known == 1)) known = known_[size] = here;
      fits = here == *known || (or_one && here == 1);
    }
    wanted += (wanted.empty() ? "" : ", ") + (known ? std::to_string(*known) : std::string(size));
  }
  if (fits) return;
  wanted = type_text(dtype(needed), "[" + wanted + "]");
  if (std::ssize(sizes) != given.rank()) wanted += ", " + std::to_string(sizes.size()) + " axes";
  refuse_arrays(op_, name + " of " + type_text(given.dtype(), shape_text(given.shape())), wanted);
}

}  // namespace ejk::python
