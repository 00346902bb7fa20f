// SPDX-License-Identifier: Apache-2.0
// Notes that the process was forked after it had opened devices.
#include "platform/forked.h"

#include <pthread.h>

#include <atomic>

#include <ejk/gpu.h>

#include "base/format.h"

namespace ejk::detail {
namespace {

std::atomic<bool> forked{false};

}  // namespace

void watch_forks() {
  [[maybe_unused]] static const int once =
      ::pthread_atfork(nullptr, nullptr, [] { forked = true; });
}

bool is_forked() noexcept { return forked.load(std::memory_order_relaxed); }

void refuse_forked(Platform platform) {
  if (is_forked()) [[unlikely]]
    throw DeviceError(
        DeviceError::Kind::lost,
        fmt::format("[{}] got a call in a forked process; expected one in the process "
                    "that opened the device; start a new program instead",
                    platform_name(platform)));
}

}  // namespace ejk::detail
