// SPDX-License-Identifier: Apache-2.0
// The built-in operations by name, for callers who learn names, types and options at run time.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include <ejk/any_config.h>
#include <ejk/tensor.h>
#include <ejk/value.h>

namespace ejk::python {

struct OpCall {
  std::vector<Tensor> inputs;
  Value options;  // an object; what an operation does not name there has its default
};

class NamedOp {
 public:
  virtual ~NamedOp() = default;

  // What a call is decided by: types, shapes and options. The elements need not be there.
  virtual Value heuristic(const OpCall& call) const = 0;
  virtual std::vector<Value> candidates(const OpCall& call, bool backward) const = 0;
  virtual bool is_valid(const Value& config, const OpCall& call) const = 0;
  // Throws Error(parse).
  virtual AnyConfig read(const Value& config, DType dtype, const Value& options) const = 0;

  // Through the default executor, with arrays of any strides.
  virtual Tensor call(const OpCall& call) const = 0;
  // Throws Error(invalid_argument) unless there are as many arrays as run, or pull, takes, and
  // those that its kernel does not look at itself have the right types and shapes.
  virtual void check(const OpCall& call, std::span<const Tensor> results, bool pull) const = 0;
  // Packed, checked arrays. The results are there: the output and, where there is a second one,
  // what the gradient needs beside inputs and output.
  virtual void run(const AnyConfig& config, const OpCall& call,
                   std::span<const Tensor> results) const = 0;
  // The gradients of the inputs; python/ejk/modules says in which order the inputs come here.
  virtual void pull(const AnyConfig& config, const OpCall& call,
                    std::span<const Tensor> results) const = 0;
};

// Throws Error(invalid_argument) that lists the names.
const NamedOp& named_op(std::string_view name);

}  // namespace ejk::python
