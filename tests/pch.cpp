// SPDX-License-Identifier: Apache-2.0
// Nothing: the headers that tests share are compiled before it (CMakeLists.txt).
