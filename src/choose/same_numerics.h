// SPDX-License-Identifier: Apache-2.0
// A kernel as calls under Numerics::same see it: with configs of the reference's class only.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include <ejk/kernel.h>

namespace ejk::detail {

// For one call, whose kernel and invocation outlive it. For one thread; problem_with for any.
class SameNumerics final : public AnyKernel {
 public:
  // `named`: the reference in place of the kernel's heuristic, if it is not empty.
  SameNumerics(const AnyKernel& kernel, const Invocation& inv, AnyConfig named);

  // Never null, but of no config if there is no reference.
  const Value& reference_class() const { return class_; }
  // Without the restriction.
  const AnyKernel& kernel() const { return kernel_; }
  // Why it must not be chosen; empty if it may.
  std::optional<std::string> problem_with(const AnyConfig& config) const;
  // Those of the set, or of a sample if it is large.
  std::shared_ptr<const CandidateSet> of_the_class(std::shared_ptr<const CandidateSet> set) const;
  // What was left out of the last set, for people; "": nothing.
  const std::string& excluded() const { return excluded_; }

  const ConfigType& config_type() const override { return kernel_.config_type(); }
  // The kernel's guess if it is of the class, else the reference.
  std::optional<AnyConfig> heuristic_cfg(const Invocation& inv) const override;
  std::shared_ptr<const CandidateSet> candidate_cfgs(const Invocation& inv) const override;
  bool is_valid(const AnyConfig& config, const Invocation& inv) const override {
    return !problem_with(config) && kernel_.is_valid(config, inv);
  }
  bool has_is_valid() const override { return kernel_.has_is_valid(); }
  // Never null: what the kernel says nothing of is a class of its own.
  Value numerics(const AnyConfig& config, const Invocation& inv) const override;
  bool words_tell_shapes() const override { return kernel_.words_tell_shapes(); }
  bool offers(const AnyConfig& config, const Invocation& inv) const override {
    return !problem_with(config) && kernel_.offers(config, inv);
  }
  std::unique_ptr<Trial> trial(const Invocation& inv) const override { return kernel_.trial(inv); }
  Value sketch() const override { return kernel_.sketch(); }
  std::unique_ptr<KeptCall> keep(const Invocation& inv, size_t max_bytes) const override {
    return kernel_.keep(inv, max_bytes);
  }

 private:
  void take_heuristic();
  void take_named(const AnyConfig& named);
  std::string no_reference() const;  // for people

  const AnyKernel& kernel_;
  const Invocation& inv_;
  std::optional<AnyConfig> guess_;  // what heuristic_cfg returns here
  std::string thrown_;              // by the kernel's heuristic_cfg
  std::string missing_;             // why there is no reference; "": there is one
  Value class_;
  mutable std::shared_ptr<const CandidateSet> offered_;  // by the kernel, once it was asked
  mutable std::string excluded_;
};

}  // namespace ejk::detail
