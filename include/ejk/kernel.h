// SPDX-License-Identifier: Apache-2.0
// What a kernel is, and the erased form in which the core sees one call of it.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>

#include <ejk/any_config.h>
#include <ejk/candidates.h>
#include <ejk/detail/export.h>
#include <ejk/invocation.h>
#include <ejk/tuner.h>

namespace EJK_EXPORT ejk {

// A kernel is a plain struct; it derives from nothing and is not registered to be run:
//
//   struct Saxpy {
//     static constexpr std::string_view op_id = "saxpy", version = "1";  // version: default "0"
//     struct Config { int block = 4096; };
//     void run(const Config&, float alpha, std::span<const float> x, std::span<float> y) const;
//   };
//
// `run` decides: keys are made from its parameter types, arguments convert to them. If it is
// overloaded or a template, `using Arguments = ejk::list<...>` names them.
//
// Optional hooks, found by their names:
//   Config heuristic_cfg(const Invocation&) const
//     a good guess without measuring
//   auto candidate_cfgs(const Invocation&) const
//     what to tune over: std::vector<Config> or Space
//   bool is_valid(const Config&, const Invocation&) const
//     whether a config can run this call
//   auto numerics(const Config&[, const Invocation&]) const
//     a number, text, tuple or struct: configs for which it is equal give bitwise equal results, of
//     the call and of its gradients. nullopt, or no such hook: nothing is known, and every config
//     is a class of its own. See Numerics::same in selector.h
//   void reference(args...) const
//     slow and right, as `run` without the config
//   std::optional<Tolerance> tolerance(DType) const
//     how far outputs of that type may be off; nullopt: as usual
//   auto prepare(args...) const
//     turns a caller's arguments into run's, as a tuple
//   auto key(args...) const
//     what counts in the key, as a tuple
//   std::pair<Out, Residuals> fwd_with_residuals(const Config&, args...) const
//   std::tuple<...> vjp(const Config&, const Residuals&, [const Out& y,] const Out& dy, [args...])
//   std::tuple<...> custom_vjp(const Config&, const std::tuple<args...>&, const Out& dy) const
//     a kernel that returns nothing: fwd_with_residuals returns the residuals alone, and dy is like
//     the view in its Out parameter, or a std::tuple of several
//
// run, heuristic_cfg, candidate_cfgs, fwd_with_residuals and vjp may have variants by context
// (shard_map, batch) and platform (cpu, opencl, cuda); the most specific one that exists is used:
//   {method}_{context}_{platform} > {method}_{context} > {method}_{platform} > {method}_gpu
//   > {method}, where {method}_gpu is for OpenCL and CUDA
// A variant of run may take another config than `Config`, a struct of its own. Then its heuristic,
// candidates and gradient are those that speak of that struct; is_valid and numerics may
// be overloaded by it.
//
// A kernel's data members are part of the key, by value.

class AnyKernel;

// A call that can be tuned after it has returned: its kernel and copies of its arguments.
class KeptCall {
 public:
  virtual ~KeptCall() = default;
  virtual size_t bytes() const = 0;  // of the copies
  // Calls work(kernel), with whatever that kernel needs around it.
  virtual void with_kernel(const std::function<void(const AnyKernel&)>& work) const = 0;
};

// One call of a kernel as the selection sees it. Made by the executor; lives for that call.
class AnyKernel {
 public:
  virtual ~AnyKernel() = default;
  // The type that every config of this kernel has on this platform.
  virtual const ConfigType& config_type() const = 0;
  // Empty if the kernel has no such hook. Both pass on what the hook throws.
  virtual std::optional<AnyConfig> heuristic_cfg(const Invocation& inv) const = 0;
  virtual std::shared_ptr<const CandidateSet> candidate_cfgs(const Invocation& inv) const = 0;
  // True if the kernel does not say.
  virtual bool is_valid(const AnyConfig& config, const Invocation& inv) const = 0;
  virtual bool has_is_valid() const { return false; }
  // The class of the config: those of equal classes give bitwise equal results. Null if the kernel
  // does not say. Passes on what the hook throws.
  virtual Value numerics(const AnyConfig& /*config*/, const Invocation& /*inv*/) const {
    return {};
  }
  // Whether Invocation::words tell all calls apart that differ in a shape.
  virtual bool words_tell_shapes() const { return true; }
  // Whether candidate_cfgs has this config. Passes on what the hook throws.
  virtual bool offers(const AnyConfig& config, const Invocation& inv) const {
    const auto offered = candidate_cfgs(inv);
    return offered && offered->find(config.to_value());
  }
  // Private copies of the arguments to try configurations on.
  virtual std::unique_ptr<Trial> trial(const Invocation& inv) const = 0;
  // The arguments without their data, so that similar ones can be made; null: they cannot.
  virtual Value sketch() const { return {}; }
  // Copies that outlive the call. nullptr: there is nothing to tune, it cannot be copied or would
  // refer to what its caller owns (string_view, pointers), or the copies would take more than so
  // many bytes.
  virtual std::unique_ptr<KeptCall> keep(const Invocation& /*inv*/, size_t /*max_bytes*/) const {
    return nullptr;
  }
};

}  // namespace ejk
