// SPDX-License-Identifier: Apache-2.0
// The built-in operations for Python: what a call is decided by, and calls with arrays in memory.
#include "bind.h"

#include <nanobind/ndarray.h>

#include <array>
#include <cstdlib>
#include <utility>

#include "ffi.h"
#include "op_table.h"

namespace ejk::python {

namespace {

using Array = nb::ndarray<nb::ro, nb::device::cpu>;

DType dtype_of_array(const Array& array) {
  const nb::dlpack::dtype given = array.dtype();
  const auto is = [&](nb::dlpack::dtype_code code, int bits) {
    return given.code == static_cast<uint8_t>(code) && given.bits == bits && given.lanes == 1;
  };
  using Code = nb::dlpack::dtype_code;
  if (is(Code::Float, 32)) return DType::float32;
  if (is(Code::Bfloat, 16)) return DType::bfloat16;
  if (is(Code::Int, 32)) return DType::int32;
  if (is(Code::UInt, 16)) return DType::uint16;
  if (is(Code::Float, 64)) return DType::float64;
  if (is(Code::Float, 16)) return DType::float16;
  if (is(Code::Int, 64)) return DType::int64;
  throw Error(ErrorKind::invalid_argument, "an array of type code " + std::to_string(given.code) +
                                               " with " + std::to_string(given.bits) +
                                               " bits was given: float32 or bfloat16 are needed");
}

Tensor tensor_of(const Array& array, bool bits_of_bfloat16) {
  std::vector<int64_t> shape, strides;
  for (size_t d = 0; d < array.ndim(); ++d) {
    shape.push_back(static_cast<int64_t>(array.shape(d)));
    strides.push_back(array.stride(d));
  }
  DType dtype = dtype_of_array(array);
  if (bits_of_bfloat16 && dtype == DType::uint16) dtype = DType::bfloat16;
  return Tensor::around({const_cast<void*>(static_cast<const void*>(array.data())), dtype,
                         Platform::cpu, shape, strides, false});
}

nb::object array_of(const Tensor& tensor, bool numpy) {
  std::vector<size_t> shape(tensor.shape().begin(), tensor.shape().end());
  auto* kept = new Tensor(tensor);
  const nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<Tensor*>(p); });
  nb::dlpack::dtype dtype = nb::dtype<float>();
  if (tensor.dtype() == DType::bfloat16) {
    dtype = nb::dtype<uint16_t>();  // which NumPy knows
    if (!numpy) dtype.code = static_cast<uint8_t>(nb::dlpack::dtype_code::Bfloat);
  }
  void* const data = kept->any().data;
  if (numpy)
    return nb::ndarray<nb::numpy>(data, shape.size(), shape.data(), owner, nullptr, dtype).cast();
  return nb::ndarray<nb::array_api>(data, shape.size(), shape.data(), owner, nullptr, dtype).cast();
}

using Described = std::vector<std::pair<std::string, std::vector<int64_t>>>;  // types and shapes

// A call without elements.
OpCall described(const Described& arrays, nb::handle options) {
  OpCall call{{}, value_of(options)};
  for (const auto& [dtype, shape] : arrays)
    call.inputs.push_back(
        Tensor::around({nullptr, dtype_from_name(dtype), Platform::cpu, shape, {}, false}));
  return call;
}

const char* kind_name(ops::DescribedOption::Kind kind) {
  using Kind = ops::DescribedOption::Kind;
  switch (kind) {
    case Kind::flag:
      return "flag";
    case Kind::number:
      return "number";
    case Kind::whole_number:
      return "whole_number";
    case Kind::dtype:
      return "dtype";
  }
  std::abort();
}

nb::dict described(const ops::Description& op) {
  nb::list arrays, options;
  for (const ops::DescribedArray& array : op.arrays)
    arrays.append(nb::make_tuple(std::string(array.name), array.may_miss));
  for (const ops::DescribedOption& option : op.options)
    options.append(nb::make_tuple(std::string(option.name), kind_name(option.kind),
                                  object_of(option.otherwise)));
  using TakesResult = ops::Description::TakesResult;
  nb::dict out;
  out["arrays"] = arrays;
  out["options"] = options;
  out["gradients"] = op.gradients;
  out["takes_result"] = op.gradient_takes_result == TakesResult::after_arrays;
  out["result_is_first"] = op.gradient_takes_result == TakesResult::as_first_array;
  return out;
}

}  // namespace

void bind_ops(nb::module_& m) {
  m.def(
      "op_descriptions",
      [] {
        nb::dict out;
        for (const std::string& name : op_names())
          out[name.c_str()] = described(named_op(name).description());
        return out;
      },
      in_core(),
      "Of each built-in operation: (name, may miss) of its arrays, (name, kind, default) of its "
      "options, of how many arrays there are gradients, and whether these take the result, after "
      "the arrays or in place of the first.");
  m.def(
      "op_results",
      [](const std::string& op, const Described& arrays, nb::handle options) {
        nb::list out;
        for (const auto& [dtype, shape] : named_op(op).results(described(arrays, options)))
          out.append(nb::make_tuple(nb::tuple(nb::cast(shape)), std::string(dtype_name(dtype))));
        return out;
      },
      in_core(), "(shape, dtype) of the result, then of what is kept for the gradient.");
  m.def(
      "op_heuristic",
      [](const std::string& op, const Described& arrays, nb::handle options) {
        return object_of(named_op(op).heuristic(described(arrays, options)));
      },
      in_core(),
      "The heuristic's config of a built-in operation, for (dtype, shape) of its arrays.");
  m.def(
      "op_candidates",
      [](const std::string& op, const Described& arrays, nb::handle options, bool backward) {
        nb::list out;
        for (const Value& config : named_op(op).candidates(described(arrays, options), backward))
          out.append(object_of(config));
        return out;
      },
      in_core());
  m.def(
      "op_is_valid",
      [](const std::string& op, nb::handle config, const Described& arrays, nb::handle options) {
        return named_op(op).is_valid(value_of(config), described(arrays, options));
      },
      in_core());
  m.def(
      "op_numerics",
      [](const std::string& op, nb::handle config, const Described& arrays, nb::handle options) {
        return object_of(named_op(op).numerics(value_of(config), described(arrays, options)));
      },
      in_core());
  m.def(
      "op_call",
      [](const std::string& op, const std::vector<Array>& arrays, nb::handle options,
         bool bits_of_bfloat16, bool numpy) {
        OpCall call{{}, value_of(options)};
        for (const Array& array : arrays) call.inputs.push_back(tensor_of(array, bits_of_bfloat16));
        return array_of(without_gil([&] { return named_op(op).call(call); }), numpy);
      },
      nb::arg("op"), nb::arg("arrays"), nb::arg("options"), nb::arg("bits_of_bfloat16") = false,
      nb::arg("numpy") = true, in_core(),
      "Runs a built-in operation on arrays in memory, through the C++ library's default executor.");
  m.def("ffi_handler", &ffi_handler, "The handler for XLA; None where it was built without JAX.");
  m.def("ffi_version", &ffi_version, "(major, minor) of the FFI it was built with, or None.");
}

}  // namespace ejk::python
