// SPDX-License-Identifier: Apache-2.0
// A shared library that has nothing to do with kernels.
extern "C" int nothing() { return 0; }
