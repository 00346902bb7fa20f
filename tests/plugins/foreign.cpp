// SPDX-License-Identifier: Apache-2.0
// Hands over what the test asks for in EJK_TEST_TABLE in the place of a table of kernels.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#define ejk_plugin ejk_plugin_of_the_header
#include <ejk/registry.h>
#undef ejk_plugin

extern "C" const void* ejk_plugin() {
  using ejk::detail::Plugin;
  static const char zeroes[sizeof(Plugin)] = {};
  static const char text[] = "This is no table, but a text that goes on for long enough to be one.";
  static const uintptr_t numbers[] = {1, 2, 3, 4, 5, 6, 7};
  static const uintptr_t far = 0xdeadbeef0;
  static const Plugin empty;
  static Plugin other_size, no_version, nameless, no_functions, no_config;
  static const ejk::ConfigType unset{};
  other_size.kernel_size = 8;
  no_version.version = nullptr;
  nameless.kernels = {{}};
  no_functions.kernels.resize(1);
  no_functions.kernels[0].op = "foreign@v1";
  no_config.kernels.resize(1);
  no_config.kernels[0] = {
      "foreign@v2",
      "Foreign",
      [](const ejk::RecordedCall&) { return std::unique_ptr<ejk::RebuiltCall>(); },
      [](const ejk::Value&, const ejk::Value&) { return std::unique_ptr<ejk::ReadyCall>(); },
      false,
      &unset};

  const char* const asked = std::getenv("EJK_TEST_TABLE");
  const std::string_view table = asked == nullptr ? "" : asked;
  if (table == "zeroed") return zeroes;
  if (table == "text") return text;
  if (table == "numbers") return numbers;
  if (table == "nowhere") return reinterpret_cast<const void*>(far);
  if (table == "no version") return &no_version;
  if (table == "other size") return &other_size;
  if (table == "empty") return &empty;
  if (table == "nameless") return &nameless;
  if (table == "no functions") return &no_functions;
  if (table == "no config") return &no_config;
  return nullptr;
}
