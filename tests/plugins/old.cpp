// SPDX-License-Identifier: Apache-2.0
// Looks like a library of kernels that was built with an older version.
namespace {
struct Plugin {
  const char* magic = "ejk kernels";
  const char* version = "0.0.9";
  const char* compiler = "gcc";
} plugin;
}  // namespace
extern "C" const void* ejk_plugin() { return &plugin; }
