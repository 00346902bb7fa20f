// SPDX-License-Identifier: Apache-2.0
// One handler for all operations and types: the attribute is read once per thread, then looked up.
#include "ffi.h"

#if EJK_WITH_XLA_FFI

#include <algorithm>
#include <exception>
#include <functional>
#include <map>
#include <numeric>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <xla/ffi/api/ffi.h>

#include <ejk/error.h>
#include <ejk/record.h>
#include <ejk/value.h>

#include "named_ops.h"
#include "registered.h"

namespace ejk::python {

namespace {

namespace ffi = xla::ffi;

// What the attribute says.
struct PreparedCall {
  size_t rank = 0;  // of the first result, without the axes of vmap
  std::function<void(const std::vector<Tensor>& inputs, const std::vector<Tensor>& results)> run;
};

const Value& member(const Value& call, std::string_view name) {
  if (const Value* found = call.find(name)) return *found;
  throw Error(ErrorKind::parse, "the attribute `call` has no member " + std::string(name));
}

PreparedCall prepare_built_in(const Value& call) {
  const NamedOp& op = named_op(member(call, "op").as_string());
  const Value& options = member(call, "options");
  const DType dtype = dtype_from_name(member(call, "dtype").as_string());
  const AnyConfig config = op.read(member(call, "config"), dtype, options);
  const bool pull = member(call, "pull").as_bool();
  return {0, [&op, options, config, pull](const auto& inputs, const auto& results) {
            if (pull) op.pull(config, {inputs, options}, results);
            else op.run(config, {inputs, options}, results);
          }};
}

// Arrays that the kernel changes are results that begin as copies of inputs.
PreparedCall prepare_registered(const Value& call) {
  RecordedCall recorded;
  recorded.id.op = member(call, "registered").as_string();
  recorded.arguments = member(call, "arguments");
  const Value config = member(call, "config");
  std::vector<std::pair<size_t, size_t>> copies;
  for (const Value& pair : member(call, "copies").as_array())
    copies.emplace_back(pair.as_array().at(0).as_uint(), pair.as_array().at(1).as_uint());
  return {0, [recorded, config, copies](const auto& inputs, const auto& results) {
            for (const auto& [from, to] : copies)
              copy_elements(inputs.at(from).any(), results.at(to).any());
            RecordedCall now = recorded;
            now.arrays = inputs;
            now.arrays.insert(now.arrays.end(), results.begin(), results.end());
            run_registered(now, config, results);
          }};
}

PreparedCall prepare(std::string_view text) {
  const Value call = parse_json(text);
  PreparedCall prepared =
      call.find("registered") != nullptr ? prepare_registered(call) : prepare_built_in(call);
  prepared.rank = static_cast<size_t>(member(call, "rank").as_int());
  return prepared;
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
    std::vector<Tensor> from, to;
    for (const Batched& input : inputs) from.push_back(input.at(index));
    for (const Batched& result : results) to.push_back(result.at(index));
    call.run(from, to);
  } while (advance(index, sizes));
}

ffi::Error execute(std::string_view text, ffi::RemainingArgs args, ffi::RemainingRets rets) {
  try {
    run(prepared(text), args, rets);
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
