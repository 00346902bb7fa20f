// SPDX-License-Identifier: Apache-2.0
// Trials with arrays on devices.
#include <ejk/detail/device_trial.h>

#include "platform/backend.h"
#include "platform/place.h"

namespace ejk::detail {

void wait_for(const Device* device) {
  if (device != nullptr) backend_of(*device).wait();
}

const Tensor& CpuCopies::add(ArrayRef there) {
  Tensor here = Tensor::around(there.any()).to(cpu_device());
  return pairs_.emplace_back(Pair{std::move(there), std::move(here)}).here;
}

void CpuCopies::put_back() const {
  for (const auto& [there, here] : pairs_)
    if (there.writable) copy_elements(here.any(), there.any());
}

}  // namespace ejk::detail
