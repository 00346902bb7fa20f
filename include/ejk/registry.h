// SPDX-License-Identifier: Apache-2.0
// Kernels by name, so that recorded calls of them can be made again and tuned.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ejk/detail/bound_kernel.h>
#include <ejk/detail/export.h>
#include <ejk/detail/kernel_traits.h>
#include <ejk/detail/ready_call.h>
#include <ejk/error.h>
#include <ejk/record.h>
#include <ejk/version.h>

// Makes a kernel known by its op: once per kernel type, at namespace scope of a source file,
//   EJK_REGISTER(Saxpy);
// That happens before main() begins, or while load_kernels() loads the library. A kernel need not
// be registered to be run, only to be run from a record, from Python or by `ejk`.
//
// In a static library the linker drops a file that nothing refers to, registration included. In a
// shared library it is all that load_kernels() needs.
#define EJK_REGISTER(...)                                                     \
  namespace {                                                                 \
  [[maybe_unused]] const bool EJK_DETAIL_JOIN(ejk_registered_, __COUNTER__) = \
      ::ejk::detail::register_here<__VA_ARGS__>();                            \
  }                                                                           \
  static_assert(true, "ejk: a semicolon follows")
#define EJK_DETAIL_JOIN(a, b) EJK_DETAIL_JOIN_NOW(a, b)
#define EJK_DETAIL_JOIN_NOW(a, b) a##b

namespace EJK_EXPORT ejk {

// A recorded call made again: the kernel, and arguments like the recorded ones, which it owns. For
// one thread at a time. rebuild_call makes them.
class RebuiltCall {
 public:
  virtual ~RebuiltCall() = default;
  // The call and its kernel, as a chain is asked for a config: chain.tune(c.invocation(),
  // c.kernel()). Both live as long as this object.
  virtual const Invocation& invocation() const = 0;
  virtual const AnyKernel& kernel() const = 0;
  // Runs it on its arrays, which keep what `run` writes. Gives the tensors that `run` returns; a
  // number counts as a tensor of rank 0. Throws what `run` throws. `config` must be of
  // kernel().config_type(); that is not checked.
  virtual std::vector<Tensor> run(const AnyConfig& config) = 0;
};

// What must be known of a kernel to make its calls again. EJK_REGISTER fills it in. The functions
// may be called from several threads, and live as long as the process.
struct KernelType {
  // "name@vVERSION".
  std::string op;
  // The C++ type, for messages. Two types of one op are told apart by it.
  std::string type_name;
  // Throws Error if the record does not fit the kernel.
  std::unique_ptr<RebuiltCall> (*rebuild)(const RecordedCall& call) = nullptr;
  // Throws Error if the config does not fit; what fits of the arguments is seen when it runs.
  // nullptr: calls of it cannot be made ready, as of a kernel that does not run on the CPU.
  std::unique_ptr<ReadyCall> (*ready)(const Value& arguments, const Value& config) = nullptr;
  // Whether it has a gradient on the CPU, for `pull` of a ready call.
  bool has_gradient = false;
  // The type of its configs by Platform; nullptr: the kernel does not run there.
  std::array<const ConfigType*, 3> configs = {};
};

// Makes a kernel known until the process ends. All functions of this header may be called from
// several threads. The same type again changes nothing; two types of one op are a mistake, which
// rebuild_call and ready_call report.
void register_kernel(KernelType type);
// Ops of the kernels known in this process, sorted; and whether one is among them.
std::vector<std::string> registered_kernels();
bool is_registered(const std::string& op);
// The type of that kernel's configs, which lives as long as the process; nullptr if no kernel that
// runs there is known as `op`.
const ConfigType* registered_config(const std::string& op, Platform platform = Platform::cpu);

// Loads a shared library of kernels and registers them; they stay for the process's life. Returns
// their ops. A path without '/' is looked for as dlopen does. Loading runs the library's code in
// this process: load only what you trust. Throws
//   - Error(io) if it cannot be loaded
//   - Error(invalid_argument) if it holds no kernels, or was built with another version of this
//     library or another compiler
std::vector<std::string> load_kernels(const std::string& path);

// The call with the kernel of its op, its arrays on the device it names. A call without a spec,
// written by hand, gets whatever key it gives. Throws Error(invalid_argument) that says why the
// call cannot be made:
//   - no kernel of that op is registered, or two different ones are
//   - the kernel does not run on the call's platform, or the device is not here
//   - an argument cannot be rebuilt, or the arrays do not fit into memory
//   - the kernel is another one now and gives another key
std::unique_ptr<RebuiltCall> rebuild_call(const RecordedCall& call);

// A call of the kernel of this op on the CPU, for arrays that come later: "arguments" are those of
// `run`, values as they are and {"given": i} for array i. Fields that the config does not name keep
// their defaults. Throws Error(invalid_argument) that says why if there is no such kernel, if it
// cannot be made ready (KernelType::ready), or if the config does not fit.
std::unique_ptr<ReadyCall> ready_call(const std::string& op, const Value& arguments,
                                      const Value& config);
// Whether the kernel of this op has a gradient on the CPU, for `pull` of a ready call. Throws
// Error(invalid_argument) as ready_call does if there is no such kernel, or if it cannot be made
// ready.
bool has_gradient(const std::string& op);

namespace detail {

// What a shared library was built with. Must be equal for C++ types to pass between two modules.
inline constexpr std::string_view header_version = EJK_VERSION;
inline constexpr std::string_view compiler_version =
#if defined(__clang__)
    "clang"
#else
    "gcc"
#endif
#if defined(_GLIBCXX_USE_CXX11_ABI)
    " cxx11"
#endif
    ;

// What a shared library of kernels says of itself. The first three members never change.
struct Plugin {
  const char* magic = "ejk kernels";
  const char* version = header_version.data();
  const char* compiler = compiler_version.data();
  size_t kernel_size = sizeof(KernelType);
  std::vector<KernelType> kernels = {};
};
// One per module: hidden, so that each shared library has its own.
#pragma GCC visibility push(hidden)
inline Plugin& this_plugin() {
  static Plugin plugin;
  return plugin;
}
#pragma GCC visibility pop

// The device of a call that was not made on the CPU, for its arrays; nullptr: the CPU. Throws
// Error(invalid_argument) if it is not here.
const Device* home_of_call(const RecordedCall& call);
[[noreturn]] void runs_elsewhere(Platform platform);

template <class P>
class TypedRebuiltCall final : public RebuiltCall {
 public:
  using K = typename P::Kernel;

  explicit TypedRebuiltCall(const RecordedCall& call)
      : data_(call.arrays, home_of_call(call)),
        kernel_(kernel_of(call)),
        params_(rebuilt_params<P>(call.arguments, data_)),
        bound_(kernel_, params_),
        inv_(P::invocation(kernel_, params_, typename P::Indices{})) {
    inv_.context = call.context;
    inv_.batch_axes = call.batch_axes;
    inv_.data = "recorded sketch";
  }
  const Invocation& invocation() const override { return inv_; }
  const AnyKernel& kernel() const override { return bound_; }
  std::vector<Tensor> run(const AnyConfig& config) override {
    return run_for_tensors<P>(kernel_, config.as<typename P::Config>(), params_);
  }

 private:
  static K kernel_of(const RecordedCall& call) {
    if constexpr (std::is_empty_v<K> && std::default_initializable<K>) return K{};
    else if constexpr (MadeOfValues<K> && std::default_initializable<K>) {
      if (call.members.is_null()) return K{};  // a key hook says what counts
      return from_value<K>(call.members);
    } else cannot_rebuild("the kernel itself, whose data members are not plain values");
  }

  RebuiltData data_;
  K kernel_;
  ParamsOf<P> params_;
  BoundKernel<P, ParamsOf<P>> bound_;
  Invocation inv_;
};

template <class K, Context C, Platform On>
inline constexpr bool has_hooks_of_its_own =
    !std::is_same_v<hook_t<K, run_family, C, On>, hook_t<K, run_family, Context::plain, On>> ||
    !std::is_same_v<hook_t<K, candidate_cfgs_family, C, On>,
                    hook_t<K, candidate_cfgs_family, Context::plain, On>> ||
    !std::is_same_v<hook_t<K, heuristic_cfg_family, C, On>,
                    hook_t<K, heuristic_cfg_family, Context::plain, On>>;

template <class K, Context C, Platform On>
std::unique_ptr<RebuiltCall> rebuild_in(const RecordedCall& call) {
  return std::unique_ptr<RebuiltCall>(new TypedRebuiltCall<Plan<K, C, On>>(call));
}
template <class K, Platform On>
std::unique_ptr<RebuiltCall> rebuild_on(const RecordedCall& call) {
  if constexpr (has_hooks_of_its_own<K, Context::batch, On>)
    if (call.context == Context::batch) return rebuild_in<K, Context::batch, On>(call);
  if constexpr (has_hooks_of_its_own<K, Context::shard_map, On>)
    if (call.context == Context::shard_map) return rebuild_in<K, Context::shard_map, On>(call);
  return rebuild_in<K, Context::plain, On>(call);
}

// f(platform) for each that the kernel has a run for.
template <class K, class F>
void for_each_platform(F f) {
  constexpr Platforms with_run = platforms_with_run<K, Context::plain, anywhere>();
  const auto visit = [&]<Platform On>(std::integral_constant<Platform, On> platform) {
    if constexpr (includes(with_run, On))
      if constexpr (Plan<K, Context::plain, On>::sound) f(platform);
  };
  visit(std::integral_constant<Platform, Platform::cpu>{});
  visit(std::integral_constant<Platform, Platform::opencl>{});
  visit(std::integral_constant<Platform, Platform::cuda>{});
}

template <class K>
std::unique_ptr<RebuiltCall> rebuild_kernel(const RecordedCall& call) {
  std::unique_ptr<RebuiltCall> made;
  for_each_platform<K>([&]<Platform On>(std::integral_constant<Platform, On>) {
    if (call.platform == On) made = rebuild_on<K, On>(call);
  });
  if (made == nullptr) runs_elsewhere(call.platform);
  return made;
}

// What is known of the kernel on each platform, for a type that knows the rest.
template <class K>
void add_platforms(KernelType& type) {
  for_each_platform<K>([&]<Platform On>(std::integral_constant<Platform, On>) {
    using P = Plan<K, Context::plain, On>;
    type.configs[static_cast<size_t>(On)] = &ejk::config_type<typename P::Config>();
    if constexpr (On == Platform::cpu) type.has_gradient = has_gradient<P>;
  });
}

template <class K>
KernelType kernel_type() {
  KernelType type{std::string(K::op_id) + "@v" + std::string(version_of<K>()),
                  std::string(type_name<K>()), &rebuild_kernel<K>};
  add_platforms<K>(type);
  for_each_platform<K>([&]<Platform On>(std::integral_constant<Platform, On>) {
    if constexpr (On == Platform::cpu) type.ready = &make_ready<K>;
  });
  return type;
}

template <class K>
bool register_here() {
  this_plugin().kernels.push_back(kernel_type<K>());
  register_kernel(kernel_type<K>());
  return true;
}

}  // namespace detail
}  // namespace ejk

// Asked for by load_kernels; every module has its own.
extern "C" [[gnu::used, gnu::visibility("default")]] inline const ejk::detail::Plugin*
ejk_plugin() {
  return &ejk::detail::this_plugin();
}
