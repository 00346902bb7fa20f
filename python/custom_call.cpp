// SPDX-License-Identifier: Apache-2.0
// The attribute is read once per thread, and checked once for arrays of the same types and shapes.
#include "custom_call.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <new>
#include <numeric>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <ejk/error.h>
#include <ejk/record.h>
#include <ejk/registry.h>
#include <ejk/value.h>

#include "op_table.h"

namespace ejk::python {

namespace {

using Arrays = std::vector<Tensor>;

// What the attribute says.
struct PreparedCall {
  size_t rank = 0;  // of the first result, without the axes of vmap
  std::function<void(const Arrays&inputs, const Arrays&results)> check, run;
  std::vector<int64_t> checked;  // types and shapes of the arrays that `check` has accepted
};

[[noreturn]] void refuse(const std::string& why) { throw Error(ErrorKind::invalid_argument, why); }

const Value& member(const Value& call, std::string_view name) {
  if (const Value* found = call.find(name)) return *found;
  throw Error(ErrorKind::parse, "the attribute `call` has no member " + std::string(name));
}

PreparedCall prepare_built_in(const Value& call) {
  const NamedOp& op = named_op(member(call, "op").as_string());
  const Value& options = member(call, "options");
  if (!options.is_object()) refuse("the attribute `call` has options that are not an object");
  const DType dtype = dtype_from_name(member(call, "dtype").as_string());
  const AnyConfig config = op.read(member(call, "config"), dtype, options);
  const bool pull = member(call, "pull").as_bool();
  return {0,
          [&op, options, dtype, pull](const Arrays& inputs, const Arrays& results) {
            if (inputs.empty() || inputs[0].dtype() != dtype)
              refuse("the attribute `call` says " + std::string(dtype_name(dtype)) +
                     ": the first array is needed, of that type");
            op.check({inputs, options}, results, pull);
          },
          [&op, options, config, pull](const Arrays& inputs, const Arrays& results) {
            if (pull) op.pull(config, {inputs, options}, results);
            else op.run(config, {inputs, options}, results);
          },
          {}};
}

// ---- kernels of libraries -----------------------------------------------------------------------

// What a kernel of a user's throws need not say whose it is.
template <class F>
void naming(const std::string& op, const F& f) {
  try {
    f();
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    const std::string what = error.what(), name = "[" + op + "] ";
    refuse(what.starts_with(name) ? what : name + what);
  }
}

// An index or a count of the attribute, which must be below `end`.
size_t below(size_t end, const Value& number, std::string_view what) {
  if (number.kind() != Value::Kind::integer || number.as_int() < 0 ||
      std::cmp_greater_equal(number.as_int(), end))
    refuse("the attribute `call` has " + std::string(what) + " " +
           stable_json(number).substr(0, 100) + ": one from 0 to " + std::to_string(end) +
           " (excluded) is needed");
  return static_cast<size_t>(number.as_int());
}

bool is_written(const Arg& arg) {
  return arg.kind == Arg::Kind::tensor ? arg.role != Role::input
                                       : std::ranges::any_of(arg.items, is_written);
}

// The first `inputs` arrays are only read: no argument that the kernel writes may name them.
void check_written(const Value& argument, size_t inputs) {
  if (const Value* given = argument.find("given")) {
    if (std::cmp_less(given->as_int(), inputs))
      refuse("an argument that is written names array " + stable_json(*given) +
             ", which is an input: a result is needed");
  } else if (argument.is_array()) {
    for (const Value& part : argument.as_array()) check_written(part, inputs);
  } else if (argument.is_object()) {
    for (const auto& [name, part] : argument.as_object().members) check_written(part, inputs);
  }
}

struct RegisteredCall {
  std::string op;
  Value arguments, config;
  std::shared_ptr<const ReadyCall> ready;
  std::vector<std::pair<Value, Value>> copies;  // results that begin as copies of inputs

  explicit RegisteredCall(const Value& call)
      : op(member(call, "registered").as_string()),
        arguments(member(call, "arguments")),
        config(member(call, "config")),
        ready(ready_call(op, arguments, config)) {
    for (const Value& pair : member(call, "copies").as_array()) {
      if (!pair.is_array() || pair.as_array().size() != 2)
        refuse("the attribute `call` has a copy that is not a pair of an input and a result");
      copies.emplace_back(pair.as_array()[0], pair.as_array()[1]);
    }
  }

  void copy(const Arrays& inputs, std::span<const Tensor> to) const {
    for (const auto& [from, result] : copies)
      copy_elements(inputs[below(inputs.size(), from, "a copy of input")].any(),
                    to[below(to.size(), result, "a copy to result")].any());
  }

  // Whether the kernel takes these arrays, of which the first `inputs` are not written, with this
  // config.
  void check(const Arrays& arrays, size_t inputs) const {
    RecordedCall recorded;
    recorded.id.op = op;
    recorded.arguments = arguments;
    recorded.arrays = arrays;
    const auto call = rebuild_call(recorded);
    const std::vector<Arg>& args = call->invocation().args;
    for (size_t i = 0; i < std::min(args.size(), arguments.as_array().size()); ++i)
      if (is_written(args[i])) check_written(arguments.as_array()[i], inputs);
    const ConfigType& type = call->kernel().config_type();
    std::string why;
    const AnyConfig read(type.from_value(config, why), &type);
    if (!read) refuse("the config does not fit the kernel: " + why);
    if (!call->kernel().is_valid(read, call->invocation()))
      refuse("the config is not valid for these arrays (is_valid): " +
             stable_json(config).substr(0, 200));
  }
};

// What `run` returns goes into the last results.
void run_registered(const RegisteredCall& call, const Arrays& inputs, const Arrays& results) {
  call.copy(inputs, results);
  Arrays arrays = inputs;
  arrays.insert(arrays.end(), results.begin(), results.end());
  const Arrays returned = call.ready->run(arrays);
  if (returned.size() > results.size())
    refuse("returns " + std::to_string(returned.size()) + " arrays, and there are results for " +
           std::to_string(results.size()));
  for (size_t i = 0; i < returned.size(); ++i)
    copy_elements(returned[i].any(), results[results.size() - returned.size() + i].any());
}

// given: the inputs of the call, then the cotangents of its results, of which the first `written`
// are those of arrays that the kernel writes; wanted: the arguments whose gradients are the
// results.
struct RegisteredGradient {
  RegisteredCall call;
  Value inputs, written;
  std::vector<size_t> wanted;

  RegisteredGradient(const RegisteredCall& forward, const Value& pull)
      : call(forward), inputs(member(pull, "inputs")), written(member(pull, "written")) {
    const size_t arguments = call.arguments.as_array().size();
    for (const Value& index : member(pull, "wanted").as_array())
      wanted.push_back(below(arguments, index, "the gradient of argument"));
  }

  void check(const Arrays& given, const Arrays& results) const {
    if (results.size() != wanted.size())
      refuse("gives " + std::to_string(wanted.size()) + " gradients, and there are " +
             std::to_string(results.size()) + " results");
    call.check(forward_arrays(given), count_of_inputs(given));
  }
  void operator()(const Arrays& given, const Arrays& results) const {
    const auto from = given.begin() + static_cast<std::ptrdiff_t>(count_of_inputs(given));
    const Arrays cotangents(from, given.end());
    const auto gradients = call.ready->pull(forward_arrays(given), cotangents);
    const size_t arguments = call.arguments.as_array().size();
    const bool one_each = gradients.size() == arguments;
    if (!one_each && gradients.size() != wanted.size())
      refuse("vjp gave " + std::to_string(gradients.size()) + " gradients for " +
             std::to_string(arguments) + " arguments, " + std::to_string(wanted.size()) +
             " of which are arrays of floats: one for each is needed");
    for (size_t i = 0; i < wanted.size(); ++i)
      give(gradients[one_each ? wanted[i] : i], results[i]);
  }

 private:
  size_t count_of_inputs(const Arrays& given) const {
    return below(given.size() + 1, inputs, "a number of inputs");
  }
  // As the forward pass takes them: what it writes has the types of the cotangents.
  Arrays forward_arrays(const Arrays& given) const {
    const size_t count = count_of_inputs(given);
    Arrays arrays(given.begin(), given.begin() + static_cast<std::ptrdiff_t>(count));
    const size_t made = below(given.size() - count + 1, written, "a number of written arrays");
    for (size_t i = 0; i < made; ++i)
      arrays.emplace_back(given[count + i].dtype(), given[count + i].shape());
    call.copy(given, std::span(arrays).subspan(count));
    return arrays;
  }
  void give(const std::optional<Tensor>& gradient, const Tensor& result) const {
    if (!gradient) {
      copy_elements(Tensor(result.dtype(), result.shape()).any(), result.any());
    } else if (gradient->dtype() == result.dtype() && gradient->size() == result.size()) {
      copy_elements(gradient->clone().reshaped(result.shape()).any(), result.any());
    } else
      refuse("vjp gave a gradient of " + std::to_string(gradient->size()) + " " +
             std::string(dtype_name(gradient->dtype())) + " for an array of " +
             std::to_string(result.size()) + " " + std::string(dtype_name(result.dtype())));
  }
};

PreparedCall prepare_registered(const Value& attribute) {
  const RegisteredCall call(attribute);
  const Value* pull = attribute.find("pull");
  if (pull == nullptr)
    return {0,
            [call](const Arrays& inputs, const Arrays& results) {
              Arrays arrays = inputs;
              arrays.insert(arrays.end(), results.begin(), results.end());
              naming(call.op, [&] { call.check(arrays, inputs.size()); });
            },
            [call](const Arrays& inputs, const Arrays& results) {
              naming(call.op, [&] { run_registered(call, inputs, results); });
            },
            {}};
  const RegisteredGradient gradient(call, *pull);
  return {0,
          [gradient](const Arrays& inputs, const Arrays& results) {
            naming(gradient.call.op, [&] { gradient.check(inputs, results); });
          },
          [gradient](const Arrays& inputs, const Arrays& results) {
            naming(gradient.call.op, [&] { gradient(inputs, results); });
          },
          {}};
}

// ---- the attribute ------------------------------------------------------------------------------

PreparedCall prepare(std::string_view text) {
  const Value call = parse_json(text);
  PreparedCall prepared =
      call.find("registered") != nullptr ? prepare_registered(call) : prepare_built_in(call);
  constexpr size_t max_axes = 64;
  prepared.rank = below(max_axes, member(call, "rank"), "a rank of");
  return prepared;
}

struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};

// Threads of XLA stay, so what one of them has read it keeps.
PreparedCall& prepared(std::string_view text) {
  constexpr size_t most = 4096;
  thread_local std::unordered_map<std::string, PreparedCall, TextHash, std::equal_to<>> known;
  if (const auto found = known.find(text); found != known.end()) return found->second;
  if (known.size() >= most) known.clear();
  return known.emplace(std::string(text), prepare(text)).first->second;
}

// ---- the arrays ---------------------------------------------------------------------------------

// An array of a call, and how it goes through the axes of vmap.
struct Batched {
  std::byte* data;
  DType dtype;
  std::span<const int64_t> outer, inner;

  Batched(const CallArray& array, size_t outer_axes)
      : data(static_cast<std::byte*>(array.data)), dtype(array.dtype) {
    if (array.shape.size() < outer_axes) refuse("an array has fewer axes than are mapped over");
    outer = array.shape.first(outer_axes), inner = array.shape.subspan(outer_axes);
  }
  // An axis of 1 of an input serves all of the mapped ones.
  void check(std::span<const int64_t> sizes, bool is_input) const {
    for (size_t d = 0; d < sizes.size(); ++d)
      if (outer[d] != sizes[d] && !(is_input && outer[d] == 1))
        refuse("an array has " + std::to_string(outer[d]) + " elements along mapped axis " +
               std::to_string(d) + ", and the first result has " + std::to_string(sizes[d]));
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

std::vector<Batched> batched(std::span<const CallArray> arrays, size_t outer_axes) {
  std::vector<Batched> out;
  for (const CallArray& array : arrays) out.emplace_back(array, outer_axes);
  return out;
}

Arrays at(const std::vector<Batched>& arrays, std::span<const int64_t> index) {
  Arrays out;
  for (const Batched& array : arrays) out.push_back(array.at(index));
  return out;
}

// Whether there is another index after this one.
bool advance(std::vector<int64_t>& index, std::span<const int64_t> sizes) {
  for (size_t d = index.size(); d-- > 0;) {
    if (++index[d] < sizes[d]) return true;
    index[d] = 0;
  }
  return false;
}

std::vector<int64_t> types_of(const std::vector<Batched>& inputs,
                              const std::vector<Batched>& results) {
  std::vector<int64_t> out{std::ssize(inputs)};
  for (const auto* arrays : {&inputs, &results})
    for (const Batched& array : *arrays) {
      out.insert(out.end(), {static_cast<int64_t>(array.dtype), std::ssize(array.inner)});
      out.insert(out.end(), array.inner.begin(), array.inner.end());
    }
  return out;
}

}  // namespace

void run_custom_call(std::string_view attribute, std::span<const CallArray> arguments,
                     std::span<const CallArray> outputs) {
  PreparedCall& call = prepared(attribute);
  if (outputs.empty()) refuse("a call without results: at least one is needed");
  const size_t axes = outputs[0].shape.size();
  if (axes < call.rank)
    refuse("the first result has " + std::to_string(axes) +
           " axes, and the attribute `call` says " + std::to_string(call.rank));
  const size_t outer_axes = axes - call.rank;
  const std::vector<Batched> inputs = batched(arguments, outer_axes);
  const std::vector<Batched> results = batched(outputs, outer_axes);
  const std::span<const int64_t> sizes = results[0].outer;
  for (const Batched& input : inputs) input.check(sizes, true);
  for (const Batched& result : results) result.check(sizes, false);
  if (std::ranges::find(sizes, 0) != sizes.end()) return;
  std::vector<int64_t> index(outer_axes, 0);
  if (std::vector<int64_t> types = types_of(inputs, results); types != call.checked) {
    call.check(at(inputs, index), at(results, index));
    call.checked = std::move(types);
  }
  do call.run(at(inputs, index), at(results, index));
  while (advance(index, sizes));
}

}  // namespace ejk::python
