// SPDX-License-Identifier: Apache-2.0
// Kernels by op.
#include <ejk/registry.h>

#include <map>
#include <mutex>

#include "base/format.h"
#include "base/thrown.h"
#include "platform/here.h"

namespace ejk {

namespace {

struct Registered {
  KernelType type;
  std::string conflict;  // another type of the same op
};
struct Registry {
  std::mutex mutex;
  std::map<std::string, Registered> kernels;
};
// Kernels are registered before main begins.
Registry& registry() {
  static auto* const all = new Registry;
  return *all;
}

std::string joined(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : ", ") + word;
  return out.empty() ? "none" : out;
}

[[noreturn]] void refuse(const RecordedCall& call, const std::string& why) {
  const std::string which = call.id.key.empty() ? "the call" : "the recorded call " + call.id.key;
  throw Error(ErrorKind::invalid_argument,
              "[" + call.id.op + "] " + which + " cannot be made: " + why);
}

// Why the kernel of an op cannot be called; empty if it can.
std::string obstacle(const Registered& kernel) {
  if (kernel.type.rebuild == nullptr)
    return "no kernel of that op and version is registered here (registered: " +
           joined(registered_kernels()) + ")";
  if (!kernel.conflict.empty())
    return "two kernels are registered for that op, " + kernel.type.type_name + " and " +
           kernel.conflict;
  return {};
}

Registered registered(const std::string& op) {
  const std::lock_guard lock(registry().mutex);
  const auto found = registry().kernels.find(op);
  return found != registry().kernels.end() ? found->second : Registered{};
}

// Throws Error(invalid_argument).
KernelType callable(const std::string& op) {
  const Registered kernel = registered(op);
  std::string why = obstacle(kernel);
  if (why.empty() && kernel.type.ready == nullptr)
    why = kernel.type.configs[0] == nullptr
              ? "its kernel does not run on the CPU"
              : "its kernel is of several types, which only the library's own functions tell apart";
  if (!why.empty())
    throw Error(ErrorKind::invalid_argument, "[" + op + "] cannot be called: " + why);
  return kernel.type;
}

}  // namespace

void detail::wrong_number(size_t given, const std::vector<std::string_view>& needed) {
  std::string types;
  for (const std::string_view type : needed) types.append(types.empty() ? "" : ", ").append(type);
  throw Error(ErrorKind::parse,
              std::to_string(given) + (given == 1 ? " argument is" : " arguments are") +
                  " given and run takes " + std::to_string(needed.size()) + ": " + types);
}

void detail::wrong_argument(size_t place, std::string_view type, const Error& error) {
  throw Error(error.kind(), "argument " + std::to_string(place) + ", a " + std::string(type) +
                                ": " + error.what());
}

void detail::too_few_cotangents(size_t given) {
  throw Error(ErrorKind::invalid_argument,
              fmt::format("vjp takes cotangents of more results than {}", given));
}

void detail::wrong_number_of_cotangents(size_t taken, size_t given) {
  throw Error(
      ErrorKind::invalid_argument,
      fmt::format("vjp takes the cotangents of {} results and the call has {}", taken, given));
}

void detail::no_gradient_as_tensor(std::string_view type) {
  throw Error(
      ErrorKind::invalid_argument,
      fmt::format(
          "vjp returns {}: gradients that are ejk::Tensor, std::vector or numbers are needed",
          type));
}

void detail::append_gradient(std::optional<Tensor> gradient, TensorGradients& to) {
  to.push_back(std::move(gradient));
}

const Device* detail::home_of_call(const RecordedCall& call) {
  if (call.platform == Platform::cpu) return nullptr;
  const Device* device = device_here(call.id.device);
  if (device == nullptr)
    throw Error(ErrorKind::invalid_argument,
                "its device is not here: " + call.id.device + " (`ejk devices` lists what is)");
  return device;
}

void detail::runs_elsewhere(Platform platform) {
  throw Error(ErrorKind::invalid_argument,
              "the kernel has no run for " + std::string(platform_name(platform)));
}

void register_kernel(KernelType type) {
  const std::lock_guard lock(registry().mutex);
  const auto [it, is_new] = registry().kernels.try_emplace(type.op, Registered{type, {}});
  if (!is_new && it->second.type.type_name != type.type_name)
    it->second.conflict = std::move(type.type_name);
}

std::vector<std::string> registered_kernels() {
  const std::lock_guard lock(registry().mutex);
  std::vector<std::string> out;
  for (const auto& [op, kernel] : registry().kernels) out.push_back(op);
  return out;
}

bool is_registered(const std::string& op) {
  const std::lock_guard lock(registry().mutex);
  return registry().kernels.contains(op);
}

const ConfigType* registered_config(const std::string& op, Platform platform) {
  const std::lock_guard lock(registry().mutex);
  const auto found = registry().kernels.find(op);
  if (found == registry().kernels.end()) return nullptr;
  return found->second.type.configs[static_cast<size_t>(platform)];
}

std::unique_ptr<RebuiltCall> rebuild_call(const RecordedCall& call) {
  const Registered kernel = registered(call.id.op);
  if (const std::string why = obstacle(kernel); !why.empty()) refuse(call, why);
  std::unique_ptr<RebuiltCall> made;
  try {
    made = kernel.type.rebuild(call);
  } catch (const std::bad_alloc&) {
    refuse(call, "its arrays do not fit into memory");
  } catch (...) {
    refuse(call, base::what_was_thrown());
  }
  if (call.id.spec.empty()) return made;  // a call that was never recorded
  if (const Invocation& inv = made->invocation(); !inv.is_known_by(call.id.spec))
    refuse(call, "the kernel is another one since it was recorded: its key is made from " +
                     inv.spec() + " and the recorded one from " + call.id.spec);
  return made;
}

std::unique_ptr<ReadyCall> ready_call(const std::string& op, const Value& arguments,
                                      const Value& config) {
  const KernelType type = callable(op);
  try {
    return type.ready(arguments, config);
  } catch (const Error& error) {
    throw Error(ErrorKind::invalid_argument, "[" + op + "] cannot be called: " + error.what());
  }
}

bool has_gradient(const std::string& op) { return callable(op).has_gradient; }

}  // namespace ejk
