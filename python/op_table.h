// SPDX-License-Identifier: Apache-2.0
// The built-in operations by name, for callers who learn names, types and options at run time: made
// from what their folders say (src/ops/list.h).
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ejk/any_config.h>
#include <ejk/tensor.h>
#include <ejk/value.h>

#include "ops/common/description.h"

namespace ejk::python {

struct OpCall {
  std::vector<Tensor> inputs;
  Value options;  // an object; what an operation does not name there has its default
};

using ArrayType = std::pair<DType, std::vector<int64_t>>;

class NamedOp {
 public:
  virtual ~NamedOp() = default;
  virtual const ops::Description& description() const = 0;

  // What a call is decided by: types, shapes and options. The elements need not be there.
  virtual Value heuristic(const OpCall& call) const = 0;
  virtual std::vector<Value> candidates(const OpCall& call, bool backward) const = 0;
  virtual bool is_valid(const Value& config, const OpCall& call) const = 0;
  virtual Value numerics(const Value& config, const OpCall& call) const = 0;
  // Of what run writes: the result, then what is kept for the gradient.
  virtual std::vector<ArrayType> results(const OpCall& call) const = 0;
  // Throws Error(parse).
  virtual AnyConfig read(const Value& config, DType dtype, const Value& options) const = 0;

  // Through the default executor, with arrays of any strides.
  virtual Tensor call(const OpCall& call) const = 0;
  // Throws Error(invalid_argument) unless the arrays are as the description says.
  virtual void check(const OpCall& call, std::span<const Tensor> results, bool pull) const = 0;
  // Packed, checked arrays. The results are there: the output and, where they are wanted, what is
  // kept for the gradient.
  virtual void run(const AnyConfig& config, const OpCall& call,
                   std::span<const Tensor> results) const = 0;
  // The gradients of the inputs that are there, from the inputs, the result if it is taken, what
  // was kept, and the cotangent.
  virtual void pull(const AnyConfig& config, const OpCall& call,
                    std::span<const Tensor> results) const = 0;
};

// Throws Error(invalid_argument) that lists the names.
const NamedOp& named_op(std::string_view name);
std::vector<std::string> op_names();

}  // namespace ejk::python
