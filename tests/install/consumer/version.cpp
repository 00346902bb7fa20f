// SPDX-License-Identifier: Apache-2.0
// Says whether headers and library are of the version that is expected.
#include <cstdio>
#include <string_view>

#include <ejk/device.h>
#include <ejk/version.h>

#if EJK_VERSION_NUMBER < EJK_MAKE_VERSION(0, 1, 0) || \
    EJK_VERSION_NUMBER >= EJK_MAKE_VERSION(99, 0, 0)
#error "the version is not a number to compare with"
#endif

int main(int, char** arguments) {
  const std::string_view expected = arguments[1], linked = ejk::library_version();
  std::printf("expected %s, headers %s, library %.*s; %d cores\n", arguments[1], EJK_VERSION,
              int(linked.size()), linked.data(), ejk::visible_cores());
  return expected == EJK_VERSION && expected == linked ? 0 : 1;
}
