// SPDX-License-Identifier: Apache-2.0
// One handler for all operations and types: the attribute is read once per thread, then looked up.
#include "ffi.h"

#if EJK_WITH_XLA_FFI

#include <algorithm>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <xla/ffi/api/ffi.h>

#include <ejk/error.h>
#include <ejk/registry.h>
#include <ejk/value.h>

#include "named_ops.h"

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
using Copies = std::vector<std::pair<size_t, size_t>>;
void copy(const Copies& copies, const std::vector<Tensor>& inputs, std::span<const Tensor> to) {
  for (const auto& [from, result] : copies) copy_elements(inputs.at(from).any(), to[result].any());
}

// What a kernel of a user's throws need not say whose it is.
template <class F>
void naming(const std::string& op, const F& f) {
  try {
    f();
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    const std::string what = error.what(), name = "[" + op + "] ";
    throw Error(ErrorKind::invalid_argument, what.starts_with(name) ? what : name + what);
  }
}

// What `run` returns goes into the last results.
void run_registered(const std::string& op, const ReadyCall& call, const Copies& copies,
                    const std::vector<Tensor>& inputs, const std::vector<Tensor>& results) {
  copy(copies, inputs, results);
  std::vector<Tensor> arrays = inputs;
  arrays.insert(arrays.end(), results.begin(), results.end());
  const std::vector<Tensor> returned = call.run(arrays);
  if (returned.size() > results.size())
    throw Error(ErrorKind::invalid_argument,
                "[" + op + "] returns " + std::to_string(returned.size()) +
                    " arrays, and there are results for " + std::to_string(results.size()));
  for (size_t i = 0; i < returned.size(); ++i)
    copy_elements(returned[i].any(), results[results.size() - returned.size() + i].any());
}

// inputs: those of the call, then the cotangents of its results, of which the first `written` are
// those of arrays that the kernel writes; wanted: the arguments whose gradients are the results.
struct RegisteredGradient {
  std::string op;
  std::shared_ptr<const ReadyCall> call;
  Copies copies;
  size_t arguments, inputs, written;
  std::vector<size_t> wanted;

  void operator()(const std::vector<Tensor>& given, const std::vector<Tensor>& results) const {
    std::vector<Tensor> arrays(given.begin(), given.begin() + std::ptrdiff_t(inputs));
    const std::vector<Tensor> cotangents(given.begin() + std::ptrdiff_t(inputs), given.end());
    for (size_t i = 0; i < written; ++i)
      arrays.emplace_back(cotangents.at(i).dtype(), cotangents[i].shape());
    copy(copies, given, std::span(arrays).subspan(inputs));
    const auto gradients = call->pull(arrays, cotangents);
    const bool one_each = gradients.size() == arguments;
    if (!one_each && gradients.size() != wanted.size())
      throw Error(ErrorKind::invalid_argument,
                  "[" + op + "] vjp gave " + std::to_string(gradients.size()) + " gradients for " +
                      std::to_string(arguments) + " arguments, " + std::to_string(wanted.size()) +
                      " of which are arrays of floats: one for each is needed");
    for (size_t i = 0; i < wanted.size(); ++i)
      give(gradients[one_each ? wanted[i] : i], results[i]);
  }

 private:
  void give(const std::optional<Tensor>& gradient, const Tensor& result) const {
    if (!gradient) {
      copy_elements(Tensor(result.dtype(), result.shape()).any(), result.any());
    } else if (gradient->dtype() == result.dtype() && gradient->size() == result.size()) {
      copy_elements(gradient->clone().reshaped(result.shape()).any(), result.any());
    } else
      throw Error(ErrorKind::invalid_argument,
                  "[" + op + "] vjp gave a gradient of " + std::to_string(gradient->size()) + " " +
                      std::string(dtype_name(gradient->dtype())) + " for an array of " +
                      std::to_string(result.size()) + " " +
                      std::string(dtype_name(result.dtype())));
  }
};

PreparedCall prepare_registered(const Value& call) {
  const std::string op = member(call, "registered").as_string();
  const Value& arguments = member(call, "arguments");
  const std::shared_ptr<const ReadyCall> ready = ready_call(op, arguments, member(call, "config"));
  Copies copies;
  for (const Value& pair : member(call, "copies").as_array())
    copies.emplace_back(pair.as_array().at(0).as_uint(), pair.as_array().at(1).as_uint());
  const Value* pull = call.find("pull");
  if (pull == nullptr)
    return {0, [op, ready, copies](const auto& inputs, const auto& results) {
              naming(op, [&] { run_registered(op, *ready, copies, inputs, results); });
            }};
  RegisteredGradient gradient{op,
                              ready,
                              copies,
                              arguments.as_array().size(),
                              member(*pull, "inputs").as_uint(),
                              member(*pull, "written").as_uint(),
                              {}};
  for (const Value& index : member(*pull, "wanted").as_array())
    gradient.wanted.push_back(index.as_uint());
  return {0, [gradient](const auto& inputs, const auto& results) {
            naming(gradient.op, [&] { gradient(inputs, results); });
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
