// SPDX-License-Identifier: Apache-2.0
// Libraries of C++ kernels for Python: what their calls are decided by, and runs.
#include "bind.h"

#include <ejk/registry.h>

namespace ejk::python {

namespace {

// arguments: (dtype, shape) of an array in a tuple, or a value.
std::unique_ptr<RebuiltCall> described(const std::string& op, nb::list arguments) {
  RecordedCall call;
  call.id.op = op;
  call.arguments = Value::array();
  for (nb::handle argument : arguments) {
    if (!nb::isinstance<nb::tuple>(argument)) {
      call.arguments.push_back(value_of(argument));
      continue;
    }
    const auto [dtype, shape] = nb::cast<std::pair<std::string, std::vector<int64_t>>>(argument);
    call.arguments.push_back(Value::object({{"given", static_cast<int64_t>(call.arrays.size())}}));
    call.arrays.emplace_back(dtype_from_name(dtype), shape);
  }
  return rebuild_call(call);
}

AnyConfig read_config(const RebuiltCall& call, const Value& config) {
  const ConfigType& type = call.kernel().config_type();
  std::string why;
  AnyConfig read(type.from_value(config, why), &type);
  if (!read) throw Error(ErrorKind::parse, "the config does not fit the kernel: " + why);
  return read;
}

const char* role_name(const Arg& arg) {
  if (arg.kind != Arg::Kind::tensor) return "value";
  if (arg.role == Role::input) return "input";
  return arg.role == Role::output ? "output" : "in_out";
}

}  // namespace

void bind_registered(nb::module_& m) {
  m.def("load_kernels",
        [](const std::string& path) { return without_gil([&] { return load_kernels(path); }); });
  m.def("registered_has_gradient", [](const std::string& op) { return has_gradient(op); });
  m.def(
      "registered_roles",
      [](const std::string& op, nb::list arguments) {
        const auto call = described(op, arguments);
        nb::list roles;
        for (const Arg& arg : call->invocation().args) roles.append(role_name(arg));
        return roles;
      },
      in_core(), "Of each argument: 'input', 'output', 'in_out' or 'value'.");
  m.def(
      "registered_heuristic",
      [](const std::string& op, nb::list arguments) -> nb::object {
        const auto call = described(op, arguments);
        const std::optional<AnyConfig> config = call->kernel().heuristic_cfg(call->invocation());
        return config ? object_of(config->to_value()) : nb::none();
      },
      in_core());
  m.def(
      "registered_candidates",
      [](const std::string& op, nb::list arguments) {
        const auto call = described(op, arguments);
        nb::list out;
        if (const auto set = call->kernel().candidate_cfgs(call->invocation()))
          for (uint64_t i = 0; i < set->size(); ++i)
            out.append(object_of(set->config(i).to_value()));
        return out;
      },
      in_core());
  m.def(
      "registered_is_valid",
      [](const std::string& op, nb::handle config, nb::list arguments) {
        const auto call = described(op, arguments);
        return call->kernel().is_valid(read_config(*call, value_of(config)), call->invocation());
      },
      in_core());
  m.def(
      "registered_numerics",
      [](const std::string& op, nb::handle config, nb::list arguments) {
        const auto call = described(op, arguments);
        return object_of(
            call->kernel().numerics(read_config(*call, value_of(config)), call->invocation()));
      },
      in_core());
}

}  // namespace ejk::python
