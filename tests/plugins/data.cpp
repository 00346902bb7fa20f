// SPDX-License-Identifier: Apache-2.0
// Has the name of a table of kernels for something that cannot be called.
extern "C" const int ejk_plugin;
const int ejk_plugin = 0;
