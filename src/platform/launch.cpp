// SPDX-License-Identifier: Apache-2.0
// Launches: warm ones find their kernel in a table of their thread, first ones get it made.
#include <ejk/gpu.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <vector>

#include <ejk/detail/hash.h>

#include "base/format.h"
#include "platform/backend.h"
#include "platform/program_cache.h"

namespace ejk {
namespace detail {
namespace {

// The kernels that a thread has launched, by key. Those of a full table are let go.
class LaunchTable {
 public:
  DeviceKernel* find(std::span<const uint64_t> key) const {
    for (size_t at = place(key); slots_[at].kernel; at = (at + 1) % slots_.size())
      if (std::ranges::equal(slots_[at].key, key)) return slots_[at].kernel.get();
    return nullptr;
  }

  void add(std::span<const uint64_t> key, std::unique_ptr<DeviceKernel> kernel) {
    constexpr size_t most = capacity / 2;
    if (++count_ > most) slots_ = std::vector<Slot>(capacity), count_ = 1;
    size_t at = place(key);
    while (slots_[at].kernel) at = (at + 1) % slots_.size();
    slots_[at] = {{key.begin(), key.end()}, std::move(kernel)};
  }

 private:
  static constexpr size_t capacity = 512;
  struct Slot {
    std::vector<uint64_t> key;
    std::unique_ptr<DeviceKernel> kernel;
  };
  static size_t place(std::span<const uint64_t> key) {
    return hash_words(key.data(), key.size()) % capacity;
  }

  std::vector<Slot> slots_ = std::vector<Slot>(capacity);
  size_t count_ = 0;
};

thread_local LaunchTable launched;

std::string name_of(const Device& device) {
  return fmt::format("{} {}", platform_name(device.platform), device.index);
}

[[noreturn]] void refuse_devices(std::string_view kernel, const Device& first,
                                 const Device& other) {
  throw Error(ErrorKind::invalid_argument,
              fmt::format("[{}] got arrays of {} and of {}; expected all on one device; copy them "
                          "with Tensor::to",
                          kernel, name_of(first), name_of(other)));
}

const Device& common_device(std::string_view kernel, std::span<const LaunchArgument> arguments) {
  const Device* common = nullptr;
  for (const LaunchArgument& one : arguments) {
    if (one.device == nullptr) continue;
    if (common != nullptr && one.device != common) refuse_devices(kernel, *common, *one.device);
    common = one.device;
  }
  if (common == nullptr || common->backend == nullptr)
    throw Error(ErrorKind::invalid_argument,
                fmt::format("[{}] got an array in the host's memory; expected one of a device; "
                            "copy it with Tensor::to",
                            kernel));
  return *common;
}

// False if there is nothing to run.
bool has_groups(std::string_view kernel, const Grid& grid) {
  const auto& [groups, items] = grid;
  if (std::min({groups.x, groups.y, groups.z}) < 0 || std::min({items.x, items.y, items.z}) < 1)
    throw DeviceError(
        DeviceError::Kind::invalid_launch,
        fmt::format("[{}] got {} x {} x {} groups of {} x {} x {} items; expected groups from 0 "
                    "and items from 1",
                    kernel, groups.x, groups.y, groups.z, items.x, items.y, items.z));
  return groups.x > 0 && groups.y > 0 && groups.z > 0;
}

// The line is given so that compilers name the user's own.
std::string program_text(const Backend& backend, const LaunchText& text, std::string_view name) {
  const auto texts = std::span(text.source.texts).first(text.source.count);
  return fmt::format("{}\n{}{}\n#line 1 \"{}\"\n{}\n", backend.dialect(), text.macros(text.config),
                     fmt::join(texts.first(texts.size() - 1), "\n"), name, texts.back());
}

std::atomic<bool> launches_only_compile{false};

void launch_first(Backend& backend, const LaunchText& text, std::span<const uint64_t> key,
                  const Grid& grid, std::span<const LaunchArgument> arguments) {
  const std::string kernel(text.kernel),
      name(text.source.name.empty() ? text.kernel : text.source.name);
  const auto program = backend.programs().get(name, program_text(backend, text, name));
  auto made = program->program->kernel(kernel);
  const bool grows = backend.binary_grows();
  if (!grows)
    backend.programs().keep(*program, kernel);  // what ends the process need not be built again
  if (launches_only_compile) {
    if (!grows) return;
    backend.launch(*made, {.items = grid.items}, arguments);  // the compiler wants to see a group
    return backend.programs().keep(*program, kernel);
  }
  backend.launch(*made, grid, arguments);
  if (grows) backend.programs().keep(*program, kernel);
  launched.add(key, std::move(made));
}

}  // namespace

void only_compile_launches() { launches_only_compile = true; }

void launch(const LaunchText& text, std::span<uint64_t> key, const Grid& grid,
            std::span<const LaunchArgument> arguments) {
  Backend& backend = *common_device(text.kernel, arguments).backend;
  if (!has_groups(text.kernel, grid)) return;
  key[0] = backend.id();
  if (DeviceKernel* known = launched.find(key)) backend.launch(*known, grid, arguments);
  else launch_first(backend, text, key, grid, arguments);
}

}  // namespace detail

// ---- queues -------------------------------------------------------------------------------------

namespace {

void* handle_of(const Device& device, Platform platform) {
  if (device.platform != platform)
    throw Error(ErrorKind::invalid_argument,
                fmt::format("[queue] got a device of {}; expected one of {}",
                            platform_name(device.platform), platform_name(platform)));
  return device.backend->queue();
}

}  // namespace

Queue::Queue(const Device& device) : device_(&device) {
  if (device.backend == nullptr)
    throw Error(ErrorKind::invalid_argument,
                fmt::format("[queue] got {} {}; expected a device with memory of its own",
                            platform_name(device.platform), device.index));
}
void Queue::wait() const { device_->backend->wait(); }
void* Queue::cl() const { return handle_of(*device_, Platform::opencl); }
void* Queue::cuda() const { return handle_of(*device_, Platform::cuda); }

}  // namespace ejk
