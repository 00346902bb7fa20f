// SPDX-License-Identifier: Apache-2.0
// Trials with arrays on devices.
#include <ejk/detail/device_trial.h>

#include "platform/backend.h"
#include "platform/place.h"

namespace ejk::detail {

void wait_for(const Device* device) {
  if (device != nullptr) backend_of(*device).wait();
}

struct CpuCopies::Pair {
  Pair(ArrayRef its, Tensor copy) : there(std::move(its)), here(std::move(copy)) {}
  ArrayRef there;
  Tensor here;
};

const Tensor& CpuCopies::add(ArrayRef there) {
  Tensor here = Tensor::around(there.any()).to(cpu_device());
  pairs_.push_back(std::make_shared<const Pair>(std::move(there), std::move(here)));
  return pairs_.back()->here;
}

void CpuCopies::put_back() const {
  for (const auto& pair : pairs_)
    if (pair->there.writable) copy_elements(pair->here.any(), pair->there.any());
}

}  // namespace ejk::detail
