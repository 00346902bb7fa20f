// SPDX-License-Identifier: Apache-2.0
// What an operation is to callers who learn names, types and options at run time.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include <ejk/tensor.h>
#include <ejk/value.h>

namespace ejk::ops {

struct DescribedArray {
  std::string_view name;
  // "rows, 3": numbers, or names that stand for one size in all arrays of a call. After a name, *
  // says that a 1 does as well.
  std::string_view sizes;
  std::optional<DType> dtype = {};  // default: that of the first array
  bool may_miss = false;            // then the option of its name says whether it is there
};

struct DescribedOption {
  enum class Kind { flag, number, whole_number, dtype };
  std::string_view name;
  Kind kind;
  Value otherwise = {};
};

// Arrays and options come in the order of the kernel's run and of the function on tensors; fields
// of structs are found by their names. The option "result" is the result's type.
struct Description {
  std::string_view name;
  std::vector<DescribedArray> arrays;
  std::vector<DescribedOption> options;
  DescribedArray result;
  std::vector<DescribedArray> kept = {};  // by forward for the gradient: fields of Residuals
  size_t gradients = 0;                   // there are some of that many arrays
  // Whether the gradient takes the result, after the arrays or in place of the first.
  enum class TakesResult { no, after_arrays, as_first_array };
  TakesResult gradient_takes_result = TakesResult::no;
};

template <class... K>
struct KernelTypes {};

}  // namespace ejk::ops
