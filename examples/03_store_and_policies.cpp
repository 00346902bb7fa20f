// SPDX-License-Identifier: Apache-2.0
// Where choices are kept and who may decide: a store of one's own, events, overlays, policies.
#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "kernels.h"

using examples::RmsNorm;

// An executor with memory of its own on that store, which tells where each choice came from.
ejk::Executor make_executor(const std::string& name, const std::string& directory) {
  ejk::SelectorOptions options;
  options.cache = std::make_shared<ejk::ConfigCache>();
  options.policy = ejk::AutotunePolicy{.budget_seconds = 1};
  options.persistent = std::make_shared<ejk::PersistentCache>(directory);
  options.on_event = [name](const ejk::Event& e) {
    std::cout << name << ": " << e.kind << ' ' << e.tier << ' ' << stable_json(e.config) << '\n';
  };
  return ejk::Executor(std::move(options));
}

int main() {
  std::string directory = "/tmp/ejk_example_XXXXXX";
  if (mkdtemp(directory.data()) == nullptr) return 1;
  const auto x = ejk::Tensor::of<float>({64, 1000}), out = ejk::Tensor::of<float>({64, 1000});
  const std::vector<float> weight(1000, 1.f);
  int wrong = 0;
  auto expect = [&](const ejk::Executor& executor, ejk::Origin origin) {
    const auto chosen = executor.choose_config(RmsNorm{}, x, weight, out, 1e-5f);
    if (chosen.origin != origin) ++wrong, std::cout << "not from " << origin_name(origin) << '\n';
    return chosen.config.lanes;
  };

  const ejk::Executor first = make_executor("first", directory);
  {
    const auto no_tuning = ejk::policy_override({.allow_autotune = false});  // this thread only
    expect(first, ejk::Origin::heuristics);
  }
  const int tuned = expect(first, ejk::Origin::autotune);  // allowed again: the guess gives way
  expect(first, ejk::Origin::memory);

  const ejk::Executor second = make_executor("second", directory);  // as another process would
  if (expect(second, ejk::Origin::persistent) != tuned) ++wrong;

  ejk::ConfigCache experiment;  // comes before memory and disk as long as the scope lasts
  const ejk::Invocation call = second.describe(RmsNorm{}, x, weight, out, 1e-5f);
  experiment.put(ejk::device_fingerprint(), call.op(), call.call_key(),
                 RmsNorm::Config{.lanes = 1});
  {
    const auto scope = ejk::overlay_cache(experiment);
    if (expect(second, ejk::Origin::overlay) != 1) ++wrong;
  }
  expect(second, ejk::Origin::memory);
  std::filesystem::remove_all(directory);
  return wrong;
}
