// SPDX-License-Identifier: Apache-2.0
// Whether a process only waits.
#pragma once

#include <sys/types.h>

#include <string>

namespace ejk::detail {

// Looks at the threads of a process. One that waits for a processor does not count as still, so a
// busy machine makes no difference.
class Stillness {
 public:
  explicit Stillness(pid_t process);
  // True if all its threads sleep, as at the look before, and none of them ran in between.
  bool look();

 private:
  std::string tasks_;  // folder
  std::string seen_;   // at the last look; "" if one did not sleep
};

}  // namespace ejk::detail
