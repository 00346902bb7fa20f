// SPDX-License-Identifier: Apache-2.0
// What the families of bench/ops_ours.cpp share: a case to be timed, numbers to compute with.
#pragma once

#include <functional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include <ejk/ejk.h>

namespace bench {

// One call that is timed, and what is worth saying about it (its config).
struct Case {
  std::function<void()> run;
  std::string note = {};
};

using Words = std::vector<std::string>;

inline const std::string& word(const Words& words, size_t i) {
  if (i >= words.size()) throw std::runtime_error("too few words");
  return words[i];
}
inline int64_t number(const Words& words, size_t i) { return std::stoll(word(words, i)); }

template <class T>
ejk::Tensor random_tensor(std::vector<int64_t> shape) {
  ejk::Tensor t = ejk::Tensor::of<T>(std::move(shape));
  std::minstd_rand random(1);
  std::uniform_real_distribution<float> uniform(-1, 1);
  for (int64_t i = 0; i < t.size(); ++i) t.data<T>()[i] = static_cast<T>(uniform(random));
  return t;
}

// The config that a column of the table asks for: "heuristic", "tuned" (now, for some seconds), or
// its JSON without blanks.
template <class Kernel, class... Args>
typename Kernel::Config config_for(const std::string& how, const Kernel& kernel, Args&&... args) {
  static ejk::Executor executor;
  if (how == "heuristic") return kernel.heuristic_cfg(executor.describe(kernel, args...));
  if (how.starts_with('{')) return ejk::from_json<typename Kernel::Config>(how);
  if (how != "tuned") throw std::runtime_error("neither heuristic nor tuned nor JSON: " + how);
  // A second entry of the same call finds what the first found.
  return executor.choose_config(kernel, args...).config;
}

}  // namespace bench
