// SPDX-License-Identifier: Apache-2.0
// The arrays of a call against what its operation's description says of them.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "op_table.h"

namespace ejk::python {

// The value that an option has in a call; nullptr: none.
const Value* option(const ops::Description& op, const Value& options, std::string_view name);
DType result_type(const ops::Description& op, const Value& options, DType first);

// The arrays of a call in the order of the description; nullptr for those that are not there.
// `behind` are the inputs after them.
struct OpArrays {
  std::vector<const Tensor*> arrays;
  std::span<const Tensor> behind;
};
// Throws Error(invalid_argument) if there are too few.
OpArrays arrays_of(const ops::Description& op, const OpCall& call);

// The sizes that the names in a description stand for, as arrays come along.
class OpSizes {
 public:
  OpSizes(const ops::Description& op, const OpCall& call);

  // Throws Error(invalid_argument) if the array is another one than described.
  void meet(const std::string& name, const ops::DescribedArray& needed, const Tensor& given);
  ArrayType type(const ops::DescribedArray& array) const;

 private:
  DType dtype(const ops::DescribedArray& array) const;

  const ops::Description& op_;
  DType first_ = DType::float32, result_ = DType::float32;
  std::map<std::string_view, int64_t> known_;
};

[[noreturn]] void refuse_arrays(const ops::Description& op, const std::string& given,
                                const std::string& needed);

}  // namespace ejk::python
