// SPDX-License-Identifier: Apache-2.0
// What the parts of bench/opencl.cpp share: the device, calls on it, and races in turn.
#pragma once

#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <dlfcn.h>

#include <ejk/ejk.h>
#include <ejk/gpu.h>
#include <ejk/ops.h>

#include "../harness.h"

namespace bench {

using ejk::Platform, ejk::Tensor;
using Figures = std::vector<ejk::Value::Member>;
using Work = std::function<void()>;

// What each part gets.
struct Options {
  double seconds = 40;         // for each side's tuning, of all shapes together
  std::filesystem::path work;  // a folder of this run
};

inline const ejk::Device& device() { return ejk::devices(Platform::opencl).at(0); }
inline void wait() { ejk::Queue(device()).wait(); }

inline Tensor random_tensor(std::vector<int64_t> shape) {
  Tensor t = Tensor::of<float>(std::move(shape));
  static std::mt19937 engine(1);
  std::uniform_real_distribution<float> uniform(-1, 1);
  for (int64_t i = 0; i < t.size(); ++i) t.data<float>()[i] = uniform(engine);
  return t;
}
inline Tensor random_there(std::vector<int64_t> shape) {
  return random_tensor(std::move(shape)).to(device());
}

inline ejk::Executor executor(bool tunes, double seconds = 10) {
  ejk::SelectorOptions options;
  options.policy = ejk::AutotunePolicy{.allow_autotune = tunes, .budget_seconds = seconds};
  return ejk::Executor(std::move(options));
}

// Which configs of a kernel.
enum class Of { this_device, all_devices };

// One call on the device, with a config that is given. The arguments are those of the kernel's run,
// arrays as tensors or views.
template <class K, class... A>
class DeviceCall {
 public:
  using Config = typename K::GpuConfig;
  explicit DeviceCall(K kernel, A... arguments)
      : kernel_(std::move(kernel)), arguments_(std::move(arguments)...) {}

  Config chosen_by(const ejk::Executor& executor) const {
    return with_arguments([&](const auto&... a) {
      return executor.template choose_config<Platform::opencl>(kernel_, a...).config;
    });
  }
  Config guess() const { return chosen_by(executor(false)); }
  Config tuned(double seconds) const {
    return with_arguments([&](const auto&... a) {
      return executor(true, seconds).template tune<Platform::opencl>(kernel_, a...).config;
    });
  }
  // Each that can run here is as likely as any other, of what the kernel offers for this device, or
  // for both kinds of devices.
  std::vector<Config> drawn(Of of, uint64_t count) const {
    const ejk::Invocation inv =
        with_arguments([&](const auto&... a) { return executor(false).describe(kernel_, a...); });
    ejk::Invocation other_inv = inv;
    ejk::Device other = *inv.device;
    other.identity["kind"] = ejk::device_kind(other) == "cpu" ? "gpu" : "cpu";
    other_inv.device = &other;
    const auto here = kernel_.candidate_cfgs_gpu(inv),
               there = kernel_.candidate_cfgs_gpu(other_inv);
    const uint64_t size = here.size() + (of == Of::all_devices ? there.size() : 0);
    std::mt19937_64 random(1);
    std::set<uint64_t> seen;
    std::vector<Config> configs;
    while (configs.size() < count && seen.size() < size) {
      const uint64_t point = random() % size;
      if (!seen.insert(point).second) continue;
      const Config config = point < here.size() ? here[point] : there[point - here.size()];
      if (kernel_.is_valid(config, inv)) configs.push_back(config);
    }
    return configs;
  }
  Work run(const Config& config) const {
    return [this, config, guessing = executor(false)] {
      with_arguments([&](const auto&... a) { guessing(kernel_, config, a...); });
      wait();
    };
  }

 private:
  decltype(auto) with_arguments(const auto& use) const { return std::apply(use, arguments_); }

  K kernel_;
  std::tuple<A...> arguments_;
};

// As bench::interleave, but a sample is several runs after a pause and one that is not measured:
// threads of OpenBLAS that wait for its next call keep a core busy for 26 ms, and those of a driver
// sleep meanwhile.
inline std::vector<std::vector<double>> in_turn(const std::vector<Work>& works, size_t rounds) {
  constexpr double sample_seconds = 0.005;
  std::vector<std::vector<double>> samples(works.size());
  for (size_t r = 0; r < rounds; ++r)
    for (size_t i = 0; i < works.size(); ++i) {
      const size_t which = (i + r) % works.size();
      std::this_thread::sleep_for(std::chrono::milliseconds(35));
      works[which]();
      const double start = seconds();
      int runs = 0;
      do works[which](), ++runs;
      while (seconds() - start < sample_seconds);
      samples[which].push_back((seconds() - start) / runs);
    }
  return samples;
}

struct Race {
  double ratio, same;  // the other's time over ours; ours over ours
};
inline Race race(const Work& ours, const Work& other) {
  const auto samples = in_turn({ours, other, ours}, 15);
  const double mine = median(samples[0]);
  return {median(samples[1]) / mine, median(samples[2]) / mine};
}

inline double geomean(const std::vector<double>& values) {
  double sum = 0;
  for (const double v : values) sum += std::log(v);
  return std::exp(sum / static_cast<double>(values.size()));
}

template <class F>
F* symbol(void* library, const char* name) {
  return library == nullptr ? nullptr : reinterpret_cast<F*>(dlsym(library, name));
}

}  // namespace bench
