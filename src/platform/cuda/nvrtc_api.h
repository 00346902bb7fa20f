// SPDX-License-Identifier: Apache-2.0
// The calls of NVRTC, CUDA's run-time compiler, that this library makes; declared as in
// driver_api.h.
#pragma once

#include <cstddef>

namespace ejk::detail::cuda {

using Program = struct ProgramTag*;

enum class NvrtcStatus : int {
  success = 0,
  out_of_memory = 1,
  invalid_input = 3,
  invalid_program = 4,
  invalid_option = 5,
  compilation = 6,
};

// X(name, parameters): each of them returns an NvrtcStatus.
#define EJK_NVRTC_CALLS(X)                                                                     \
  X(nvrtcVersion, (int* major, int* minor))                                                    \
  X(nvrtcCreateProgram, (Program * program, const char* source, const char* name, int headers, \
                         const char* const* header_texts, const char* const* header_names))    \
  X(nvrtcDestroyProgram, (Program * program))                                                  \
  X(nvrtcCompileProgram, (Program program, int count, const char* const* options))             \
  X(nvrtcGetProgramLogSize, (Program program, size_t * bytes))                                 \
  X(nvrtcGetProgramLog, (Program program, char* log))                                          \
  X(nvrtcGetCUBINSize, (Program program, size_t * bytes))                                      \
  X(nvrtcGetCUBIN, (Program program, char* cubin))

struct NvrtcApi {
#define EJK_CUDA_DECLARE(name, parameters) NvrtcStatus(*name) parameters = nullptr;
  EJK_NVRTC_CALLS(EJK_CUDA_DECLARE)
#undef EJK_CUDA_DECLARE
};

}  // namespace ejk::detail::cuda
