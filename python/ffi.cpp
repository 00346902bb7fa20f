// SPDX-License-Identifier: Apache-2.0
// One handler for all operations and types: what XLA hands over becomes a custom call without XLA.
#include "ffi.h"

#if EJK_WITH_XLA_FFI

#include <exception>
#include <map>
#include <new>
#include <string_view>
#include <vector>

#include <xla/ffi/api/ffi.h>

#include <ejk/error.h>

#include "custom_call.h"

namespace ejk::python {

namespace {

namespace ffi = xla::ffi;

DType dtype_of_buffer(ffi::DataType type) {
  using Type = ffi::DataType;
  static const std::map<Type, DType> known = {
      {Type::PRED, DType::boolean}, {Type::S8, DType::int8},       {Type::S16, DType::int16},
      {Type::S32, DType::int32},    {Type::S64, DType::int64},     {Type::U8, DType::uint8},
      {Type::U16, DType::uint16},   {Type::U32, DType::uint32},    {Type::U64, DType::uint64},
      {Type::F16, DType::float16},  {Type::BF16, DType::bfloat16}, {Type::F32, DType::float32},
      {Type::F64, DType::float64},  {Type::C64, DType::complex64}, {Type::C128, DType::complex128}};
  const auto found = known.find(type);
  if (found == known.end())
    throw Error(ErrorKind::invalid_argument, "an array of a type that C++ kernels do not take");
  return found->second;
}

CallArray array_of(const ffi::AnyBuffer& buffer) {
  const auto dimensions = buffer.dimensions();
  return {buffer.untyped_data(),
          dtype_of_buffer(buffer.element_type()),
          {dimensions.begin(), dimensions.size()}};
}

// What XLA cannot decode is an argument that is not a buffer: a token, for example.
template <class T>
T decoded(const ffi::ErrorOr<T>& found) {
  if (!found.has_value()) throw Error(ErrorKind::invalid_argument, found.error().message());
  return found.value();
}

ffi::Error execute(std::string_view attribute, ffi::RemainingArgs args, ffi::RemainingRets rets) {
  try {
    std::vector<CallArray> inputs, results;
    for (size_t i = 0; i < args.size(); ++i)
      inputs.push_back(array_of(decoded(args.get<ffi::AnyBuffer>(i))));
    for (size_t i = 0; i < rets.size(); ++i)
      results.push_back(array_of(*decoded(rets.get<ffi::AnyBuffer>(i))));
    run_custom_call(attribute, inputs, results);
    return ffi::Error::Success();
  } catch (const Error& error) {
    return ffi::Error(ffi::ErrorCode::kInvalidArgument, error.what());
  } catch (const std::bad_alloc&) {
    return ffi::Error(ffi::ErrorCode::kResourceExhausted, "no memory for a C++ kernel");
  } catch (const std::exception& error) {
    return ffi::Error(ffi::ErrorCode::kInternal, error.what());
  }
}

XLA_FFI_DEFINE_HANDLER(
    handler, execute,
    ffi::Ffi::Bind().Attr<std::string_view>("call").RemainingArgs().RemainingRets());

}  // namespace

nanobind::object ffi_handler() { return nanobind::capsule(reinterpret_cast<void*>(handler)); }
nanobind::object ffi_version() {
  return nanobind::make_tuple(XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR);
}

}  // namespace ejk::python

#else

namespace ejk::python {
nanobind::object ffi_handler() { return nanobind::none(); }
nanobind::object ffi_version() { return nanobind::none(); }
}  // namespace ejk::python

#endif
