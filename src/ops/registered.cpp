// SPDX-License-Identifier: Apache-2.0
// The built-in operations by name. Most are templates over element types that share an op: a
// recorded call is made again with the first of them that it fits.
#include <memory>
#include <string>
#include <utility>

#include <ejk/error.h>
#include <ejk/ops.h>
#include <ejk/registry.h>

#include "ops/list.h"

namespace ejk::ops {
namespace {

template <class K>
void add_reason(const std::string& reason, std::string& to) {
  to += (to.empty() ? "" : "\n") + std::string(detail::type_name<K>()) + ": " + reason;
}

template <class K>
void try_kernel(const RecordedCall& call, std::unique_ptr<RebuiltCall>& made, std::string& why) {
  if (made != nullptr) return;
  try {
    auto candidate = detail::rebuild_kernel<K>(call);
    if (call.id.spec.empty() || candidate->invocation().is_known_by(call.id.spec))
      made = std::move(candidate);
    else add_reason<K>("it gives another key", why);
  } catch (const Error& error) {
    add_reason<K>(error.what(), why);
  }
}

template <class... K>
std::unique_ptr<RebuiltCall> rebuild_any(const RecordedCall& call) {
  std::unique_ptr<RebuiltCall> made;
  std::string why;
  (try_kernel<K>(call, made, why), ...);
  if (made == nullptr) throw Error(ErrorKind::invalid_argument, why);
  return made;
}

// All types are of one op. Which of several it is only the arrays say, so those are not made ready.
template <class First, class... Rest>
void register_types(KernelTypes<First, Rest...>) {
  KernelType type{std::string(First::op_id) + "@v" + std::string(First::version),
                  std::string(detail::type_name<First>()), &rebuild_any<First, Rest...>};
  if constexpr (sizeof...(Rest) == 0) type.ready = &detail::make_ready<First>;
  detail::add_platforms<First>(type);
  register_kernel(std::move(type));
}

}  // namespace

void register_kernels() {
  BuiltInOps::for_each([]<class Op>() { register_types(typename Op::Kernels{}); });
}

}  // namespace ejk::ops
