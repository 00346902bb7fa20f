// SPDX-License-Identifier: Apache-2.0
// One handler for all operations and types: the attribute is read once per thread, then looked up.
#include "ffi.h"

#if EJK_WITH_XLA_FFI

#include <algorithm>
#include <exception>
#include <functional>
#include <numeric>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <xla/ffi/api/ffi.h>

#include <ejk/error.h>
#include <ejk/value.h>

#include "named_ops.h"

namespace ejk::python {

namespace {

namespace ffi = xla::ffi;

struct PreparedCall {
  const NamedOp* op;
  AnyConfig config;
  Value options;
  bool pull;
  size_t rank;  // of the first result, without the axes of vmap
};

PreparedCall prepare(std::string_view text) {
  const Value call = parse_json(text);
  const auto member = [&](std::string_view name) -> const Value& {
    if (const Value* found = call.find(name)) return *found;
    throw Error(ErrorKind::parse, "the attribute `call` has no member " + std::string(name));
  };
  const NamedOp& op = named_op(member("op").as_string());
  const DType dtype = dtype_from_name(member("dtype").as_string());
  return {&op, op.read(member("config"), dtype, member("options")), member("options"),
          member("pull").as_bool(), static_cast<size_t>(member("rank").as_int())};
}

struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};

// Threads of XLA stay, so what one of them has read it keeps.
const PreparedCall& prepared(std::string_view text) {
  constexpr size_t most = 4096;
  thread_local std::unordered_map<std::string, PreparedCall, TextHash, std::equal_to<>> known;
  if (const auto found = known.find(text); found != known.end()) return found->second;
  if (known.size() >= most) known.clear();
  return known.emplace(std::string(text), prepare(text)).first->second;
}

DType dtype_of_buffer(ffi::DataType type) {
  switch (type) {
    case ffi::DataType::F32:
      return DType::float32;
    case ffi::DataType::BF16:
      return DType::bfloat16;
    case ffi::DataType::S32:
      return DType::int32;
    default:
      throw Error(ErrorKind::invalid_argument,
                  "an array of a type that built-in operations do not take");
  }
}

// An array of a call, and how it goes through the axes of vmap.
struct Batched {
  std::byte* data;
  DType dtype;
  std::span<const int64_t> outer, inner;

  Batched(ffi::AnyBuffer buffer, size_t outer_axes)
      : data(static_cast<std::byte*>(buffer.untyped_data())),
        dtype(dtype_of_buffer(buffer.element_type())) {
    const std::span<const int64_t> shape(buffer.dimensions().begin(), buffer.dimensions().size());
    if (shape.size() < outer_axes)
      throw Error(ErrorKind::invalid_argument, "an array has fewer axes than are mapped over");
    outer = shape.first(outer_axes), inner = shape.subspan(outer_axes);
  }
  Tensor at(std::span<const int64_t> index) const {
    int64_t element = 0;
    for (size_t d = 0; d < outer.size(); ++d)
      element = element * outer[d] + (outer[d] == 1 ? 0 : index[d]);
    const int64_t size =
        std::accumulate(inner.begin(), inner.end(), int64_t{1}, std::multiplies<>());
    const size_t bytes = static_cast<size_t>(element * size) * dtype_bits(dtype) / 8;
    return Tensor::around({data + bytes, dtype, Platform::cpu, inner, {}, true});
  }
};

// Whether there is another index after this one.
bool advance(std::vector<int64_t>& index, std::span<const int64_t> sizes) {
  for (size_t d = index.size(); d-- > 0;) {
    if (++index[d] < sizes[d]) return true;
    index[d] = 0;
  }
  return false;
}

void run(const PreparedCall& call, ffi::RemainingArgs& args, ffi::RemainingRets& rets) {
  const size_t all_axes = (*rets.get<ffi::AnyBuffer>(0))->dimensions().size();
  const size_t outer_axes = all_axes - std::min(all_axes, call.rank);
  std::vector<Batched> inputs, results;
  for (size_t i = 0; i < args.size(); ++i)
    inputs.emplace_back(*args.get<ffi::AnyBuffer>(i), outer_axes);
  for (size_t i = 0; i < rets.size(); ++i)
    results.emplace_back(**rets.get<ffi::AnyBuffer>(i), outer_axes);
  const std::span<const int64_t> sizes = results[0].outer;
  if (std::ranges::find(sizes, 0) != sizes.end()) return;
  std::vector<int64_t> index(outer_axes, 0);
  do {
    OpCall one{{}, call.options};
    std::vector<Tensor> to;
    for (const Batched& input : inputs) one.inputs.push_back(input.at(index));
    for (const Batched& result : results) to.push_back(result.at(index));
    if (call.pull) call.op->pull(call.config, one, to);
    else call.op->run(call.config, one, to);
  } while (advance(index, sizes));
}

ffi::Error execute(std::string_view text, ffi::RemainingArgs args, ffi::RemainingRets rets) {
  try {
    run(prepared(text), args, rets);
    return ffi::Error::Success();
  } catch (const Error& error) {
    return ffi::Error(ffi::ErrorCode::kInvalidArgument, error.what());
  } catch (const std::bad_alloc&) {
    return ffi::Error(ffi::ErrorCode::kResourceExhausted, "no memory for a built-in operation");
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
