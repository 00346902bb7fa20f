# SPDX-License-Identifier: Apache-2.0
# Writes the header of one kernel file; ejk_add_kernels calls it when the file has changed.
file(READ ${from} text)
file(WRITE ${to} "// Made of a kernel's source by ejk_add_kernels.
#pragma once
namespace ejk_kernels {
inline constexpr char ${name}[] = R\"ejk_kernel(${text})ejk_kernel\";
}
")
