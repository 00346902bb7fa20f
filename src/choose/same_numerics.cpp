// SPDX-License-Identifier: Apache-2.0
#include "choose/same_numerics.h"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include <ejk/config.h>
#include <ejk/error.h>

#include "base/format.h"
#include "base/thrown.h"

namespace ejk::detail {

SameNumerics::SameNumerics(const AnyKernel& kernel, const Invocation& inv, AnyConfig named)
    : kernel_(kernel), inv_(inv), class_("no reference") {
  try {
    guess_ = kernel_.heuristic_cfg(inv_);
  } catch (...) {
    thrown_ = base::what_was_thrown();
  }
  try {
    if (named) take_named(named);
    else take_heuristic();
  } catch (...) {
    missing_ = "numerics threw for it: " + base::what_was_thrown();
  }
}

void SameNumerics::take_heuristic() {
  if (guess_) class_ = numerics(*guess_, inv_);
  else
    missing_ =
        thrown_.empty() ? "the kernel has no heuristic_cfg" : "heuristic_cfg threw: " + thrown_;
}

void SameNumerics::take_named(const AnyConfig& named) {
  AnyConfig reference = named;
  std::string misfit;
  const ConfigType& type = kernel_.config_type();
  if (named.type() != &type) reference = {type.from_value(named.to_value(), misfit), &type};
  if (!reference) {
    missing_ = "the named one does not fit " + std::string(type.name) + ": " + misfit;
    return;
  }
  class_ = numerics(reference, inv_);
  thrown_.clear();
  if (!guess_ || problem_with(*guess_)) guess_ = reference;
}

Value SameNumerics::numerics(const AnyConfig& config, const Invocation& inv) const {
  Value stated = kernel_.numerics(config, inv);
  if (!stated.is_null()) return stated;
  return Value::object({{"config", config.to_value()}});
}

std::optional<std::string> SameNumerics::problem_with(const AnyConfig& config) const {
  if (!missing_.empty()) return "cannot be used: " + no_reference();
  try {
    const Value own = numerics(config, inv_);
    if (own == class_) return std::nullopt;
    return fmt::format("has the numerics class {}; the reference has {}", stable_json(own),
                       stable_json(class_));
  } catch (...) {
    return "made numerics throw: " + base::what_was_thrown();
  }
}

std::optional<AnyConfig> SameNumerics::heuristic_cfg(const Invocation&) const {
  if (!thrown_.empty()) throw Error(ErrorKind::invalid_argument, thrown_);
  return guess_;
}

std::shared_ptr<const CandidateSet> SameNumerics::candidate_cfgs(const Invocation& inv) const {
  if (offered_) return offered_;
  auto all = kernel_.candidate_cfgs(inv);
  return all ? offered_ = of_the_class(std::move(all)) : nullptr;
}

namespace {

// The set, or of a large one as many as can be asked in some hundredths of a second.
std::vector<AnyConfig> some_of(const CandidateSet& set) {
  constexpr uint64_t most = 10'000, seed = 1;  // always the same ones
  std::vector<AnyConfig> configs;
  if (set.size() <= most)
    for (uint64_t i = 0; i < set.size(); ++i) configs.push_back(set.config(i));
  else
    for (const uint64_t point : sample_points(set, most, seed))
      configs.push_back(set.config(point));
  return configs;
}

std::string class_text(const AnyKernel& kernel, const AnyConfig& config, const Invocation& inv) {
  try {
    const Value stated = kernel.numerics(config, inv);
    return stated.is_null() ? "no stated class" : "class " + stable_json(stated);
  } catch (...) {
    return "a class that threw: " + base::what_was_thrown();
  }
}

// The most frequent of them.
std::string text_of_classes(const std::map<std::string, size_t>& counts) {
  constexpr size_t max_told = 4;
  std::vector<std::pair<std::string, size_t>> told(counts.begin(), counts.end());
  std::ranges::stable_sort(told, std::greater{}, &std::pair<std::string, size_t>::second);
  std::string text;
  for (size_t i = 0; i < std::min(told.size(), max_told); ++i)
    text += fmt::format("{}{} of {}", i == 0 ? "" : ", ", told[i].second, told[i].first);
  if (told.size() > max_told) text += fmt::format(", and {} other classes", told.size() - max_told);
  return text;
}

}  // namespace

std::shared_ptr<const CandidateSet> SameNumerics::of_the_class(
    std::shared_ptr<const CandidateSet> set) const {
  std::vector<AnyConfig> all = some_of(*set), kept;
  std::map<std::string, size_t> others;
  for (const AnyConfig& config : all)
    if (!problem_with(config)) kept.push_back(config);
    else ++others[class_text(kernel_, config, inv_)];
  excluded_.clear();
  if (kept.size() == set->size()) return set;
  if (!missing_.empty()) excluded_ = no_reference();
  else
    excluded_ = fmt::format(
        "numerics = same excludes {} of {} candidates{}, which are not of class {}: {}",
        all.size() - kept.size(), all.size(),
        all.size() < set->size() ? fmt::format(" that were drawn from {}", set->size()) : "",
        stable_json(class_), text_of_classes(others));
  return candidate_list(std::move(kept));
}

std::string SameNumerics::no_reference() const {
  return "numerics is `same`, and there is no reference config: " + missing_ +
         "; name one in the selector's reference_cfgs";
}

}  // namespace ejk::detail
